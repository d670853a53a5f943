/* pickle.c - the stack machine and its instructions. What the names of a PyTorch file mean is in
 * pickle_rebuild.c. */
#include "pickle.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/utf8.h"
#include "pickle_machine.h"

#define STACK_MOST 65536 /* values on the stack: a tuple's or a batch's, dozens */

/* ---- the machine ---------------------------------------------------------------------------- */

bool machine_fail(struct machine *machine, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(machine->reason, PICKLE_REASON_SIZE, format, arguments);
    va_end(arguments);
    size_t length = strlen(machine->reason);
    snprintf(machine->reason + length, PICKLE_REASON_SIZE - length, " at byte %zu",
             machine->instruction);
    return false;
}

bool machine_add(struct machine *machine, const struct pickle_value *value, pickle_place *place)
{
    struct pickle *pickle = machine->pickle;
    if (pickle->count == pickle->room) {
        size_t room = pickle->room * 2 + 64;
        struct pickle_value *values = realloc(pickle->values, room * sizeof *values);
        if (values == NULL) {
            return machine_fail(machine, "no memory for its values");
        }
        pickle->values = values;
        pickle->room = room;
    }
    *place = (pickle_place)pickle->count;
    pickle->values[pickle->count++] = *value;
    return true;
}

bool machine_push(struct machine *machine, pickle_place place)
{
    if (machine->depth == machine->stack_room) {
        return machine_fail(machine, "more than %d values on the stack", STACK_MOST);
    }
    machine->stack[machine->depth++] = place;
    return true;
}

bool machine_pop(struct machine *machine, pickle_place *place)
{
    if (machine->depth == 0) {
        return machine_fail(machine, "nothing on the stack where a value is needed");
    }
    *place = machine->stack[--machine->depth];
    if (machine_value(machine, *place)->kind == PICKLE_MARK) {
        return machine_fail(machine, "a mark where a value is needed");
    }
    return true;
}

bool machine_append(struct machine *machine, struct pickle_value *list, pickle_place place)
{
    if (list->as.items.count == list->as.items.room) {
        uint32_t room = list->as.items.room * 2 + 4;
        pickle_place *places = realloc(list->as.items.places, room * sizeof *places);
        if (places == NULL) {
            return machine_fail(machine, "no memory for a list");
        }
        list->as.items.places = places;
        list->as.items.room = room;
    }
    list->as.items.places[list->as.items.count++] = place;
    return true;
}

static bool push_new(struct machine *machine, const struct pickle_value *value)
{
    pickle_place place = NO_PLACE;
    return machine_add(machine, value, &place) && machine_push(machine, place);
}

/* The next `count` bytes of the program, or NULL after failing. */
static const unsigned char *take(struct machine *machine, uint64_t count)
{
    if (count > machine->size - machine->at) {
        machine_fail(machine, "the program ends within an instruction");
        return NULL;
    }
    const unsigned char *bytes = machine->program + machine->at;
    machine->at += count;
    return bytes;
}

static bool take_number(struct machine *machine, int bytes, uint64_t *value)
{
    const unsigned char *from = take(machine, (uint64_t)bytes);
    *value = 0;
    for (int i = bytes - 1; from != NULL && i >= 0; i--) {
        *value = *value << 8 | from[i];
    }
    return from != NULL;
}

/* ---- values --------------------------------------------------------------------------------- */

static bool push_constant(struct machine *machine, enum pickle_kind kind, int64_t integer)
{
    struct pickle_value value = {.kind = kind};
    value.as.integer = integer;
    if (kind == PICKLE_TUPLE || kind == PICKLE_LIST || kind == PICKLE_DICT) {
        memset(&value.as, 0, sizeof value.as);
    }
    return push_new(machine, &value);
}

static bool push_integer(struct machine *machine, int bytes)
{
    uint64_t value;
    if (!take_number(machine, bytes, &value)) {
        return false;
    }
    return push_constant(machine, PICKLE_INTEGER,
                         bytes == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value);
}

