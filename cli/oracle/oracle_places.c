/* oracle_places.c - the token, slot, expert and row that an element of an output belongs to. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "oracle_golden.h"
#include "values/number_formats.h"

#define SLOTS_SHOWN 8 /* of a token's */

struct place_text {
    const struct oracle_case *oracle;
    const struct oracle_slots *slots;
    char *text;
    size_t size, length;
};

static void add(struct place_text *place, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void add(struct place_text *place, const char *format, ...)
{
    if (place->length >= place->size)
        return;
    va_list arguments;
    va_start(arguments, format);
    int written =
        vsnprintf(place->text + place->length, place->size - place->length, format, arguments);
    va_end(arguments);
    place->length += written > 0 ? (size_t)written : 0;
}

/* The expert of a slot: as far as the operator needs it, or as expert_ids say; -1 where neither. */
static int64_t expert_of(const struct place_text *place, int64_t slot)
{
    const struct oracle_case *oracle = place->oracle;
    if (place->slots->expert[slot] >= 0)
        return place->slots->expert[slot];
    if (oracle->expert_ids != NULL && slot < oracle->slots)
        return integer_at(oracle->expert_ids, slot);
    return -1;
}

static void add_slot(struct place_text *place, int64_t slot)
{
    int64_t expert = expert_of(place, slot), row = place->slots->row[slot];
    add(place, "token %" PRId64 ", slot %" PRId64, place->slots->token[slot], slot);
    if (expert >= 0)
        add(place, ", expert %" PRId64, expert);
    if (row >= 0)
        add(place, ", row %" PRId64, row);
    else
        add(place, ", no row");
}

static void add_row(struct place_text *place, int64_t row)
{
    int64_t slot = place->slots->slot_of_row[row];
    if (slot >= 0)
        add_slot(place, slot);
    else
        add(place, "row %" PRId64 ", which no slot names", row);
}

/* A sum over the slots of a token. */
static void add_token(struct place_text *place, int64_t token)
{
    const struct oracle_slots *slots = place->slots;
    int64_t first = slots->start[token], end = slots->start[token + 1];
    int64_t shown = end - first < SLOTS_SHOWN ? end - first : SLOTS_SHOWN;
    add(place, "token %" PRId64 ", slots", token);
    for (int64_t s = first; s < first + shown; s++) {
        int64_t slot = slots->order[s], expert = expert_of(place, slot);
        add(place, "%s %" PRId64 " (", s == first ? "" : ",", slot);
        if (expert >= 0)
            add(place, "expert %" PRId64 ", ", expert);
        if (slots->row[slot] >= 0)
            add(place, "row %" PRId64 ")", slots->row[slot]);
        else
            add(place, "no row)");
    }
    add(place, shown < end - first ? ", ..." : first == end ? ": none" : "");
}

/* A pair of a token and an expert: the slot that has it. */
static void add_pair(struct place_text *place, int64_t token, int64_t expert)
{
    const struct oracle_slots *slots = place->slots;
    for (int64_t s = slots->start[token]; s < slots->start[token + 1]; s++)
        if (slots->expert[slots->order[s]] == expert) {
            add_slot(place, slots->order[s]);
            return;
        }
    add(place, "token %" PRId64 ", expert %" PRId64 ", no slot", token, expert);
}

void golden_describe_place(const struct oracle_case *oracle, const struct oracle_slots *slots,
                           int i, int64_t element, char *text, size_t size)
{
    struct place_text place = {.oracle = oracle, .slots = slots, .text = text, .size = size};
    const DLTensor *output = oracle->output[i];
    int64_t width = output->ndim == 2 ? output->shape[1] : 1;
    int64_t row = width > 0 ? element / width : 0, column = width > 0 ? element % width : 0;
    bool grad = oracle->operator_kind == OPERATOR_UNPERMUTE_GRAD;
    text[0] = '\0';
    switch (oracle->operator_kind) {
    case OPERATOR_UNPERMUTE_GRAD:
    case OPERATOR_PERMUTE_GRAD:
        if (i == 0 && grad)
            add_row(&place, row);
        else if (i == 0)
            add_token(&place, row);
        else if (i == 1)
            add_pair(&place, row, column);
        else
            add_slot(&place, element);
        break;
    case OPERATOR_UNPERMUTE:
        if (i == 0)
            add_token(&place, row);
        else
            add_slot(&place, oracle->drop_and_pad && i < 3 ? slots->order[element] : element);
        break;
    case OPERATOR_PERMUTE:
        if (i == 2)
            add_slot(&place, element);
        else if (i == 4)
            add(&place, "expert %" PRId64, oracle->expert_begin + element);
        else
            add_row(&place, row);
        break;
    case OPERATOR_ROUTER:
    case OPERATOR_ROUTER_GRAD: /* judged by oracle_router.c, without places */
        break;
    }
}
