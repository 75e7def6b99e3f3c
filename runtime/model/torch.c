/* torch: the list of the tensors in a state dict that PyTorch has saved: a zip file, its entries
 * stored as they are, of which NAME/data.pkl says what there is and NAME/data/KEY hold the numbers.
 *
 * The pickle is read by a machine that knows a dict of tensors and nothing else: it calls nothing,
 * and any opcode or global besides those that such a file needs is refused by name. Of the values
 * it keeps what a tensor is made of. */

enum { TORCH_MOST_PICKLE = 16 << 20, TORCH_MOST_ENTRIES = 1 << 20, TORCH_DIMS = 4 };

/* ---- zip ------------------------------------------------------------------------------------- */

typedef struct torch_entry { const char *name; size_t name_bytes; uint64_t at, bytes; } torch_entry;

typedef enum torch_kind {
    TORCH_OTHER, TORCH_MARK, TORCH_INT, TORCH_TEXT, TORCH_TUPLE, TORCH_DICT, TORCH_GLOBAL,
    TORCH_STORAGE, TORCH_TENSOR
} torch_kind;

typedef struct torch_value {
    torch_kind kind;
    uint32_t first, count; /* TEXT: bytes of the pickle; TUPLE: of reader.items; DICT: its number;
                            * GLOBAL: which; STORAGE, TENSOR: the entry, and the type's global */
    int64_t number;        /* INT; TENSOR: where its numbers begin in the entry, in bytes */
    int type, ndim;        /* STORAGE, TENSOR: block type, dimensions */
    int64_t shape[TORCH_DIMS];
} torch_value;

typedef struct torch_reader {
    base *b;
    shards *s;
    int file;
    const char *path;
    base_text directory, pickle;     /* bytes of the file */
    torch_entry *entries;            /* [count], in the order of their names */
    size_t count, room;
    base_text stack, items, memo;    /* of torch_value */
    size_t at;                       /* in the pickle */
    uint32_t dicts;                  /* so many were made */
    uint32_t holder;                 /* the one that has the tensors; 0: none has */
    cairn_status status;             /* the first fault */
} torch_reader;

static cairn_status torch_fault(torch_reader *r, cairn_status status, const char *why) {
    if (r->status) return r->status;
    return r->status = base_fail(r->b, status, "%s: %s", r->path, why);
}

/* Reads bytes of the file to the text, which they fill. */
static bool torch_read(torch_reader *r, uint64_t at, uint64_t bytes, base_text *to) {
    const uint64_t size = r->s->files[r->file].size;
    const uint8_t *data;
    to->size = 0;
    if (at > size || bytes > size - at) {
        torch_fault(r, CAIRN_BAD_FILE, "a part of the zip file lies outside of it");
        return false;
    }
    if (!base_text_reserve(r->b, to, (size_t)bytes)) {
        r->status = base_no_memory(r->b, r->path, (size_t)bytes);
        return false;
    }
    data = shards_read(r->s, r->file, at, (size_t)bytes, to->data);
    if (!data) return r->status = os_fail(r->b, -EIO, "read", r->path), false;
    if (data != (const uint8_t *)to->data) memcpy(to->data, data, (size_t)bytes);
    to->size = (size_t)bytes;
    return true;
}

/* Where the directory lies and how many entries it has: by the record at the file's end. */
static bool torch_find_directory(torch_reader *r, base_text *tail, uint64_t *at, uint64_t *bytes,
                                 uint64_t *count) {
    const uint64_t size = r->s->files[r->file].size, most = size < 65557 ? size : 65557;
    size_t end;
    if (!torch_read(r, size - most, most, tail)) return false;
    for (end = tail->size < 22 ? 0 : tail->size - 21; end-- > 0;)
        if (!memcmp(tail->data + end, "PK\5\6", 4)) break;
    if (end == (size_t)-1 || tail->size < 22)
        return torch_fault(r, CAIRN_BAD_FILE, "not a zip file, as PyTorch 1.6 and later write"),
               false;
    *count = base_load(tail->data + end + 10, 2);
    *bytes = base_load(tail->data + end + 12, 4);
    *at = base_load(tail->data + end + 16, 4);
    if (end < 20 || memcmp(tail->data + end - 20, "PK\6\7", 4)) return true;
    if (!torch_read(r, base_load(tail->data + end - 12, 8), 56, tail)) return false;
    if (memcmp(tail->data, "PK\6\6", 4))
        return torch_fault(r, CAIRN_BAD_FILE, "a broken record of a large zip file"), false;
    *count = base_load(tail->data + 32, 8);
    *bytes = base_load(tail->data + 40, 8);
    *at = base_load(tail->data + 48, 8);
    return true;
}

