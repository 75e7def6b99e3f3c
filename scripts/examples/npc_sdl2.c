/* npc_sdl2: the game loop of npc.c in a window. Two characters who share a system prompt walk about
 * and speak at once, above each a bubble with a bar for every word; what they said is printed. Each
 * frame gives the model 4 ms, moves and draws. Space asks again, Escape ends. At the end it prints
 * how long the frames took, and the model's part of them.
 *
 *     cc -O2 -I. scripts/examples/npc_sdl2.c -o npc_sdl2 $(pkg-config --cflags --libs sdl2) \
 *         -llua5.4 -lm -ldl -lpthread
 *     ./npc_sdl2 model.gguf [SECONDS]       with SECONDS it ends once both have spoken, too */
#define CAIRN_IMPLEMENTATION
#include "runtime.h"

#include <SDL.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHARACTERS = 2, BUDGET_US = 4000, FRAME_MS = 16, MOST_FRAMES = 60 * 600 };
enum { WIDE = 640, HIGH = 360 };

typedef struct character {
    const char *name, *question;
    SDL_Color color;
    cairn_session *session;
    char said[8192];
    size_t bytes;
    bool speaks;
} character;

static character cast[CHARACTERS] = {
    {"guard", "Who goes there? Tell me in one sentence what you guard.", {90, 120, 200, 255},
     NULL, "", 0, false},
    {"smith", "What are you forging today? Answer in one sentence.", {200, 110, 60, 255},
     NULL, "", 0, false}};
static int32_t frame_us[MOST_FRAMES], model_us[MOST_FRAMES];

static int64_t now_us(void) {
    const double ticks = (double)SDL_GetPerformanceCounter();
    return (int64_t)(ticks * 1e6 / (double)SDL_GetPerformanceFrequency());
}

/* ---- the characters -------------------------------------------------------------------------- */

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
    if (c->speaks) return CAIRN_OK;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.max_tokens = 48;
    c->bytes = 0;
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
        c->said[c->bytes] = '\0';
    }
    c->speaks = !piece.stop;
    if (piece.stop) printf("%s: %s\n", c->name, c->said);
    return CAIRN_OK;
}

/* ---- the window ------------------------------------------------------------------------------ */

static void fill(SDL_Renderer *out, SDL_Color color, int x, int y, int w, int h) {
    const SDL_Rect where = {x, y, w, h};
    SDL_SetRenderDrawColor(out, color.r, color.g, color.b, 255);
    SDL_RenderFillRect(out, &where);
}

/* A bar for each word, in lines from (x, y) on. */
static void draw_bubble(SDL_Renderer *out, const character *c, int x, int y) {
    static const SDL_Color paper = {235, 230, 210, 255}, ink = {40, 40, 40, 255};
    int column = 0, line = 0;
    if (!c->bytes) return;
    fill(out, paper, x, y, 240, 120);
    for (const char *word = c->said; *word && line < 8;) {
        const int letters = (int)strcspn(word, " \n");
        if (column + 4 * letters > 220) column = 0, line++;
        if (line < 8) fill(out, ink, x + 10 + column, y + 10 + 13 * line, 4 * letters, 7);
        column += 4 * letters + 6;
        word += letters + (word[letters] != '\0');
    }
}

static void draw(SDL_Renderer *out, int frame) {
    static const SDL_Color grass = {70, 110, 60, 255}, sky = {150, 190, 220, 255};
    fill(out, sky, 0, 0, WIDE, HIGH - 80);
    fill(out, grass, 0, HIGH - 80, WIDE, 80);
    for (int i = 0; i < CHARACTERS; i++) {
        const int step = (frame + 90 * i) / 2 % 120, walk = step < 60 ? step : 120 - step;
        const int x = 60 + 300 * i + walk, hop = cast[i].speaks ? frame / 8 % 2 * 4 : 0;
        fill(out, cast[i].color, x, HIGH - 140 - hop, 40, 60);
        draw_bubble(out, &cast[i], 40 + 300 * i, 40);
    }
    SDL_RenderPresent(out);
}

