/* os: the words for the systems' errors; os_posix.c and os_win32.c fill the table of raw calls,
 * file.c builds on it. */

static const char *os_error_text(int code) {
    static const struct { int code; const char *text; } rows[] = {
        {ENOENT, "no such file or directory"}, {EACCES, "permission denied"},
        {EPERM, "operation not permitted"},    {EEXIST, "it exists already"},
        {ENOTDIR, "not a directory"},          {EISDIR, "it is a directory"},
        {ENOSPC, "no space left on the disk"}, {EROFS, "the file system is read-only"},
        {EIO, "input or output error"},        {EINTR, "interrupted"},
        {EMFILE, "too many open files"},       {ENAMETOOLONG, "the name is too long"},
        {ENOMEM, "memory is short"},           {EINVAL, "invalid argument"},
        {EBUSY, "in use by another program"},  {EFBIG, "the file is too large"},
        {EAGAIN, "resources are short"},       {ENOTEMPTY, "the directory is not empty"},
        {EXDEV, "on another file system"},     {ELOOP, "too many symbolic links"},
        {ENXIO, "it is a device, a pipe or a socket; a file is expected"},
    };
    size_t i;
    if (code < 0) code = -code;
    for (i = 0; i < BASE_COUNT(rows); i++)
        if (rows[i].code == code) return rows[i].text;
    return "the system refused";
}
