/* case_options.c - the options that describe a generated case -> struct case_settings. */
#include "case_options.h"

#include <moetoken/router.h>
#include <stdio.h>

#include "models.h"

struct case_options case_options_default(void)
{
    return (struct case_options){.hidden = -1,
                                 .experts = -1,
                                 .topk = -1,
                                 .capacity = -1,
                                 .tokens = 1024,
                                 .spare_rows = 0,
                                 .extremes = 16384,
                                 .seed = 1,
                                 .skew = 0.5,
                                 .probs_type = -1};
}

static bool fail(char *error, size_t size, const char *message)
{
    snprintf(error, size, "%s", message);
    return false;
}

/* Where topk is not given but a capacity is: as many experts a token as fill it. */
static int64_t topk_of_capacity(const struct case_settings *settings)
{
    if (settings->tokens == 0)
        return 1;
    int64_t slots = 0;
    if (__builtin_mul_overflow(settings->capacity, settings->experts, &slots))
        return settings->experts; /* more than any case may have */
    int64_t topk = slots / settings->tokens + (slots % settings->tokens != 0);
    return topk < 1 ? 1 : topk > settings->experts ? settings->experts : topk;
}

static bool resolve_shape(const struct case_options *options, struct case_settings *settings,
                          char *error, size_t size)
{
    if (options->model != NULL) {
        const struct model_shape *model = find_model_shape(options->model);
        if (model == NULL) {
            snprintf(error, size, "--model %.100s: expected a name of --model list",
                     options->model);
            return false;
        }
        settings->hidden = model->hidden_size;
        settings->experts = model->experts_num;
        settings->topk = model->topk_num;
        if (settings->recipe == NULL)
            settings->recipe = model->recipe;
    } else if (options->hidden < 0 || options->experts < 0 ||
               (options->topk < 0 && options->capacity < 0)) {
        return fail(error, size, "give --model, or --hidden, --experts and --topk");
    }
    settings->tokens = options->tokens;
    settings->hidden = options->hidden < 0 ? settings->hidden : options->hidden;
    settings->experts = options->experts < 0 ? settings->experts : options->experts;
    settings->topk = options->topk < 0 ? settings->topk : options->topk;
    settings->capacity = options->capacity < 0 ? 0 : options->capacity;
    if (settings->capacity > settings->tokens)
        return fail(error, size, "--capacity: expected at most the number of tokens");
    if (settings->topk == 0)
        settings->topk = topk_of_capacity(settings);
    if (settings->topk > settings->experts)
        return fail(error, size, "--topk: expected at most the number of experts");
    return true;
}

static bool resolve_types(const struct case_options *options, struct case_settings *settings,
                          char *error, size_t size)
{
    static const moetoken_type index_types[] = {MOETOKEN_I32, MOETOKEN_I64};
    static const moetoken_type map_types[] = {MOETOKEN_BOOL, MOETOKEN_I8, MOETOKEN_U8};
    settings->token_type = (moetoken_type)options->token_type; /* FLOAT_CHOICES has its order */
    settings->probs_type = options->probs_type >= 0 ? (moetoken_type)options->probs_type
                           : settings->token_type == MOETOKEN_F64 ? MOETOKEN_F64
                                                                  : MOETOKEN_F32;
    settings->index_type = index_types[options->index_type];
    settings->map_type = map_types[options->map_type];
    bool half = settings->token_type == MOETOKEN_F16 || settings->token_type == MOETOKEN_BF16;
    if (settings->probs_type != settings->token_type &&
        !(half && settings->probs_type == MOETOKEN_F32))
        return fail(error, size,
                    "--probs-dtype: expected --dtype's type, or f32 with f16 and bf16");
    return true;
}

/* A router's case: K where the recipe alone tells it, and the model's recipe where none is named.
 */
static bool resolve_recipe(struct case_options *options, struct case_settings *settings,
                           char *error, size_t size)
{
    moetoken_router_config config;
    if (options->recipe == NULL)
        return true;
    if (moetoken_router_recipe(options->recipe, &config) != MOETOKEN_OK)
        return fail(error, size, moetoken_last_error());
    settings->recipe = options->recipe;
    if (options->topk < 0 && options->model == NULL)
        options->topk = config.topk;
    return true;
}

static bool resolve_router(struct case_options *options, struct case_settings *settings,
                           char *error, size_t size)
{
    if (options->logits && !is_router(settings->operator_kind))
        settings->operator_kind = OPERATOR_ROUTER;
    if (!is_router(settings->operator_kind))
        return options->recipe == NULL ||
               fail(error, size, "--recipe: expected with --logits or a router's --operator");
    if (options->drop_and_pad || options->capacity >= 0)
        return fail(error, size, "--drop-and-pad, --capacity: a router has none");
    settings->by_ids = true;
    return resolve_recipe(options, settings, error, size);
}

bool case_options_resolve(const struct case_options *given, struct case_settings *settings,
                          char *error, size_t error_size)
{
    struct case_options changed = *given, *options = &changed;
    *settings = (struct case_settings){.operator_kind = (enum operator_kind)options->operator_kind,
                                       .spare_rows = options->spare_rows,
                                       .extremes = options->extremes,
                                       .skew_64ths = (int64_t)(options->skew * 64.0 + 0.5),
                                       .seed = (uint64_t)options->seed,
                                       .drop_and_pad = options->drop_and_pad,
                                       .by_ids = options->ids,
                                       .without_probs = options->no_probs,
                                       .holes = options->holes,
                                       .shuffle = options->shuffle,
                                       .random_fill_slots = options->random_fill};
    if (!resolve_router(options, settings, error, error_size) ||
        !resolve_shape(options, settings, error, error_size) ||
        !resolve_types(options, settings, error, error_size))
        return false;
    if (settings->capacity > 0)
        settings->drop_and_pad = true;
    if (settings->by_ids && settings->drop_and_pad)
        return fail(
            error, error_size,
            "--ids: a routing by expert ids is dropless; --capacity is an option of permute");
    return true;
}
