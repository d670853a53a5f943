/* moetoken.h - sending tokens to experts and adding the answers up again, forward and backward.
 *
 * A mixture-of-experts layer sends each token to a few experts (permute), lets every expert work
 * on its rows, and adds the experts' answers up again, weighted (unpermute). This header declares
 * the two operators and the backward pass of each, for tensors in CPU memory:
 *
 *     moetoken_permute          tokens            -> rows in expert order
 *     moetoken_permute_grad     its gradient
 *     moetoken_unpermute        rows              -> weighted sums in token order
 *     moetoken_unpermute_grad   its gradient (in CANN: MoeTokenUnpermuteWithRoutingMapGrad)
 *
 * An example: three tokens, three experts, two slots a token, one slot unused. Slot i belongs to
 * token i / 2; out_index[i] names its row, -1 says that the slot is unused.
 *
 *     #include <moetoken/moetoken.h>
 *
 *     float g[3][4] = {...}, x[5][4] = {...}, probs[3][3] = {...};      // the inputs
 *     int32_t out_index[6] = {0, 4, 2, -1, 1, 3};
 *     uint8_t map[3][3] = {{1, 0, 1}, {0, 1, 0}, {1, 1, 0}};
 *     float dx[5][4], dprobs[3][3];                                     // the outputs
 *     int64_t th[] = {3, 4}, rh[] = {5, 4}, te[] = {3, 3}, n[] = {6};   // the shapes
 *
 *     DLTensor tg = moetoken_tensor(g, MOETOKEN_F32, 2, th);
 *     DLTensor ti = moetoken_tensor(out_index, MOETOKEN_I32, 1, n);
 *     DLTensor tm = moetoken_tensor(map, MOETOKEN_BOOL, 2, te);
 *     DLTensor tx = moetoken_tensor(x, MOETOKEN_F32, 2, rh);
 *     DLTensor tp = moetoken_tensor(probs, MOETOKEN_F32, 2, te);
 *     DLTensor tdx = moetoken_tensor(dx, MOETOKEN_F32, 2, rh);
 *     DLTensor tdp = moetoken_tensor(dprobs, MOETOKEN_F32, 2, te);
 *
 *     moetoken_unpermute_grad_args args = {
 *         .unpermuted_tokens_grad = &tg, .out_index = &ti, .routing_map = &tm,
 *         .permuted_tokens = &tx, .probs = &tp, .permuted_tokens_grad = &tdx, .probs_grad = &tdp};
 *     if (moetoken_unpermute_grad(&args, NULL) != MOETOKEN_OK)
 *         fprintf(stderr, "%s\n", moetoken_last_error());
 *
 * Words
 *   T, H, E   tokens_num, hidden_size, experts_num
 *   N         slots: the length of the index tensors. A slot is one (token, expert) assignment
 *   R         rows of the permuted tensors; R <= N, and R = N when drop_and_pad is set
 *   K = N/T   slots of each token when drop_and_pad is false ("dropless")
 *   C = N/E   rows of each expert when drop_and_pad is true ("padded"): its capacity
 *   permuted  in expert order: the rows of expert 0, then of expert 1, ..., ascending token inside
 *
 * Two spellings of a dropless routing
 *   By map: routing_map [T,E] says which experts each token goes to, probs [T,E] with what weight;
 *   the experts of a token's slots are its set experts, ascending.
 *   By expert ids: expert_ids [T,K] lists the experts of each token (topk_ids, top_k_index),
 *   weights [T,K] their weights; slot t * K + k belongs to token t and expert expert_ids[t,k]. -1
 *   stands for an unused slot. Nothing of size T * E is made or read.
 *   A call uses one of them; arguments of both are MOETOKEN_ERR_OPTION.
 *
 * Tensors
 *   Every tensor is a DLTensor (DLPack) in CPU memory (device kDLCPU, or pinned host memory), with
 *   any alignment, byte_offset, and any non-negative strides. strides == NULL means contiguous. An
 *   input may have strides of 0 (an expanded tensor); the elements of an output must not share
 *   memory. Nothing outside a tensor's elements is read or written. Tensors are borrowed for the
 *   length of the call; the library keeps no pointer to them.
 *
 *     token-like    [T,H], [R,H] or [E,H]    float32, float16, bfloat16 or float64; all of one call
 *                                            alike
 *     probs-like    [T,E], [T,K], [R], [N]   the token type, or float32 when tokens are float16 or
 *                                            bfloat16
 *     indices       [N], [R] or [T,K]        int32 or int64
 *     routing_map   [T,E]           bool, int8 or uint8; any non-zero byte is set
 *
 *   Sizes of 0 are ordinary: the call succeeds, and outputs that no slot reaches are zero.
 *
 * Numbers
 *   Results have the same bits on every instruction set, with every number of threads, for every
 *   alignment and stride. In short: products of a weight and an element are computed in float32
 *   and rounded once to the token type, to nearest even; dot products have exact or binary64
 *   products, are summed in binary64 in a fixed order and rounded once to the probs type; float64
 *   tokens are computed in binary64 throughout. Subnormals are kept; NaN stays NaN (a NaN that
 *   arithmetic makes or passes on is the positive quiet NaN without payload; a copy keeps its
 *   payload). The caller's rounding mode and flush-to-zero mode do not matter. docs/numerics.md
 *   has the whole of it.
 *
 * Errors
 *   Every function that can fail returns a moetoken_status. All checks end before the first write:
 *   after an error no output byte has changed. moetoken_last_error() then names the argument, the
 *   place and the values. Nothing here prints, exits or aborts.
 *
 * Threads and memory
 *   Any number of threads may call at once. Inside, a call shares its tokens out among the calling
 *   thread and the library's own threads, which sleep between calls; calls that move fewer than
 *   MOETOKEN_SERIAL_BYTES bytes use none. How many: moetoken_threads_chosen() below. Where none
 *   can be started (limits of a container, of the address space) the calling thread does all the
 *   work; the results are the same.
 *   After fork() the child may call: it starts threads of its own, whatever the parent's threads
 *   were doing. The library may be unloaded with dlclose(), and the process may end, while its
 *   threads sleep. They block all signals but those of their own faults and may run where the
 *   thread may run whose call started them.
 *   A call takes less than 8 KB of the calling thread's stack. Beyond the tensors it needs
 *   moetoken_workspace_size() bytes of workspace, which must not overlap a tensor of the call; with
 *   a workspace from the caller nothing at all is allocated (but what the system needs for a new
 *   thread).
 */
