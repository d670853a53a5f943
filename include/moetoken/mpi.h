/* mpi.h - experts spread over the ranks of an MPI communicator: libmoetoken-mpi.
 *
 * Each rank has tokens of its own and an equal, consecutive range of the experts. An exchange,
 * planned once from the expert ids of everybody's tokens, serves the forward and the backward pass:
 *
 *     moetoken_mpi_plan           expert ids -> who sends how many rows where
 *     moetoken_mpi_dispatch       tokens     -> the rows of this rank's experts
 *     moetoken_mpi_combine        rows       -> weighted sums at the tokens' ranks
 *     moetoken_mpi_combine_grad   its gradient
 *     moetoken_mpi_dispatch_grad  its gradient
 *
 * The results are the bits that one process would get from permute, unpermute and their gradients
 * (moetoken.h, routing by expert ids) with the tokens of all ranks one after another, whatever the
 * number of ranks: a token's sum is formed at the token's rank, in slot order. A token travels
 * once to a rank, however many of its experts live there; experts' rows travel back one a slot.
 *
 * An example: a layer over the ranks of MPI_COMM_WORLD.
 *
 *     moetoken_mpi_comm *comm;                                  // once
 *     moetoken_mpi_open(MPI_COMM_WORLD, NULL, &comm);
 *
 *     moetoken_mpi_exchange *exchange;                          // for each routing
 *     moetoken_mpi_plan_args plan = {.expert_ids = &ids, .experts_num = 64};    // ids [T,K]
 *     if (moetoken_mpi_plan(comm, &plan, &exchange) != MOETOKEN_OK)
 *         fprintf(stderr, "%s\n", moetoken_mpi_last_error());
 *     moetoken_mpi_exchange_info info;
 *     moetoken_mpi_exchange_get(exchange, &info);               // info.rows_num, .rows_per_expert
 *
 *     moetoken_mpi_dispatch_args dispatch = {.tokens = &x, .rows = &rows};      // rows [R,H]
 *     moetoken_mpi_dispatch(exchange, &dispatch);
 *     ... the experts turn rows into answers, info.rows_per_expert[e] rows each ...
 *     moetoken_mpi_combine_args combine = {.rows = &answers, .weights = &w, .tokens = &y};
 *     moetoken_mpi_combine(exchange, &combine);
 *
 *     moetoken_mpi_combine_grad_args combine_grad = {               // the way back
 *         .tokens_grad = &dy, .weights = &w, .rows = &answers,
 *         .rows_grad = &danswers, .weights_grad = &dw};
 *     moetoken_mpi_combine_grad(exchange, &combine_grad);
 *     ... the experts' own backward pass: danswers -> drows ...
 *     moetoken_mpi_dispatch_grad_args dispatch_grad = {.rows_grad = &drows, .tokens_grad = &dx};
 *     moetoken_mpi_dispatch_grad(exchange, &dispatch_grad);
 *
 *     moetoken_mpi_exchange_free(exchange);
 *     moetoken_mpi_close(comm);
 *
 * Words
 *   P          ranks of the communicator
 *   T, H, E, K tokens of this rank, hidden size, experts of all ranks, slots of a token. T differs
 *              from rank to rank and may be 0; H, E, K and the types are the same on every rank
 *   E' = E/P   experts of a rank: rank p has [p * E', (p + 1) * E'). P must divide E
 *   R          rows of this rank's experts: in expert order, inside an expert by the rank that the
 *              token comes from, then in slot order
 *
 * Tensors are those of moetoken.h, with any strides. An output must not lie in the range of
 * addresses of another tensor of the call, but for combine_grad's rows_grad, which may be the very
 * buffer of its rows.
 *
 * Collective calls. Everything that takes a comm or an exchange is collective, but for
 * exchange_get and exchange_free: every rank calls the same functions in the same order, ranks
 * without tokens or without rows too. Where one rank calls another function than rank 0, all get
 * MOETOKEN_ERR_OPTION.
 *
 * Errors. Before anything is sent the ranks agree that all can go on, by one reduction of 136
 * bytes. A fault of one rank - an id out of range, a shape or a type unlike the others', no memory
 * - is the same status with the same message on every rank, "rank 2: expert_ids[7, 1] = 64 is
 * outside [-1, 64)"; no output byte has changed, and the next call may follow. Waiting is bounded
 * (timeout_ms): where a rank has died, or never calls, the others get MOETOKEN_ERR_MPI, and so does
 * every later call on this comm. MPI may then still write into buffers of the call that failed, so
 * that the library does not free its own, and outputs may be written in part; the caller should end
 * the program, or keep the tensors.
 * Errors of MPI never abort here: the communicator that the library talks on, a duplicate, has
 * MPI_ERRORS_RETURN. (Most launchers end all ranks when one dies, before anything here notices.)
 *
 * Threads. MPI must have been initialised. The calling thread alone talks to MPI; copying and
 * adding is shared out among the library's threads as in moetoken.h, which takes
 * MPI_THREAD_FUNNELED. With MPI_THREAD_SINGLE, which promises that there are no other threads, the
 * calling thread does that too. Below MPI_THREAD_SERIALIZED only the thread that initialised MPI
 * may call, else MOETOKEN_ERR_OPTION on this rank, and the others wait out their time. One comm
 * serves one call at a time; different comms may be used at once with MPI_THREAD_MULTIPLE.
 *
 * Memory. An exchange holds 8 bytes for each slot of this rank's tokens, 24 for each row of its
 * experts (40 with several groups), and 16 for each token it sends or keeps, beside lists as long
 * as the ranks and the experts; its info says how many. Planning takes 24 a slot and 8 a row more.
 * A comm keeps the room that rows travel through, as large as the largest call needed: dispatch and
 * combine_grad take (tokens sent to others + tokens received) * H elements, combine and
 * dispatch_grad (R + slots) * H at most. What is sent, and what stays, is copied into the room
 * once; received rows are permuted straight from there into the caller's tensors.
 */
