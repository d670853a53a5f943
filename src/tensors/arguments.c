/* arguments.c - the checks that follow from an operator's table. */
#include "tensors/arguments.h"

#include "status.h"
#include "tensors/overlap.h"
#include "tensors/workspace.h"
#include "threads/run.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- the argument struct -------------------------------------------------------------------- */

/* Bytes that a newer caller's struct has beyond this library's must be zero. */
static moetoken_status check_newer_fields(const char *args, size_t size, size_t known)
{
    for (size_t i = known; i < size; i++)
        if (args[i] != 0)
            return moetoken_fail(MOETOKEN_ERR_OPTION,
                                 "args.struct_size = %zu, but this library knows only the first "
                                 "%zu bytes, and byte %zu is not zero: the program needs a newer "
                                 "libmoetoken",
                                 size, known, i);
    return MOETOKEN_OK;
}

static moetoken_status take_args(const void *args, void *taken, size_t known)
{
    if (args == NULL)
        return moetoken_fail(MOETOKEN_ERR_NULL, "args is NULL");
    size_t size;
    memcpy(&size, args, sizeof size);
    if (size == 0)
        size = known;
    if (size < known)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "args.struct_size = %zu, expected sizeof args, at least %zu, or 0",
                             size, known);
    memcpy(taken, args, known);
    return check_newer_fields(args, size, known);
}

static const DLTensor *tensor_of(const struct moetoken_argument *argument, const void *args)
{
    return *(const DLTensor *const *)(const void *)((const char *)args + argument->offset);
}

/* What is given, and the mode. */
static unsigned find_facts(const struct moetoken_table *table, const char *args, uint32_t flags)
{
    unsigned facts = FACT_ALWAYS;
    bool padded = false;
    if (table->drop_and_pad_offset != 0)
        memcpy(&padded, args + table->drop_and_pad_offset, sizeof padded);
    for (int i = 0; i < table->count; i++)
        if (tensor_of(&table->arguments[i], args))
            facts |= FACT(i);
    facts |= facts & table->by_ids ? FACT_BY_IDS : FACT_BY_MAP;
    facts |= padded ? FACT_PADDED : FACT_DROPLESS;
    return padded && (flags & MOETOKEN_MASK_FILL_SLOTS) ? facts | FACT_MASKED : facts;
}

/* ---- presence ------------------------------------------------------------------------------- */

/* The first of a tensor's cases whose facts all hold, or 0. */
static unsigned case_that_holds(const unsigned *cases, unsigned facts)
{
    for (int i = 0; i < MOETOKEN_CASES_MAX; i++)
        if (cases[i] != 0 && (facts & cases[i]) == cases[i])
            return cases[i];
    return 0;
}

/* What a required tensor is required by, in words: the first argument among the facts, or else what
 * they say of the mode. */
static moetoken_status fail_missing(const struct moetoken_table *table, const char *name,
                                    unsigned required)
{
    if (required == FACT_ALWAYS)
        return moetoken_fail(MOETOKEN_ERR_NULL, "%s is NULL", name);
    for (int i = 0; i < table->count; i++)
        if (required & FACT(i))
            return moetoken_fail(MOETOKEN_ERR_NULL, "%s is NULL, expected a tensor as %s is given",
                                 name, table->arguments[i].name);
    return moetoken_fail(MOETOKEN_ERR_NULL, "%s is NULL, expected a tensor as %s", name,
                         required & FACT_MASKED   ? "MOETOKEN_MASK_FILL_SLOTS is set"
                         : required & FACT_PADDED ? "drop_and_pad is set"
                                                  : "expert_ids is not given");
}

/* "a, b and c are NULL, expected at least one output" */
static moetoken_status fail_none_given(const struct moetoken_table *table, unsigned set,
                                       const char *expected)
{
    char names[256];
    size_t length = 0;
    for (int i = 0; i < table->count && length < sizeof names; i++) {
        if (!(set & FACT(i)))
            continue;
        set &= ~FACT(i);
        bool is_last_but_one = (set & (set - 1)) == 0;
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s",
                                   table->arguments[i].name,
                                   set == 0          ? ""
                                   : is_last_but_one ? " and "
                                                     : ", ");
    }
    return moetoken_fail(MOETOKEN_ERR_NULL, "%s are NULL, expected at least one %s", names,
                         expected);
}

static moetoken_status check_presence(const struct moetoken_call *call)
{
    const struct moetoken_table *table = call->table;
    unsigned outputs = 0;
    for (int i = 0; i < table->count; i++) {
        const struct moetoken_argument *argument = &table->arguments[i];
        bool given = call->facts & FACT(i);
        unsigned required = case_that_holds(argument->required, call->facts);
        if (required && !given)
            return fail_missing(table, argument->name, required);
        outputs |= argument->direction == MOETOKEN_OUTPUT ? FACT(i) : 0;
    }
    if (!(call->facts & outputs))
        return fail_none_given(table, outputs, "output");
    if (table->one_of && !(call->facts & table->one_of))
        return fail_none_given(table, table->one_of, "of them");
    return MOETOKEN_OK;
}