#ifndef MOETOKEN_MOETOKEN_H
#define MOETOKEN_MOETOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

#define MOETOKEN_VERSION_MAJOR 0
#define MOETOKEN_VERSION_MINOR 2
#define MOETOKEN_VERSION_PATCH 0

/* 200 for 0.2.0, 10203 for 1.2.3: to compare with in #if. With 0.x a new minor number may change
 * the interface; the shared library's name, libmoetoken.so.0.2, changes with it. */
#define MOETOKEN_VERSION_NUMBER                                                                    \
    (MOETOKEN_VERSION_MAJOR * 10000 + MOETOKEN_VERSION_MINOR * 100 + MOETOKEN_VERSION_PATCH)

#if defined(__GNUC__)
#define MOETOKEN_API __attribute__((visibility("default")))
#else
#define MOETOKEN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* "0.2.0": the version of the library that is linked, which may be newer than this header. */
MOETOKEN_API const char *moetoken_version(void);

/* ---- status and messages -------------------------------------------------------------------- */

typedef enum moetoken_status {
    MOETOKEN_OK = 0,
    MOETOKEN_ERR_NULL = 1,       /* a required tensor, its data or an argument is missing */
    MOETOKEN_ERR_DEVICE = 2,     /* a tensor is not in CPU memory */
    MOETOKEN_ERR_TYPE = 3,       /* an element type that the argument does not take */
    MOETOKEN_ERR_SHAPE = 4,      /* rank or sizes are wrong, or two tensors disagree */
    MOETOKEN_ERR_STRIDE = 5,     /* a negative stride, or output elements that share memory */
    MOETOKEN_ERR_OVERFLOW = 6,   /* sizes whose product does not fit in 64 bits */
    MOETOKEN_ERR_OVERLAP = 7,    /* an output shares memory with an input or the other output */
    MOETOKEN_ERR_INDEX = 8,      /* an index outside its range */
    MOETOKEN_ERR_DUPLICATE = 9,  /* two slots name one row */
    MOETOKEN_ERR_ROUTING = 10,   /* slots and routing_map do not belong together */
    MOETOKEN_ERR_OPTION = 11,    /* an option that is unknown or does not apply */
    MOETOKEN_ERR_WORKSPACE = 12, /* the workspace is too small or not aligned to 8 bytes */
    MOETOKEN_ERR_MEMORY = 13,    /* no memory for the workspace */
    MOETOKEN_ERR_MPI = 14        /* libmoetoken-mpi: a call of MPI failed, or other ranks did not
                                    come within the time limit */
} moetoken_status;

