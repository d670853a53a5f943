/* status_test.c - what each operator by expert ids refuses, with which status and words: pointers,
 * types, shapes, numbers, products. Phase one needs no data. */
#include "ids_twin.h"

/* A tensor of a call; of type ACL_DT_UNDEFINED it is NULL. */
struct plan {
    aclDataType type;
    uint64_t rank;
    int64_t size[3];
    aclFormat format;
};

#define VECTOR(type, n)                                                                            \
    {                                                                                              \
        type, 1, {n, 0, 0}, ACL_FORMAT_ND                                                          \
    }
#define MATRIX(type, rows, n)                                                                      \
    {                                                                                              \
        type, 2, {rows, n, 0}, ACL_FORMAT_ND                                                       \
    }
#define CUBE(type, a, b, c)                                                                        \
    {                                                                                              \
        type, 3, {a, b, c}, ACL_FORMAT_ND                                                          \
    }
#define NOTHING                                                                                    \
    {                                                                                              \
        ACL_DT_UNDEFINED, 0, {0, 0, 0}, ACL_FORMAT_ND                                              \
    }
#define IN_NCHW(type, rows, n)                                                                     \
    {                                                                                              \
        type, 2, {rows, n, 0}, ACL_FORMAT_NCHW                                                     \
    }

/* What a call is given beside tensors. `number` is numOutTokens, numTopk or topkNum. */
struct extra {
    int64_t number;
    bool padded;
    int range_size; /* -1: NULL */
    int64_t range[3];
};

enum operator_name {
    PERMUTE,
    PERMUTE_WITH_EP,
    PERMUTE_GRAD,
    PERMUTE_WITH_EP_GRAD,
    UNPERMUTE,
    UNPERMUTE_WITH_EP,
    UNPERMUTE_GRAD,
    UNPERMUTE_WITH_EP_GRAD,
    OPERATORS
};

enum {
    TENSORS_MOST = 6
};

/* Good calls of each, tensors in the order of the prototype: T = 3, K = 2, H = 4; with a range
 * the rows 1 to 4 of six. */
static const struct {
    struct plan plan[TENSORS_MOST];
    struct extra extra;
} good[OPERATORS] = {
    [PERMUTE] = {{MATRIX(ACL_FLOAT, 3, 4), MATRIX(ACL_INT32, 3, 2), MATRIX(ACL_FLOAT, 6, 4),
                  VECTOR(ACL_INT32, 6)},
                 {.range_size = -1}},
    [PERMUTE_WITH_EP] = {{MATRIX(ACL_FLOAT, 3, 4), MATRIX(ACL_INT64, 3, 2), MATRIX(ACL_FLOAT, 3, 2),
                          MATRIX(ACL_FLOAT, 4, 4), VECTOR(ACL_INT32, 6), VECTOR(ACL_FLOAT, 4)},
                         {.range_size = 2, .range = {1, 5}}},
    [PERMUTE_GRAD] = {{MATRIX(ACL_FLOAT, 6, 4), VECTOR(ACL_INT32, 6), MATRIX(ACL_FLOAT, 3, 4)},
                      {.number = 2, .range_size = -1}},
    [PERMUTE_WITH_EP_GRAD] = {{MATRIX(ACL_FLOAT, 4, 4), VECTOR(ACL_INT32, 6), VECTOR(ACL_FLOAT, 4),
                               MATRIX(ACL_FLOAT, 3, 4), MATRIX(ACL_FLOAT, 3, 2)},
                              {.number = 2, .range_size = 2, .range = {1, 5}}},
    [UNPERMUTE] = {{MATRIX(ACL_FLOAT, 6, 4), VECTOR(ACL_INT32, 6), MATRIX(ACL_BF16, 3, 2),
                    MATRIX(ACL_FLOAT, 3, 4)},
                   {.range_size = -1}},
    [UNPERMUTE_WITH_EP] = {{MATRIX(ACL_FLOAT, 4, 4), VECTOR(ACL_INT32, 6), MATRIX(ACL_FLOAT, 3, 2),
                            MATRIX(ACL_FLOAT, 3, 4)},
                           {.number = 2, .range_size = 2, .range = {1, 5}}},
    [UNPERMUTE_GRAD] = {{MATRIX(ACL_FLOAT, 6, 4), MATRIX(ACL_FLOAT, 3, 4), VECTOR(ACL_INT32, 6),
                         MATRIX(ACL_FLOAT16, 3, 2), MATRIX(ACL_FLOAT, 6, 4),
                         MATRIX(ACL_FLOAT16, 3, 2)},
                        {.range_size = -1}},
    [UNPERMUTE_WITH_EP_GRAD] = {{MATRIX(ACL_FLOAT, 3, 4), VECTOR(ACL_INT32, 6),
                                 MATRIX(ACL_FLOAT, 4, 4), MATRIX(ACL_FLOAT, 3, 2),
                                 MATRIX(ACL_FLOAT, 4, 4), MATRIX(ACL_FLOAT, 3, 2)},
                                {.number = 2, .range_size = 2, .range = {1, 5}}},
};

