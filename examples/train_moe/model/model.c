/* model.c - parameters, forward and backward of the whole model. */
#include "model.h"

#include <math.h>
#include <string.h>

#include "ranks/ranks.h"

/* ---- parameters ----------------------------------------------------------------------------- */

static void add_tensor(struct model *model, const char *name, int layer, int64_t count,
                       double spread)
{
    model->tensors[model->tensors_count++] =
        (struct tensor){.name = name,
                        .layer = layer,
                        .offset = model->parameters_count,
                        .count = count,
                        .spread = spread,
                        .decays = spread > 0 && strcmp(name, "embedding") != 0};
    model->parameters_count += count;
}

/* The router's weights, and with deepseek-v3's the bias, which the optimizer leaves alone. */
static void add_router(struct model *model, int layer, double spread)
{
    const struct config *config = &model->config;
    add_tensor(model, "router", layer, config->width * config->experts, spread);
    model->tensors[model->tensors_count - 1].frozen = config->router == ROUTER_FROZEN;
    if (config->router != ROUTER_DEEPSEEK)
        return;
    add_tensor(model, "router_bias", layer, config->experts, 0);
    model->tensors[model->tensors_count - 1].frozen = true;
    model->tensors[model->tensors_count - 1].zero = true;
}

static void list_tensors(struct model *model)
{
    const struct config *config = &model->config;
    int64_t width = config->width, square = width * width;
    int64_t experts = config->experts / ranks_count() * width * config->hidden;
    double plain = 1 / sqrt((double)width);
    double into_residual = 1 / sqrt(2.0 * (double)config->layers);
    add_tensor(model, "embedding", -1, VOCABULARY * width, 0.5);
    for (int layer = 0; layer < config->layers; layer++) {
        add_tensor(model, "attention_norm", layer, width, 0);
        add_tensor(model, "qkv", layer, 3 * square, plain);
        add_tensor(model, "projection", layer, square, plain * into_residual);
        add_tensor(model, "experts_norm", layer, width, 0);
        add_router(model, layer, plain);
        add_tensor(model, "up", layer, experts, plain);
        model->tensors[model->tensors_count - 1].of_experts = true;
        add_tensor(model, "down", layer, experts, into_residual / sqrt((double)config->hidden));
        model->tensors[model->tensors_count - 1].of_experts = true;
    }
    add_tensor(model, "final_norm", -1, width, 0);
    add_tensor(model, "head", -1, width * VOCABULARY, 0.1 * plain);
}

/* In the order of list_tensors. */
static void bind_weights(const struct model *model, struct weights *weights, real *base)
{
    const struct tensor *tensor = model->tensors;
    weights->embedding = base + (tensor++)->offset;
    for (int layer = 0; layer < model->config.layers; layer++) {
        weights->blocks[layer].attention_norm = base + (tensor++)->offset;
        weights->blocks[layer].qkv = base + (tensor++)->offset;
        weights->blocks[layer].projection = base + (tensor++)->offset;
        weights->blocks[layer].experts_norm = base + (tensor++)->offset;
        weights->blocks[layer].moe.router = base + (tensor++)->offset;
        if (model->config.router == ROUTER_DEEPSEEK)
            weights->blocks[layer].moe.bias = base + (tensor++)->offset;
        weights->blocks[layer].moe.up = base + (tensor++)->offset;
        weights->blocks[layer].moe.down = base + (tensor++)->offset;
    }
    weights->final_norm = base + (tensor++)->offset;
    weights->head = base + tensor->offset;
}