/* The status as text, "MOETOKEN_ERR_SHAPE"; "unknown status" for any other number. Never NULL. */
MOETOKEN_API const char *moetoken_status_name(moetoken_status status);

/* What was wrong in the calling thread's last failed call: one line without a line feed, for
 * example "out_index[17] = 40 is outside [0, 40)". "" before the first failure. The text belongs
 * to the library and holds until the thread's next failed call. */
MOETOKEN_API const char *moetoken_last_error(void);

/* ---- tensors -------------------------------------------------------------------------------- */

typedef enum moetoken_type {
    MOETOKEN_F32,
    MOETOKEN_F16,
    MOETOKEN_BF16,
    MOETOKEN_F64,
    MOETOKEN_I32,
    MOETOKEN_I64,
    MOETOKEN_BOOL, /* DLPack type code 6, which headers before 0.8 leave unnamed */
    MOETOKEN_I8,
    MOETOKEN_U8
} moetoken_type;

/* The DLPack type of a moetoken_type; {0, 0, 0}, which every call refuses, for any other number. */
MOETOKEN_API DLDataType moetoken_dtype(moetoken_type type);

/* A contiguous row-major tensor in CPU memory over the caller's `data` and `shape` ([ndim] sizes,
 * in elements). Both are borrowed and must live as long as the tensor is used. */
static inline DLTensor moetoken_tensor(void *data, moetoken_type type, int ndim, int64_t *shape)
{
    DLTensor tensor;
    tensor.data = data;
    tensor.device.device_type = kDLCPU;
    tensor.device.device_id = 0;
    tensor.ndim = ndim;
    tensor.dtype = moetoken_dtype(type);
    tensor.shape = shape;
    tensor.strides = NULL;
    tensor.byte_offset = 0;
    return tensor;
}

/* ---- options -------------------------------------------------------------------------------- */

/* Instruction sets: named bundles of CPU features, as bits of a mask. */
#define MOETOKEN_ISA_SCALAR 1u /* plain C, on every CPU; always allowed */
#define MOETOKEN_ISA_AVX2   2u /* x86-64: AVX2, FMA, F16C */
#define MOETOKEN_ISA_AVX512 4u /* x86-64: AVX-512 F, BW, DQ, VL, on top of the avx2 bundle */
#define MOETOKEN_ISA_NEON   8u /* AArch64: Advanced SIMD */

/* Flags */
#define MOETOKEN_MASK_FILL_SLOTS 1u /* unpermute, unpermute_grad: see there */
#define MOETOKEN_TOLERATE_ROUTING_MISMATCH                                                         \
    2u                               /* a slot beyond the set experts of its token has             \
                                        weight 0 and no probs_grad, surplus experts are            \
                                        ignored, instead of MOETOKEN_ERR_ROUTING */
