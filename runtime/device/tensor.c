/* tensor: views in DLPack's layout, the tensors that a runtime owns, and .npy files.
 *
 * A view is a plain struct that anyone may fill. An owned tensor is a view in front of its own
 * shape, linked into the runtime's list so that cairn_close frees it. Calls device and os. */

const char *cairn_type_name(cairn_type type) {
    size_t row = (size_t)type;
    return tensor_types[row < BASE_COUNT(tensor_types) ? row : 0].name;
}

size_t cairn_type_bytes(cairn_type type) {
    size_t row = (size_t)type;
    return row < BASE_COUNT(tensor_types) ? tensor_types[row].bits / 8u : 0;
}

cairn_type cairn_type_from_name(const char *name) {
    size_t row;
    for (row = 1; name && row < BASE_COUNT(tensor_types); row++)
        if (strcmp(name, tensor_types[row].name) == 0) return (cairn_type)row;
    return CAIRN_TYPE_NONE;
}

cairn_type cairn_tensor_type(const cairn_tensor *tensor) {
    size_t row;
    if (!tensor || tensor->dtype.lanes != 1) return CAIRN_TYPE_NONE;
    for (row = 1; row < BASE_COUNT(tensor_types); row++)
        if (tensor->dtype.code == tensor_types[row].code &&
            tensor->dtype.bits == tensor_types[row].bits)
            return (cairn_type)row;
    return CAIRN_TYPE_NONE;
}

/* ---- checks of an op's arguments ------------------------------------------------------------- */

static int64_t tensor_elements(const cairn_tensor *t) {
    int64_t n = 1;
    bool empty = false;
    int d;
    for (d = 0; d < t->ndim; d++) {
        if (t->shape[d] < 0) return -1;
        empty = empty || !t->shape[d];
        if (!t->shape[d]) continue;
        /* small ones need no division */
        if ((n | t->shape[d]) >> 29 && n > INT64_MAX / 16 / t->shape[d]) return -1;
        n *= t->shape[d];
    }
    return empty ? 0 : n;
}

static bool tensor_dense(const cairn_tensor *t) {
    int64_t stride = 1;
    int d;
    if (!t->strides || !tensor_elements(t)) return true;
    for (d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] != 1 && t->strides[d] != stride) return false;
        stride *= t->shape[d];
    }
    return true;
}

static int64_t tensor_stride(const cairn_tensor *t, int d) {
    int64_t stride = 1;
    if (t->strides && t->shape[d] > 1 && tensor_elements(t)) return t->strides[d];
    for (d = d + 1; d < t->ndim; d++) stride *= t->shape[d] ? t->shape[d] : 1;
    return stride;
}

/* A tensor without elements may have no data: nothing may be added to NULL, so it gets an address. */
static void *tensor_data(const cairn_tensor *t) {
    static uint64_t nothing[2];
    return t->data ? (void *)((uintptr_t)t->data + (uintptr_t)t->byte_offset) : (void *)nothing;
}

static cairn_status tensor_check_type(base *b, const cairn_tensor *t, const tensor_want *want) {
    cairn_type type = cairn_tensor_type(t);
    char names[64];
    int row;
    if (type != CAIRN_TYPE_NONE && (want->types & TENSOR_BIT(type))) return CAIRN_OK;
    names[0] = '\0'; /* here: the bytes of an initial "" are cleared for every tensor that is right */
    for (row = 1; row < (int)BASE_COUNT(tensor_types); row++)
        if (want->types & TENSOR_BIT(row)) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                     tensor_types[row].name);
        }
    return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: %s has dtype %s; it must be one of: %s",
                     want->op, want->name, type ? cairn_type_name(type) : "unknown", names);
}

static cairn_status tensor_check_extents(base *b, const cairn_tensor *t, const tensor_want *want) {
    int d;
    for (d = 0; want->rank >= 0 && d < t->ndim; d++)
        if (want->shape[d] >= 0 && t->shape[d] != want->shape[d])
            return base_fail(b, CAIRN_INVALID_ARGUMENT,
                             "%s: dimension %d of %s is %lld; %lld is expected", want->op, d,
                             want->name, (long long)t->shape[d], (long long)want->shape[d]);
    for (d = 0; d < t->ndim; d++)
        if (t->shape[d] > TENSOR_EXTENT)
            return base_fail(b, CAIRN_INVALID_ARGUMENT,
                             "%s: dimension %d of %s is %lld; at most %d is allowed", want->op, d,
                             want->name, (long long)t->shape[d], TENSOR_EXTENT);
    return CAIRN_OK;
}

