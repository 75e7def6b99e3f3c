/* gemma: a second real model, Gemma 3 270M in Q4_K_M, on the CPU backend and where there is a GPU on it
 * too, against tests/golden/gemma3_270m.json: ids of SentencePiece, mean NLL and greedy ids of
 * transformers (scripts/golden/gemma.py). Its blocks are
 * Q4_K, Q5_0, Q6_K and Q8_0, its vocabulary has 262144 tokens, its windows are of 512. Needs
 * build/model/gemma-3-270m-q4_k_m.gguf, which `./build.sh model gemma3` fetches, or CAIRN_GEMMA=FILE.
 * build: -fno-sanitize=all */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "json.h"
#include "tap.h"
#include "backends.h"

enum { SAID = 40, MOST = 1024 };

static json_value *golden;

/* Returns how many ids there are. */
static int ids_of(const char *name, int32_t *ids) {
    int count = 0;
    for (const json_value *v = json_get(golden, name)->first; v; v = v->next)
        ids[count++] = (int32_t)v->number;
    return count;
}

/* A runtime on that backend with the model; NULL: no such backend here, or a failure that is told. */
static cairn_runtime *open_gemma(const char *path, cairn_backend backend, cairn_drafter drafts,
                                 cairn_model **model) {
    cairn_config config;
    cairn_runtime *rt;
    cairn_config_default(&config);
    config.backend = backend;
    config.max_batch = 2;
    config.max_seq_len = MOST;
    config.drafter = drafts;
    if ((rt = open_runtime_on(&config, path)) != NULL)
        tap_ok(!cairn_load_model(rt, path, model) && !cairn_model_wait(*model), "%s: %s", path,
               cairn_last_error(rt));
    return rt;
}

/* "text" gives "ids", and so on; the golden ids begin with bos, which a session adds itself. */
static void test_ids(cairn_model *m, const char *text_name, const char *ids_name) {
    const json_value *text = json_get(golden, text_name);
    int32_t want[MOST], ids[MOST];
    int count = ids_of(ids_name, want), got = 0;
    cairn_status status = cairn_tokenize(m, text->text, text->size, ids, MOST, &got);
    for (int i = 0; !status && i < got && i < count - 1; i++)
        if (ids[i] != want[i + 1]) {
            tap_note("id %d: %d, %d is wanted", i, (int)ids[i], (int)want[i + 1]);
            break;
        }
    tap_ok(!status && got == count - 1 && !memcmp(ids, want + 1, (size_t)got * sizeof *ids),
           "%s: %d ids of SentencePiece, %d", text_name, count - 1, got);
}

static void test_nll(cairn_model *m) {
    int32_t ids[MOST];
    cairn_eval_args args;
    double nll = 0, want = json_get(golden, "nll")->number;
    cairn_status status;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args, args.ids = ids, args.count = ids_of("ids", ids);
    status = cairn_eval(m, &args, &nll);
    tap_ok(!status && fabs(nll - want) < 0.005 * want,
           "mean nll %.5f, transformers %.5f", nll, want);
}

/* What a new session says; begins with the prompt. Returns the count. */
static int say(cairn_model *m, int cut, int32_t *out) {
    cairn_session *s = NULL;
    cairn_generate_options o;
    cairn_sampling greedy = m->runtime->config.sampling;
    const int32_t *ids;
    int count = 0;
    memset(&o, 0, sizeof o);
    greedy.temperature = 0.0f;
    o.struct_size = sizeof o, o.max_tokens = cut ? cut : SAID, o.sampling = &greedy;
    if (cairn_session_open(m, &s) ||
        cairn_generate_with(s, json_get(golden, "prompt")->text, &o, NULL, NULL))
        tap_note("%s", cairn_last_error(m->runtime));
    o.max_tokens = SAID - cut;
    if (cut && s && cairn_generate_with(s, NULL, &o, NULL, NULL))
        tap_note("%s", cairn_last_error(m->runtime));
    if (s && (ids = cairn_session_ids(s, &count)) != NULL)
        memcpy(out, ids, (size_t)count * sizeof *ids);
    cairn_session_close(s);
    return count;
}

/* plain: keeps the ids that decoding in other ways on the same backend is held to. */
static void test_text(cairn_model *m, bool plain, const char *how) {
    static int32_t first[MOST];
    static int first_count;
    int32_t want[MOST], said[MOST];
    int prompt = ids_of("prompt_ids", want), same = prompt, count = say(m, 0, said);
    int sure = (int)json_get(golden, "sure")->number;
    ids_of("greedy", want + prompt);
    while (same < count && said[same] == want[same]) same++;
    tap_ok(count == prompt + SAID && !memcmp(said, want, (size_t)prompt * sizeof *said) &&
               same - prompt >= sure,
           "%s: %d greedy ids as transformers', %d are sure", how, same - prompt, sure);
    if (plain) memcpy(first, said, sizeof said), first_count = count;
    tap_ok(count == first_count && !memcmp(said, first, (size_t)count * sizeof *said),
           "%s: the ids of plain decoding", how);
    count = say(m, 7, said);
    tap_ok(count == first_count && !memcmp(said, first, (size_t)count * sizeof *said),
           "%s: and in two parts", how);
}

static void test_backend(const char *path, cairn_backend backend) {
    cairn_model *model = NULL;
    cairn_runtime *rt = open_gemma(path, backend, CAIRN_DRAFTER_NONE, &model);
    if (!rt) return;
    test_ids(model, "text", "ids");
    test_ids(model, "prompt", "prompt_ids");
    test_nll(model);
    test_text(model, true, "plain");
    cairn_close(rt);
    if ((rt = open_gemma(path, backend, CAIRN_DRAFTER_NGRAM, &model)) == NULL) return;
    test_text(model, false, "with drafts");
    cairn_close(rt);
}

int main(void) {
    const char *path = getenv("CAIRN_GEMMA");
    FILE *file;
    if (!path || !*path) path = "build/model/gemma-3-270m-q4_k_m.gguf";
    if ((file = fopen(path, "rb")) == NULL) {
        tap_skip("%s is not there; ./build.sh model gemma3 fetches it", path);
        return tap_done();
    }
    fclose(file);
    golden = json_read("tests/golden/gemma3_270m.json");
    test_backend(path, CAIRN_BACKEND_CPU);
    test_backend(path, CAIRN_BACKEND_CUDA);
    json_free(golden);
    return tap_done();
}