/* LONG1: its length, then two's complement. */
static bool push_long(struct machine *machine)
{
    uint64_t length, value = 0;
    if (!take_number(machine, 1, &length)) {
        return false;
    }
    if (length > 8) {
        return machine_fail(machine, "an integer of %" PRIu64 " bytes, expected at most 8", length);
    }
    const unsigned char *bytes = take(machine, length);
    if (bytes == NULL) {
        return false;
    }
    if (length > 0 && bytes[length - 1] >= 0x80) {
        value = UINT64_MAX;
    }
    for (uint64_t i = length; i > 0; i--) {
        value = value << 8 | bytes[i - 1];
    }
    return push_constant(machine, PICKLE_INTEGER, (int64_t)value);
}

static bool push_number(struct machine *machine)
{
    struct pickle_value value = {.kind = PICKLE_NUMBER};
    uint64_t bits = 0;
    const unsigned char *bytes = take(machine, 8);
    if (bytes == NULL) {
        return false;
    }
    for (int i = 0; i < 8; i++) { /* big-endian, alone of all */
        bits = bits << 8 | bytes[i];
    }
    memcpy(&value.as.number, &bits, sizeof bits);
    return push_new(machine, &value);
}

static bool push_text(struct machine *machine, int length_bytes)
{
    struct pickle_value value = {.kind = PICKLE_TEXT};
    uint64_t length;
    if (!take_number(machine, length_bytes, &length)) {
        return false;
    }
    const unsigned char *bytes = take(machine, length);
    if (bytes == NULL) {
        return false;
    }
    if (memchr(bytes, 0, length) != NULL || utf8_valid_length(bytes, length) != length) {
        return machine_fail(machine, "text that is not UTF-8 or holds a NUL");
    }
    value.as.text.bytes = (const char *)bytes;
    value.as.text.length = length;
    return push_new(machine, &value);
}

/* ---- names ---------------------------------------------------------------------------------- */

static bool push_global(struct machine *machine, const char *module, size_t module_length,
                        const char *name, size_t name_length)
{
    struct pickle_value value = {.kind = PICKLE_GLOBAL};
    value.as.global = pickle_global_find(module, module_length, name, name_length);
    if (value.as.global == NULL) {
        return machine_fail(machine, "the name '%.*s.%.*s', which no tensor needs",
                            (int)(module_length < 80 ? module_length : 80), module,
                            (int)(name_length < 80 ? name_length : 80), name);
    }
    return push_new(machine, &value);
}

/* GLOBAL: two lines. */
static bool push_global_lines(struct machine *machine)
{
    const char *lines[2];
    size_t lengths[2];
    for (int i = 0; i < 2; i++) {
        const unsigned char *from = machine->program + machine->at;
        const unsigned char *end = memchr(from, '\n', machine->size - machine->at);
        if (end == NULL) {
            return machine_fail(machine, "the program ends within a name");
        }
        lines[i] = (const char *)from;
        lengths[i] = (size_t)(end - from);
        machine->at += lengths[i] + 1;
    }
    return push_global(machine, lines[0], lengths[0], lines[1], lengths[1]);
}

/* STACK_GLOBAL: the two names are on the stack. */
static bool push_global_of_stack(struct machine *machine)
{
    pickle_place name = 0, module = 0;
    if (!machine_pop(machine, &name) || !machine_pop(machine, &module)) {
        return false;
    }
    const struct pickle_value *first = machine_value(machine, module);
    const struct pickle_value *second = machine_value(machine, name);
    if (first->kind != PICKLE_TEXT || second->kind != PICKLE_TEXT) {
        return machine_fail(machine, "a name that is no text");
    }
    return push_global(machine, first->as.text.bytes, first->as.text.length, second->as.text.bytes,
                       second->as.text.length);
}

/* ---- the memo ------------------------------------------------------------------------------- */

static bool memo_put(struct machine *machine, uint64_t index)
{
    if (machine->depth == 0) {
        return machine_fail(machine, "nothing on the stack where a value is needed");
    }
    if (index >= machine->memo_room) { /* each takes a byte of the program, and they are numbered */
        return machine_fail(machine, "memo %" PRIu64 ", expected numbers below %zu", index,
                            machine->memo_room);
    }
    machine->memo[index] = machine->stack[machine->depth - 1];
    machine->memo_count++;
    return true;
}