static const char *const names[OPERATORS] = {
    "aclnnMoeTokenPermute",       "aclnnMoeTokenPermuteWithEp",
    "aclnnMoeTokenPermuteGrad",   "aclnnMoeTokenPermuteWithEpGrad",
    "aclnnMoeTokenUnpermute",     "aclnnMoeTokenUnpermuteWithEp",
    "aclnnMoeTokenUnpermuteGrad", "aclnnMoeTokenUnpermuteWithEpGrad"};

static aclnnStatus call(enum operator_name name, aclTensor *const t[], const struct extra *extra,
                        const aclIntArray *range, uint64_t *bytes, aclOpExecutor **executor)
{
    int64_t n = extra->number;
    bool padded = extra->padded;
    switch (name) {
    case PERMUTE:
        return aclnnMoeTokenPermuteGetWorkspaceSize(t[0], t[1], n, padded, t[2], t[3], bytes,
                                                    executor);
    case PERMUTE_WITH_EP:
        return aclnnMoeTokenPermuteWithEpGetWorkspaceSize(t[0], t[1], t[2], range, n, padded, t[3],
                                                          t[4], t[5], bytes, executor);
    case PERMUTE_GRAD:
        return aclnnMoeTokenPermuteGradGetWorkspaceSize(t[0], t[1], n, padded, t[2], bytes,
                                                        executor);
    case PERMUTE_WITH_EP_GRAD:
        return aclnnMoeTokenPermuteWithEpGradGetWorkspaceSize(t[0], t[1], t[2], n, range, padded,
                                                              t[3], t[4], bytes, executor);
    case UNPERMUTE:
        return aclnnMoeTokenUnpermuteGetWorkspaceSize(t[0], t[1], t[2], padded, NULL, t[3], bytes,
                                                      executor);
    case UNPERMUTE_WITH_EP:
        return aclnnMoeTokenUnpermuteWithEpGetWorkspaceSize(t[0], t[1], t[2], n, range, padded,
                                                            NULL, t[3], bytes, executor);
    case UNPERMUTE_GRAD:
        return aclnnMoeTokenUnpermuteGradGetWorkspaceSize(t[0], t[1], t[2], t[3], padded, NULL,
                                                          t[4], t[5], bytes, executor);
    default:
        return aclnnMoeTokenUnpermuteWithEpGradGetWorkspaceSize(
            t[0], t[1], t[2], t[3], padded, NULL, range, n, t[4], t[5], bytes, executor);
    }
}

static aclTensor *create(const struct plan *plan)
{
    if (plan->type == ACL_DT_UNDEFINED || plan->rank == 0)
        return NULL;
    return aclCreateTensor(plan->size, plan->rank, plan->type, NULL, 0, plan->format, plan->size,
                           plan->rank, NULL);
}