/* The arguments whose elements are read or written, as facts. */
static unsigned find_used(const struct moetoken_call *call)
{
    unsigned used = 0;
    for (int i = 0; i < call->table->count; i++) {
        const struct moetoken_argument *argument = &call->table->arguments[i];
        if ((call->facts & FACT(i)) && (argument->direction == MOETOKEN_OUTPUT ||
                                        case_that_holds(argument->read, call->facts)))
            used |= FACT(i);
    }
    return used;
}

static const char *first_name(const struct moetoken_call *call, unsigned set)
{
    for (int i = 0; i < call->table->count; i++)
        if (call->facts & set & FACT(i))
            return call->table->arguments[i].name;
    return NULL;
}

/* Not both spellings at once, and padded only by map. */
static moetoken_status check_spelling(const struct moetoken_call *call)
{
    const char *map_name = first_name(call, call->table->by_map);
    const char *ids_name = first_name(call, call->table->by_ids);
    if (ids_name && map_name)
        return moetoken_fail(
            MOETOKEN_ERR_OPTION,
            "%s and %s are given, expected a routing either by map or by expert ids", map_name,
            ids_name);
    if (ids_name && (call->facts & FACT_PADDED))
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "drop_and_pad is set, expected false as %s is given", ids_name);
    return MOETOKEN_OK;
}

/* ---- views and types ------------------------------------------------------------------------ */

static moetoken_status make_views(struct moetoken_call *call, const void *args)
{
    unsigned used = find_used(call);
    moetoken_status status = MOETOKEN_OK;
    for (int i = 0; i < call->table->count && status == MOETOKEN_OK; i++) {
        const struct moetoken_argument *argument = &call->table->arguments[i];
        call->view[i].name = argument->name;
        status = moetoken_view_make(tensor_of(argument, args), (int)strlen(argument->sizes),
                                    argument->types, call->need_data && (used & FACT(i)),
                                    &call->view[i]);
    }
    return status;
}

/* The first argument of a set that is given, or NULL. */
static const struct moetoken_view *first_given(const struct moetoken_call *call, unsigned set)
{
    for (int i = 0; i < call->table->count; i++)
        if (set & call->facts & FACT(i))
            return &call->view[i];
    return NULL;
}

static moetoken_status check_weights_type(const struct moetoken_view *view,
                                          const struct moetoken_view *like)
{
    if (!view->given || view->type == MOETOKEN_F32 || view->type == MOETOKEN_F64 ||
        view->type == like->type)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_TYPE, "%s is %s, expected float32, float64 or %s as %s is",
                         view->name, moetoken_type_name(view->type), moetoken_type_name(like->type),
                         like->name);
}

static moetoken_status check_types(const struct moetoken_call *call)
{
    moetoken_status status = MOETOKEN_OK;
    for (int i = 0; i < call->table->count && status == MOETOKEN_OK; i++) {
        const struct moetoken_argument *argument = &call->table->arguments[i];
        const struct moetoken_view *same = first_given(call, argument->same_type);
        const struct moetoken_view *tokens = first_given(call, argument->goes_with);
        const struct moetoken_view *source = first_given(call, argument->weights_of);
        if (same)
            status = moetoken_view_check_same_type(&call->view[i], same);
        else if (tokens)
            status = moetoken_view_check_probs_type(&call->view[i], tokens);
        else if (source)
            status = check_weights_type(&call->view[i], source);
    }
    return status;
}

moetoken_status moetoken_call_read(struct moetoken_call *call, const struct moetoken_table *table,
                                   const void *args, void *taken, const moetoken_options *options,
                                   bool need_data)
{
    call->table = table;
    call->need_data = need_data;
    moetoken_status status = take_args(args, taken, table->args_size);
    if (status == MOETOKEN_OK)
        status = moetoken_options_check(options, table->flags_taken, &call->options);
    if (status != MOETOKEN_OK)
        return status;
    call->facts = find_facts(table, taken, call->options.flags);
    status = check_spelling(call);
    if (status == MOETOKEN_OK)
        status = check_presence(call);
    if (status == MOETOKEN_OK)
        status = make_views(call, taken);
    if (status == MOETOKEN_OK)
        status = check_types(call);
    return status;
}

/* ---- sizes ---------------------------------------------------------------------------------- */

moetoken_status moetoken_call_set_size(struct moetoken_call *call, char letter, int64_t value,
                                       const char *source)
{
    call->size[letter - 'A'] = (struct moetoken_size){value, source};
    if (value >= 0)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_SHAPE, "%s = %" PRId64 ", expected at least 0", source,
                         value);
}

static moetoken_status check_size(const struct moetoken_view *view, int dim, char letter,
                                  struct moetoken_size *size)
{
    if (size->source == NULL)
        *size = (struct moetoken_size){view->shape[dim], view->name};
    if (view->shape[dim] == size->value)
        return MOETOKEN_OK;
    const char symbol[] = {letter, '\0'};
    return moetoken_fail(
        MOETOKEN_ERR_SHAPE,
        "%s has size %" PRId64 " in dimension %d, expected %s = %" PRId64 " (from %s)", view->name,
        view->shape[dim], dim, letter == 'L' ? "E'" : symbol, size->value, size->source);
}

