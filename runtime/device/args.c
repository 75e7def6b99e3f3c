/* args: the argument structs of ops, from callers of older and newer headers. */

static cairn_status args_take(base *b, const char *op, void *ours, size_t our_bytes,
                              const void *theirs) {
    const char *bytes = (const char *)theirs;
    uint32_t their_bytes = 0;
    size_t i, common;
    if (!theirs) return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: the arguments are NULL", op);
    memcpy(&their_bytes, theirs, sizeof their_bytes);
    common = their_bytes < our_bytes ? their_bytes : our_bytes;
    if (their_bytes < sizeof(uint32_t) || their_bytes > 65536)
        return base_fail(b, CAIRN_VERSION_MISMATCH,
                         "%s: struct_size is %u; set it to sizeof the struct", op, their_bytes);
    for (i = our_bytes; i < their_bytes; i++)
        if (bytes[i])
            return base_fail(b, CAIRN_VERSION_MISMATCH,
                             "%s: the arguments use fields that this version does not know", op);
    memset(ours, 0, our_bytes);
    memcpy(ours, theirs, common);
    return CAIRN_OK;
}