#ifndef MOETOKEN_MPI_H
#define MOETOKEN_MPI_H

#include <moetoken/moetoken.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What was wrong in the calling thread's last failed call of this library; as moetoken_last_error,
 * which does not know of them. */
MOETOKEN_API const char *moetoken_mpi_last_error(void);

/* ---- communicators -------------------------------------------------------------------------- */

typedef struct moetoken_mpi_comm moetoken_mpi_comm;

/* All zero is the default, and so is a NULL pointer to it. The same on every rank, but for threads
 * and isa_mask. */
typedef struct moetoken_mpi_options {
    size_t struct_size; /* as in moetoken.h: sizeof, or 0 */
    int64_t timeout_ms; /* the longest wait for other ranks in one call; 0: 600,000, ten minutes */
    int64_t piece_rows; /* most rows of one message; 0: as many as MPI can count. Larger exchanges
                           go in pieces, from rank to rank */
    uint32_t isa_mask;  /* as in moetoken_options */
    int32_t threads;    /* as in moetoken_options */
} moetoken_mpi_options;

/* Collective over `comm`, an intracommunicator, which is duplicated. Errors are agreed upon as in
 * every call. */
MOETOKEN_API moetoken_status moetoken_mpi_open(MPI_Comm comm, const moetoken_mpi_options *options,
                                               moetoken_mpi_comm **opened);

/* Collective, before MPI_Finalize, when its exchanges have been freed. NULL is ignored. */
MOETOKEN_API void moetoken_mpi_close(moetoken_mpi_comm *comm);

/* ---- plan ----------------------------------------------------------------------------------- */

typedef struct moetoken_mpi_exchange moetoken_mpi_exchange;

/* Flags */
#define MOETOKEN_MPI_EVERY_SLOT                                                                    \
    1u /* a token is sent once a slot instead of once a rank: more bytes, the same results. To     \
          measure with */

typedef struct moetoken_mpi_plan_args {
    size_t struct_size;
    const DLTensor *expert_ids; /* in  [T,K] indices; -1: an unused slot */
    int64_t experts_num;        /* in  E */
    int64_t groups_num;         /* in  G: groups of a rank's experts for dispatch_begin; 0: 1 */
    uint32_t flags;             /* in  MOETOKEN_MPI_... flags, or-ed */
} moetoken_mpi_plan_args;

/* An id below -1 or from experts_num on is MOETOKEN_ERR_INDEX; ranks that do not divide
 * experts_num, MOETOKEN_ERR_SHAPE. */
MOETOKEN_API moetoken_status moetoken_mpi_plan(moetoken_mpi_comm *comm,
                                               const moetoken_mpi_plan_args *args,
                                               moetoken_mpi_exchange **exchange);

typedef struct moetoken_mpi_exchange_info {
    size_t struct_size;
    int64_t tokens_num, slots_per_token, experts_num; /* T, K, E */
    int64_t expert_begin, expert_end;                 /* this rank's experts */
    int64_t rows_num;                                 /* R */
    const int64_t *rows_per_expert;                   /* [E']; belongs to the exchange */
    int64_t groups_num;                               /* G */
    const int64_t *group_rows;                        /* [G+1]: group g has the rows from
                                                         group_rows[g] to group_rows[g+1]; belongs
                                                         to the exchange */
    int64_t slots_used;                               /* slots of this rank that are not -1 */
    int64_t tokens_sent, tokens_received; /* rows that dispatch sends to and gets from others */
    int64_t slots_sent, slots_received;   /* rows that combine gets from and sends to others */
    size_t bytes;                         /* memory that the exchange holds */
} moetoken_mpi_exchange_info;

/* Zero *info, or set its struct_size, before. Local. */
MOETOKEN_API moetoken_status moetoken_mpi_exchange_get(const moetoken_mpi_exchange *exchange,
                                                       moetoken_mpi_exchange_info *info);

