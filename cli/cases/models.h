/* models.h - the shapes of real models' mixture-of-experts layers, for generate, gradcheck, bench.
 */
#ifndef MOETOKEN_CLI_MODELS_H
#define MOETOKEN_CLI_MODELS_H

#include <stddef.h>
#include <stdint.h>

struct model_shape {
    const char *name; /* for --model */
    int64_t hidden_size, experts_num, topk_num;
    const char *model;  /* the model's own name */
    const char *recipe; /* of its router, see moetoken_router_recipe; or NULL */
};

#define MODEL_SHAPES_COUNT 14
extern const struct model_shape model_shapes[MODEL_SHAPES_COUNT];

/* The shape of that name, or NULL. */
const struct model_shape *find_model_shape(const char *name);

/* The table, on standard output. */
void print_model_shapes(void);

#endif
