/* npy_header.h - the header of a NumPy array file (.npy), read and written. */
#ifndef MOETOKEN_CLI_NPY_HEADER_H
#define MOETOKEN_CLI_NPY_HEADER_H

#include "io/element_type.h"
#include "io/tensor_file.h"

#define NPY_PREFIX_SIZE 8     /* magic and version; then 2 or 4 bytes of length */
#define NPY_MAX_HEADER  65536 /* bytes of the Python literal: dozens in an honest file */
#define NPY_REASON_SIZE 256
#define NPY_TEXT_SIZE   512 /* more than any header that npy_header_write makes */

enum npy_result {
    NPY_OK,
    NPY_UNSUPPORTED, /* an honest array of a kind that is not for us */
    NPY_BROKEN
};

struct npy_header {
    const struct element_type *type; /* NULL for text */
    char text_kind;                  /* 'S' (bytes) or 'U' (code points of 4 bytes), else 0 */
    int item_size;                   /* bytes of an element */
    bool fortran_order;
    int ndim;
    int64_t shape[TENSOR_FILE_MAX_NDIM];
    int64_t bytes; /* of the whole array */
};

/* Bytes of the length field that follows the NPY_PREFIX_SIZE bytes: 2 (version 1.0) or 4 (2.0,
 * 3.0). 0 with a reason when they are not the beginning of an .npy file of these versions. */
int npy_prefix_length_size(const unsigned char prefix[NPY_PREFIX_SIZE],
                           char reason[NPY_REASON_SIZE]);

/* Parses the Python literal of a header, which need not end in NUL. Unless the result is NPY_OK,
 * `reason` says what was found and what was expected. */
enum npy_result npy_header_parse(const char *text, size_t length, struct npy_header *header,
                                 char reason[NPY_REASON_SIZE]);

/* Fortran order has the first index run fastest; `rows` gets the last index running fastest. */
void npy_reorder_to_rows(const struct npy_header *header, const char *columns, char *rows);

/* Writes everything before the data of a version 1.0 file, a multiple of 64 bytes. Returns its
 * length. `descr` as in "<f4". */
size_t npy_header_write(unsigned char text[NPY_TEXT_SIZE], const char *descr, int ndim,
                        const int64_t *shape);

#endif
