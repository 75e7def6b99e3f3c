/* The model, on the CPU backend and where there is a GPU on it too, against the reference
 * (tests/golden/model.json, made by tests/ref/llama_ref.py and held against transformers): best
 * next tokens, mean negative log-likelihood dense and sparse, greedy text with and without drafts.
 * Within the whole suite (tests/turns.h) each tree tries a sixth of the pairs of prompt and sparse setting.
 * Needs the model: CAIRN_MODEL=FILE, or the one that ./build.sh demo fetches.
 * build: -fno-sanitize=all */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "json.h"
#include "tap.h"
#include "turns.h"

#define CLEAR_MARGIN 0.1  /* a lead of the best logit below this may be lost to rounding */
#define NLL_TOLERANCE 0.005

static cairn_backend backend = CAIRN_BACKEND_CPU;

typedef struct loaded { cairn_runtime *rt; cairn_model *model; } loaded;

static double number_of(const json_value *object, const char *name) {
    return json_get(object, name)->number;
}

static int32_t *ids_of(const json_value *list) {
    int32_t *ids = (int32_t *)calloc(list->size + 1, sizeof *ids), *at = ids;
    for (const json_value *v = list->first; v; v = v->next) *at++ = (int32_t)v->number;
    return ids;
}

/* setting: an entry of "sparse", or NULL for dense. */
static bool open_model(const char *path, const json_value *setting, int draft_length, loaded *out) {
    char error[1024] = "";
    cairn_config config;
    cairn_config_default(&config);
    config.backend = backend;
    config.max_batch = 1;
    config.max_seq_len = 2048;
    config.draft_length = draft_length;
    if (!draft_length) config.drafter = CAIRN_DRAFTER_NONE;
    if (setting) {
        config.page_size = (int32_t)number_of(setting, "page_size");
        config.topk = (int32_t)number_of(setting, "topk");
        config.selection.window = (int32_t)number_of(setting, "window");
        config.selection.sinks = (int32_t)number_of(setting, "sinks");
        config.selection.source = strcmp(json_get(setting, "source")->text, "mean")
                                      ? CAIRN_SOURCE_MINMAX : CAIRN_SOURCE_MEAN;
        config.selection.strategy = strcmp(json_get(setting, "strategy")->text, "head")
                                        ? CAIRN_STRATEGY_GROUP : CAIRN_STRATEGY_HEAD;
    } else {
        memset(config.selection.layers, 0, sizeof config.selection.layers);
    }
    out->rt = NULL;
    if (cairn_open(&config, &out->rt, error, sizeof error) ||
        cairn_load_model(out->rt, path, &out->model) || cairn_model_wait(out->model))
        return tap_ok(false, "open: %s", out->rt ? cairn_last_error(out->rt) : error);
    return true;
}

/* Positions where the reference's best token leads by CLEAR_MARGIN and ours is another. */
static int count_wrong(const json_value *prompt, const int32_t *top, float *largest,
                       const float *logits) {
    const json_value *ids = json_get(prompt, "top_ids")->first;
    const json_value *values = json_get(prompt, "top_logits")->first;
    int wrong = 0;
    for (; ids; ids = ids->next, values = values->next, top += 2, logits += 2) {
        double best = values->first->number, second = values->first->next->number;
        float error = fabsf(logits[0] - (float)best);
        if (top[0] == (int32_t)ids->first->number && error > *largest) *largest = error;
        wrong += best - second >= CLEAR_MARGIN && top[0] != (int32_t)ids->first->number;
    }
    return wrong;
}

static void test_dense(const loaded *m, const json_value *prompt) {
    const json_value *list = json_get(prompt, "ids");
    int32_t *ids = ids_of(list), *top = (int32_t *)calloc(2 * list->size, sizeof *top);
    float *logits = (float *)calloc(2 * list->size, sizeof *logits), largest = 0;
    cairn_eval_args args = {sizeof args, ids, (int32_t)list->size, 2, top, logits, NULL};
    double nll = 0, want = number_of(prompt, "mean_nll");
    if (cairn_eval(m->model, &args, &nll)) {
        tap_ok(false, "eval: %s", cairn_last_error(m->rt));
    } else {
        int wrong = count_wrong(prompt, top, &largest, logits);
        tap_ok(wrong == 0 && largest < 0.2f, "%s: best next token at %d positions, %d wrong, "
               "largest error of its logit %.4f", json_get(prompt, "name")->text, (int)list->size,
               wrong, (double)largest);
        tap_ok(fabs(nll - want) < NLL_TOLERANCE * want, "%s: dense mean nll %.6f, reference %.6f",
               json_get(prompt, "name")->text, nll, want);
    }
    free(ids);
    free(top);
    free(logits);
}

static void test_sparse(const loaded *m, const json_value *prompt, const json_value *setting) {
    const json_value *list = json_get(prompt, "ids");
    int32_t *ids = ids_of(list);
    cairn_eval_args args = {sizeof args, ids, (int32_t)list->size, 0, NULL, NULL, NULL};
    double nll = 0, want = number_of(setting, "mean_nll");
    if (cairn_eval(m->model, &args, &nll))
        tap_ok(false, "eval: %s", cairn_last_error(m->rt));
    else
        tap_ok(fabs(nll - want) < NLL_TOLERANCE * want, "%s: page %d topk %d window %d sinks %d %s "
               "%s: mean nll %.6f, reference %.6f (dense %.6f)", json_get(prompt, "name")->text,
               (int)number_of(setting, "page_size"), (int)number_of(setting, "topk"),
               (int)number_of(setting, "window"), (int)number_of(setting, "sinks"),
               json_get(setting, "source")->text, json_get(setting, "strategy")->text, nll, want,
               number_of(prompt, "mean_nll"));
    free(ids);
}

