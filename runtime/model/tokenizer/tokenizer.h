/* tokenizer: text to ids and back, by the vocabulary that the model file describes: byte-level BPE
 * or SentencePiece's two models. tokenizer.c owns the tables (pieces, merges, scores, the named ids),
 * text.c cuts text into words, special.c finds special tokens in it, encode.c turns text into ids,
 * decode.c ids into text, template.c recognises chat templates, chat.c turns conversations into both.
 *
 * Everything is copied out of the file, and checked at open, once. Invariant: text that is encoded
 * with special = false gives no control token, whatever it says. Calls base and gguf. */

/* ---- what tokenizer.c owns ------------------------------------------------------------------- */

/* A state: what was read last is the reversed beginning of some token's text, the longest that is
 * one. `any` and `user` are the longest tokens that begin here: of all, and of those that are found
 * in every text; -1: none. */
typedef struct special_state { int32_t fail, any, user; } special_state;

typedef struct special_edge { uint32_t key; int32_t to; } special_edge; /* to 0: a free slot */

typedef struct special_finder {
    special_state *states; /* [room] the first is the start */
    special_edge *edges;   /* [edge_slots] open addressing by state and byte */
    size_t room, count, edge_slots; /* edge_slots is a power of two */
    int32_t first[256];    /* the start's edges; 0: none */
    bool has_user;
} special_finder;

enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES };

/* What a chat template says around messages of each role: constants' texts or the config's. */
typedef struct tokenizer_format {
    const char *before[CHAT_ROLES], *after[CHAT_ROLES]; /* before NULL: no turn of that role */
    const char *reply; /* opens the assistant's answer */
    const char *join;  /* a first system message stands in the user's after it, and this between; */
    bool joins_last, dated; /* or in the last user's; its own has the day where it says "'+today+'" */
    const char *head;  /* begins a first system message; or NULL */
    const char *again; /* before a user's turn that does not begin the conversation; or NULL */
    const char *system, *system_end; /* while a template is read: its own system message */
    const char *quiet, *quiet_end;   /* and its own where the model is not to think */
    unsigned trims;    /* a bit for each role: white space at the ends of contents is left out */
    bool strips;       /* of a message that joins another, only what ends both */
    bool reasons;      /* SmolLM3's: a system's turn with the date and "/think" or "/no_think" */
    bool thinks;       /* answers may begin with what stands between <think> and </think> */
    bool needs_marks;  /* a template's: its marks must be control tokens */
} tokenizer_format;

enum { TOK_MARKS = 16 };

typedef struct tokenizer {
    int32_t vocab;
    int32_t bos, eos, eot, eom; /* -1: none */
    bool adds_bos;         /* `generate` puts bos before an empty session's first text */
    bool has_chat;         /* a chat template of a known family, or a format of the config's */
    /* private below */
    char *text;            /* the pieces one after another */
    size_t text_bytes;
    uint32_t *starts;      /* [vocab + 1] piece i is text[starts[i]] .. text[starts[i + 1] - 1] */
    uint8_t *kinds, *strips; /* [vocab] TOK_; whether white space behind goes with it, or NULL */
    int32_t byte_ids[256]; /* the token of a single byte; -1: the vocabulary lacks it */
    struct tokenizer_merge *merges; /* [merge_slots] open addressing; left -1: free */
    size_t merge_slots;    /* a power of two */
    special_finder special; /* tokens found in text as they stand */
    const struct tokenizer_rule *rule; /* how BPE cuts words; NULL: SentencePiece */
    bool unigram, wide_sums; /* its unigram model: scores, adding up in doubles, and no merges */
    int32_t *by_text;      /* [text_slots] open addressing: plain tokens by their bytes; -1: free */
    size_t text_slots;     /* a power of two, or 0: none is looked up so */
    size_t longest;        /* bytes of the longest of them */
    int32_t *ranks;        /* [vocab] of SentencePiece: the least is merged first; NULL: by merges */
    float *scores; double unknown_score; /* [vocab] a unigram model's, and what no token is has */
    bool whole_words;      /* a word that is a token takes no merges */
    int32_t unknown;       /* stands for a character that SentencePiece cannot spell; -1: none */
    bool space_prefix;     /* a space comes before each part between special tokens of a text; */
    bool prefix_once, prefix_first; /* but where one is; but before the first alone */
    bool splits_words, each_space, trims; /* no token goes on into a new word; every space begins
                            * one; of spaces in a row one stays, and none at the ends of a text */
    int32_t turn_open, turn_close; /* ChatML's marks; -1: the vocabulary lacks them */
    tokenizer_format format; /* of chats, where has_chat */
    struct { int32_t id; bool opens; } marks[TOK_MARKS]; /* its control tokens: a turn begins or ends */
    int mark_count;
    int32_t turn_end;      /* the mark that ends an answer; -1: none */
    bool is_safe;          /* marks open a user's turn and end an answer */
    base_text chat_system, chat_quiet; /* format.system and quiet, kept */
    base_text chat_template; /* its beginning, for messages */
} tokenizer;