static moetoken_status check_is_one(const struct moetoken_view *view, int dim)
{
    if (view->shape[dim] == 1)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_SHAPE, "%s has size %" PRId64 " in dimension %d, expected 1",
                         view->name, view->shape[dim], dim);
}

moetoken_status moetoken_call_check_sizes(struct moetoken_call *call)
{
    for (int i = 0; i < call->table->count; i++) {
        const char *letters = call->table->arguments[i].sizes;
        for (int dim = 0; call->view[i].given && letters[dim] != '\0'; dim++) {
            moetoken_status status = letters[dim] == '1'
                                         ? check_is_one(&call->view[i], dim)
                                         : check_size(&call->view[i], dim, letters[dim],
                                                      &call->size[letters[dim] - 'A']);
            if (status != MOETOKEN_OK)
                return status;
        }
    }
    return MOETOKEN_OK;
}

moetoken_status moetoken_call_check_slots(const struct moetoken_call *call)
{
    const struct moetoken_size *slots = &call->size['N' - 'A'], *columns = &call->size['K' - 'A'];
    int64_t tokens = moetoken_call_size(call, 'T');
    if (columns->source == NULL || slots->value == tokens * columns->value)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_SHAPE,
                         "%s has N = %" PRId64 " slots, expected T * K = %" PRId64 " * %" PRId64
                         " (K from %s)",
                         slots->source, slots->value, tokens, columns->value, columns->source);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Output i against itself, the arguments behind it and the inputs before it. */
static moetoken_status check_output(const struct moetoken_call *call, int i)
{
    const struct moetoken_argument *arguments = call->table->arguments;
    moetoken_status status = moetoken_view_check_output(&call->view[i]);
    for (int j = 0; j < call->table->count && status == MOETOKEN_OK; j++) {
        if (j == i || (j < i && arguments[j].direction == MOETOKEN_OUTPUT))
            continue;
        if ((arguments[i].may_replace & FACT(j)) &&
            moetoken_views_are_same(&call->view[i], &call->view[j]))
            continue;
        status = moetoken_overlap_check(&call->view[i], &call->view[j]);
    }
    return status;
}

moetoken_status moetoken_call_check_memory_of(const struct moetoken_call *call,
                                              size_t workspace_bytes)
{
    struct moetoken_view workspace;
    moetoken_status status = MOETOKEN_OK;
    for (int i = 0; i < call->table->count && status == MOETOKEN_OK; i++)
        if (call->table->arguments[i].direction == MOETOKEN_OUTPUT)
            status = check_output(call, i);
    if (status == MOETOKEN_OK)
        status = moetoken_workspace_check(&call->options, workspace_bytes, &workspace);
    for (int i = 0; i < call->table->count && status == MOETOKEN_OK; i++)
        status = moetoken_overlap_check(&workspace, &call->view[i]);
    return status;
}

moetoken_status moetoken_call_check_memory(const struct moetoken_call *call, int64_t tokens_num,
                                           int64_t slots_num)
{
    size_t bytes;
    moetoken_status status = moetoken_workspace_size(tokens_num, slots_num, &bytes);
    return status == MOETOKEN_OK ? moetoken_call_check_memory_of(call, bytes) : status;
}

/* ---- plan ----------------------------------------------------------------------------------- */

/* The bytes of all elements of these arguments together, INT64_MAX when they are more. */
static int64_t count_bytes(const struct moetoken_call *call, unsigned arguments)
{
    int64_t total = 0;
    for (int i = 0; i < call->table->count; i++) {
        const struct moetoken_view *view = &call->view[i];
        if ((arguments & FACT(i)) &&
            __builtin_add_overflow(total, view->shape[0] * view->shape[1] * view->size, &total))
            return INT64_MAX;
    }
    return total;
}

/* An output that replaces an input takes its address. */
static bool is_in_place(const struct moetoken_call *call, int output)
{
    unsigned replaced = call->table->arguments[output].may_replace;
    for (int i = 0; i < call->table->count; i++)
        if (call->view[i].given && (replaced & FACT(i)) &&
            call->view[i].data == call->view[output].data)
            return true;
    return false;
}

void moetoken_call_plan(const struct moetoken_call *call, struct moetoken_run *run)
{
    unsigned used = find_used(call), rows_written = 0;
    bool unit = true, in_place = false;
    for (int i = 0; i < call->table->count; i++) {
        const struct moetoken_argument *argument = &call->table->arguments[i];
        if (!(used & FACT(i)) || argument->sizes[1] != 'H')
            continue;
        unit &= moetoken_view_is_unit(&call->view[i]);
        if (argument->direction == MOETOKEN_OUTPUT) {
            rows_written |= FACT(i);
            in_place |= is_in_place(call, i);
        }
    }
    moetoken_run_plan(&call->options, count_bytes(call, used), count_bytes(call, rows_written),
                      unit, in_place, run);
}
