/* text.h - the text to learn: files one after the other, a tenth of it kept for validation.
 *
 * A directory stands for the regular files in it, by name; links are left out, because what they
 * lead to is often in the directory too.
 *
 * Every 10 KiB end with 1 KiB that training never sees, so that both parts are of all files.
 * A window is `context` bytes and the one that follows. It never crosses from one part into the
 * other. */
#ifndef TRAIN_MOE_TEXT_H
#define TRAIN_MOE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#define TEXT_DEFAULT "/usr/share/common-licenses"

struct text {
    uint8_t *bytes;
    int64_t count;
    uint64_t checksum;
};

/* Reads all files and directories. Prints what is wrong and returns false when it cannot, or when
 * the text is too short for one window of each part. */
bool text_read(struct text *text, char *const *paths, int count, int64_t context);
void text_free(struct text *text);

/* Bytes at which a training window can start; the window that starts at the i-th of them. */
int64_t text_training_windows(const struct text *text, int64_t context);
const uint8_t *text_training_window(const struct text *text, int64_t context, int64_t i);

/* Validation windows, which do not overlap. */
int64_t text_validation_windows(const struct text *text, int64_t context);
const uint8_t *text_validation_window(const struct text *text, int64_t context, int64_t i);

/* FNV-1a over `count` bytes, continued from `checksum` (CHECKSUM_START at first). */
#define CHECKSUM_START UINT64_C(0xcbf29ce484222325)
uint64_t checksum_add(uint64_t checksum, const void *bytes, int64_t count);

#endif
