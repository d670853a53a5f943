/* tensor_file.h - named tensors in a file: safetensors, NumPy's .npz and .npy or PyTorch's .pt,
 * told apart by content. All of them are read, the first two are written.
 *
 * Readers: the file's tensors are borrowed from the open file (memory-mapped where the format
 * allows) and hold until it is closed. Any file may be broken or hostile: every function that can
 * fail returns false and leaves one line in `error`, which names the file, the tensor and the
 * values. Writers: all names, types and shapes are declared first; the tensors can then be filled
 * in place; nothing exists under the final name before tensor_writer_commit has succeeded. */
#ifndef MOETOKEN_CLI_TENSOR_FILE_H
#define MOETOKEN_CLI_TENSOR_FILE_H

#include <moetoken/moetoken.h>
#include <stdbool.h>
#include <stddef.h>

/* Both formats hold little-endian numbers, which are mapped and used as they lie in the file. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor files are read and written on little-endian processors alone"
#endif

#define TENSOR_FILE_MAX_NDIM   8
#define TENSOR_FILE_ERROR_SIZE 512

/* A tensor of a file. Its data may have any alignment (safetensors does not promise one).
 *
 * A file may hold more than a caller needs, so a tensor of a type or rank that this tool does not
 * know, or whose data are broken, does no harm until somebody asks for it: it is listed with
 * `problem` set, a whole error line, and a tensor without data whose dtype is {0, 0, 0}, which
 * every operator refuses. */
struct named_tensor {
    char *name;
    DLTensor tensor; /* contiguous, CPU; shape points to `shape` */
    int64_t shape[TENSOR_FILE_MAX_NDIM];
    char *problem; /* why it cannot be used, or NULL */
};

enum tensor_file_format {
    TENSOR_FILE_SAFETENSORS,
    TENSOR_FILE_NPZ,
    TENSOR_FILE_NPY, /* one array, called as its file is, without folder and ending */
    TENSOR_FILE_PT,  /* dicts and lists of tensors: names joined by dots, "grads.0" */
    TENSOR_FILE_RAW  /* bytes without a header, named as .npy is */
};

struct tensor_file; /* opaque */

/* Opens a file for reading. NULL on failure. */
struct tensor_file *tensor_file_open(const char *path, char error[TENSOR_FILE_ERROR_SIZE]);
/* Opens a file of bytes without a header, of which the caller knows type and shape. */
struct tensor_file *tensor_file_open_raw(const char *path, moetoken_type type, int ndim,
                                         const int64_t *shape, char error[TENSOR_FILE_ERROR_SIZE]);
/* tensor_file_open for a file's bytes in memory, which must outlive the open file. `name` stands
 * for the path in messages. */
struct tensor_file *tensor_file_open_memory(const void *bytes, size_t size, const char *name,
                                            char error[TENSOR_FILE_ERROR_SIZE]);
void tensor_file_close(struct tensor_file *file); /* NULL is fine */

enum tensor_file_format tensor_file_format(const struct tensor_file *file);
size_t tensor_file_size(const struct tensor_file *file); /* bytes of the file */
size_t tensor_file_count(const struct tensor_file *file);
const char *tensor_file_name(const struct tensor_file *file, size_t i); /* of tensor i */
/* Whether there is a tensor of that name, usable or not. */
bool tensor_file_has(const struct tensor_file *file, const char *name);

/* The tensor, or NULL when there is none. Of a .npz or .pt file the data are read when they are
 * asked for the first time, by any of these, and are checked then: ask tensor_file_problem, too. */
const struct named_tensor *tensor_file_at(struct tensor_file *file, size_t i);
const struct named_tensor *tensor_file_named(struct tensor_file *file, const char *name);
const DLTensor *tensor_file_find(struct tensor_file *file, const char *name);
/* Why the tensor of that name cannot be used, as an error line: "case.npz: tensor 'probs' has type
 * ...". NULL when it can be used, and when the file has no tensor of that name. */
const char *tensor_file_problem(struct tensor_file *file, const char *name);
/* A value of the metadata (safetensors' __metadata__; in .npz a 1-byte-string or unicode array
 * named "__metadata__.<key>"; in .pt what is no tensor but a number, a bool, text or a pair of
 * integers), or NULL. */
const char *tensor_file_metadata(const struct tensor_file *file, const char *key);

/* What a writer is told of a tensor before any data. */
struct tensor_spec {
    const char *name;
    moetoken_type type;
    int ndim;
    int64_t shape[TENSOR_FILE_MAX_NDIM];
};

struct tensor_writer; /* opaque */

/* Starts a file next to `path` under a temporary name: .npz when path ends in ".npz", else
 * safetensors. metadata: key/value pairs, NULL-terminated array of 2*n+1 strings, or NULL.
 * A file that exists at `path` stays as it is until tensor_writer_commit replaces it, so it may be
 * one that is being read. Equal calls give equal bytes. */
struct tensor_writer *tensor_writer_open(const char *path, const struct tensor_spec *specs,
                                         size_t count, const char *const *metadata,
                                         char error[TENSOR_FILE_ERROR_SIZE]);
/* The i-th tensor, to be filled in place (zero at first). */
DLTensor *tensor_writer_tensor(struct tensor_writer *writer, size_t i);
/* Completes the file, gives it its final name and frees the writer, on failure too: then no file
 * remains. */
bool tensor_writer_commit(struct tensor_writer *writer, char error[TENSOR_FILE_ERROR_SIZE]);
/* Drops everything: no file remains. NULL is fine. */
void tensor_writer_abandon(struct tensor_writer *writer);
/* For handlers of signals that end the process: removes the temporary file of the writer opened
 * last, if it has a name. Where the file system can make files without a name (most of Linux'
 * can), a killed process leaves nothing behind anyway. Safe to call at any time. */
void tensor_writer_remove_temporary(void);
/* Installs such handlers, for signals that are not ignored, and makes a file that grows beyond the
 * limit of the process (SIGXFSZ) an ordinary error. What a process leaves that was killed without a
 * handler, the next writer in that directory removes. */
void tensor_writer_handle_signals(void);

#endif
