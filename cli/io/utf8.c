/* utf8.c - strict UTF-8, for names and metadata of tensor files. */
#include "utf8.h"

#include <string.h>

static bool is_scalar(uint32_t code_point)
{
    return code_point < 0xD800 || (code_point > 0xDFFF && code_point <= 0x10FFFF);
}

/* Bytes of the sequence that `first` begins, 0 when it begins none. */
static size_t sequence_length(unsigned char first)
{
    if (first < 0x80) {
        return 1;
    }
    if (first < 0xC2 || first > 0xF4) {
        return 0;
    }
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

size_t utf8_decode(const unsigned char *bytes, size_t length, uint32_t *code_point)
{
    static const unsigned char payload[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t count = length > 0 ? sequence_length(bytes[0]) : 0;
    if (count == 0 || count > length) {
        return 0;
    }
    uint32_t value = bytes[0] & payload[count];
    for (size_t i = 1; i < count; ++i) {
        if ((bytes[i] & 0xC0) != 0x80) {
            return 0;
        }
        value = value << 6 | (bytes[i] & 0x3F);
    }
    if (value < smallest[count] || !is_scalar(value)) {
        return 0;
    }
    *code_point = value;
    return count;
}

size_t utf8_encode(uint32_t code_point, char text[UTF8_MAX])
{
    static const unsigned char mark[] = {0, 0, 0xC0, 0xE0, 0xF0};
    if (!is_scalar(code_point)) {
        return 0;
    }
    size_t count = code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (size_t i = count - 1; i > 0; --i) {
        text[i] = (char)(0x80 | (code_point & 0x3F));
        code_point >>= 6;
    }
    text[0] = (char)(mark[count] | code_point);
    return count;
}

size_t utf8_valid_length(const unsigned char *bytes, size_t length)
{
    size_t i = 0;
    while (i < length) {
        uint32_t code_point = 0;
        size_t step = utf8_decode(bytes + i, length - i, &code_point);
        if (step == 0) {
            break;
        }
        i += step;
    }
    return i;
}

bool utf8_is_valid(const char *text)
{
    size_t length = strlen(text);
    return utf8_valid_length((const unsigned char *)text, length) == length;
}