static bool memo_get(struct machine *machine, uint64_t index)
{
    if (index >= machine->memo_room || machine->memo[index] == NO_PLACE) {
        return machine_fail(machine, "memo %" PRIu64 ", which holds nothing", index);
    }
    return machine_push(machine, machine->memo[index]);
}

static bool memo_access(struct machine *machine, int bytes, bool put)
{
    uint64_t index;
    return take_number(machine, bytes, &index) &&
           (put ? memo_put(machine, index) : memo_get(machine, index));
}

/* ---- tuples, lists, dicts ------------------------------------------------------------------- */

/* Where the values above the topmost mark begin. */
static bool find_mark(struct machine *machine, size_t *first)
{
    for (size_t i = machine->depth; i > 0; i--) {
        if (machine_value(machine, machine->stack[i - 1])->kind == PICKLE_MARK) {
            *first = i;
            return true;
        }
    }
    return machine_fail(machine, "no mark on the stack where one is needed");
}

/* The topmost `count` values, of which none may be a mark, as a tuple. */
static bool make_tuple(struct machine *machine, size_t count)
{
    struct pickle_value tuple = {.kind = PICKLE_TUPLE};
    pickle_place place;
    memset(&tuple.as, 0, sizeof tuple.as);
    if (machine->depth < count) {
        return machine_fail(machine, "a tuple of more values than are on the stack");
    }
    if (!machine_add(machine, &tuple, &place)) {
        return false;
    }
    for (size_t i = machine->depth - count; i < machine->depth; i++) {
        if (machine_value(machine, machine->stack[i])->kind == PICKLE_MARK) {
            return machine_fail(machine, "a mark where a value is needed");
        }
        if (!machine_append(machine, machine_value(machine, place), machine->stack[i])) {
            return false;
        }
    }
    machine->depth -= count;
    return machine_push(machine, place);
}

static bool tuple_of_mark(struct machine *machine)
{
    size_t first;
    if (!find_mark(machine, &first)) {
        return false;
    }
    size_t count = machine->depth - first;
    if (!make_tuple(machine, count)) {
        return false;
    }
    machine->stack[machine->depth - 2] = machine->stack[machine->depth - 1]; /* over the mark */
    machine->depth--;
    return true;
}

/* Moves values from stack[first] on into the list or dict that lies below stack[base]. */
static bool add_items(struct machine *machine, enum pickle_kind kind, size_t base, size_t first)
{
    if (base == 0) {
        return machine_fail(machine, "nothing on the stack that values could be added to");
    }
    struct pickle_value *target = machine_value(machine, machine->stack[base - 1]);
    size_t count = machine->depth - first;
    if (target->kind != kind || (kind == PICKLE_DICT && count % 2 != 0)) {
        return machine_fail(machine, kind == PICKLE_LIST ? "values for what is no list"
                                                         : "pairs for what is no dict");
    }
    for (size_t i = first; i < machine->depth; i++) {
        if (!machine_append(machine, target, machine->stack[i])) {
            return false;
        }
    }
    machine->depth = base;
    return true;
}

static bool add_items_of_mark(struct machine *machine, enum pickle_kind kind)
{
    size_t first;
    return find_mark(machine, &first) && add_items(machine, kind, first - 1, first);
}

static bool add_last_items(struct machine *machine, enum pickle_kind kind, size_t count)
{
    if (machine->depth < count) {
        return machine_fail(machine, "nothing on the stack where a value is needed");
    }
    for (size_t i = machine->depth - count; i < machine->depth; i++) {
        if (machine_value(machine, machine->stack[i])->kind == PICKLE_MARK) {
            return machine_fail(machine, "a mark where a value is needed");
        }
    }
    return add_items(machine, kind, machine->depth - count, machine->depth - count);
}

