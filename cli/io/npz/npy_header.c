/* npy_header.c - a strict parser of the one Python literal that NumPy writes in front of an array,
 * and its writer. Nothing is ever evaluated or unpickled. */
#include "npy_header.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DESCR_SIZE 32 /* longer type strings are structured types */

struct literal {
    const char *at;
    const char *end;
    const char *begin;
    struct npy_header *header;
    char *reason;
    char descr[DESCR_SIZE];
    bool structured; /* descr is a list, and not parsed */
};

static bool fail(char *reason, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(char *reason, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, NPY_REASON_SIZE, format, arguments);
    va_end(arguments);
    return false;
}

static bool fail_here(struct literal *literal, const char *expected)
{
    return fail(literal->reason, "array header: expected %s at byte %zu", expected,
                (size_t)(literal->at - literal->begin));
}

/* ---- tokens --------------------------------------------------------------------------------- */

static void skip_spaces(struct literal *literal)
{
    while (literal->at < literal->end && (*literal->at == ' ' || *literal->at == '\n')) {
        ++literal->at;
    }
}

static bool accept(struct literal *literal, char wanted)
{
    skip_spaces(literal);
    if (literal->at < literal->end && *literal->at == wanted) {
        ++literal->at;
        return true;
    }
    return false;
}

static bool accept_word(struct literal *literal, const char *word)
{
    size_t length = strlen(word);
    skip_spaces(literal);
    if ((size_t)(literal->end - literal->at) < length || memcmp(literal->at, word, length) != 0) {
        return false;
    }
    literal->at += length;
    return true;
}

/* A quoted string of printable ASCII without escapes. */
static bool parse_string(struct literal *literal, char text[DESCR_SIZE])
{
    char quote = '\'';
    size_t length = 0;
    if (!accept(literal, quote)) {
        quote = '"';
        if (!accept(literal, quote)) {
            return fail_here(literal, "a string");
        }
    }
    while (literal->at < literal->end && *literal->at != quote) {
        char byte = *literal->at;
        if (byte < ' ' || byte > '~' || byte == '\\' || length == DESCR_SIZE - 1) {
            return fail_here(literal, "the end of a short plain string");
        }
        text[length++] = byte;
        ++literal->at;
    }
    text[length] = '\0';
    return accept(literal, quote) || fail_here(literal, "the end of a string");
}

static bool parse_integer(struct literal *literal, int64_t *value)
{
    skip_spaces(literal);
    const char *start = literal->at;
    *value = 0;
    while (literal->at < literal->end && *literal->at >= '0' && *literal->at <= '9') {
        *value = *value * 10 + (*literal->at - '0');
        if (*value > TENSOR_FILE_MAX_SIZE) {
            return fail(literal->reason, "array header: shape has a size above 2^53 - 1");
        }
        ++literal->at;
    }
    if (literal->at == start || (*start == '0' && literal->at - start > 1)) {
        literal->at = start;
        return fail_here(literal, "a size");
    }
    return true;
}

/* ---- the three entries ---------------------------------------------------------------------- */

/* "()", "(5,)", "(5, 7)" or "(5, 7,)". A shape with too many sizes is counted to its end. */
static bool parse_shape(struct literal *literal)
{
    struct npy_header *header = literal->header;
    bool comma = true;
    if (!accept(literal, '(')) {
        return fail_here(literal, "a tuple of sizes");
    }
    while (!accept(literal, ')')) {
        int64_t size = 0;
        if (!comma) {
            return fail_here(literal, "',' or ')'");
        }
        if (!parse_integer(literal, &size)) {
            return false;
        }
        if (header->ndim < TENSOR_FILE_MAX_NDIM) {
            header->shape[header->ndim] = size;
        }
        ++header->ndim;
        comma = accept(literal, ',');
    }
    return comma || header->ndim > 1 || fail_here(literal, "a tuple, which '(5)' is not,");
}

static bool parse_order(struct literal *literal)
{
    literal->header->fortran_order = accept_word(literal, "True");
    return literal->header->fortran_order || accept_word(literal, "False") ||
           fail_here(literal, "True or False");
}

/* Returns false both for a broken header and at the list of a structured type. */
static bool parse_descr(struct literal *literal)
{
    if (accept(literal, '[') || accept(literal, '(')) {
        literal->structured = true;
        return fail(literal->reason, "has a structured type, expected " ELEMENT_TYPES_NPY);
    }
    return parse_string(literal, literal->descr);
}

static bool parse_entry(struct literal *literal, bool seen[3])
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[DESCR_SIZE];
    int which = 0;
    if (!parse_string(literal, key)) {
        return false;
    }
    while (which < 3 && strcmp(key, keys[which]) != 0) {
        ++which;
    }
    if (which == 3 || seen[which]) {
        return fail_here(literal, "descr, fortran_order and shape, each once,");
    }
    seen[which] = true;
    if (!accept(literal, ':')) {
        return fail_here(literal, "':'");
    }
    return which == 0   ? parse_descr(literal)
           : which == 1 ? parse_order(literal)
                        : parse_shape(literal);
}

static bool parse_dictionary(struct literal *literal)
{
    bool seen[3] = {false, false, false};
    bool comma = true;
    if (!accept(literal, '{')) {
        return fail_here(literal, "'{'");
    }
    while (!accept(literal, '}')) {
        if (!comma) {
            return fail_here(literal, "',' or '}'");
        }
        if (!parse_entry(literal, seen)) {
            return false;
        }
        comma = accept(literal, ',');
    }
    if (!seen[0] || !seen[1] || !seen[2]) {
        return fail_here(literal, "descr, fortran_order and shape, each once,");
    }
    skip_spaces(literal);
    return literal->at == literal->end || fail_here(literal, "spaces up to the end");
}

