/* pickle_rebuild.c - what the names of a PyTorch file mean: REDUCE, which Python would call
 * something for, and BINPERSID, which stands for a storage beside the program. */
#include "pickle_machine.h"

#include <inttypes.h>
#include <string.h>

static bool is_kind(const struct machine *machine, pickle_place place, enum pickle_kind kind)
{
    return machine_value(machine, place)->kind == kind;
}

/* ---- tensors -------------------------------------------------------------------------------- */

static bool is_tuple_of_integers(const struct machine *machine, pickle_place place)
{
    const struct pickle_value *tuple = machine_value(machine, place);
    if (tuple->kind != PICKLE_TUPLE) {
        return false;
    }
    for (uint32_t i = 0; i < tuple->as.items.count; i++) {
        if (!is_kind(machine, tuple->as.items.places[i], PICKLE_INTEGER)) {
            return false;
        }
    }
    return true;
}

/* What follows the strides: requires_grad and hooks, which change no number, and then, where there
 * are any, marks of a lazy negation or conjugate, which would. */
static bool check_marks(struct machine *machine, const struct pickle_value *args, uint32_t at)
{
    if (args->as.items.count <= at) {
        return true;
    }
    const struct pickle_value *marks = machine_value(machine, args->as.items.places[at]);
    bool empty =
        marks->kind == PICKLE_NONE || (marks->kind == PICKLE_DICT && marks->as.items.count == 0);
    return empty ||
           machine_fail(machine, "a tensor with marks such as a lazy conjugate or negation");
}

static bool rebuild_tensor(struct machine *machine, const struct pickle_value *args, bool typed)
{
    uint32_t least = typed ? 7 : 6;
    const pickle_place *places = args->as.items.places;
    if (args->as.items.count < least || args->as.items.count > least + 1 ||
        !is_kind(machine, places[0], PICKLE_STORAGE) ||
        !is_kind(machine, places[1], PICKLE_INTEGER) || !is_tuple_of_integers(machine, places[2]) ||
        !is_tuple_of_integers(machine, places[3]) ||
        (typed && !is_kind(machine, places[6], PICKLE_GLOBAL))) {
        return machine_fail(machine, "arguments that make no tensor, expected storage, offset, "
                                     "sizes and strides");
    }
    if (machine_value(machine, places[2])->as.items.count !=
        machine_value(machine, places[3])->as.items.count) {
        return machine_fail(machine, "a tensor of %" PRIu32 " sizes with %" PRIu32 " strides",
                            machine_value(machine, places[2])->as.items.count,
                            machine_value(machine, places[3])->as.items.count);
    }
    struct pickle_value tensor = {.kind = PICKLE_TENSOR};
    pickle_place place;
    tensor.as.tensor.storage = places[0];
    tensor.as.tensor.offset = machine_value(machine, places[1])->as.integer;
    tensor.as.tensor.sizes = places[2];
    tensor.as.tensor.strides = places[3];
    if (typed) {
        tensor.as.tensor.type = machine_value(machine, places[6])->as.global;
        if (tensor.as.tensor.type->meaning != GLOBAL_DTYPE) {
            return machine_fail(machine, "a tensor of type %s", tensor.as.tensor.type->name);
        }
    }
    return check_marks(machine, args, least) && machine_add(machine, &tensor, &place) &&
           machine_push(machine, place);
}

static bool rebuild_parameter(struct machine *machine, const struct pickle_value *args)
{
    if (args->as.items.count == 0 || !is_kind(machine, args->as.items.places[0], PICKLE_TENSOR)) {
        return machine_fail(machine, "a parameter that is no tensor");
    }
    return machine_push(machine, args->as.items.places[0]);
}

/* ---- REDUCE: (what, arguments) -> value ----------------------------------------------------- */

static bool make_dict(struct machine *machine, const struct pickle_value *args)
{
    static const struct pickle_value dict = {.kind = PICKLE_DICT};
    pickle_place place;
    if (args->as.items.count != 0) {
        return machine_fail(machine, "an OrderedDict with arguments, expected none");
    }
    return machine_add(machine, &dict, &place) && machine_push(machine, place);
}

static bool make_size(struct machine *machine, const struct pickle_value *args)
{
    if (args->as.items.count != 1 || !is_tuple_of_integers(machine, args->as.items.places[0])) {
        return machine_fail(machine, "a torch.Size that is no tuple of integers");
    }
    return machine_push(machine, args->as.items.places[0]);
}

bool machine_reduce(struct machine *machine)
{
    pickle_place args_place, what_place;
    if (!machine_pop(machine, &args_place) || !machine_pop(machine, &what_place)) {
        return false;
    }
    /* Values move when others are added, their items do not. */
    const struct pickle_value args = *machine_value(machine, args_place);
    const struct pickle_value *what = machine_value(machine, what_place);
    if (what->kind != PICKLE_GLOBAL || args.kind != PICKLE_TUPLE) {
        return machine_fail(machine, "a call of what is no name, or not with a tuple");
    }
    switch (what->as.global->meaning) {
    case GLOBAL_ORDERED_DICT:
        return make_dict(machine, &args);
    case GLOBAL_SIZE:
        return make_size(machine, &args);
    case GLOBAL_REBUILD_TENSOR_V2:
        return rebuild_tensor(machine, &args, false);
    case GLOBAL_REBUILD_TENSOR_V3:
        return rebuild_tensor(machine, &args, true);
    case GLOBAL_REBUILD_PARAMETER:
        return rebuild_parameter(machine, &args);
    case GLOBAL_STORAGE:
    case GLOBAL_DTYPE:
        break;
    }
    return machine_fail(machine, "a call of %s.%s, which is a type", what->as.global->module,
                        what->as.global->name);
}

/* ---- BINPERSID: ("storage", type, key, where it was, elements) -> storage ---------------------
 */

bool machine_persistent_id(struct machine *machine)
{
    pickle_place place;
    if (!machine_pop(machine, &place)) {
        return false;
    }
    const struct pickle_value *id = machine_value(machine, place);
    const pickle_place *places = id->as.items.places;
    if (id->kind != PICKLE_TUPLE || id->as.items.count != 5 ||
        !is_kind(machine, places[0], PICKLE_TEXT) || !is_kind(machine, places[1], PICKLE_GLOBAL) ||
        !is_kind(machine, places[2], PICKLE_TEXT) || !is_kind(machine, places[3], PICKLE_TEXT) ||
        !is_kind(machine, places[4], PICKLE_INTEGER) ||
        machine_value(machine, places[1])->as.global->meaning != GLOBAL_STORAGE) {
        return machine_fail(machine, "a reference that is no storage: expected ('storage', type, "
                                     "key, device, elements)");
    }
    struct pickle_value storage = {.kind = PICKLE_STORAGE};
    storage.as.storage.type = machine_value(machine, places[1])->as.global;
    storage.as.storage.key = places[2];
    storage.as.storage.elements = machine_value(machine, places[4])->as.integer;
    return machine_add(machine, &storage, &place) && machine_push(machine, place);
}