/* Local. NULL is ignored. */
MOETOKEN_API void moetoken_mpi_exchange_free(moetoken_mpi_exchange *exchange);

/* ---- dispatch ------------------------------------------------------------------------------- */

/* rows[r,:] is a bit copy of the row of its token, row_weights[r] of the weight of its slot. */
typedef struct moetoken_mpi_dispatch_args {
    size_t struct_size;
    const DLTensor *tokens;      /* in  [T,H] token-like */
    const DLTensor *weights;     /* in  [T,K] probs-like, or NULL */
    const DLTensor *rows;        /* out [R,H] token-like */
    const DLTensor *row_weights; /* out [R], type of weights; with weights only */
} moetoken_mpi_dispatch_args;

MOETOKEN_API moetoken_status moetoken_mpi_dispatch(moetoken_mpi_exchange *exchange,
                                                   const moetoken_mpi_dispatch_args *args);

/* The same in parts, so that experts start before all rows are there. begin sends everything;
 * end, called for the groups 0, 1, ..., G-1 in turn, waits for a group's tokens and fills its rows.
 * The experts of a rank are split into G groups as evenly as can be, the larger ones first. A token
 * travels with the first group that needs it. Tokens may change after begin; rows, their tensors
 * and the exchange must stay until the end of the last group. row_weights are filled with group 0.
 * Other collective calls on the comm may come in between. end is local but for the waiting; the
 * last one, or one that fails, frees `pending`. */
typedef struct moetoken_mpi_pending moetoken_mpi_pending;

MOETOKEN_API moetoken_status moetoken_mpi_dispatch_begin(moetoken_mpi_exchange *exchange,
                                                         const moetoken_mpi_dispatch_args *args,
                                                         moetoken_mpi_pending **pending);
MOETOKEN_API moetoken_status moetoken_mpi_dispatch_end(moetoken_mpi_pending *pending,
                                                       int64_t group);

/* The gradient of dispatch: tokens_grad[t,:] = sum over the slots of t, in slot order, of
 * rows_grad[row,:], in float32, rounded once; weights_grad[t,k] = row_weights_grad[row], 0 for an
 * unused slot. One of the two pairs may be left out. */
typedef struct moetoken_mpi_dispatch_grad_args {
    size_t struct_size;
    const DLTensor *rows_grad;        /* in  [R,H] token-like */
    const DLTensor *row_weights_grad; /* in  [R] probs-like */
    const DLTensor *tokens_grad;      /* out [T,H], type of rows_grad */
    const DLTensor *weights_grad;     /* out [T,K], type of row_weights_grad */
} moetoken_mpi_dispatch_grad_args;

MOETOKEN_API moetoken_status moetoken_mpi_dispatch_grad(
    moetoken_mpi_exchange *exchange, const moetoken_mpi_dispatch_grad_args *args);

/* ---- combine -------------------------------------------------------------------------------- */

/* tokens[t,:] = residual[t,:] + residual2[t,:] + sum over the slots of t, in slot order, of
 * weights[t,k] * rows[row,:]: multiply, then add, in float32, rounded once, as in unpermute. */
typedef struct moetoken_mpi_combine_args {
    size_t struct_size;
    const DLTensor *rows;      /* in  [R,H] token-like */
    const DLTensor *weights;   /* in  [T,K] probs-like, or NULL: all weights are 1 */
    const DLTensor *residual;  /* in  [T,H] token-like, or NULL */
    const DLTensor *residual2; /* in  [T,H] token-like, or NULL; needs residual */
    const DLTensor *tokens;    /* out [T,H] token-like */
} moetoken_mpi_combine_args;

MOETOKEN_API moetoken_status moetoken_mpi_combine(moetoken_mpi_exchange *exchange,
                                                  const moetoken_mpi_combine_args *args);

/* The gradient of combine: rows_grad[r,:] = weight * tokens_grad[t,:], rounded once (a bit copy
 * without weights); weights_grad[t,k] = <rows[r,:], tokens_grad[t,:]>, in binary64, rounded once, 0
 * for an unused slot. That of a residual is tokens_grad. */
typedef struct moetoken_mpi_combine_grad_args {
    size_t struct_size;
    const DLTensor *tokens_grad;  /* in  [T,H] token-like */
    const DLTensor *weights;      /* in  [T,K] probs-like, or NULL: all weights are 1 */
    const DLTensor *rows;         /* in  [R,H] token-like; required for weights_grad */
    const DLTensor *rows_grad;    /* out [R,H] token-like */
    const DLTensor *weights_grad; /* out [T,K], type of weights, or NULL; needs weights */
} moetoken_mpi_combine_grad_args;

MOETOKEN_API moetoken_status moetoken_mpi_combine_grad(moetoken_mpi_exchange *exchange,
                                                       const moetoken_mpi_combine_grad_args *args);

#ifdef __cplusplus
}
#endif

#endif