/* Makes the tables, by these threads, or NULL; the file may be closed afterwards. On failure *t is empty. */
static cairn_status tokenizer_open(base *b, struct pool *threads, const gguf *g, tokenizer *t);
/* Tells what speaks against it, but for what ends the reading, which is the status; and whether its chat
 * template is of a known family. Nothing is kept. */
static cairn_status tokenizer_survey(base *b, const gguf *g, model_survey *survey, bool *knows_chat);
/* Frees what tokenizer_open took; also after it failed, and for one of all zero. */
static void tokenizer_close(base *b, tokenizer *t);
/* The byte that a text of SentencePiece such as "<0x0A>" stands for; -1: none. */
static int tokenizer_byte_token(const char *text, size_t bytes);
/* Whether the token ends a generation; stands for itself and not for text, as `<|im_start|>` does. */
static bool tokenizer_is_end(const tokenizer *t, int32_t id);
static bool tokenizer_is_special(const tokenizer *t, int32_t id);
/* The token's bytes; "" for an id that is none. */
static const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *bytes);

/* Ids that grow. Starts as all zero; freed by tokenizer_ids_free. */
typedef struct tokenizer_ids { int32_t *data; size_t size, capacity; } tokenizer_ids;
/* False when memory is short; the ids then stand as they were. */
static bool tokenizer_ids_add(base *b, tokenizer_ids *ids, int32_t id);
static void tokenizer_ids_free(base *b, tokenizer_ids *ids);

/* ---- encode.c -------------------------------------------------------------------------------- */
/* A part of a text. special: the text of control tokens such as "<|im_end|>" becomes the token
 * where it lies whole in this part, otherwise it is text like any other. */
typedef struct tokenizer_span { size_t bytes; bool special; } tokenizer_span;

/* Adds the ids of a text of `count` (at least one) spans to *out; no token is added at either end.
 * cancel: NULL, or ends it when it is set. On failure (CAIRN_INVALID_UTF8 naming the byte,
 * CAIRN_CANCELLED, CAIRN_OUT_OF_MEMORY) *out holds what it held before. */
static cairn_status tokenizer_encode_spans(base *b, const tokenizer *t, const char *text,
                                           const tokenizer_span *spans, size_t count,
                                           os_atomic *cancel, tokenizer_ids *out);
/* The same for one span, without an end before its own. */
static cairn_status tokenizer_encode(base *b, const tokenizer *t, const char *text, size_t bytes,
                                     bool special, tokenizer_ids *out);
/* ---- decode.c -------------------------------------------------------------------------------- */
/* The beginning of a character that is not whole yet. Starts as all zero. */
typedef struct tokenizer_stream { char pending[4]; size_t count; } tokenizer_stream;

/* Adds to *out the characters that the token completes, perhaps none. */
static cairn_status tokenizer_stream_push(base *b, const tokenizer *t, tokenizer_stream *s,
                                          int32_t id, base_text *out);
/* The end of the text: an unfinished character becomes U+FFFD. */
static cairn_status tokenizer_stream_finish(base *b, tokenizer_stream *s, base_text *out);
/* Adds the text of ids [count] to *out. */
static cairn_status tokenizer_decode(base *b, const tokenizer *t, const int32_t *ids, size_t count,
                                     base_text *out);
/* ---- template.c, chat.c ---------------------------------------------------------------------- */
typedef struct tokenizer_message { const char *role, *content; size_t content_bytes; } tokenizer_message;

/* Takes this format instead of the file's: the texts before and after messages of CHAT_ROLES roles,
 * which must outlive *t; before NULL: no turn of that role (only the system may have none). Out of
 * memory *t has no format. */
static cairn_status tokenizer_set_format(base *b, tokenizer *t, const char *const *before,
                                         const char *const *after);
/* Adds to *out what the model's template makes of messages [count]. first: the conversation begins
 * with them, so that a template's own system message comes before when messages[0] is none. reply:
 * ends with the opening of the assistant's answer. */
static cairn_status tokenizer_chat(base *b, const tokenizer *t, const tokenizer_message *messages,
                                   int count, bool first, bool reply, base_text *out);
/* The same as ids, put behind `held` [held_count] of the same conversation, where a turn that they
 * leave open is closed: no content gives a control token. cancel and failures as in
 * tokenizer_encode_spans. */
static cairn_status tokenizer_chat_ids(base *b, const tokenizer *t, const int32_t *held,
                                       int held_count, const tokenizer_message *messages, int count,
                                       bool first, bool reply, os_atomic *cancel,
                                       tokenizer_ids *out);