/* False: the player leaves. */
static bool heed_player(bool *asks) {
    SDL_Event event;
    while (SDL_PollEvent(&event)) {
        if (event.type == SDL_QUIT) return false;
        if (event.type != SDL_KEYDOWN) continue;
        if (event.key.keysym.sym == SDLK_ESCAPE) return false;
        *asks |= event.key.keysym.sym == SDLK_SPACE;
    }
    return true;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static cairn_status play(cairn_model *model, SDL_Renderer *out, int most, bool ends, int *frames) {
    cairn_status status = raise_curtain(model);
    int32_t pending = 1;
    bool asks = true;
    for (*frames = 0; *frames < most && !status && (pending || !ends) && heed_player(&asks);
         (*frames)++) {
        const int64_t start = now_us();
        for (int i = 0; i < CHARACTERS && asks && !status; i++) status = ask(model, &cast[i]);
        asks = false;
        if (!status) status = cairn_step(model, BUDGET_US, &pending);
        for (int i = 0; i < CHARACTERS && !status; i++) status = listen(&cast[i]);
        model_us[*frames] = (int32_t)(now_us() - start);
        draw(out, *frames);
        frame_us[*frames] = (int32_t)(now_us() - start);
        if (frame_us[*frames] < FRAME_MS * 1000)
            SDL_Delay((Uint32)(FRAME_MS - frame_us[*frames] / 1000));
    }
    return status;
}

static int compare(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, int32_t *us, int frames) {
    int late = 0;
    qsort(us, (size_t)frames, sizeof *us, compare);
    for (int i = 0; i < frames; i++) late += us[i] > 1000 * (FRAME_MS + 1);
    if (frames)
        printf("%d frames; %s %.2f ms of one in the median, %.2f at p99, %.2f at most; %d late\n",
               frames, what, us[frames / 2] * 1e-3, us[frames * 99 / 100] * 1e-3,
               us[frames - 1] * 1e-3, late);
}

static int run(cairn_runtime *rt, const char *path, SDL_Renderer *out, int most, bool ends) {
    cairn_model *model;
    int frames = 0;
    cairn_status status = cairn_load_model(rt, path, &model);
    if (!status) status = play(model, out, most, ends, &frames);
    if (status) return fprintf(stderr, "%s\n", cairn_last_error(rt)), 1;
    report("the model took", model_us, frames);
    report("all took", frame_us, frames);
    return 0;
}

int main(int count, char **arguments) {
    char error[1024];
    cairn_config config;
    cairn_runtime *rt;
    SDL_Window *window = NULL;
    SDL_Renderer *out = NULL;
    int most = count > 2 ? 60 * atoi(arguments[2]) : MOST_FRAMES, failed;
    if (count < 2 || most < 0 || most > MOST_FRAMES) {
        fputs("usage: npc_sdl2 MODEL.gguf [SECONDS, up to 600]\n", stderr);
        return 2;
    }
    cairn_config_default(&config);
    config.threads = 1; /* the game has need of the others */
    config.max_seq_len = 1024;
    if (cairn_open(&config, &rt, error, sizeof error)) return fputs(error, stderr), 1;
    if (SDL_Init(SDL_INIT_VIDEO) || SDL_CreateWindowAndRenderer(WIDE, HIGH, 0, &window, &out)) {
        fprintf(stderr, "%s\n", SDL_GetError());
        failed = 1;
    } else {
        SDL_SetWindowTitle(window, "Space: ask again; Escape: leave");
        failed = run(rt, arguments[1], out, most, count > 2);
    }
    SDL_DestroyRenderer(out);
    SDL_DestroyWindow(window);
    SDL_Quit();
    cairn_close(rt);
    return failed;
}
