/* safetensors_scan.c - refuses safetensors headers that are hostile or not in the format's subset
 * of JSON, in one pass and without memory. Next: safetensors_read.c. */
#include "safetensors_scan.h"

#include "io/file_error.h"
#include "io/utf8.h"

#include <string.h>

#define MAX_DEPTH 3 /* { "tensor": { "shape": [ */

struct scan {
    const unsigned char *header;
    size_t length;
    size_t at;
    int depth;
    size_t commas;
    const char *path;
    char *error;
};

static bool is_digit(unsigned char byte)
{
    return byte >= '0' && byte <= '9';
}

/* From after the opening quote to after the closing one. */
static bool scan_string(struct scan *scan)
{
    size_t start = scan->at - 1;
    while (scan->at < scan->length) {
        unsigned char byte = scan->header[scan->at++];
        if (byte == '"') {
            return true;
        }
        if (byte < 0x20) {
            return file_error(scan->error, scan->path,
                              "header byte %zu is control character 0x%02x inside of a string",
                              scan->at - 1, byte);
        }
        if (byte == '\\' && scan->at < scan->length) {
            if (scan->length - scan->at >= 5 && memcmp(scan->header + scan->at, "u0000", 5) == 0) {
                return file_error(scan->error, scan->path,
                                  "header byte %zu is an escaped NUL character", scan->at - 1);
            }
            ++scan->at;
        }
    }
    return file_error(scan->error, scan->path,
                      "the string that begins at header byte %zu has no end", start);
}

static bool scan_number(struct scan *scan)
{
    size_t start = scan->at - 1;
    while (scan->at < scan->length && is_digit(scan->header[scan->at])) {
        ++scan->at;
    }
    if (scan->header[start] == '0' && scan->at - start > 1) {
        return file_error(scan->error, scan->path,
                          "the number at header byte %zu begins with a needless 0", start);
    }
    return true;
}

static bool scan_bracket(struct scan *scan, bool opens)
{
    scan->depth += opens ? 1 : -1;
    if (scan->depth > MAX_DEPTH) {
        return file_error(scan->error, scan->path, "header is nested deeper than %d at byte %zu",
                          MAX_DEPTH, scan->at - 1);
    }
    if (scan->depth < 0) {
        return file_error(scan->error, scan->path, "header has a stray bracket at byte %zu",
                          scan->at - 1);
    }
    return true;
}

static bool scan_token(struct scan *scan)
{
    unsigned char byte = scan->header[scan->at++];
    switch (byte) {
    case ' ':
    case '\t':
    case '\n':
    case '\r':
    case ':':
        return true;
    case ',':
        if (++scan->commas >= SAFETENSORS_MAX_VALUES) {
            return file_error(scan->error, scan->path, "header has more than %d values",
                              SAFETENSORS_MAX_VALUES);
        }
        return true;
    case '{':
    case '[':
        return scan_bracket(scan, true);
    case '}':
    case ']':
        return scan_bracket(scan, false);
    case '"':
        return scan_string(scan);
    default:
        break;
    }
    if (is_digit(byte)) {
        return scan_number(scan);
    }
    if (byte == 'n' && scan->length - scan->at >= 3 &&
        memcmp(scan->header + scan->at, "ull", 3) == 0) {
        scan->at += 3; /* what may be null is told where it stands */
        return true;
    }
    return file_error(scan->error, scan->path,
                      "header byte %zu is 0x%02x, expected an object, an array, a string or a "
                      "whole number that is not negative",
                      scan->at - 1, byte);
}

bool safetensors_scan(const unsigned char *header, size_t length, const char *path, char *error)
{
    struct scan scan = {.header = header, .length = length, .path = path, .error = error};
    size_t valid = utf8_valid_length(header, length);
    if (valid < length) {
        return file_error(error, path, "header byte %zu is 0x%02x, which is not UTF-8", valid,
                          header[valid]);
    }
    while (scan.at < scan.length) {
        if (!scan_token(&scan)) {
            return false;
        }
    }
    return true;
}