/* ---- the type ------------------------------------------------------------------------------- */

/* "<U12", "|S3". Big-endian code points are not taken; NumPy on our CPUs writes none. */
static bool parse_text_type(const char *descr, struct npy_header *header)
{
    bool unicode = descr[0] == '<' && descr[1] == 'U';
    bool bytes = descr[0] == '|' && descr[1] == 'S';
    int length = 0;
    if (!unicode && !bytes) {
        return false;
    }
    for (const char *digit = descr + 2; *digit != '\0'; ++digit) {
        if (*digit < '0' || *digit > '9' || length > 1000000) {
            return false;
        }
        length = length * 10 + (*digit - '0');
    }
    header->text_kind = descr[1];
    header->item_size = unicode ? 4 * length : length;
    return true;
}

static enum npy_result set_type(const char *descr, struct npy_header *header, char *reason)
{
    header->type = element_type_from_npy(descr);
    if (header->type != NULL) {
        header->item_size = header->type->size;
        return NPY_OK;
    }
    if (parse_text_type(descr, header)) {
        return NPY_OK;
    }
    if (strchr(descr, 'O') != NULL) {
        fail(reason, "has type %s: Python objects are pickles, which are never loaded", descr);
    } else if (descr[0] == '>') {
        fail(reason, "has big-endian type %s, expected " ELEMENT_TYPES_NPY, descr);
    } else {
        fail(reason, "has type %s, expected " ELEMENT_TYPES_NPY, descr);
    }
    return NPY_UNSUPPORTED;
}

enum npy_result npy_header_parse(const char *text, size_t length, struct npy_header *header,
                                 char reason[NPY_REASON_SIZE])
{
    struct literal literal = {
        .at = text, .end = text + length, .begin = text, .header = header, .reason = reason};
    memset(header, 0, sizeof *header);
    if (!parse_dictionary(&literal)) {
        return literal.structured ? NPY_UNSUPPORTED : NPY_BROKEN;
    }
    enum npy_result result = set_type(literal.descr, header, reason);
    if (result == NPY_OK && header->ndim > TENSOR_FILE_MAX_NDIM) {
        fail(reason, "has %d dimensions, expected at most %d", header->ndim, TENSOR_FILE_MAX_NDIM);
        result = NPY_UNSUPPORTED;
    }
    if (result == NPY_OK && header->item_size > 0 &&
        !element_type_bytes(header->item_size, header->ndim, header->shape, &header->bytes)) {
        fail(reason, "array header: the bytes of its shape do not fit in 53 bits");
        result = NPY_BROKEN;
    }
    return result;
}

int npy_prefix_length_size(const unsigned char prefix[NPY_PREFIX_SIZE],
                           char reason[NPY_REASON_SIZE])
{
    if (memcmp(prefix, "\x93NUMPY", 6) != 0) {
        fail(reason, "does not begin like an .npy file");
        return 0;
    }
    if (prefix[6] < 1 || prefix[6] > 3 || prefix[7] != 0) {
        fail(reason, "has .npy version %d.%d, expected 1.0, 2.0 or 3.0", prefix[6], prefix[7]);
        return 0;
    }
    return prefix[6] == 1 ? 2 : 4;
}

/* ---- writing -------------------------------------------------------------------------------- */

size_t npy_header_write(unsigned char text[NPY_TEXT_SIZE], const char *descr, int ndim,
                        const int64_t *shape)
{
    static const char magic[] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0};
    char *out = (char *)text;
    size_t at = 10;
    at += (size_t)snprintf(out + at, NPY_TEXT_SIZE - at,
                           "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int i = 0; i < ndim; ++i) {
        const char *separator = ndim == 1 ? "," : i + 1 < ndim ? ", " : "";
        at += (size_t)snprintf(out + at, NPY_TEXT_SIZE - at, "%lld%s", (long long)shape[i],
                               separator);
    }
    at += (size_t)snprintf(out + at, NPY_TEXT_SIZE - at, "), }");
    size_t end = (at + 1 + 63) / 64 * 64;
    memset(out + at, ' ', end - at - 1);
    out[end - 1] = '\n';
    memcpy(out, magic, NPY_PREFIX_SIZE);
    text[8] = (unsigned char)((end - 10) & 0xFF);
    text[9] = (unsigned char)((end - 10) >> 8);
    return end;
}

/* ---- order ---------------------------------------------------------------------------------- */

void npy_reorder_to_rows(const struct npy_header *header, const char *columns, char *rows)
{
    size_t size = (size_t)header->item_size;
    int64_t index[TENSOR_FILE_MAX_NDIM] = {0};
    int64_t stride[TENSOR_FILE_MAX_NDIM] = {0};
    int64_t step = 1;
    int64_t from = 0;
    for (int i = 0; i < header->ndim; ++i) {
        stride[i] = step;
        step *= header->shape[i];
    }
    for (int64_t to = 0; to < step; ++to) {
        memcpy(rows + (size_t)to * size, columns + (size_t)from * size, size);
        for (int i = header->ndim - 1; i >= 0; --i) {
            from += stride[i];
            if (++index[i] < header->shape[i]) {
                break;
            }
            from -= stride[i] * header->shape[i];
            index[i] = 0;
        }
    }
}