#define MOETOKEN_CACHED_STORES    4u /* write outputs through the caches whatever their size */
#define MOETOKEN_STREAMING_STORES 8u /* write outputs past the caches whatever their size */
#define MOETOKEN_REPEATED_ROWS                                                                     \
    16u /* unpermute, dropless without probs: two slots may name one row. Always so with weights   \
           or expert_ids */

/* All zero is the default, and so is a NULL pointer to it:
 * `moetoken_options options = {0};`. Choices here never change a result's bits, but for the two
 * flags that say so. */
typedef struct moetoken_options {
    uint32_t flags;         /* MOETOKEN_... flags, or-ed */
    uint32_t isa_mask;      /* instruction sets allowed, or-ed; 0: all. The environment variable
                               MOETOKEN_ISA (scalar, avx2, avx512, neon, in any case) sets an
                               upper bound; with any other word in it every call fails */
    int32_t threads;        /* threads at most, the calling one among them; 0: as many as OpenMP
                               would take, see moetoken_threads_chosen */
    int32_t reserved;       /* 0 */
    void *workspace;        /* NULL: the call allocates and frees; else aligned to 8 bytes */
    size_t workspace_bytes; /* at least moetoken_workspace_size(), or 0 with a NULL workspace */
} moetoken_options;

/* *bytes = 16 * (T + N): the workspace that is enough for every operator with T tokens and N slots.
 * What it holds before and after a call means nothing, and one workspace may serve any number of
 * calls, one at a time.
 * MOETOKEN_ERR_SHAPE for a negative number, MOETOKEN_ERR_OVERFLOW when it does not fit in size_t,
 * MOETOKEN_ERR_NULL when bytes is NULL. */
MOETOKEN_API moetoken_status moetoken_workspace_size(int64_t tokens_num, int64_t slots_num,
                                                     size_t *bytes);

/* Calls that read and write fewer bytes than this in all run on the calling thread alone. */
#define MOETOKEN_SERIAL_BYTES (256 * 1024)

/* The threads, the calling one among them, that a call by this thread may use whose options say
 * `threads`, when it is large enough to use any. For 0 as many as OpenMP would take: what
 * omp_get_max_threads() says if the program has an OpenMP runtime (linked, or loaded with
 * RTLD_GLOBAL), so that omp_set_num_threads() counts; else the first number of OMP_NUM_THREADS;
 * else the processors that the calling thread may run on. Whatever is asked for, OMP_THREAD_LIMIT
 * bounds it, and four threads a processor (64 at least), and it is 1 inside as many active parallel
 * regions as omp_get_max_active_levels() allows, which is one by default. The variables are read
 * once, in the first call. 0 for a negative number, which calls refuse. */
MOETOKEN_API int32_t moetoken_threads_chosen(int32_t threads);

/* The instruction sets that this CPU has, as a mask that always holds MOETOKEN_ISA_SCALAR. */
MOETOKEN_API uint32_t moetoken_isa_detected(void);

/* The one instruction set whose kernels run under the options' isa_mask (0: all), after what the
 * CPU has and what MOETOKEN_ISA allows. 0 where calls fail: for unknown bits, and while
 * MOETOKEN_ISA holds a word that names none. The variable is read once, in the first call. */
MOETOKEN_API uint32_t moetoken_isa_chosen(uint32_t isa_mask);

/* "scalar", "avx2", "avx512" or "neon" for one MOETOKEN_ISA_... bit, else "unknown". */
MOETOKEN_API const char *moetoken_isa_name(uint32_t isa);

/* ---- arguments ------------------------------------------------------------------------------ */

/* The arguments of an operator are a struct with its size in front, so that later versions can add
 * fields at its end: zero all of it and name what you give,
 *
 *     moetoken_permute_args args = {.struct_size = sizeof args, .tokens = &tokens, ...};
 *
 * 0 in struct_size means the struct as version 0.2 has it. Where the caller's struct is larger than
 * the library's, the fields that the library does not know must be zero, else MOETOKEN_ERR_OPTION.
 */

/* ---- unpermute_grad ------------------------------------------------------------------------- */

