/* npc: a game loop at 60 Hz in a terminal, in which two characters who share a system prompt speak at
 * once. No frame waits for the model: each gives it 4 ms and takes what text there is. Prints what the
 * characters say and how long the frames took.
 *
 *     cc -O2 -I. scripts/examples/npc.c -o npc -llua5.4 -lm -ldl -lpthread
 *     ./npc model.gguf [SECONDS at most] */
#define CAIRN_IMPLEMENTATION
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHARACTERS = 2, BUDGET_US = 4000, FRAME_US = 16667, MOST_FRAMES = 60 * 600 };

typedef struct character {
    const char *name, *question;
    cairn_session *session;
    char said[8192];
    size_t bytes;
    bool speaks;
} character;

static character cast[CHARACTERS] = {
    {"guard", "Who goes there? Tell me in one sentence what you guard.", NULL, "", 0, false},
    {"smith", "What are you forging today? Answer in one sentence.", NULL, "", 0, false}};
static int32_t frame_us[MOST_FRAMES];

static int64_t now_us(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* What is left of the frame belongs to the rest of the machine. */
static void sleep_until(int64_t until) {
    int64_t left = until - now_us();
    struct timespec wait = {0, 0};
    if (left <= 0) return;
    wait.tv_nsec = (long)(left < 999999 ? left : 999999) * 1000;
    nanosleep(&wait, NULL);
}

/* Reads the system prompt once, before the game begins; the characters fork from it. */
static cairn_status raise_curtain(cairn_model *model) {
    const cairn_message system = {"system", "You are a character in a small medieval town. Answer "
                                            "briefly and stay in your role."};
    cairn_session *stem;
    cairn_status status = cairn_session_open(model, &stem);
    if (status) return status;
    status = cairn_append_chat(stem, &system, 1, false);
    for (int i = 0; i < CHARACTERS && !status; i++)
        status = cairn_session_fork(stem, &cast[i].session);
    cairn_session_close(stem);
    return status;
}

/* The player asks: the question is queued, and nothing is computed. */
static cairn_status ask(cairn_model *model, character *c) {
    const cairn_message turn = {"user", c->question};
    cairn_generate_options options;
    char text[1024];
    cairn_status status;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.max_tokens = 48;
    status = cairn_chat_format(model, &turn, 1, false, true, text, sizeof text, NULL);
    if (!status) status = cairn_generate_submit(c->session, text, &options);
    c->speaks = !status;
    return status;
}

/* Takes the text that came since the last frame. */
static cairn_status listen(character *c) {
    cairn_piece piece;
    cairn_status status;
    if (!c->speaks) return CAIRN_OK;
    piece.struct_size = sizeof piece;
    status = cairn_generate_poll(c->session, &piece);
    if (status) return status;
    if (c->bytes + piece.bytes < sizeof c->said) {
        memcpy(c->said + c->bytes, piece.text, piece.bytes);
        c->bytes += piece.bytes;
    }
    c->speaks = !piece.stop;
    if (piece.stop) printf("%s: %s\n", c->name, c->said);
    return CAIRN_OK;
}

static cairn_status play(cairn_model *model, int most, int *frames) {
    cairn_status status = raise_curtain(model);
    int32_t pending = 1;
    for (int i = 0; i < CHARACTERS && !status; i++) status = ask(model, &cast[i]);
    for (*frames = 0; *frames < most && pending && !status; (*frames)++) {
        int64_t start = now_us();
        status = cairn_step(model, BUDGET_US, &pending);
        for (int i = 0; i < CHARACTERS && !status; i++) status = listen(&cast[i]);
        frame_us[*frames] = (int32_t)(now_us() - start);
        sleep_until(start + FRAME_US); /* here the game would move and draw */
    }
    return status;
}

static int compare(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void report(int frames) {
    int late = 0;
    qsort(frame_us, (size_t)frames, sizeof *frame_us, compare);
    for (int i = 0; i < frames; i++) late += frame_us[i] > FRAME_US;
    if (frames)
        printf("%d frames; the model took %.2f ms of one in the median, %.2f at p99, %.2f at most; "
               "%d late\n", frames, frame_us[frames / 2] * 1e-3, frame_us[frames * 99 / 100] * 1e-3,
               frame_us[frames - 1] * 1e-3, late);
}

int main(int count, char **arguments) {
    char error[1024];
    cairn_config config;
    cairn_runtime *rt;
    cairn_model *model;
    int frames = 0, most = count > 2 ? 60 * atoi(arguments[2]) : 60 * 60;
    cairn_status status;
    if (count < 2 || most < 0 || most > MOST_FRAMES) {
        fputs("usage: npc MODEL.gguf [SECONDS, up to 600]\n", stderr);
        return 2;
    }
    cairn_config_default(&config);
    config.threads = 1; /* the game has need of the others */
    config.max_seq_len = 1024;
    if (cairn_open(&config, &rt, error, sizeof error)) return fputs(error, stderr), 1;
    status = cairn_load_model(rt, arguments[1], &model);
    if (!status) status = play(model, most, &frames);
    if (status) fprintf(stderr, "%s\n", cairn_last_error(rt));
    else report(frames);
    cairn_close(rt);
    return status ? 1 : 0;
}