/* The same ids up to the first step whose margin is below CLEAR_MARGIN. Sparse text may part
 * earlier by a close call among pages, so only settings whose text is robust have it. */
static void test_greedy(const loaded *m, const json_value *prompt, const json_value *greedy,
                        const char *how) {
    const json_value *want = json_get(greedy, "ids"), *margin = json_get(greedy, "margins")->first;
    const json_value *id = want->first;
    cairn_session *session = NULL;
    int count = 0, prompt_count = (int)json_get(prompt, "ids")->size, same = 0;
    const int32_t *ids;
    if (cairn_session_open(m->model, &session) ||
        cairn_generate(session, json_get(prompt, "text")->text, (int)want->size, NULL, NULL)) {
        tap_ok(false, "generate: %s", cairn_last_error(m->rt));
        return;
    }
    ids = cairn_session_ids(session, &count);
    for (; id && prompt_count + same < count && ids[prompt_count + same] == (int32_t)id->number;
         id = id->next, margin = margin->next)
        same++;
    tap_ok(!id || margin->number < CLEAR_MARGIN, "%s, %s: greedy same for %d of %d tokens, margin "
           "there %.3f", json_get(prompt, "name")->text, how, same, (int)want->size,
           id ? margin->number : 0);
    cairn_session_close(session);
}

/* Each tree has the text of every prompt either plain or with drafts. */
static void test_all_dense(const char *path, const json_value *prompts, int draft_length) {
    int number = 0;
    loaded m;
    if (!open_model(path, NULL, draft_length, &m)) return;
    for (const json_value *p = prompts->first; p; p = p->next, number++) {
        if (!draft_length) test_dense(&m, p);
        if (turn_of(2) >= 0 && (number + turn_of(2)) % 2 == !draft_length) continue;
        test_greedy(&m, p, json_get(p, "greedy"), draft_length ? "with drafts" : "plain");
    }
    cairn_close(m.rt);
}

static const json_value *find(const json_value *object, const char *name) {
    for (const json_value *v = object->first; v; v = v->next)
        if (!strcmp(v->name, name)) return v;
    return NULL;
}

/* The long prompt takes seconds a setting: two in three unless CAIRN_TEST_FULL is set. */
static bool skips_long(int index) {
    return backend == CAIRN_BACKEND_CPU && !os_env("CAIRN_TEST_FULL") && index % 3 == 1;
}

/* Each tree has one of six pairs, and of the longer prompts one setting each. */
static bool has_turn(int prompt, int index) {
    const int turn = turn_of(6);
    return turn < 0 || (2 * prompt + index) % 6 == turn;
}

/* Setting number `index` of every prompt that has as many. */
static bool test_all_sparse(const char *path, const json_value *prompts, int index) {
    bool any = false;
    int number = 0;
    loaded m = {NULL, NULL};
    for (const json_value *p = prompts->first; p; p = p->next, number++) {
        const json_value *setting = json_get(p, "sparse")->first;
        for (int i = 0; i < index && setting; i++) setting = setting->next;
        if (!setting || (!any && !open_model(path, setting, 4, &m))) continue;
        any = true;
        if (!has_turn(number, index) || (json_get(p, "ids")->size > 500 && skips_long(index))) continue;
        test_sparse(&m, p, setting);
        if (find(setting, "greedy")) test_greedy(&m, p, json_get(setting, "greedy"), "sparse");
    }
    cairn_close(m.rt);
    return any;
}

static void test_backend(const char *path, const json_value *prompts) {
    test_all_dense(path, prompts, 0);
    test_all_dense(path, prompts, 4);
    for (int i = 0; test_all_sparse(path, prompts, i); i++) {}
}

static bool have_gpu(void) {
    char error[1024] = "";
    cairn_config config;
    cairn_runtime *rt = NULL;
    cairn_status status;
    cairn_config_default(&config);
    config.backend = CAIRN_BACKEND_CUDA;
    status = cairn_open(&config, &rt, error, sizeof error);
    cairn_close(rt);
    if (status) tap_skip("the model on a GPU: %s", error);
    return !status;
}

int main(void) {
    const char *path = os_env("CAIRN_MODEL");
    FILE *fetched = path ? NULL : fopen("build/model/SmolLM2-135M-Instruct.Q4_1.gguf", "rb");
    json_value *file = json_read("tests/golden/model.json");
    if (fetched) {
        path = "build/model/SmolLM2-135M-Instruct.Q4_1.gguf";
        fclose(fetched);
    }
    if (!tap_ok(file != NULL, "tests/golden/model.json is there")) return tap_done();
    if (!path) {
        tap_skip("the model against the reference: CAIRN_MODEL names no file");
    } else {
        test_backend(path, json_get(file, "prompts"));
        backend = CAIRN_BACKEND_CUDA;
        if (have_gpu()) test_backend(path, json_get(file, "prompts"));
    }
    json_free(file);
    return tap_done();
}