static cairn_status tensor_check_shape(base *b, const cairn_tensor *t, const tensor_want *want,
                                       int64_t *elements) {
    cairn_status status;
    if (t->ndim > 0 && !t->shape)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: the shape of %s is NULL", want->op,
                         want->name);
    if (t->ndim < 0 || t->ndim > CAIRN_MAX_RANK)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: %s has rank %d; 0 to %d is allowed",
                         want->op, want->name, (int)t->ndim, CAIRN_MAX_RANK);
    if (want->rank >= 0 && t->ndim != want->rank)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: %s has rank %d; rank %d is expected",
                         want->op, want->name, (int)t->ndim, want->rank);
    if ((status = tensor_check_extents(b, t, want))) return status;
    if ((*elements = tensor_elements(t)) < 0)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: the shape of %s is negative or too large",
                         want->op, want->name);
    return CAIRN_OK;
}

static cairn_status tensor_check_strides(base *b, const cairn_tensor *t, const tensor_want *want) {
    int64_t extent = 1;
    int d;
    if (!t->strides || tensor_dense(t)) return CAIRN_OK;
    for (d = t->ndim - 1; want->rows_may_stride && d >= 0; d--) {
        int64_t least = d == t->ndim - 1 ? 1 : extent;
        if (t->shape[d] > 1 && (t->strides[d] < least || (d == t->ndim - 1 && t->strides[d] != 1) ||
                                t->strides[d] > INT64_MAX / 16 / t->shape[d]))
            break;
        extent = t->shape[d] > 1 ? t->strides[d] * t->shape[d] : extent;
    }
    if (want->rows_may_stride && d < 0) return CAIRN_OK;
    return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: %s must be dense%s", want->op, want->name,
                     want->rows_may_stride ? " in its last dimension, its rows not overlapping" : "");
}

/* The same of a tensor of so many elements. */
static size_t tensor_span_of(const cairn_tensor *t, int64_t elements) {
    uint64_t last = 0;
    int d;
    if (elements <= 0) return 0;
    if (!t->strides) return (size_t)elements * (t->dtype.bits / 8u);
    for (d = 0; d < t->ndim; d++)
        last += (uint64_t)(t->shape[d] - 1) * (uint64_t)tensor_stride(t, d);
    return (size_t)(last + 1) * (t->dtype.bits / 8u);
}

static size_t tensor_span(const cairn_tensor *t) { return tensor_span_of(t, tensor_elements(t)); }

/* The address of what is not empty: there, in the address space to its end, and aligned. */
static cairn_status tensor_check_address(base *b, const cairn_tensor *t, const tensor_want *want) {
    const size_t element = t->dtype.bits / 8u, span = want->bytes;
    const size_t align = want->align > (int)element ? (size_t)want->align : element;
    const uintptr_t begin = (uintptr_t)tensor_data(t);
    if (!span || (want->unread && !t->data)) return CAIRN_OK;
    if (!t->data || begin < (uintptr_t)t->data || begin + span < begin)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: the data of %s is NULL or ends behind "
                         "the last address", want->op, want->name);
    if (begin % align == 0) return CAIRN_OK;
    return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: the data of %s is not aligned to %d bytes",
                     want->op, want->name, (int)align);
}

static cairn_status tensor_check_at(base *b, int place, const cairn_tensor *t, tensor_want *want) {
    cairn_status status;
    int64_t elements = 0;
    if (!t) {
        if (want->optional) return CAIRN_OK;
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: %s is NULL", want->op, want->name);
    }
    if ((status = tensor_check_type(b, t, want)) ||
        (status = tensor_check_shape(b, t, want, &elements)) ||
        (status = tensor_check_strides(b, t, want)))
        return status;
    want->bytes = tensor_span_of(t, elements);
    if (t->device.type != place)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: %s lies on device %d; %s is expected",
                         want->op, want->name, (int)t->device.type,
                         place == TENSOR_CUDA ? "cuda" : "cpu");
    return tensor_check_address(b, t, want);
}

