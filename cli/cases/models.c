/* models.c - the shapes of real models' mixture-of-experts layers, for generate, gradcheck, bench.
 */
#include "models.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const struct model_shape model_shapes[MODEL_SHAPES_COUNT] = {
    {"mixtral-8x7b", 4096, 8, 2, "Mixtral-8x7B", "mixtral"},
    {"deepseek-v3", 7168, 256, 8, "DeepSeek-V3/R1-671B", "deepseek-v3"},
    {"qwen3-30b-a3b", 2048, 128, 8, "Qwen3-30B-A3B", "qwen3"},
    {"qwen3-235b-a22b", 4096, 128, 8, "Qwen3-235B-A22B", "qwen3"},
    {"qwen3-next-80b-a3b", 2048, 512, 10, "Qwen3-Next-80B-A3B", NULL},
    {"gpt-oss-120b", 2880, 128, 4, "GPT-OSS-120B", "gpt-oss"},
    {"llama-4-maverick", 5120, 128, 1, "Llama-4-Maverick (17Bx128E)", "llama-4"},
    {"kimi-k2", 7168, 384, 8, "Kimi-K2-1T", "kimi-k2"},
    {"olmoe-1b-7b", 2048, 64, 8, "OLMoE-1B-7B", "olmoe"},
    {"granite-3.0-3b-a800m", 1536, 40, 8, "Granite-3.0-3B-A800M", NULL},
    {"dbrx", 6144, 16, 4, "DBRX-132B", NULL},
    {"hunyuan-large", 6400, 16, 1, "Hunyuan-Large-389B", NULL},
    {"openpangu-72b-v2", 4608, 80, 8, "openPangu-R-72B-2512 (Pangu Pro MoE v2)", NULL},
    {"pangu-ultra-moe", 7680, 256, 8, "Pangu-Ultra-MoE-718B", NULL},
};

const struct model_shape *find_model_shape(const char *name)
{
    for (size_t i = 0; i < MODEL_SHAPES_COUNT; i++)
        if (strcmp(model_shapes[i].name, name) == 0)
            return &model_shapes[i];
    return NULL;
}

void print_model_shapes(void)
{
    printf("%-22s %8s %8s %6s  %-13s%s\n", "name", "hidden", "experts", "top-K", "recipe", "model");
    for (size_t i = 0; i < MODEL_SHAPES_COUNT; i++) {
        const struct model_shape *shape = &model_shapes[i];
        printf("%-22s %8" PRId64 " %8" PRId64 " %6" PRId64 "  %-13s%s\n", shape->name,
               shape->hidden_size, shape->experts_num, shape->topk_num,
               shape->recipe == NULL ? "-" : shape->recipe, shape->model);
    }
}
