/* worker: questions put to a model by a program that never works for it: a thread of the runtime does, at a
 * low priority. Two sessions answer at once; the main loop runs at 60 Hz, takes what text there is, and
 * prints how long that took at most.
 *
 *     cc -O2 -I. scripts/examples/worker.c -o worker -llua5.4 -lm -ldl -lpthread
 *     ./worker model.gguf QUESTION... */
#define CAIRN_IMPLEMENTATION
#include "runtime.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MOST = 8, FRAME_NS = 16666667 };

typedef struct answer { cairn_session *session; char text[8192]; size_t bytes; bool runs; } answer;

static answer answers[MOST];

static cairn_status ask(cairn_model *model, answer *a, const char *question) {
    const cairn_message turn = {"user", question};
    cairn_generate_options options;
    char text[2048];
    cairn_status status = cairn_session_open(model, &a->session);
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.max_tokens = 48;
    if (!status) status = cairn_chat_format(model, &turn, 1, true, true, text, sizeof text, NULL);
    if (!status) status = cairn_generate_submit(a->session, text, &options);
    a->runs = !status;
    return status;
}

/* The text since the last frame; it computes nothing. */
static cairn_status listen(answer *a) {
    cairn_piece piece;
    cairn_status status;
    piece.struct_size = sizeof piece;
    status = cairn_generate_poll(a->session, &piece);
    if (status) return status;
    if (a->bytes + piece.bytes < sizeof a->text) {
        memcpy(a->text + a->bytes, piece.text, piece.bytes);
        a->bytes += piece.bytes;
    }
    a->runs = !piece.stop;
    return CAIRN_OK;
}

static double now_ms(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static cairn_status play(cairn_model *model, char **questions, int count) {
    const struct timespec frame = {0, FRAME_NS};
    double most = 0.0;
    int frames = 0, running = count;
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < count && !status; i++) status = ask(model, &answers[i], questions[i]);
    for (; running && !status; frames++) {
        double start = now_ms(), took;
        running = 0;
        for (int i = 0; i < count && !status; i++) {
            if (answers[i].runs) status = listen(&answers[i]);
            running += answers[i].runs;
        }
        took = now_ms() - start;
        if (took > most) most = took;
        nanosleep(&frame, NULL); /* here the game would move and draw */
    }
    for (int i = 0; i < count && !status; i++) printf("%s\n> %s\n", questions[i], answers[i].text);
    if (!status) printf("%d frames; to listen took %.3f ms at most\n", frames, most);
    return status;
}

int main(int count, char **arguments) {
    char error[1024];
    cairn_config config;
    cairn_runtime *rt;
    cairn_model *model;
    cairn_status status;
    if (count < 3 || count - 2 > MOST) {
        fputs("usage: worker MODEL.gguf QUESTION... (8 at most)\n", stderr);
        return 2;
    }
    cairn_config_default(&config);
    config.worker.enabled = true;
    config.max_seq_len = 1024;
    if (cairn_open(&config, &rt, error, sizeof error)) return fputs(error, stderr), 1;
    status = cairn_load_model(rt, arguments[1], &model);
    if (!status) status = play(model, arguments + 2, count - 2);
    if (status) fprintf(stderr, "%s\n", cairn_last_error(rt));
    cairn_close(rt);
    return status ? 1 : 0;
}
