/* inspect_page.c - the template page.html, which CMake makes an array of, with the data in it. */
#include <stdlib.h>
#include <string.h>

#include "inspect.h"
#include "io/output_file.h"
#include "io/utf8.h"
#include "page_template.h"

#include <stdio.h>
#include <unistd.h>

#define MARK "@DATA@"

/* Bytes that are no UTF-8 become U+FFFD. */
void inspect_add_text(cJSON *object, const char *key, const char *text)
{
    const char *const replacement = "\xef\xbf\xbd";
    size_t length = strlen(text), at = 0, out = 0;
    char *clean = malloc(3 * length + 1);
    if (clean == NULL)
        return;
    while (at < length) {
        uint32_t code_point;
        size_t bytes = utf8_decode((const unsigned char *)text + at, length - at, &code_point);
        memcpy(clean + out, bytes == 0 ? replacement : text + at, bytes == 0 ? 3 : bytes);
        out += bytes == 0 ? 3 : bytes;
        at += bytes == 0 ? 1 : bytes;
    }
    clean[out] = '\0';
    cJSON_AddStringToObject(object, key, clean);
    free(clean);
}

/* JSON that cannot end the element it stands in: '<' comes up inside of strings alone. */
static char *escape_for_script(const char *json)
{
    size_t length = strlen(json), extra = 0, out = 0;
    for (size_t i = 0; i < length; i++)
        extra += json[i] == '<' ? 5 : 0;
    char *text = malloc(length + extra + 1);
    for (size_t i = 0; text != NULL && i < length; i++) {
        if (json[i] == '<') {
            memcpy(text + out, "\\u003c", 6);
            out += 6;
        } else {
            text[out++] = json[i];
        }
    }
    if (text != NULL)
        text[out] = '\0';
    return text;
}

static bool write_all(int descriptor, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t written = write(descriptor, bytes, count);
        if (written <= 0)
            return false;
        bytes += written;
        count -= (size_t)written;
    }
    return true;
}

static bool write_parts(const char *path, const char *data, char *error)
{
    const char *page = (const char *)page_template;
    const char *mark = strstr(page, MARK);
    struct output_file output;
    bool good = output_file_open(&output, path, error);
    if (good && !(write_all(output.descriptor, page, (size_t)(mark - page)) &&
                  write_all(output.descriptor, data, strlen(data)) &&
                  write_all(output.descriptor, mark + strlen(MARK), strlen(mark + strlen(MARK))))) {
        snprintf(error, TENSOR_FILE_ERROR_SIZE, "%s: the page could not be written", path);
        good = false;
    }
    good = good && output_file_commit(&output, error);
    output_file_close(&output);
    return good;
}

bool inspect_write_page(const char *path, const cJSON *page)
{
    char error[TENSOR_FILE_ERROR_SIZE] = "no memory for the page";
    char *json = cJSON_PrintUnformatted(page);
    char *data = json == NULL ? NULL : escape_for_script(json);
    bool good = data != NULL && write_parts(path, data, error);
    free(data);
    cJSON_free(json);
    if (!good)
        report_error(error);
    return good;
}
