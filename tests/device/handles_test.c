/* handles: what is no tensor, stream, graph, key or snapshot is told by name, and the next call works.
 */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"

static cairn_runtime *rt, *other;

/* Refused with that status and those words. */
static void refused(cairn_status got, cairn_status want, const char *words) {
    tap_ok(got == want && strstr(cairn_last_error(rt), words), "%s: %s", words, cairn_last_error(rt));
}
#define REFUSED(call, status, words) refused(call, CAIRN_##status, words)

static cairn_runtime *open_one(void) {
    cairn_config c;
    cairn_runtime *made = NULL;
    char error[512] = "";
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.threads = 1, c.log = CAIRN_LOG_OFF;
    if (cairn_open(&c, &made, error, sizeof error)) tap_note("%s", error);
    return made;
}

static void test_tensors(void) {
    const int64_t shape[2] = {2, 3};
    float values[6] = {1, 2, 3, 4, 5, 6}, read[6];
    cairn_tensor *t = NULL, view;
    int64_t strides[2] = {1, 2};
    REFUSED(cairn_tensor_new(rt, CAIRN_F32, 2, shape, NULL), INVALID_ARGUMENT, "tensor_new: tensor is NULL");
    REFUSED(cairn_tensor_new(rt, (cairn_type)99, 2, shape, &t), INVALID_ARGUMENT, "unknown type 99");
    REFUSED(cairn_tensor_new(rt, CAIRN_F32, -1, shape, &t), INVALID_ARGUMENT, "rank -1");
    REFUSED(cairn_tensor_new(rt, CAIRN_F32, 2, NULL, &t), INVALID_ARGUMENT, "rank 2");
    REFUSED(cairn_tensor_load(rt, NULL, &t), INVALID_ARGUMENT, "path is NULL");
    if (!tap_ok(!cairn_tensor_new(rt, CAIRN_F32, 2, shape, &t), "a tensor")) return;
    REFUSED(cairn_tensor_write(rt, NULL, values, sizeof values), INVALID_ARGUMENT, "tensor is NULL");
    REFUSED(cairn_tensor_write(rt, t, values, 20), INVALID_ARGUMENT, "holds 24 bytes, not 20");
    REFUSED(cairn_tensor_read(rt, t, NULL, sizeof read), INVALID_ARGUMENT, "holds 24 bytes");
    view = *t, view.strides = strides;
    REFUSED(cairn_tensor_write(rt, &view, values, sizeof values), INVALID_ARGUMENT, "must be dense");
    view = *t, view.ndim = 99;
    REFUSED(cairn_tensor_read(rt, &view, read, sizeof read), INVALID_ARGUMENT, "not a valid view");
    REFUSED(cairn_tensor_free(rt, &view), INVALID_ARGUMENT, "a view frees nothing");
    tap_ok(!cairn_tensor_write(rt, t, values, sizeof values) && !cairn_tensor_read(rt, t, read, sizeof read) &&
           !memcmp(values, read, sizeof read) && !cairn_tensor_free(rt, t) && !cairn_tensor_free(rt, NULL),
           "it holds what is written all the same");
}

static void test_others(void) {
    cairn_stream *stream = NULL;
    cairn_graph *graph = NULL;
    cairn_staging *staging = NULL;
    cairn_topk_args args = {.struct_size = 3};
    struct { cairn_topk_args known; int64_t more; } later;
    REFUSED(cairn_staging_new(rt, 0, &staging), INVALID_ARGUMENT, "staging_new: bytes = 0");
    REFUSED(cairn_graph_begin(rt), UNSUPPORTED, "the CPU backend has no graphs");
    REFUSED(cairn_graph_end(rt, &graph), INVALID_ARGUMENT, "no graph is being captured");
    REFUSED(cairn_graph_free(rt, (cairn_graph *)&args), INVALID_ARGUMENT, "not a graph of this runtime");
    tap_ok(!cairn_stream_new(other, &stream), "another runtime's stream");
    REFUSED(cairn_stream_set(rt, stream), INVALID_ARGUMENT, "of another runtime");
    REFUSED(cairn_topk(rt, NULL), INVALID_ARGUMENT, "the arguments are NULL");
    REFUSED(cairn_topk(rt, &args), VERSION_MISMATCH, "struct_size is 3");
    memset(&later, 0, sizeof later);
    later.known.struct_size = sizeof later, later.more = 1;
    REFUSED(cairn_topk(rt, &later.known), VERSION_MISMATCH, "fields that this version does not know");
    tap_ok(!strcmp(cairn_topk_route(rt, 1, 100, 10), "cpu"), "top-k goes by the CPU here");
}

static void test_pages(void) {
    cairn_page_pool *theirs = NULL, *pool_made = NULL;
    cairn_page_tables *t = NULL;
    cairn_page_tables_options o = {.struct_size = sizeof o, .requests = 1, .max_tokens = 64, .page_size = 16};
    cairn_prefix_options p = {.struct_size = sizeof p, .page_size = 16};
    cairn_prefix_cache *c = NULL;
    cairn_prefix_key key = {.struct_size = sizeof key, .count = 16};
    cairn_snapshot_args a = {.struct_size = sizeof a, .token_count = 3};
    int32_t ids[16] = {0}, matched;
    size_t bytes;
    char name[80];
    tap_ok(!cairn_page_pool_new(other, 4, &theirs) && !cairn_page_pool_new(rt, 4, &pool_made), "two pools");
    o.pool = theirs;
    REFUSED(cairn_page_tables_new(rt, &o, &t), INVALID_ARGUMENT, "the pool is another runtime's");
    o.pool = p.pool = pool_made;
    if (!tap_ok(!cairn_page_tables_new(rt, &o, &t) && !cairn_prefix_new(rt, &p, &c), "tables and prefixes")) return;
    REFUSED(cairn_page_tables_adopt(t, 0, ids, 0), INVALID_ARGUMENT, "adopt: 0 tokens");
    REFUSED(cairn_prefix_match(c, &key, ids, &matched, NULL), INVALID_ARGUMENT, "count = 16, ids NULL");
    key.ids = ids;
    REFUSED(cairn_prefix_match(c, &key, ids, NULL, NULL), INVALID_ARGUMENT, "matched is NULL");
    REFUSED(cairn_prefix_insert(c, &key, NULL, NULL), INVALID_ARGUMENT, "pages is NULL");
    REFUSED(cairn_page_tables_save(t, &a, NULL, 0, &bytes), INVALID_ARGUMENT, "token_count = 3");
    memset(name, 'n', sizeof name - 1), name[sizeof name - 1] = '\0';
    a.token_count = 0, a.name = name;
    REFUSED(cairn_page_tables_save(t, &a, NULL, 0, &bytes), INVALID_ARGUMENT, "the name has 79 bytes");
    key.count = 0;
    tap_ok(!cairn_prefix_match(c, &key, ids, &matched, NULL) && !matched, "nothing matches nothing");
}

int main(void) {
    rt = open_one(), other = open_one();
    if (tap_ok(rt && other, "two runtimes")) test_tensors(), test_others(), test_pages();
    cairn_close(rt);
    cairn_close(other);
    return tap_done();
}