static int tensor_place(const device *dev) { return dev->cuda ? TENSOR_CUDA : TENSOR_CPU; }

static cairn_status tensor_check(device *dev, const cairn_tensor *t, tensor_want *want) {
    cairn_status status = tensor_check_at(dev->base, tensor_place(dev), t, want);
    if (status || !t || !dev->cuda || t->device.id == dev->ordinal) return status;
    return base_fail(dev->base, CAIRN_INVALID_ARGUMENT,
                     "%s: %s lies on cuda device %d; device %d, the runtime's, is expected",
                     want->op, want->name, (int)t->device.id, (int)dev->ordinal);
}

/* ---- owned tensors --------------------------------------------------------------------------- */

static cairn_status tensor_new(device *dev, tensor_owned **list, cairn_type type, int rank,
                               const int64_t *shape, tensor_owned **out) {
    tensor_owned *t = (tensor_owned *)base_new(dev->base, 1, sizeof *t);
    cairn_status status;
    int64_t elements;
    if (!t) return base_no_memory(dev->base, "a tensor", sizeof *t);
    if (rank) memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    t->view.ndim = rank;
    t->view.shape = t->shape;
    t->view.dtype.code = tensor_types[type].code;
    t->view.dtype.bits = tensor_types[type].bits;
    t->view.dtype.lanes = 1;
    t->view.device.type = dev->cuda ? TENSOR_CUDA : TENSOR_CPU;
    t->view.device.id = dev->cuda ? dev->ordinal : 0;
    elements = tensor_elements(&t->view);
    if (elements < 0) {
        base_delete(dev->base, t, 1, sizeof *t);
        return base_fail(dev->base, CAIRN_INVALID_ARGUMENT,
                         "tensor: the shape is negative or too large");
    }
    t->bytes = (size_t)elements * cairn_type_bytes(type);
    status = device_alloc(dev, t->bytes, "a tensor", &t->view.data);
    if (!status) status = device_zero(dev, t->view.data, t->bytes);
    if (status) {
        device_free(dev, t->view.data, t->bytes);
        base_delete(dev->base, t, 1, sizeof *t);
        return status;
    }
    t->next = *list;
    t->link = list;
    if (*list) (*list)->link = &t->next;
    *list = t;
    *out = t;
    return CAIRN_OK;
}

static void tensor_free(device *dev, tensor_owned *t) {
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    device_free(dev, t->view.data, t->bytes);
    base_delete(dev->base, t, 1, sizeof *t);
}

static tensor_owned *tensor_find(tensor_owned *list, const cairn_tensor *view) {
    while (list && &list->view != view) list = list->next;
    return list;
}

/* Whether dtype and shape make sense, whatever lies behind them. */
static bool tensor_is_view(const cairn_tensor *t) {
    return t && cairn_tensor_type(t) != CAIRN_TYPE_NONE && t->ndim >= 0 &&
           t->ndim <= CAIRN_MAX_RANK && (!t->ndim || t->shape) && tensor_elements(t) >= 0;
}

/* A dense tensor of `bytes` that this device's runtime can copy: in its memory, or the host's. */
static cairn_status tensor_check_copy(device *dev, const char *op, const cairn_tensor *t,
                                      const void *host, size_t bytes) {
    base *b = dev->base;
    tensor_want want;
    size_t there;
    if (!tensor_is_view(t))
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: tensor is NULL or not a valid view", op);
    if (!tensor_dense(t))
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: tensor must be dense", op);
    there = (size_t)tensor_elements(t) * cairn_type_bytes(cairn_tensor_type(t));
    if (bytes != there || (bytes && !host))
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: the tensor holds %llu bytes, not %llu", op,
                         (unsigned long long)there, (unsigned long long)bytes);
    memset(&want, 0, sizeof want);
    want.op = op, want.name = "tensor", want.bytes = there;
    if (t->device.type != TENSOR_CPU && (!dev->cuda || t->device.type != TENSOR_CUDA ||
                                         t->device.id != dev->ordinal))
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "%s: tensor lies on device %d, %d; the runtime's, or host memory, is "
                         "expected", op, (int)t->device.type, (int)t->device.id);
    return tensor_check_address(b, t, &want);
}