/* BUILD: state for the value below it. That of an OrderedDict, a module's _metadata, is no tensor's
 * and falls away. */
static bool drop_state(struct machine *machine)
{
    pickle_place state;
    if (!machine_pop(machine, &state)) {
        return false;
    }
    if (machine->depth == 0 ||
        machine_value(machine, machine->stack[machine->depth - 1])->kind != PICKLE_DICT) {
        return machine_fail(machine, "state for what is no OrderedDict");
    }
    return true;
}

/* ---- instructions --------------------------------------------------------------------------- */

static bool check_protocol(struct machine *machine)
{
    uint64_t protocol;
    if (!take_number(machine, 1, &protocol)) {
        return false;
    }
    return (protocol >= 2 && protocol <= 5) ||
           machine_fail(machine, "protocol %" PRIu64 ", expected 2 to 5", protocol);
}

/* FRAME: how many bytes follow as one; nothing here reads them in frames. */
static bool skip_frame(struct machine *machine)
{
    uint64_t length;
    return take_number(machine, 8, &length);
}

static bool stop(struct machine *machine)
{
    machine->stopped = true;
    if (machine->depth != 1) {
        return machine_fail(machine, "%zu values left at the end, expected one", machine->depth);
    }
    return machine_pop(machine, &machine->pickle->top);
}

static const char *name_of_instruction(unsigned char code)
{
    static const struct {
        unsigned char code;
        const char *name;
    } names[] = {
        {'i', "INST"},
        {'o', "OBJ"},
        {0x81, "NEWOBJ"},
        {0x92, "NEWOBJ_EX"},
        {'P', "PERSID"},
        {0x82, "EXT1"},
        {0x83, "EXT2"},
        {0x84, "EXT4"},
        {'I', "INT"},
        {'L', "LONG"},
        {'F', "FLOAT"},
        {'S', "STRING"},
        {'V', "UNICODE"},
        {'T', "BINSTRING"},
        {'U', "SHORT_BINSTRING"},
        {'B', "BINBYTES"},
        {'C', "SHORT_BINBYTES"},
        {0x8e, "BINBYTES8"},
        {0x8d, "BINUNICODE8"},
        {0x8b, "LONG4"},
        {'l', "LIST"},
        {'d', "DICT"},
        {0x8f, "EMPTY_SET"},
        {0x90, "ADDITEMS"},
        {0x91, "FROZENSET"},
        {'0', "POP"},
        {'1', "POP_MARK"},
        {'2', "DUP"},
        {'g', "GET"},
        {'p', "PUT"},
        {0x96, "BYTEARRAY8"},
        {0x97, "NEXT_BUFFER"},
        {0x98, "READONLY_BUFFER"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].code == code) {
            return names[i].name;
        }
    }
    return "unknown";
}

static bool do_value(struct machine *machine, unsigned char code)
{
    switch (code) {
    case 'N':
        return push_constant(machine, PICKLE_NONE, 0);
    case 0x88: /* NEWTRUE */
    case 0x89: /* NEWFALSE */
        return push_constant(machine, PICKLE_BOOL, code == 0x88);
    case 'K': /* BININT1 */
        return push_integer(machine, 1);
    case 'M': /* BININT2 */
        return push_integer(machine, 2);
    case 'J': /* BININT */
        return push_integer(machine, 4);
    case 0x8a: /* LONG1 */
        return push_long(machine);
    case 'G': /* BINFLOAT */
        return push_number(machine);
    case 'X': /* BINUNICODE */
        return push_text(machine, 4);
    case 0x8c: /* SHORT_BINUNICODE */
        return push_text(machine, 1);
    case 'c': /* GLOBAL */
        return push_global_lines(machine);
    case 0x93: /* STACK_GLOBAL */
        return push_global_of_stack(machine);
    default:
        return machine_fail(machine, "instruction %s (0x%02x), which no tensor needs",
                            name_of_instruction(code), code);
    }
}