/* Phase one of the plans, which must end so. */
static void expect(enum operator_name name, const struct plan *plan, const struct extra *extra,
                   aclnnStatus expected, const char *words)
{
    aclTensor *tensors[TENSORS_MOST];
    aclIntArray *range =
        extra->range_size < 0 ? NULL : aclCreateIntArray(extra->range, (uint64_t)extra->range_size);
    for (int i = 0; i < TENSORS_MOST; i++)
        tensors[i] = create(&plan[i]);
    aclnnStatus status = call(name, tensors, extra, range, &ids_workspace_bytes, &ids_executor);
    if (status != expected)
        print_error("%s, expected %d with \"%s\":\n", names[name], expected, words);
    ids_refused(status, expected, words);
    if (expected != ACLNN_SUCCESS)
        assert_non_null(strstr(aclGetRecentErrMsg(), names[name]));
    for (int i = 0; i < TENSORS_MOST; i++)
        aclDestroyTensor(tensors[i]);
    aclDestroyIntArray(range);
}

/* The good call with another tensor at `place`. */
static void expect_with(enum operator_name name, int place, struct plan other, aclnnStatus expected,
                        const char *words)
{
    struct plan plan[TENSORS_MOST];
    memcpy(plan, good[name].plan, sizeof plan);
    plan[place] = other;
    expect(name, plan, &good[name].extra, expected, words);
}

static void good_calls(void **state)
{
    (void)state;
    for (int name = 0; name < OPERATORS; name++) {
        expect(name, good[name].plan, &good[name].extra, ACLNN_SUCCESS, "");
        aclTensor *none[TENSORS_MOST] = {NULL};
        assert_fails(call(name, none, &good[name].extra, NULL, NULL, &ids_executor),
                     ACLNN_ERR_PARAM_NULLPTR, "workspaceSize is NULL");
        assert_fails(call(name, none, &good[name].extra, NULL, &ids_workspace_bytes, NULL),
                     ACLNN_ERR_PARAM_NULLPTR, "executor is NULL");
    }
}