/* Puts numbers that did not fit from the extra field of large files. */
static void torch_widen(const char *extra, size_t bytes, uint64_t *numbers) {
    for (size_t at = 0; at + 4 <= bytes; at += 4 + (size_t)base_load(extra + at + 2, 2)) {
        size_t next = at + 4, end = next + (size_t)base_load(extra + at + 2, 2);
        if (base_load(extra + at, 2) != 1) continue;
        for (int i = 0; i < 3; i++) {
            if (numbers[i] != 0xffffffffu || next + 8 > end || next + 8 > bytes) continue;
            numbers[i] = base_load(extra + next, 8);
            next += 8;
        }
    }
}

/* The entry whose description begins at *at of the directory; *at goes behind it. */
static bool torch_take_entry(torch_reader *r, size_t *at, torch_entry *out) {
    const char *d = r->directory.data + *at;
    const size_t left = r->directory.size - *at;
    uint64_t numbers[3], name, extra; /* bytes; bytes in the file; where its head lies */
    if (left < 46 || memcmp(d, "PK\1\2", 4))
        return torch_fault(r, CAIRN_BAD_FILE, "the zip file's directory is broken"), false;
    name = base_load(d + 28, 2), extra = base_load(d + 30, 2);
    if (46 + name + extra + base_load(d + 32, 2) > left)
        return torch_fault(r, CAIRN_BAD_FILE, "the zip file's directory is cut short"), false;
    numbers[0] = base_load(d + 24, 4), numbers[1] = base_load(d + 20, 4);
    numbers[2] = base_load(d + 42, 4);
    torch_widen(d + 46 + name, (size_t)extra, numbers);
    if (base_load(d + 10, 2) || (base_load(d + 8, 2) & 1) || numbers[0] != numbers[1])
        return torch_fault(r, CAIRN_BAD_FILE, "an entry of the zip file is compressed or "
                           "encrypted"), false;
    *at += 46 + (size_t)name + (size_t)extra + (size_t)base_load(d + 32, 2);
    out->name = d + 46, out->name_bytes = (size_t)name;
    out->at = numbers[2], out->bytes = numbers[0];
    return true;
}

/* From where an entry's head lies to where its bytes do. */
static bool torch_enter(torch_reader *r, base_text *head, torch_entry *e) {
    const uint64_t size = r->s->files[r->file].size;
    if (!torch_read(r, e->at, 30, head)) return false;
    if (memcmp(head->data, "PK\3\4", 4))
        return torch_fault(r, CAIRN_BAD_FILE, "an entry of the zip file is not where it should be"),
               false;
    e->at += 30 + base_load(head->data + 26, 2) + base_load(head->data + 28, 2);
    if (e->at > size || e->bytes > size - e->at)
        return torch_fault(r, CAIRN_BAD_FILE, "an entry of the zip file reaches past its end"),
               false;
    return true;
}

/* The name behind the first separator: "data.pkl" of "archive/data.pkl". */
static int torch_entry_order(const void *left, const void *right) {
    const torch_entry *a = (const torch_entry *)left, *c = (const torch_entry *)right;
    const size_t shared = a->name_bytes < c->name_bytes ? a->name_bytes : c->name_bytes;
    const int order = memcmp(a->name, c->name, shared);
    return order ? order : (a->name_bytes > c->name_bytes) - (a->name_bytes < c->name_bytes);
}

static bool torch_read_directory(torch_reader *r, base_text *text) {
    uint64_t at, bytes, count;
    size_t next = 0;
    if (!torch_find_directory(r, text, &at, &bytes, &count) ||
        !torch_read(r, at, bytes, &r->directory)) return false;
    if (count > TORCH_MOST_ENTRIES || count > r->directory.size / 46)
        return torch_fault(r, CAIRN_BAD_FILE, "the zip file's directory is cut short"), false;
    r->room = (size_t)count;
    r->entries = (torch_entry *)base_new(r->b, r->room, sizeof *r->entries);
    if (!r->entries) return r->status = base_no_memory(r->b, r->path, r->room), false;
    for (; r->count < r->room; r->count++) {
        torch_entry *e = &r->entries[r->count];
        const char *slash;
        if (!torch_take_entry(r, &next, e) || !torch_enter(r, text, e)) return false;
        slash = (const char *)memchr(e->name, '/', e->name_bytes);
        if (!slash) continue;
        e->name_bytes -= (size_t)(slash + 1 - e->name), e->name = slash + 1;
    }
    qsort(r->entries, r->count, sizeof *r->entries, torch_entry_order);
    return true;
}