/* The gradient of the weighted combine. For every slot i with row r, token t, expert e, weight w:
 *
 *     permuted_tokens_grad[r,:] = w * unpermuted_tokens_grad[t,:]
 *     probs_grad[t,e]           = sum over h of permuted_tokens[r,h] * unpermuted_tokens_grad[t,h]
 *
 * and zero in every row and entry that no slot reaches. w = probs[t,e], or 1 without probs.
 *
 *                 dropless (drop_and_pad false)             padded (drop_and_pad true)
 *     row         out_index[i]; -1: the slot is unused      out_index[i]
 *     token       permute_token_id[i]; i / K when NULL      permute_token_id[i]
 *     expert      the j-th set expert (ascending) of        r / C
 *                 routing_map[t], j = the ordinal of slot
 *                 i among the slots of t, unused ones
 *                 counted
 *
 * Where several slots hold one (token, expert) pair (padded), their products add up in slot order,
 * in binary64, and are rounded once.
 *
 * Fill slots, padded: slots whose pair is not set in routing_map are treated like any other. With
 * MOETOKEN_MASK_FILL_SLOTS such a slot gives a zero row and adds nothing to probs_grad, and its row
 * of permuted_tokens is not read.
 *
 * By expert ids: out_index is what permute wrote to sorted_indices, and slot t * K + k has the
 * weight weights[t,k] and the gradient
 *
 *     weights_grad[t,k] = <permuted_tokens[r,:], g[t,:]> + <expert_bias[e,:], g[t,:]>
 *
 * (the second product with expert_bias only), zero for an unused slot, whose weight and expert are
 * not looked at. R may be more than N. The gradient of a residual is unpermuted_tokens_grad. */
typedef struct moetoken_unpermute_grad_args {
    size_t struct_size;
    const DLTensor *unpermuted_tokens_grad; /* in  [T,H] token-like */
    const DLTensor *out_index;              /* in  [N] indices */
    const DLTensor *permute_token_id;       /* in  [N] indices; may be NULL when dropless */
    const DLTensor *routing_map;            /* in  [T,E]; required with probs */
    const DLTensor *permuted_tokens;        /* in  [R,H] token-like; required with probs and for
                                               weights_grad */
    const DLTensor *probs;                  /* in  [T,E] probs-like, or NULL: all weights are 1 */
    const int64_t *restore_shape;           /* in  {T, H} to be checked, or NULL */
    bool drop_and_pad;
    const DLTensor *permuted_tokens_grad; /* out [R,H] token-like, or NULL: not wanted. May be the
                                             buffer of permuted_tokens: the gradient replaces it */
    const DLTensor *probs_grad;           /* out [T,E], type of probs, or NULL: not wanted */
    const DLTensor *weights;              /* in  [T,K] probs-like, or NULL: all weights are 1 */
    const DLTensor *expert_bias;          /* in  [E,H] token-like, or NULL */
    const DLTensor *expert_ids;           /* in  [T,K] indices; required with expert_bias */
    const DLTensor *weights_grad;         /* out [T,K], type of weights, or NULL: not wanted */
} moetoken_unpermute_grad_args;

/* Errors: as the status names say; without any output MOETOKEN_ERR_NULL. options may be NULL. */
MOETOKEN_API moetoken_status moetoken_unpermute_grad(const moetoken_unpermute_grad_args *args,
                                                     const moetoken_options *options);

/* All checks that need no element of a tensor: presence, device, type, shape, strides, sizes,
 * options, and (where addresses are given) overlap. Data pointers may be NULL. For callers that
 * plan first and run later: what passes here fails later by its values alone, by a missing data
 * pointer, or for want of memory. */
MOETOKEN_API moetoken_status moetoken_unpermute_grad_check(const moetoken_unpermute_grad_args *args,
                                                           const moetoken_options *options);

/* ---- unpermute ------------------------------------------------------------------------------ */