/* 161001, and which may be NULL. */
static void pointers(void **state)
{
    (void)state;
    static const struct plan nothing = NOTHING;
    static const struct {
        enum operator_name name;
        int place;
        const char *words; /* NULL: may be NULL */
    } cases[] = {
        {PERMUTE, 0, "tokens is NULL"},
        {PERMUTE, 1, "indices is NULL"},
        {PERMUTE, 2, "permuteTokensOut is NULL"},
        {PERMUTE, 3, "sortedIndicesOut is NULL"},
        {PERMUTE_WITH_EP, 0, "tokens is NULL"},
        {PERMUTE_WITH_EP, 1, "indices is NULL"},
        {PERMUTE_WITH_EP, 2, NULL},
        {PERMUTE_WITH_EP, 3, "permuteTokensOut is NULL"},
        {PERMUTE_WITH_EP, 4, "sortedIndicesOut is NULL"},
        {PERMUTE_WITH_EP, 5, "permuteProbsOut is NULL although"},
        {PERMUTE_GRAD, 0, "permutedOutputGrad is NULL"},
        {PERMUTE_GRAD, 1, "sortedIndices is NULL"},
        {PERMUTE_GRAD, 2, "out is NULL"},
        {PERMUTE_WITH_EP_GRAD, 0, "permutedTokensOutputGrad is NULL"},
        {PERMUTE_WITH_EP_GRAD, 1, "sortedIndices is NULL"},
        {PERMUTE_WITH_EP_GRAD, 2, NULL},
        {PERMUTE_WITH_EP_GRAD, 3, "tokenGradOut is NULL"},
        {PERMUTE_WITH_EP_GRAD, 4, "probsGradOut is NULL although"},
        {UNPERMUTE, 0, "permutedTokens is NULL"},
        {UNPERMUTE, 1, "sortedIndices is NULL"},
        {UNPERMUTE, 3, "out is NULL"},
        {UNPERMUTE_WITH_EP, 0, "permutedTokens is NULL"},
        {UNPERMUTE_WITH_EP, 1, "sortedIndices is NULL"},
        {UNPERMUTE_WITH_EP, 2, NULL},
        {UNPERMUTE_WITH_EP, 3, "out is NULL"},
        {UNPERMUTE_GRAD, 0, "permutedTokensOptional is NULL"},
        {UNPERMUTE_GRAD, 1, "unpermutedTokensGrad is NULL"},
        {UNPERMUTE_GRAD, 2, "sortedIndices is NULL"},
        {UNPERMUTE_GRAD, 4, "permutedTokensGradOut is NULL"},
        {UNPERMUTE_GRAD, 5, "probsGradOut is NULL"},
        {UNPERMUTE_WITH_EP_GRAD, 0, "unpermutedTokensGrad is NULL"},
        {UNPERMUTE_WITH_EP_GRAD, 1, "sortedIndices is NULL"},
        {UNPERMUTE_WITH_EP_GRAD, 2, "permutedTokensOptional is NULL although"},
        {UNPERMUTE_WITH_EP_GRAD, 3, NULL},
        {UNPERMUTE_WITH_EP_GRAD, 4, "permutedTokensGradOut is NULL"},
        {UNPERMUTE_WITH_EP_GRAD, 5, "probsGradOut is NULL although"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_with(cases[i].name, cases[i].place, nothing,
                    cases[i].words ? ACLNN_ERR_PARAM_NULLPTR : ACLNN_SUCCESS, cases[i].words);
}

/* 161002: types and formats. */
static void types(void **state)
{
    (void)state;
    static const struct {
        enum operator_name name;
        int place;
        struct plan plan;
        const char *words;
    } cases[] = {
        {PERMUTE, 0, MATRIX(ACL_INT8, 3, 4), "tokens has data type 2"},
        {PERMUTE, 0, MATRIX(ACL_DOUBLE, 3, 4), "tokens has data type 11"},
        {PERMUTE, 0, IN_NCHW(ACL_FLOAT, 3, 4), "tokens has format 0"},
        {PERMUTE, 1, MATRIX(ACL_INT16, 3, 2), "indices has data type 6"},
        {PERMUTE, 2, MATRIX(ACL_BF16, 6, 4), "permuteTokensOut has data type 27"},
        {PERMUTE, 3, VECTOR(ACL_INT64, 6), "sortedIndicesOut has data type 9"},
        {PERMUTE_WITH_EP, 1, MATRIX(ACL_UINT8, 3, 2), "indices has data type 4"},
        {PERMUTE_WITH_EP, 2, MATRIX(ACL_BF16, 3, 2), "probsOptional has data type 27"},
        {PERMUTE_WITH_EP, 3, MATRIX(ACL_FLOAT16, 4, 4), "permuteTokensOut has data type 1"},
        {PERMUTE_WITH_EP, 5, VECTOR(ACL_FLOAT16, 4), "permuteProbsOut has data type 1"},
        {PERMUTE_GRAD, 1, VECTOR(ACL_INT64, 6), "sortedIndices has data type 9"},
        {PERMUTE_GRAD, 2, MATRIX(ACL_FLOAT16, 3, 4), "out has data type 1"},
        {PERMUTE_WITH_EP_GRAD, 2, VECTOR(ACL_BF16, 4), "ProbsOutputGradOptional has data type 27"},
        {PERMUTE_WITH_EP_GRAD, 4, MATRIX(ACL_BF16, 3, 2), "probsGradOut has data type 27"},
        {UNPERMUTE, 1, VECTOR(ACL_INT64, 6), "sortedIndices has data type 9"},
        {UNPERMUTE, 2, MATRIX(ACL_INT32, 3, 2), "probsOptional has data type 3"},
        {UNPERMUTE, 3, MATRIX(ACL_BF16, 3, 4), "out has data type 27"},
        {UNPERMUTE_WITH_EP, 2, IN_NCHW(ACL_FLOAT, 3, 2), "probsOptional has format 0"},
        {UNPERMUTE_GRAD, 0, MATRIX(ACL_BF16, 6, 4), "permutedTokensOptional has data type 27"},
        {UNPERMUTE_GRAD, 4, MATRIX(ACL_BF16, 6, 4), "permutedTokensGradOut has data type 27"},
        {UNPERMUTE_GRAD, 5, MATRIX(ACL_FLOAT, 3, 2), "probsGradOut has data type 0"},
        {UNPERMUTE_WITH_EP_GRAD, 2, MATRIX(ACL_BF16, 4, 4), "TokensOptional has data type 27"},
        {UNPERMUTE_WITH_EP_GRAD, 5, MATRIX(ACL_BF16, 3, 2), "probsGradOut has data type 27"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_with(cases[i].name, cases[i].place, cases[i].plan, ACLNN_ERR_PARAM_INVALID,
                    cases[i].words);
}

/* 561002: shapes that are wrong, or do not go together. */
static void shapes(void **state)
{
    (void)state;
    static const struct {
        enum operator_name name;
        int place;
        struct plan plan;
        const char *words;
    } cases[] = {
        {PERMUTE, 0, VECTOR(ACL_FLOAT, 3), "tokens has rank 1"},
        {PERMUTE, 0, MATRIX(ACL_FLOAT, 4, 4), "expert_ids"},
        {PERMUTE, 0, CUBE(ACL_FLOAT, 3, 2, 3), "permuted_tokens"},
        {PERMUTE, 1, CUBE(ACL_INT32, 3, 2, 1), "indices has rank 3"},
        {PERMUTE, 2, MATRIX(ACL_FLOAT, 5, 4), "permuteTokensOut has 5 rows, expected 6"},
        {PERMUTE, 2, MATRIX(ACL_FLOAT, 6, 3), "permuted_tokens"},
        {PERMUTE, 3, VECTOR(ACL_INT32, 7), "sorted_indices"},
        {PERMUTE, 3, MATRIX(ACL_INT32, 3, 2), "sorted_indices"},
        {PERMUTE_WITH_EP, 2, MATRIX(ACL_FLOAT, 3, 1), "weights"},
        {PERMUTE_WITH_EP, 2, VECTOR(ACL_FLOAT, 6), "probsOptional has rank 1, expected 2"},
        {PERMUTE_WITH_EP, 3, MATRIX(ACL_FLOAT, 6, 4), "permuteTokensOut has 6 rows, expected 4"},
        {PERMUTE_WITH_EP, 5, VECTOR(ACL_FLOAT, 6), "permuted_probs"},
        {PERMUTE_GRAD, 0, CUBE(ACL_FLOAT, 6, 4, 1), "permuted_tokens_grad"},
        {PERMUTE_GRAD, 1, VECTOR(ACL_INT32, 5), "sortedIndices has 5 values, expected T * K"},
        {PERMUTE_GRAD, 1, MATRIX(ACL_INT32, 3, 2), "sortedIndices has rank 2"},
        {PERMUTE_GRAD, 2, MATRIX(ACL_FLOAT, 3, 5), "tokens_grad"},
        {PERMUTE_WITH_EP_GRAD, 2, VECTOR(ACL_FLOAT, 3), "permuted_probs_grad"},
        {PERMUTE_WITH_EP_GRAD, 4, MATRIX(ACL_FLOAT, 3, 3), "weights_grad"},
        {UNPERMUTE, 1, VECTOR(ACL_INT32, 9), "sortedIndices has 9 values, expected T * K = 3 * 2"},
        {UNPERMUTE, 2, MATRIX(ACL_BF16, 2, 2), "weights"},
        {UNPERMUTE, 2, CUBE(ACL_BF16, 3, 1, 2), "sortedIndices has 6 values"},
        {UNPERMUTE, 2, NOTHING, "sortedIndices has 6 values, expected T * K = 3 * 1"},
        {UNPERMUTE, 3, MATRIX(ACL_FLOAT, 3, 3), "unpermuted_tokens"},
        {UNPERMUTE_WITH_EP, 2, MATRIX(ACL_FLOAT, 2, 3), "numTopk = 2, expected 3"},
        {UNPERMUTE_WITH_EP, 3, MATRIX(ACL_FLOAT, 2, 4), "expected T * K = 2 * 2"},
        {UNPERMUTE_GRAD, 0, MATRIX(ACL_FLOAT, 5, 4), "permuted_tokens"},
        {UNPERMUTE_GRAD, 4, MATRIX(ACL_FLOAT, 6, 5), "permuted_tokens_grad"},
        {UNPERMUTE_GRAD, 5, MATRIX(ACL_FLOAT16, 2, 3), "weights_grad"},
        {UNPERMUTE_WITH_EP_GRAD, 0, MATRIX(ACL_FLOAT, 4, 4), "expected T * K = 4 * 2"},
        {UNPERMUTE_WITH_EP_GRAD, 3, VECTOR(ACL_FLOAT, 6), "weights"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_with(cases[i].name, cases[i].place, cases[i].plan, ACLNN_ERR_INNER_TILING_ERROR,
                    cases[i].words);
}

/* Ranges, K as a number, padded mode. */
static void numbers(void **state)
{
    (void)state;
    static const struct {
        enum operator_name name;
        struct extra extra;
        aclnnStatus status;
        const char *words;
    } cases[] = {
        {PERMUTE, {.padded = true, .range_size = -1}, 561002, "paddedMode is true"},
        {PERMUTE_WITH_EP, {0, true, 2, {1, 5}}, 561002, "paddedMode is true"},
        {PERMUTE_WITH_EP, {0, false, 3, {1, 5}}, 561002, "rangeOptional has 3 values"},
        {PERMUTE_WITH_EP, {0, false, 2, {-1, 3}}, 561002, "rangeOptional = {-1, 3}"},
        {PERMUTE_WITH_EP, {0, false, 2, {5, 1}}, 561002, "rangeOptional = {5, 1}"},
        {PERMUTE_WITH_EP, {0, false, 2, {3, 7}}, 561002, "rangeOptional = {3, 7}"},
        {PERMUTE_WITH_EP, {0, false, 0, {0}}, 561002, "has 4 rows, expected 6"},
        {PERMUTE_WITH_EP, {4, false, -1, {0}}, 0, ""},
        {PERMUTE_WITH_EP, {-2, false, -1, {0}}, 0, ""},
        {PERMUTE_GRAD, {2, true, -1, {0}}, 161002, "paddedMode is true"},
        {PERMUTE_GRAD, {0, false, -1, {0}}, 561002, "numTopk = 0"},
        {PERMUTE_GRAD, {3, false, -1, {0}}, 561002, "expected T * K = 3 * 3"},
        {PERMUTE_GRAD, {INT64_MAX, false, -1, {0}}, 561002, "expected T * K"},
        {PERMUTE_WITH_EP_GRAD, {2, true, 2, {1, 5}}, 161002, "paddedMode is true"},
        {PERMUTE_WITH_EP_GRAD, {-2, false, 2, {1, 5}}, 561002, "numTopk = -2"},
        {PERMUTE_WITH_EP_GRAD, {2, false, 2, {5, 1}}, 561002, "rangeOptional = {5, 1}"},
        {PERMUTE_WITH_EP_GRAD, {2, false, 1, {1}}, 561002, "rangeOptional has 1 values"},
        {UNPERMUTE, {0, true, -1, {0}}, 161002, "paddedMode is true"},
        {UNPERMUTE_WITH_EP, {2, true, 2, {1, 5}}, 161002, "paddedMode is true"},
        {UNPERMUTE_WITH_EP, {0, false, 2, {1, 5}}, 561002, "numTopk = 0"},
        {UNPERMUTE_WITH_EP, {3, false, 2, {1, 5}}, 561002, "numTopk = 3, expected 2"},
        {UNPERMUTE_WITH_EP, {2, false, 2, {-1, 5}}, 561002, "rangeOptional = {-1, 5}"},
        {UNPERMUTE_WITH_EP, {77, false, -1, {0}}, 0, ""},
        {UNPERMUTE_GRAD, {0, true, -1, {0}}, 161002, "paddedMode is true"},
        {UNPERMUTE_WITH_EP_GRAD, {2, true, 2, {1, 5}}, 161002, "paddedMode is true"},
        {UNPERMUTE_WITH_EP_GRAD, {2, false, 2, {-1, 2}}, 561002, "rangeOptional = {5, 2}"},
        {UNPERMUTE_WITH_EP_GRAD, {2, false, 4, {1, 5}}, 561002, "rangeOptional has 4 values"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect(cases[i].name, good[cases[i].name].plan, &cases[i].extra, cases[i].status,
               cases[i].words);
}

/* ---- products ------------------------------------------------------------------------------- */

static bool has_range(int name)
{
    return name == PERMUTE_WITH_EP || name == PERMUTE_WITH_EP_GRAD || name == UNPERMUTE_WITH_EP ||
           name == UNPERMUTE_WITH_EP_GRAD;
}

static void products_that_have_them(void **state)
{
    (void)state;
    static const char *const all[] = {"Ascend910B",  "Ascend910_93", "Ascend950",
                                      "Ascend310B3", "Ascend310P",   "Ascend910A"};
    for (size_t i = 0; i < 6; i++)
        for (int name = 0; name < OPERATORS; name++) {
            bool has = i < 2 || (i == 2 && !has_range(name));
            setenv("MOETOKEN_SOC", all[i], 1);
            expect(name, good[name].plan, &good[name].extra,
                   has ? ACLNN_SUCCESS : ACLNN_ERR_INNER_FIND_KERNEL_ERROR,
                   "does not have this operator");
        }
    unsetenv("MOETOKEN_SOC");
}

/* Expects `words` on A2 and A3, and success elsewhere. */
static void expect_on_a2(enum operator_name name, const struct plan *plan,
                         const struct extra *extra, const char *words)
{
    static const char *const all[] = {"Ascend910B2", "Ascend910_93", "Ascend950", "host"};
    for (size_t i = 0; i < 4; i++) {
        if (i == 2 && has_range(name))
            continue;
        setenv("MOETOKEN_SOC", all[i], 1);
        expect(name, plan, extra, i < 2 ? ACLNN_ERR_INNER_TILING_ERROR : ACLNN_SUCCESS, words);
    }
    unsetenv("MOETOKEN_SOC");
}

static void slots_of_a_token(void **state)
{
    (void)state;
    static const char *const words = "= 513 is above 512";
    const struct plan x = MATRIX(ACL_FLOAT, 513, 1), one = MATRIX(ACL_FLOAT, 1, 1);
    const struct plan s = VECTOR(ACL_INT32, 513), p = MATRIX(ACL_FLOAT, 1, 513);
    const struct plan ids = MATRIX(ACL_INT32, 1, 513), row_probs = VECTOR(ACL_FLOAT, 513);
    const struct extra range = {513, false, 2, {0, 513}}, none = {513, false, -1, {0}};
    expect_on_a2(PERMUTE, (struct plan[TENSORS_MOST]){one, ids, x, s}, &none, words);
    expect_on_a2(PERMUTE_WITH_EP, (struct plan[]){one, ids, p, x, s, row_probs}, &range, words);
    expect_on_a2(PERMUTE_GRAD, (struct plan[TENSORS_MOST]){x, s, one}, &none, words);
    expect_on_a2(PERMUTE_WITH_EP_GRAD, (struct plan[TENSORS_MOST]){x, s, row_probs, one, p}, &range,
                 words);
    expect_on_a2(UNPERMUTE, (struct plan[TENSORS_MOST]){x, s, p, one}, &none, words);
    expect_on_a2(UNPERMUTE_WITH_EP, (struct plan[TENSORS_MOST]){x, s, p, one}, &range, words);
    expect_on_a2(UNPERMUTE_GRAD, (struct plan[]){x, one, s, p, x, p}, &none, words);
    expect_on_a2(UNPERMUTE_WITH_EP_GRAD, (struct plan[]){one, s, x, p, x, p}, &range, words);
}

static void sort_in_float32(void **state)
{
    (void)state;
    const struct extra none = {0, false, -1, {0}};
    const struct plan many[TENSORS_MOST] = {
        MATRIX(ACL_FLOAT, 16777215, 1), VECTOR(ACL_INT32, 16777215), MATRIX(ACL_FLOAT, 16777215, 1),
        VECTOR(ACL_INT32, 16777215)};
    expect_on_a2(PERMUTE, many, &none, "indices has 16777215 values");
    /* A value of that size is on the device: phase two. */
    struct twin_tensor in = twin_make(ACL_FLOAT, 2, 1, (float[]){1, 2});
    struct twin_tensor ids = twin_make(ACL_INT32, 2, -1, (int32_t[]){16777215, 16777214});
    struct twin_tensor out = twin_make(ACL_FLOAT, 2, 1, NULL);
    struct twin_tensor sorted = twin_make(ACL_INT32, 2, -1, NULL);
    for (int a2 = 1; a2 >= 0; a2--) {
        setenv("MOETOKEN_SOC", a2 ? "Ascend910B" : "host", 1);
        assert_int_equal(aclnnMoeTokenPermuteGetWorkspaceSize(in.tensor, ids.tensor, 0, false,
                                                              out.tensor, sorted.tensor,
                                                              &ids_workspace_bytes, &ids_executor),
                         ACLNN_SUCCESS);
        aclnnStatus status = ids_phase_two(aclnnMoeTokenPermute);
        if (a2)
            assert_fails(status, ACLNN_ERR_INNER_TILING_ERROR, "indices holds 16777215");
        else
            assert_int_equal(status, ACLNN_SUCCESS);
    }
    unsetenv("MOETOKEN_SOC");
    assert_true(((float *)out.data)[0] == 2 && ((int32_t *)sorted.data)[0] == 1);
    struct twin_tensor *all[] = {&in, &ids, &out, &sorted};
    for (size_t i = 0; i < 4; i++)
        twin_drop(all[i]);
}

static void other_rules_of_products(void **state)
{
    (void)state;
    const struct extra padded = {.padded = true, .range_size = -1}, none = {2, false, -1, {0}};
    setenv("MOETOKEN_SOC", "Ascend950", 1); /* whose host code refuses before any tiling */
    expect(PERMUTE, good[PERMUTE].plan, &padded, ACLNN_ERR_PARAM_INVALID, "paddedMode is true");
    setenv("MOETOKEN_SOC", "Ascend910_93", 1);
    expect(PERMUTE, good[PERMUTE].plan, &padded, ACLNN_ERR_INNER_TILING_ERROR,
           "paddedMode is true");
    const struct plan x = MATRIX(ACL_FLOAT, 0, 4), t = MATRIX(ACL_FLOAT, 0, 4),
                      s = VECTOR(ACL_INT32, 0), p = MATRIX(ACL_FLOAT, 0, 2);
    expect_on_a2(UNPERMUTE_GRAD, (struct plan[]){x, t, s, p, x, p}, &none,
                 "unpermutedTokensGrad is empty");
    expect_on_a2(UNPERMUTE_WITH_EP_GRAD, (struct plan[]){t, s, x, p, x, p}, &none,
                 "unpermutedTokensGrad is empty");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_calls),
        cmocka_unit_test(pointers),
        cmocka_unit_test(types),
        cmocka_unit_test(shapes),
        cmocka_unit_test(numbers),
        cmocka_unit_test(products_that_have_them),
        cmocka_unit_test(slots_of_a_token),
        cmocka_unit_test(sort_in_float32),
        cmocka_unit_test(other_rules_of_products),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