/* NULL: there is none of that name. */
static const torch_entry *torch_find(const torch_reader *r, const char *name, size_t bytes) {
    const torch_entry wanted = {name, bytes, 0, 0};
    return r->count ? (const torch_entry *)bsearch(&wanted, r->entries, r->count, sizeof wanted,
                                                   torch_entry_order) : NULL;
}

/* ---- pickle: values -------------------------------------------------------------------------- */

static const struct { const char *name; int type, bytes; } torch_globals[] = {
    {"collections OrderedDict", 0, 0}, {"torch._utils _rebuild_tensor_v2", 0, 0},
    {"torch._utils _rebuild_parameter", 0, 0}, {"torch FloatStorage", BLOCK_F32, 4},
    {"torch HalfStorage", BLOCK_F16, 2}, {"torch BFloat16Storage", BLOCK_BF16, 2},
    {"torch DoubleStorage", 28, 8}, {"torch LongStorage", 27, 8}, {"torch IntStorage", 26, 4}};

static torch_value *torch_values(const base_text *text) {
    return (torch_value *)(void *)text->data;
}

static size_t torch_count(const base_text *text) { return text->size / sizeof(torch_value); }

static void torch_add(torch_reader *r, base_text *to, const torch_value *v) {
    if (!r->status && !base_text_add(r->b, to, v, sizeof *v))
        r->status = base_no_memory(r->b, r->path, sizeof *v);
}

static torch_value torch_make(torch_kind kind, uint32_t first, uint32_t count, int64_t number) {
    torch_value v;
    memset(&v, 0, sizeof v);
    v.kind = kind, v.first = first, v.count = count, v.number = number;
    return v;
}

static void torch_push(torch_reader *r, torch_kind kind, uint32_t first, uint32_t count,
                       int64_t number) {
    const torch_value v = torch_make(kind, first, count, number);
    torch_add(r, &r->stack, &v);
}

static torch_value torch_pop(torch_reader *r) {
    const size_t count = torch_count(&r->stack);
    if (!count) {
        torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a value is missing");
        return torch_make(TORCH_OTHER, 0, 0, 0);
    }
    r->stack.size -= sizeof(torch_value);
    return torch_values(&r->stack)[count - 1];
}

/* The values above the last mark, which goes: their first in the stack, which keeps them. */
static size_t torch_above_mark(torch_reader *r) {
    size_t at = torch_count(&r->stack);
    while (at > 0 && torch_values(&r->stack)[at - 1].kind != TORCH_MARK) at--;
    if (!at) torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a mark is missing");
    return at;
}

/* Makes a tuple of the stack's values from `first` on; `below` more values under them go. */
static void torch_tuple(torch_reader *r, size_t first, size_t below) {
    const size_t count = torch_count(&r->stack);
    const uint32_t to = (uint32_t)torch_count(&r->items);
    if (r->status) return;
    for (size_t i = first; i < count; i++) {
        const torch_value v = torch_values(&r->stack)[i];
        torch_add(r, &r->items, &v);
    }
    r->stack.size = (first - below) * sizeof(torch_value);
    torch_push(r, TORCH_TUPLE, to, (uint32_t)(count - first), 0);
}

/* Item i of a tuple that must be of the kind. */
static torch_value torch_item(torch_reader *r, const torch_value *tuple, uint32_t i,
                              torch_kind kind) {
    torch_value v = torch_make(TORCH_OTHER, 0, 0, 0);
    if (tuple->kind == TORCH_TUPLE && i < tuple->count)
        v = torch_values(&r->items)[tuple->first + i];
    if (v.kind != kind || tuple->kind != TORCH_TUPLE) {
        torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a tensor is not made as PyTorch makes it");
        v.kind = kind;
        v.first = v.count = 0;
    }
    return v;
}

