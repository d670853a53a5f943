/* file_error.c - formats and cleans the error lines of the file readers and writers. */
#include "file_error.h"

#include "tensor_file.h"
#include "utf8.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define PATH_SHOWN 200 /* of a longer path the end is shown: that is what tells files apart */

static bool printable(uint32_t code_point)
{
    return code_point >= 0x20 && (code_point < 0x7F || code_point > 0x9F);
}

static void clean_line(char *line)
{
    size_t length = strlen(line);
    for (size_t i = 0; i < length;) {
        uint32_t code_point = 0;
        size_t step = utf8_decode((unsigned char *)line + i, length - i, &code_point);
        if (step > 0 && printable(code_point)) {
            i += step;
        } else {
            line[i++] = '?';
        }
    }
}

bool file_error(char *error, const char *path, const char *format, ...)
{
    size_t length = strlen(path);
    const char *shown = length > PATH_SHOWN ? path + length - PATH_SHOWN : path;
    int start =
        snprintf(error, TENSOR_FILE_ERROR_SIZE, "%s%s: ", shown == path ? "" : "...", shown);
    va_list arguments;
    va_start(arguments, format);
    if (start > 0) {
        vsnprintf(error + start, TENSOR_FILE_ERROR_SIZE - (size_t)start, format, arguments);
    }
    va_end(arguments);
    clean_line(error);
    return false;
}

bool file_error_memory(char *error, const char *path, const char *what)
{
    return file_error(error, path, "no memory for %s", what);
}
