/* json.c - text and numbers as JSON has them. See json.h. */
#include "json.h"

#include <math.h>

void json_text(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\')
            fprintf(stream, "\\%c", byte);
        else if (byte < 0x20 || byte == 0x7f)
            fprintf(stream, "\\u%04x", byte);
        else
            fputc(byte, stream);
    }
    fputc('"', stream);
}

void json_number(FILE *stream, double value)
{
    if (isnan(value))
        fputs("\"nan\"", stream);
    else if (isinf(value))
        fputs(value > 0 ? "\"inf\"" : "\"-inf\"", stream);
    else
        fprintf(stream, "%.17g", value);
}