/* The weighted combine: unpermuted_tokens[t,:] = sum over the slots of t, in slot order, of
 * w * permuted_tokens[row,:], in float32 (binary64 for float64 tokens), multiply then add, rounded
 * once at the end. A token without slots gets zeros. A slot whose weight is exactly 0 adds nothing.
 *
 *                 dropless                                  padded
 *     slot i      row sorted_indices[i] (-1: unused),       row i, token sorted_indices[i],
 *                 token i / K, expert as in unpermute_grad  expert i / C
 *     out_index   sorted_indices                            the positions, and
 *     permute_token_id   i / K                              the values of sorted_indices, sorted
 *                                                           ascending, stable
 *
 * out_index and permute_token_id are what unpermute_grad takes. permuted_probs[i] is the weight of
 * the slot of sorted_indices[i]: 1 without probs, 0 for an unused slot.
 * MOETOKEN_MASK_FILL_SLOTS (padded, needs routing_map): a slot whose pair is not set has weight 0.
 *
 * By expert ids: slot t * K + k has the weight weights[t,k]; two slots may name one row; R may be
 * more than N. With expert_bias a slot adds w * permuted_tokens[row,:], then w * expert_bias[e,:],
 * e = expert_ids[t,k].
 *
 * In both spellings residual[t,:] and then residual2[t,:] are added first, with weight 1, in the
 * same sum. */
typedef struct moetoken_unpermute_args {
    size_t struct_size;
    const DLTensor *permuted_tokens; /* in  [R,H] token-like */
    const DLTensor *sorted_indices;  /* in  [N] indices */
    const DLTensor *routing_map;     /* in  [T,E]; required with probs */
    const DLTensor *probs;           /* in  [T,E] probs-like, or NULL: all weights are 1 */
    const int64_t *restore_shape;    /* in  {T, H}; may be NULL when unpermuted_tokens is given */
    bool drop_and_pad;
    const DLTensor *unpermuted_tokens; /* out [T,H] token-like, or NULL */
    const DLTensor *out_index;         /* out [N] indices, or NULL */
    const DLTensor *permute_token_id;  /* out [N] indices, or NULL */
    const DLTensor *permuted_probs;    /* out [N], type of probs or weights when given, or NULL */
    const DLTensor *weights;           /* in  [T,K] probs-like, or NULL: all weights are 1 */
    const DLTensor *residual;          /* in  [T,H] token-like, or NULL */
    const DLTensor *residual2;         /* in  [T,H] token-like, or NULL; needs residual */
    const DLTensor *expert_bias;       /* in  [E,H] token-like, or NULL */
    const DLTensor *expert_ids;        /* in  [T,K] indices; required with expert_bias */
} moetoken_unpermute_args;

MOETOKEN_API moetoken_status moetoken_unpermute(const moetoken_unpermute_args *args,
                                                const moetoken_options *options);
MOETOKEN_API moetoken_status moetoken_unpermute_check(const moetoken_unpermute_args *args,
                                                      const moetoken_options *options);

/* ---- permute -------------------------------------------------------------------------------- */

/* Sends every token to its experts: row r of permuted_tokens is a bit copy of the row of its token,
 * permuted_probs[r] a bit copy of its weight (a pair whose weight is 0 is kept). Rows no slot names
 * are zero.
 *
 *   dropless by map: rows in expert order. K = num_out_tokens / T, rounded down, and N = T * K.
 *     sorted_indices[t*K + j] is the row of the j-th set expert of token t, -1 in the slots left
 *     over. A token with more than K set experts, or more set pairs than R, is
 *     MOETOKEN_ERR_ROUTING.
 *   padded by map: C = num_out_tokens / E, N = R = E * C, C <= T. Each expert takes its first C set
 *     tokens (further ones are dropped) and is filled up with its lowest tokens that are not set.
 *     sorted_indices[e*C + c] is the token of row e*C + c.
 *   by expert ids: the rows of experts [expert_begin, expert_end) in expert order, inside an expert
 *     in slot order. sorted_indices[t*K + k] is the row of slot t*K + k, -1 for an unused or a
 *     dropped slot; source_slots[r] is the slot of row r, -1 for a row that no slot fills;
 *     rows_per_expert[e - expert_begin] counts the rows of expert e that are kept.
 *     An id of -1, or of an expert outside the range, is an unused slot; below -1 or from
 *     experts_num on it is MOETOKEN_ERR_INDEX. A token may name one expert twice: two slots, two
 *     rows.
 *     Without capacity rows from R on are dropped. With it R = E' * C, where E' = expert_end -
 *     expert_begin, and row (e - expert_begin) * C + c holds the c-th slot of expert e; further
 *     slots are dropped. */
