/* json: reads the golden files. Objects, arrays, strings (with their size: NUL is a character like
 * any other), numbers, true, false, null. A file that is not JSON ends the test program.
 *
 *     json_value *file = json_read("tests/golden/tokenizer.json");
 *     const json_value *cases = json_get(file, "cases");
 *     for (const json_value *c = cases->first; c; c = c->next)
 *         use(json_get(c, "text")->text, json_get(c, "text")->size);
 *     json_free(file);
 */
#ifndef JSON_H
#define JSON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct json_value {
    char kind;        /* { [ " 0 t f n */
    double number;
    char *text;       /* of a string; terminated, and it may hold NUL */
    size_t size;      /* bytes of a string, entries of an array or object */
    char *name;       /* in an object */
    struct json_value *first, *next;
} json_value;

static const char *json_at, *json_end, *json_path;

static void json_fault(const char *why) {
    fprintf(stderr, "%s: %s, %d bytes before the end\n", json_path, why, (int)(json_end - json_at));
    exit(2);
}

static void *json_new(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) json_fault("no memory");
    return memory;
}

static int json_peek(void) {
    while (json_at < json_end && strchr(" \t\r\n", *json_at)) json_at++;
    return json_at < json_end ? *json_at : 0;
}

static void json_expect(char c) {
    if (json_peek() != c) json_fault("not JSON");
    json_at++;
}

static unsigned json_hex(void) {
    char digits[5] = {0};
    if (json_end - json_at < 4) json_fault("a short \\u");
    memcpy(digits, json_at, 4);
    json_at += 4;
    return (unsigned)strtoul(digits, NULL, 16);
}

static size_t json_put_point(char *out, unsigned point) {
    if (point < 0x80) { out[0] = (char)point; return 1; }
    if (point < 0x800) {
        out[0] = (char)(0xc0 | point >> 6);
        out[1] = (char)(0x80 | (point & 63));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xe0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 63));
        out[2] = (char)(0x80 | (point & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 63));
    out[2] = (char)(0x80 | (point >> 6 & 63));
    out[3] = (char)(0x80 | (point & 63));
    return 4;
}

static size_t json_escape(char *out) {
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    char c = *json_at++;
    const char *known = c ? strchr(from, c) : NULL;
    unsigned point;
    if (c != 'u') {
        *out = known ? to[known - from] : c;
        return 1;
    }
    point = json_hex();
    if (point >> 10 == 0x36 && json_end - json_at > 6) { /* a surrogate pair */
        json_at += 2;
        point = 0x10000 + ((point & 0x3ff) << 10) + (json_hex() & 0x3ff);
    }
    return json_put_point(out, point);
}

static char *json_string(size_t *size) {
    const char *end;
    char *text;
    json_expect('"');
    for (end = json_at; end < json_end && *end != '"'; end++)
        if (*end == '\\') end++;
    text = (char *)json_new((size_t)(end - json_at) + 5);
    for (*size = 0; json_at < json_end && *json_at != '"';) {
        if (*json_at == '\\' && json_at + 1 < json_end) {
            json_at++;
            *size += json_escape(text + *size);
        } else {
            text[(*size)++] = *json_at++;
        }
    }
    json_expect('"');
    return text;
}

static json_value *json_parse(void);

static void json_children(json_value *parent, char close) {
    json_value **last = &parent->first;
    json_at++;
    while (json_peek() != close) {
        size_t size;
        char *name = parent->kind == '{' ? json_string(&size) : NULL;
        if (name) json_expect(':');
        *last = json_parse();
        (*last)->name = name;
        last = &(*last)->next;
        parent->size++;
        if (json_peek() != close) json_expect(',');
    }
    json_at++;
}

static json_value *json_parse(void) {
    json_value *value = (json_value *)json_new(sizeof *value);
    int c = json_peek();
    char *end;
    value->kind = (char)c;
    if (c == '{' || c == '[') json_children(value, c == '{' ? '}' : ']');
    else if (c == '"') value->text = json_string(&value->size);
    else if (c == 't' || c == 'n') json_at += 4;
    else if (c == 'f') json_at += 5;
    else {
        value->kind = '0';
        value->number = strtod(json_at, &end);
        if (end == json_at) json_fault("not JSON");
        json_at = end;
    }
    return value;
}

static inline void json_free(json_value *value) {
    while (value) {
        json_value *next = value->next;
        json_free(value->first);
        free(value->text);
        free(value->name);
        free(value);
        value = next;
    }
}

/* NULL when the file is not there. */
static inline json_value *json_read(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0, got;
    json_value *value;
    if (!file) return NULL;
    do {
        text = (char *)realloc(text, size + 65537);
        if (!text) exit(2);
        got = fread(text + size, 1, 65536, file);
        size += got;
    } while (got);
    fclose(file);
    text[size] = '\0';
    json_path = path;
    json_at = text;
    json_end = text + size;
    value = json_parse();
    free(text);
    return value;
}

/* The member of an object; a golden file without it ends the program. */
static inline const json_value *json_get(const json_value *object, const char *name) {
    for (const json_value *v = object->first; v; v = v->next)
        if (v->name && !strcmp(v->name, name)) return v;
    fprintf(stderr, "%s: no member \"%s\"\n", json_path, name);
    exit(2);
}

#endif