/* ("storage", TYPE, KEY, place, numbers): the entry that has them. */
static void torch_storage(torch_reader *r) {
    const torch_value tuple = torch_pop(r), type = torch_item(r, &tuple, 1, TORCH_GLOBAL);
    const torch_value key = torch_item(r, &tuple, 2, TORCH_TEXT);
    const torch_entry *e = NULL;
    torch_value v = torch_make(TORCH_STORAGE, 0, 0, 0);
    char name[64];
    if (r->status) return;
    snprintf(name, sizeof name, "data/%.*s", (int)(key.count < 32 ? key.count : 32),
             r->pickle.data + key.first);
    e = torch_find(r, name, strlen(name));
    if (!e || !torch_globals[type.first].bytes) {
        torch_fault(r, CAIRN_BAD_FILE, e ? "data.pkl: a storage of no type"
                                         : "data.pkl: a storage is not in the zip file");
        return;
    }
    v.first = (uint32_t)(e - r->entries), v.count = type.first;
    v.type = torch_globals[type.first].type;
    torch_add(r, &r->stack, &v);
}

/* (storage, first number, shape, strides, ..): rows one behind another, all in the storage. */
static void torch_tensor(torch_reader *r, const torch_value *args) {
    torch_value v = torch_item(r, args, 0, TORCH_STORAGE);
    const torch_value first = torch_item(r, args, 1, TORCH_INT);
    const torch_value shape = torch_item(r, args, 2, TORCH_TUPLE);
    const torch_value strides = torch_item(r, args, 3, TORCH_TUPLE);
    uint64_t each, bytes, all;
    bool rows = true;
    if (r->status) return;
    each = bytes = (uint64_t)torch_globals[v.count].bytes, all = r->entries[v.first].bytes;
    if (all < bytes || shape.count > TORCH_DIMS || shape.count != strides.count) {
        torch_fault(r, CAIRN_UNSUPPORTED, "data.pkl: a tensor of more than 4 dimensions, or "
                    "of none in an empty storage");
        return;
    }
    v.ndim = (int)shape.count;
    for (uint32_t i = shape.count; i-- > 0;) {
        const int64_t extent = torch_item(r, &shape, i, TORCH_INT).number;
        const int64_t stride = torch_item(r, &strides, i, TORCH_INT).number;
        if (extent < 1 || bytes > all / (uint64_t)extent) {
            torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a tensor is larger than its storage, or "
                        "empty");
            return;
        }
        rows = rows && (extent == 1 || stride == (int64_t)(bytes / each));
        bytes *= (uint64_t)extent;
        v.shape[i] = extent;
    }
    if (!rows)
        torch_fault(r, CAIRN_UNSUPPORTED, "data.pkl: a tensor whose rows do not follow each other");
    if (first.number < 0 || (uint64_t)first.number > (all - bytes) / each)
        torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a tensor reaches past its storage");
    v.kind = TORCH_TENSOR, v.number = first.number * (int64_t)each;
    torch_add(r, &r->stack, &v);
}

/* What the three globals that are called make of their arguments. */
static void torch_reduce(torch_reader *r) {
    const torch_value args = torch_pop(r), what = torch_pop(r);
    torch_value v;
    if (what.kind != TORCH_GLOBAL || what.first > 2 || args.kind != TORCH_TUPLE) {
        torch_fault(r, CAIRN_BAD_FILE, "data.pkl: something is called that is no function");
    } else if (what.first == 0) {
        torch_push(r, TORCH_DICT, ++r->dicts, 0, 0);
    } else if (what.first == 1) {
        torch_tensor(r, &args);
    } else {
        v = torch_item(r, &args, 0, TORCH_TENSOR);
        torch_add(r, &r->stack, &v);
    }
}

/* A member of a dict; those that are no tensors say nothing. */
static void torch_set(torch_reader *r, const torch_value *dict, const torch_value *key,
                      const torch_value *value) {
    const char *text = r->pickle.data + key->first;
    shards_tensor *t;
    if (r->status || value->kind != TORCH_TENSOR) return;
    if (dict->kind != TORCH_DICT || key->kind != TORCH_TEXT || !key->count ||
        key->count >= SHARDS_NAME_BYTES || memchr(text, 0, key->count)) {
        torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a tensor without a name of 1 to 127 bytes in a "
                    "dict");
        return;
    }
    if (r->holder && r->holder != dict->first)
        torch_fault(r, CAIRN_UNSUPPORTED, "data.pkl: tensors lie in several dicts; a state dict "
                    "has one");
    r->holder = dict->first;
    if (!(t = shards_add(r->b, r->s))) {
        r->status = r->b->status;
        return;
    }
    memcpy(t->name, text, key->count);
    t->type = value->type, t->ndim = value->ndim, t->file = r->file;
    memcpy(t->shape, value->shape, sizeof t->shape);
    t->bytes = (uint64_t)torch_globals[value->count].bytes;
    for (int i = 0; i < t->ndim; i++) t->bytes *= (uint64_t)t->shape[i];
    t->from = r->entries[value->first].at + (uint64_t)value->number;
}

