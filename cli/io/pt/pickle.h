/* pickle.h - the part of Python's pickle format that PyTorch's files of tensors need, as data.
 *
 * A pickle is a program for a small stack machine. This one knows the instructions that build
 * numbers, text, tuples, lists and dicts, and a fixed list of names (pickle_globals.c) which stand
 * for what is done here in C: nothing is ever looked up, imported or called. Every other
 * instruction and every other name is refused, by its name and place. */
#ifndef MOETOKEN_CLI_PICKLE_H
#define MOETOKEN_CLI_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pickle_globals.h"

#define PICKLE_MAX_SIZE    (8 << 20) /* bytes of a program: some hundred in an honest tensor */
#define PICKLE_REASON_SIZE 256

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INTEGER,
    PICKLE_NUMBER,
    PICKLE_TEXT,
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT,   /* items: keys and values in turn */
    PICKLE_GLOBAL, /* a name of the list */
    PICKLE_STORAGE,
    PICKLE_TENSOR,
    PICKLE_MARK
};

/* Values refer to each other by number: a place in pickle.values. */
typedef uint32_t pickle_place;

struct pickle_value {
    enum pickle_kind kind;
    union {
        int64_t integer; /* and bool */
        double number;
        struct {
            const char *bytes; /* in the program; UTF-8 without NUL */
            size_t length;
        } text;
        struct {
            pickle_place *places;
            uint32_t count, room;
        } items;
        const struct pickle_global *global;
        struct {
            const struct pickle_global *type;
            pickle_place key; /* text */
            int64_t elements;
        } storage;
        struct {
            int64_t offset; /* in elements */
            pickle_place storage, sizes, strides;
            const struct pickle_global *type; /* NULL: the storage's */
        } tensor;
    } as;
};

struct pickle {
    struct pickle_value *values;
    size_t count, room;
    pickle_place top; /* what the program leaves */
};

/* Runs the program, whose bytes the values borrow from. false with the reason, which names the byte
 * where it was found. Free in any case. */
bool pickle_load(const unsigned char *program, size_t size, struct pickle *pickle,
                 char reason[PICKLE_REASON_SIZE]);
void pickle_free(struct pickle *pickle);

#endif
