/* pickle_machine.h - the stack machine of pickle.c, from the inside: what its instructions and what
 * stands behind its names (pickle_rebuild.c) work on. */
#ifndef MOETOKEN_CLI_PICKLE_MACHINE_H
#define MOETOKEN_CLI_PICKLE_MACHINE_H

#include "pickle.h"

struct machine {
    struct pickle *pickle;
    const unsigned char *program;
    size_t size, at;    /* the next byte */
    size_t instruction; /* where the instruction that is being done began */
    pickle_place *stack;
    size_t depth, stack_room;
    pickle_place *memo; /* NO_PLACE: nothing was put there */
    size_t memo_room, memo_count;
    bool stopped;
    char *reason;
};

#define NO_PLACE UINT32_MAX

/* "... at byte N of data.pkl"; always false. */
bool machine_fail(struct machine *machine, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline struct pickle_value *machine_value(const struct machine *machine, pickle_place place)
{
    return &machine->pickle->values[place];
}

/* A new value; its place in *place. */
bool machine_add(struct machine *machine, const struct pickle_value *value, pickle_place *place);
bool machine_push(struct machine *machine, pickle_place place);
bool machine_pop(struct machine *machine, pickle_place *place);
bool machine_append(struct machine *machine, struct pickle_value *list, pickle_place place);

/* The two instructions that give names and numbers a meaning. */
bool machine_reduce(struct machine *machine);
bool machine_persistent_id(struct machine *machine);

#endif