/* Pairs of key and value above the mark, of the dict below it. */
static void torch_set_all(torch_reader *r) {
    const size_t first = torch_above_mark(r), count = torch_count(&r->stack);
    if (r->status) return;
    if (first < 2 || (count - first) % 2) {
        torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a dict has a key without a value");
        return;
    }
    for (size_t i = first; i < count; i += 2) {
        const torch_value *v = torch_values(&r->stack);
        torch_set(r, &v[first - 2], &v[i], &v[i + 1]);
    }
    r->stack.size = (first - 1) * sizeof(torch_value);
}

/* ---- pickle: the machine --------------------------------------------------------------------- */

/* The next bytes of the pickle; their place. */
static size_t torch_take(torch_reader *r, uint64_t bytes) {
    const size_t at = r->at;
    if (!r->status && bytes > r->pickle.size - at)
        torch_fault(r, CAIRN_BAD_FILE, "data.pkl: it is cut short");
    if (!r->status) r->at += (size_t)bytes;
    return at;
}

static uint64_t torch_take_number(torch_reader *r, int bytes) {
    const size_t at = torch_take(r, (uint64_t)bytes);
    return r->status ? 0 : base_load(r->pickle.data + at, bytes);
}

/* A whole number of so many bytes with a sign. */
static void torch_take_int(torch_reader *r, uint64_t bytes) {
    uint64_t value;
    int shift;
    if (bytes > 8) torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a number of more than 8 bytes");
    value = r->status ? 0 : torch_take_number(r, (int)bytes);
    shift = 64 - 8 * (int)(bytes > 8 ? 8 : bytes);
    if (shift && shift < 64 && value >> (63 - shift)) value |= UINT64_MAX << (64 - shift);
    torch_push(r, TORCH_INT, 0, 0, (int64_t)value);
}

/* "module\nname\n". */
static void torch_take_global(torch_reader *r) {
    const char *text = r->pickle.data + r->at, *all = r->pickle.data + r->pickle.size;
    const char *line = (const char *)memchr(text, '\n', (size_t)(all - text)), *end = NULL;
    char name[96];
    if (line) end = (const char *)memchr(line + 1, '\n', (size_t)(all - line) - 1);
    if (!end) {
        torch_fault(r, CAIRN_BAD_FILE, "data.pkl: it is cut short");
        return;
    }
    snprintf(name, sizeof name, "%.*s %.*s", (int)(line - text < 48 ? line - text : 48), text,
             (int)(end - line - 1 < 40 ? end - line - 1 : 40), line + 1);
    r->at += (size_t)(end + 1 - text);
    for (size_t i = 0; i < BASE_COUNT(torch_globals); i++)
        if (!strcmp(name, torch_globals[i].name)) {
            torch_push(r, TORCH_GLOBAL, (uint32_t)i, 0, 0);
            return;
        }
    r->status = base_fail(r->b, CAIRN_BAD_FILE, "%s: data.pkl: it names '%s', which no dict of "
                          "tensors needs; nothing of it is run", r->path, name);
}

static void torch_memo(torch_reader *r, uint64_t slot, bool put) {
    const torch_value none = torch_make(TORCH_OTHER, 0, 0, 0);
    const size_t count = torch_count(&r->stack);
    torch_value v;
    if (r->status) return;
    if (put ? !count || slot > torch_count(&r->memo) : slot >= torch_count(&r->memo)) {
        torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a value is missing");
        return;
    }
    if (put && slot == torch_count(&r->memo)) torch_add(r, &r->memo, &none);
    if (r->status) return;
    v = put ? torch_values(&r->stack)[count - 1] : torch_values(&r->memo)[slot];
    if (put) torch_values(&r->memo)[slot] = v;
    else torch_add(r, &r->stack, &v);
}

/* A tuple of the last `count` values. */
static void torch_short_tuple(torch_reader *r, size_t count) {
    const size_t all = torch_count(&r->stack);
    if (count > all) torch_fault(r, CAIRN_BAD_FILE, "data.pkl: a value is missing");
    else torch_tuple(r, all - count, 0);
}