static bool do_structure(struct machine *machine, unsigned char code)
{
    switch (code) {
    case '(': /* MARK */
        return push_constant(machine, PICKLE_MARK, 0);
    case ')': /* EMPTY_TUPLE */
        return push_constant(machine, PICKLE_TUPLE, 0);
    case ']': /* EMPTY_LIST */
        return push_constant(machine, PICKLE_LIST, 0);
    case '}': /* EMPTY_DICT */
        return push_constant(machine, PICKLE_DICT, 0);
    case 't': /* TUPLE */
        return tuple_of_mark(machine);
    case 0x85: /* TUPLE1, TUPLE2, TUPLE3 */
    case 0x86:
    case 0x87:
        return make_tuple(machine, code - 0x84u);
    case 'a': /* APPEND */
        return add_last_items(machine, PICKLE_LIST, 1);
    case 'e': /* APPENDS */
        return add_items_of_mark(machine, PICKLE_LIST);
    case 's': /* SETITEM */
        return add_last_items(machine, PICKLE_DICT, 2);
    case 'u': /* SETITEMS */
        return add_items_of_mark(machine, PICKLE_DICT);
    default:
        return do_value(machine, code);
    }
}

static bool do_instruction(struct machine *machine, unsigned char code)
{
    switch (code) {
    case 0x80: /* PROTO */
        return check_protocol(machine);
    case 0x95: /* FRAME */
        return skip_frame(machine);
    case 'q': /* BINPUT */
        return memo_access(machine, 1, true);
    case 'r': /* LONG_BINPUT */
        return memo_access(machine, 4, true);
    case 0x94: /* MEMOIZE */
        return memo_put(machine, machine->memo_count);
    case 'h': /* BINGET */
        return memo_access(machine, 1, false);
    case 'j': /* LONG_BINGET */
        return memo_access(machine, 4, false);
    case 'Q': /* BINPERSID */
        return machine_persistent_id(machine);
    case 'R': /* REDUCE */
        return machine_reduce(machine);
    case 'b': /* BUILD */
        return drop_state(machine);
    case '.': /* STOP */
        return stop(machine);
    default:
        return do_structure(machine, code);
    }
}

/* ---- running -------------------------------------------------------------------------------- */

static bool run(struct machine *machine)
{
    while (!machine->stopped) {
        machine->instruction = machine->at;
        const unsigned char *code = take(machine, 1);
        if (code == NULL) {
            return machine_fail(machine, "no STOP where the program ends");
        }
        if (!do_instruction(machine, *code)) {
            return false;
        }
    }
    return true;
}

static bool prepare(struct machine *machine)
{
    machine->stack_room = machine->size < STACK_MOST ? machine->size : STACK_MOST;
    machine->memo_room = machine->size;
    machine->stack = calloc(machine->stack_room + 1, sizeof *machine->stack);
    machine->memo = malloc((machine->memo_room + 1) * sizeof *machine->memo);
    if (machine->stack == NULL || machine->memo == NULL) {
        return machine_fail(machine, "no memory for its stack");
    }
    memset(machine->memo, 0xff, (machine->memo_room + 1) * sizeof *machine->memo); /* NO_PLACE */
    return true;
}

bool pickle_load(const unsigned char *program, size_t size, struct pickle *pickle,
                 char reason[PICKLE_REASON_SIZE])
{
    struct machine machine = {.pickle = pickle, .program = program, .size = size, .reason = reason};
    *pickle = (struct pickle){0};
    bool done = size > PICKLE_MAX_SIZE
                    ? machine_fail(&machine, "a program of %zu bytes, expected at most %d", size,
                                   PICKLE_MAX_SIZE)
                    : prepare(&machine) && run(&machine);
    free(machine.stack);
    free(machine.memo);
    return done;
}

void pickle_free(struct pickle *pickle)
{
    for (size_t i = 0; i < pickle->count; i++) {
        enum pickle_kind kind = pickle->values[i].kind;
        if (kind == PICKLE_TUPLE || kind == PICKLE_LIST || kind == PICKLE_DICT) {
            free(pickle->values[i].as.items.places);
        }
    }
    free(pickle->values);
    *pickle = (struct pickle){0};
}