typedef struct moetoken_permute_args {
    size_t struct_size;
    const DLTensor *tokens; /* in  [T,H] token-like; by expert ids NULL without permuted_tokens */
    const DLTensor *routing_map;     /* in  [T,E] */
    const DLTensor *probs;           /* in  [T,E] probs-like, or NULL */
    int64_t num_out_tokens;          /* in  slots: T*K dropless, E*C padded; 0 by expert ids */
    bool drop_and_pad;               /* false by expert ids */
    const DLTensor *permuted_tokens; /* out [R,H] token-like, or NULL */
    const DLTensor *permuted_probs;  /* out [R], type of probs or weights, or NULL; needs one */
    const DLTensor *sorted_indices;  /* out [N] indices, or NULL */
    const DLTensor *expert_ids;      /* in  [T,K] indices */
    const DLTensor *weights;         /* in  [T,K] probs-like, or NULL */
    int64_t experts_num;             /* in  E, by expert ids */
    int64_t expert_begin;            /* in  the experts whose rows are made, by expert ids: */
    int64_t expert_end;              /*     [begin, end); both 0: all of [0, E) */
    int64_t capacity;                /* in  C, by expert ids; 0: as many rows as there are */
    const DLTensor *source_slots;    /* out [R] indices, or NULL */
    const DLTensor *rows_per_expert; /* out [E'] int64, or NULL */
} moetoken_permute_args;

MOETOKEN_API moetoken_status moetoken_permute(const moetoken_permute_args *args,
                                              const moetoken_options *options);
MOETOKEN_API moetoken_status moetoken_permute_check(const moetoken_permute_args *args,
                                                    const moetoken_options *options);

/* ---- permute_grad --------------------------------------------------------------------------- */

/* The gradient of permute: tokens_grad[t,:] = sum over the slots of t, in slot order, of
 * permuted_tokens_grad[row,:] (float32, rounded once); probs_grad[t,e] = sum of
 * permuted_probs_grad[row] over the slots of the pair (binary64, rounded once), zero elsewhere.
 * Slots as in unpermute. routing_map is required for probs_grad when dropless.
 *
 * By expert ids: weights_grad[t,k] is a bit copy of permuted_probs_grad[row] of slot t * K + k,
 * zero for an unused slot; neither map nor experts_num are needed, and R may be more than N. */
typedef struct moetoken_permute_grad_args {
    size_t struct_size;
    const DLTensor *permuted_tokens_grad; /* in  [R,H] token-like; required for tokens_grad */
    const DLTensor *permuted_probs_grad;  /* in  [R] probs-like; required for probs_grad and
                                             weights_grad */
    const DLTensor *sorted_indices;       /* in  [N] indices */
    const DLTensor *routing_map;          /* in  [T,E], or NULL */
    int64_t tokens_num;                   /* in  T */
    int64_t experts_num;                  /* in  E; not used without probs_grad and routing_map */
    bool drop_and_pad;
    const DLTensor *tokens_grad;  /* out [T,H] token-like, or NULL */
    const DLTensor *probs_grad;   /* out [T,E], type of permuted_probs_grad, or NULL */
    const DLTensor *weights_grad; /* out [T,K], type of permuted_probs_grad, or NULL */
} moetoken_permute_grad_args;

MOETOKEN_API moetoken_status moetoken_permute_grad(const moetoken_permute_grad_args *args,
                                                   const moetoken_options *options);
MOETOKEN_API moetoken_status moetoken_permute_grad_check(const moetoken_permute_grad_args *args,
                                                         const moetoken_options *options);

#ifdef __cplusplus
}
#endif

#endif