/* Opcodes that only put a value, or take some. */
static bool torch_step_value(torch_reader *r, int op) {
    uint64_t bytes;
    switch (op) {
        case '(': torch_push(r, TORCH_MARK, 0, 0, 0); return true;
        case 'N': case 0x88: case 0x89: torch_push(r, TORCH_OTHER, 0, 0, 0); return true;
        case 'K': torch_push(r, TORCH_INT, 0, 0, (int64_t)torch_take_number(r, 1)); return true;
        case 'M': torch_push(r, TORCH_INT, 0, 0, (int64_t)torch_take_number(r, 2)); return true;
        case 'J': torch_take_int(r, 4); return true;
        case 0x8a: torch_take_int(r, torch_take_number(r, 1)); return true;
        case 'G': torch_take(r, 8); torch_push(r, TORCH_OTHER, 0, 0, 0); return true;
        case 'X':
            bytes = torch_take_number(r, 4);
            torch_push(r, TORCH_TEXT, (uint32_t)r->at, (uint32_t)bytes, 0);
            torch_take(r, bytes);
            return true;
        case 'q': torch_memo(r, torch_take_number(r, 1), true); return true;
        case 'r': torch_memo(r, torch_take_number(r, 4), true); return true;
        case 'h': torch_memo(r, torch_take_number(r, 1), false); return true;
        case 'j': torch_memo(r, torch_take_number(r, 4), false); return true;
        default: return false;
    }
}

static void torch_step(torch_reader *r, int op) {
    torch_value key, value, dict;
    char why[80];
    size_t first;
    switch (op) {
        case 0x80: torch_take(r, 1); break;
        case 'c': torch_take_global(r); break;
        case '}': torch_push(r, TORCH_DICT, ++r->dicts, 0, 0); break;
        case ')': torch_push(r, TORCH_TUPLE, 0, 0, 0); break;
        case 't':
            first = torch_above_mark(r);
            if (!r->status) torch_tuple(r, first, 1);
            break;
        case 0x85: case 0x86: case 0x87: torch_short_tuple(r, (size_t)(op - 0x84)); break;
        case 'Q': torch_storage(r); break;
        case 'R': torch_reduce(r); break;
        case 's':
            value = torch_pop(r), key = torch_pop(r), dict = torch_pop(r);
            torch_set(r, &dict, &key, &value);
            torch_add(r, &r->stack, &dict);
            break;
        case 'u': torch_set_all(r); break;
        case 'b': torch_pop(r); break; /* what a dict knows besides */
        default:
            if (torch_step_value(r, op)) break;
            snprintf(why, sizeof why, "data.pkl: byte %llu: the opcode 0x%02x, which no dict of "
                     "tensors needs", (unsigned long long)(r->at - 1), (unsigned)op);
            torch_fault(r, CAIRN_BAD_FILE, why);
    }
}

static cairn_status torch_run(torch_reader *r) {
    torch_value last;
    while (!r->status) {
        const size_t at = torch_take(r, 1);
        if (r->status || r->pickle.data[at] == '.') break;
        torch_step(r, (unsigned char)r->pickle.data[at]);
    }
    last = torch_pop(r);
    if (!r->status && (last.kind != TORCH_DICT || last.first != r->holder))
        torch_fault(r, CAIRN_UNSUPPORTED, "data.pkl: no dict of tensors; a state dict is expected");
    return r->status;
}

static cairn_status torch_read_all(torch_reader *r, base_text *text) {
    const torch_entry *e, *order;
    if (!torch_read_directory(r, text)) return r->status;
    order = torch_find(r, "byteorder", 9);
    if (order && (!torch_read(r, order->at, order->bytes, text) || text->size != 6 ||
                  memcmp(text->data, "little", 6)))
        return torch_fault(r, CAIRN_UNSUPPORTED, "its numbers are not little-endian");
    e = torch_find(r, "data.pkl", 8);
    if (!e || e->bytes > TORCH_MOST_PICKLE)
        return torch_fault(r, CAIRN_BAD_FILE, "the zip file has no data.pkl, or a huge one");
    return torch_read(r, e->at, e->bytes, &r->pickle) ? torch_run(r) : r->status;
}

static cairn_status torch_list(base *b, shards *s) {
    torch_reader r;
    base_text text = {NULL, 0, 0};
    cairn_status status;
    memset(&r, 0, sizeof r);
    r.b = b, r.s = s, r.file = s->file_count - 1;
    r.path = s->files[r.file].path.data;
    status = torch_read_all(&r, &text);
    base_delete(b, r.entries, r.room, sizeof *r.entries);
    base_text_free(b, &text);
    base_text_free(b, &r.directory);
    base_text_free(b, &r.pickle);
    base_text_free(b, &r.stack);
    base_text_free(b, &r.items);
    base_text_free(b, &r.memo);
    return status;
}