/* The finaliser of the splitmix64 generator over a Weyl sequence. */
uint64_t random_bits(uint64_t seed, uint64_t counter)
{
    uint64_t z = seed * UINT64_C(0xd1342543de82ef95) + counter * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Uniform numbers with the spread wanted: no function of the C library has a say in the bits. */
static void draw_weights(struct model *model)
{
    for (int i = 0; i < model->tensors_count; i++) {
        const struct tensor *tensor = &model->tensors[i];
        real *values = model->parameters + tensor->offset;
        uint64_t seed = random_bits((uint64_t)model->config.seed, 1000 + (uint64_t)i);
        int64_t before = tensor->of_experts ? ranks_rank() * tensor->count : 0;
        for (int64_t j = 0; j < tensor->count; j++) {
            double unit = ldexp((double)(random_bits(seed, (uint64_t)(before + j)) >> 11), -52) - 1;
            values[j] = tensor->spread > 0 ? (real)(unit * tensor->spread * 1.7320508)
                                           : (real)(tensor->zero ? 0 : 1);
        }
    }
}

int64_t model_all_parameters(const struct model *model)
{
    int64_t count = 0;
    for (int i = 0; i < model->tensors_count; i++)
        count += model->tensors[i].count * (model->tensors[i].of_experts ? ranks_count() : 1);
    return count;
}

int64_t model_active_parameters(const struct model *model)
{
    const struct config *config = &model->config;
    int64_t idle = (config->experts - config->topk) * 2 * config->width * config->hidden;
    return model_all_parameters(model) - config->layers * idle;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* The most that a rank has of a pass. */
static int64_t most_tokens(const struct config *config)
{
    return (config->batch + ranks_count() - 1) / ranks_count() * config->context;
}

static void create_block(struct model *model, struct block *block)
{
    const struct config *config = &model->config;
    int64_t tokens = most_tokens(config), size = tokens * config->width;
    real **matrices[] = {&block->input,   &block->attention_normed, &block->mixed,
                         &block->middle,  &block->experts_normed,   &block->answer,
                         &block->dmiddle, &block->dexperts_normed,  &block->dattention_normed};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        *matrices[i] = allocate(size, sizeof(real));
    block->attention_inverse = allocate(tokens, sizeof(real));
    block->experts_inverse = allocate(tokens, sizeof(real));
    block->qkv = allocate(3 * size, sizeof(real));
    block->dqkv = allocate(3 * size, sizeof(real));
    block->attention = (struct attention){
        .context = config->context,
        .heads = config->heads,
        .width = config->width,
        .weights = allocate(tokens * config->heads * config->context, sizeof(real)),
        .transposed = allocate(size, sizeof(real)),
        .row = allocate(tokens * config->heads, sizeof(real)),
    };
    struct moe_config moe = {
        .tokens = tokens,
        .all_tokens = config->batch * config->context,
        .width = config->width,
        .hidden = config->hidden,
        .experts = config->experts,
        .own_experts = config->experts / ranks_count(),
        .topk = config->topk,
        .capacity_factor = config->capacity_factor,
        .balance_by_bias = config->router == ROUTER_DEEPSEEK,
        .aux_weight = config->aux_weight,
        .bias_rate = config->bias_rate,
        .type = config->bfloat16 ? MOETOKEN_BF16 : REAL_TYPE,
    };
    block->moe = moe_create(&moe, &model->options);
}

static int64_t largest_matrix(const struct config *config)
{
    int64_t most = 3 * config->width > VOCABULARY ? 3 * config->width : VOCABULARY;
    most = most > config->hidden ? most : config->hidden;
    return config->width * most;
}

/* One workspace for all layers and operators: then a step allocates nothing. */
static void create_workspace(struct model *model)
{
    size_t bytes = moe_workspace_bytes(&model->blocks[0].moe.config, model->options.threads);
    model->options.workspace = allocate((int64_t)bytes, 1);
    model->options.workspace_bytes = bytes;
}

struct model *model_create(const struct config *config, const moetoken_options *options)
{
    struct model *model = allocate(1, sizeof *model);
    model->config = *config;
    model->options = *options;
    list_tensors(model);
    model->parameters = allocate(model->parameters_count, sizeof(real));
    model->gradients = allocate(model->parameters_count, sizeof(real));
    bind_weights(model, &model->weights, model->parameters);
    bind_weights(model, &model->weight_gradients, model->gradients);
    draw_weights(model);

    int64_t tokens = most_tokens(config), size = tokens * config->width;
    for (int layer = 0; layer < config->layers; layer++)
        create_block(model, &model->blocks[layer]);
    real **matrices[] = {&model->output, &model->normed, &model->dx, &model->dnormed,
                         &model->dmixed};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        *matrices[i] = allocate(size, sizeof(real));
    model->inverse = allocate(tokens, sizeof(real));
    model->losses = allocate(tokens, sizeof(real));
    model->logits = allocate(tokens * VOCABULARY, sizeof(real));
    model->scratch = allocate(largest_matrix(config), sizeof(real));
    create_workspace(model);
    return model;
}

static void destroy_block(struct block *block)
{
    void *all[] = {block->input,
                   block->attention_normed,
                   block->attention_inverse,
                   block->qkv,
                   block->mixed,
                   block->middle,
                   block->experts_normed,
                   block->experts_inverse,
                   block->answer,
                   block->dexperts_normed,
                   block->dmiddle,
                   block->dqkv,
                   block->dattention_normed,
                   block->attention.weights,
                   block->attention.transposed,
                   block->attention.row};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    moe_destroy(&block->moe);
}

void model_destroy(struct model *model)
{
    if (!model)
        return;
    for (int layer = 0; layer < model->config.layers; layer++)
        destroy_block(&model->blocks[layer]);
    void *all[] = {model->parameters, model->gradients, model->output,  model->normed,
                   model->inverse,    model->logits,    model->losses,  model->dx,
                   model->dnormed,    model->dmixed,    model->scratch, model->options.workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(model);
}

/* ---- forward and backward ------------------------------------------------------------------- */

static void block_forward(struct model *model, int layer, real *output, int64_t tokens,
                          int64_t all_tokens)
{
    struct block *block = &model->blocks[layer];
    int64_t width = model->config.width;
    size_t bytes = (size_t)(tokens * width) * sizeof(real);
    norm_forward(block->attention_normed, block->attention_inverse, block->input,
                 model->weights.blocks[layer].attention_norm, tokens, width);
    linear_forward(block->qkv, block->attention_normed, model->weights.blocks[layer].qkv, tokens,
                   width, 3 * width, false);
    block->attention.sequences = model->sequences.end - model->sequences.begin;
    attention_forward(&block->attention, block->mixed, block->qkv);
    memcpy(block->middle, block->input, bytes);
    linear_forward(block->middle, block->mixed, model->weights.blocks[layer].projection, tokens,
                   width, width, true);

    norm_forward(block->experts_normed, block->experts_inverse, block->middle,
                 model->weights.blocks[layer].experts_norm, tokens, width);
    moe_forward(&block->moe, &model->weights.blocks[layer].moe, block->answer,
                block->experts_normed, tokens, all_tokens, &model->options);
    for (int64_t i = 0; i < tokens * width; i++)
        output[i] = block->middle[i] + block->answer[i];
}

static int64_t share_of_tokens(const struct model *model)
{
    return (model->sequences.end - model->sequences.begin) * model->config.context;
}

static double mean_loss(const struct model *model, int64_t tokens, int64_t all_tokens)
{
    double total = 0;
    ranks_relay_receive(&total, sizeof total);
    for (int64_t t = 0; t < tokens; t++)
        total += (double)model->losses[t];
    ranks_relay_pass(&total, sizeof total);
    ranks_relay_finish(&total, sizeof total);
    return total / (double)all_tokens;
}

double model_forward(struct model *model, const uint8_t *bytes, const uint8_t *targets,
                     int64_t sequences)
{
    int layers = (int)model->config.layers;
    model->sequences = ranks_share(sequences);
    int64_t first = model->sequences.begin * model->config.context, width = model->config.width;
    int64_t tokens = share_of_tokens(model), all_tokens = sequences * model->config.context;
    embedding_forward(model->blocks[0].input, model->weights.embedding, bytes + first, tokens,
                      width);
    for (int layer = 0; layer < layers; layer++)
        block_forward(model, layer,
                      layer + 1 < layers ? model->blocks[layer + 1].input : model->output, tokens,
                      all_tokens);
    norm_forward(model->normed, model->inverse, model->output, model->weights.final_norm, tokens,
                 width);
    linear_forward(model->logits, model->normed, model->weights.head, tokens, width, VOCABULARY,
                   false);
    cross_entropy(model->losses, model->logits, targets + first, tokens, all_tokens, VOCABULARY);
    return mean_loss(model, tokens, all_tokens);
}

/* dx: in, the gradient of the block's output; out, that of its input. */
static void block_backward(struct model *model, int layer, int64_t tokens)
{
    struct block *block = &model->blocks[layer];
    int64_t width = model->config.width;
    moe_backward(&block->moe, &model->weights.blocks[layer].moe,
                 &model->weight_gradients.blocks[layer].moe, block->dexperts_normed, model->dx,
                 &model->options, model->scratch);
    norm_backward(model->dx, block->dexperts_normed, block->middle,
                  model->weights.blocks[layer].experts_norm, block->experts_inverse, tokens, width);

    memcpy(block->dmiddle, model->dx, (size_t)(tokens * width) * sizeof(real));
    linear_backward(model->dmixed, block->dmiddle, model->weights.blocks[layer].projection, tokens,
                    width, width, false, model->scratch);
    attention_backward(&block->attention, block->dqkv, model->dmixed, block->qkv);
    linear_backward(block->dattention_normed, block->dqkv, model->weights.blocks[layer].qkv, tokens,
                    width, 3 * width, false, model->scratch);
    norm_backward(model->dx, block->dattention_normed, block->input,
                  model->weights.blocks[layer].attention_norm, block->attention_inverse, tokens,
                  width);
}

/* The gradients of weights that all ranks have: rank after rank adds its tokens. While one adds to
 * a tensor, the next one adds to the tensor before. */
static void add_linear_gradient(real *gradient, const real *dy, const real *x, int64_t tokens,
                                int64_t inputs, int64_t outputs)
{
    int64_t bytes = inputs * outputs * (int64_t)sizeof(real);
    ranks_relay_receive(gradient, bytes);
    linear_gradient(gradient, dy, x, tokens, inputs, outputs);
    ranks_relay_pass(gradient, bytes);
}

static void add_norm_gradient(real *gradient, const real *dy, const real *x, const real *inverse,
                              int64_t tokens, int64_t width)
{
    ranks_relay_receive(gradient, width * (int64_t)sizeof(real));
    norm_gradient(gradient, dy, x, inverse, tokens, width);
    ranks_relay_pass(gradient, width * (int64_t)sizeof(real));
}

static void add_block_gradients(struct model *model, int layer, int64_t tokens)
{
    const struct block *block = &model->blocks[layer];
    int64_t width = model->config.width;
    add_linear_gradient(model->weight_gradients.blocks[layer].moe.router, block->moe.dlogits,
                        block->experts_normed, tokens, width, model->config.experts);
    add_norm_gradient(model->weight_gradients.blocks[layer].experts_norm, block->dexperts_normed,
                      block->middle, block->experts_inverse, tokens, width);
    add_linear_gradient(model->weight_gradients.blocks[layer].projection, block->dmiddle,
                        block->mixed, tokens, width, width);
    add_linear_gradient(model->weight_gradients.blocks[layer].qkv, block->dqkv,
                        block->attention_normed, tokens, width, 3 * width);
    add_norm_gradient(model->weight_gradients.blocks[layer].attention_norm,
                      block->dattention_normed, block->input, block->attention_inverse, tokens,
                      width);
}

static void add_gradients(struct model *model, const uint8_t *bytes, int64_t tokens)
{
    int64_t width = model->config.width;
    int64_t embedding_bytes = VOCABULARY * width * (int64_t)sizeof(real);
    add_linear_gradient(model->weight_gradients.head, model->logits, model->normed, tokens, width,
                        VOCABULARY);
    add_norm_gradient(model->weight_gradients.final_norm, model->dnormed, model->output,
                      model->inverse, tokens, width);
    for (int layer = (int)model->config.layers; layer-- > 0;)
        add_block_gradients(model, layer, tokens);
    ranks_relay_receive(model->weight_gradients.embedding, embedding_bytes);
    embedding_gradient(model->weight_gradients.embedding, model->dx, bytes, tokens, width);
    ranks_relay_pass(model->weight_gradients.embedding, embedding_bytes);
    for (int i = 0; i < model->tensors_count; i++)
        if (!model->tensors[i].of_experts)
            ranks_relay_finish(model->gradients + model->tensors[i].offset,
                               model->tensors[i].count * (int64_t)sizeof(real));
}

void model_backward(struct model *model, const uint8_t *bytes)
{
    int64_t tokens = share_of_tokens(model), width = model->config.width;
    memset(model->gradients, 0, (size_t)model->parameters_count * sizeof(real));
    memset(model->dx, 0, (size_t)(tokens * width) * sizeof(real));
    linear_backward(model->dnormed, model->logits, model->weights.head, tokens, width, VOCABULARY,
                    false, model->scratch);
    norm_backward(model->dx, model->dnormed, model->output, model->weights.final_norm,
                  model->inverse, tokens, width);
    for (int layer = (int)model->config.layers; layer-- > 0;)
        block_backward(model, layer, tokens);
    add_gradients(model, bytes + model->sequences.begin * model->config.context, tokens);
}

void model_update_biases(const struct model *model)
{
    for (int layer = 0; layer < model->config.layers; layer++)
        if (model->config.router == ROUTER_DEEPSEEK)
            moe_update_bias(&model->blocks[layer].moe, &model->weights.blocks[layer].moe,
                            &model->options);
}

double model_aux_loss(const struct model *model)
{
    double loss = 0;
    ranks_relay_receive(&loss, sizeof loss);
    for (int layer = 0; layer < model->config.layers; layer++)
        loss += model->blocks[layer].moe.aux_loss;
    ranks_relay_pass(&loss, sizeof loss);
    ranks_relay_finish(&loss, sizeof loss);
    return loss;
}
