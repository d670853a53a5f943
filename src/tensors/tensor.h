/* tensor.h - from DLTensor to a checked view: the first stop of the data inside the library. */
#ifndef MOETOKEN_TENSOR_H
#define MOETOKEN_TENSOR_H

#include <moetoken/moetoken.h>
#include <string.h>

/* Sets of types, as bits 1 << moetoken_type. */
#define MOETOKEN_TOKEN_LIKE                                                                        \
    (1u << MOETOKEN_F32 | 1u << MOETOKEN_F16 | 1u << MOETOKEN_BF16 | 1u << MOETOKEN_F64)
#define MOETOKEN_INDEX_LIKE (1u << MOETOKEN_I32 | 1u << MOETOKEN_I64)
#define MOETOKEN_MAP_LIKE   (1u << MOETOKEN_BOOL | 1u << MOETOKEN_I8 | 1u << MOETOKEN_U8)

/* A tensor of one or two dimensions whose description has been checked. data is NULL when the
 * tensor, or its data, is not given. shape[1] and stride[1] of a one-dimensional tensor are 1 and
 * 0. */
struct moetoken_view {
    const char *name; /* the argument's, for messages */
    char *data;
    moetoken_type type;
    int64_t size; /* bytes of an element */
    int64_t shape[2];
    int64_t stride[2]; /* bytes; 0 where shape <= 1 and in empty tensors */
    int64_t extent;    /* bytes from the first element's start to the last one's end */
    bool given;
};

/* Checks a tensor's description - device, rank, type (one of the set `accepted`), sizes, strides
 * and, where need_data says that its elements will be read or written, data - and fills its view,
 * whose name has been set. A NULL tensor gives a view with given == false. */
moetoken_status moetoken_view_make(const DLTensor *tensor, int ndim, unsigned accepted,
                                   bool need_data, struct moetoken_view *view);

/* MOETOKEN_ERR_STRIDE when two elements of an output share memory. */
moetoken_status moetoken_view_check_output(const struct moetoken_view *view);

/* MOETOKEN_ERR_SHAPE unless restore_shape is NULL or {T, H}. */
moetoken_status moetoken_check_restore_shape(const int64_t *restore_shape, int64_t tokens,
                                             int64_t hidden, const char *source);

/* MOETOKEN_ERR_TYPE unless a given view has the type of `like`. */
moetoken_status moetoken_view_check_same_type(const struct moetoken_view *view,
                                              const struct moetoken_view *like);

/* MOETOKEN_ERR_SHAPE unless a given index view's type holds every number below `end`. */
moetoken_status moetoken_index_check_holds(const struct moetoken_view *view, int64_t end);

/* MOETOKEN_ERR_TYPE unless a given probs-like view goes with tokens of `token_type`. */
moetoken_status moetoken_view_check_probs_type(const struct moetoken_view *view,
                                               const struct moetoken_view *tokens);

/* "float32"; never NULL. */
const char *moetoken_type_name(moetoken_type type);

static inline bool moetoken_view_is_empty(const struct moetoken_view *view)
{
    return view->shape[0] == 0 || view->shape[1] == 0;
}

/* Elements of a row lie side by side (or there is at most one). */
static inline bool moetoken_view_is_unit(const struct moetoken_view *view)
{
    return view->shape[1] <= 1 || view->stride[1] == view->size;
}

static inline char *moetoken_view_at(const struct moetoken_view *view, int64_t i, int64_t j)
{
    return view->data + i * view->stride[0] + j * view->stride[1];
}

/* The index at `from`. */
static inline int64_t moetoken_index_load_from(const struct moetoken_view *view, const char *from)
{
    int64_t wide;
    int32_t narrow;
    if (view->type == MOETOKEN_I64) {
        memcpy(&wide, from, sizeof wide);
        return wide;
    }
    memcpy(&narrow, from, sizeof narrow);
    return narrow;
}

/* Element i of a one-dimensional index view. */
static inline int64_t moetoken_index_load(const struct moetoken_view *view, int64_t i)
{
    return moetoken_index_load_from(view, view->data + i * view->stride[0]);
}

/* Element (i, j) of a two-dimensional index view. */
static inline int64_t moetoken_index_load_at(const struct moetoken_view *view, int64_t i, int64_t j)
{
    return moetoken_index_load_from(view, moetoken_view_at(view, i, j));
}

/* Elements [first, first + count) of a one-dimensional index view. */
void moetoken_index_load_many(const struct moetoken_view *view, int64_t first, int64_t count,
                              int64_t *to);

static inline void moetoken_index_store(const struct moetoken_view *view, int64_t i, int64_t value)
{
    char *to = view->data + i * view->stride[0];
    int32_t narrow = (int32_t)value;
    if (view->type == MOETOKEN_I64)
        memcpy(to, &value, sizeof value);
    else
        memcpy(to, &narrow, sizeof narrow);
}

/* Elements [first, first + count) of a one-dimensional index view. */
void moetoken_index_store_many(const struct moetoken_view *view, int64_t first, int64_t count,
                               const int64_t *from);

/* Element place[i] = first + i, for each of count places that is not negative. */
void moetoken_index_store_places(const struct moetoken_view *view, int64_t first, int64_t count,
                                 const int64_t *place);

/* A bit copy of one element of `size` bytes: 2, 4 or 8. */
static inline void moetoken_element_copy(char *to, const char *from, int64_t size)
{
    if (size == 4)
        memcpy(to, from, 4);
    else if (size == 2)
        memcpy(to, from, 2);
    else
        memcpy(to, from, 8);
}

/* Writes zeros to row i. */
void moetoken_view_zero_row(const struct moetoken_view *view, int64_t i);

#endif
