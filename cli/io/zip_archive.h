/* zip_archive.h - reading zip archives in memory: what .npz and PyTorch's files share. */
#ifndef MOETOKEN_CLI_ZIP_ARCHIVE_H
#define MOETOKEN_CLI_ZIP_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zip.h>

#define ZIP_REASON_SIZE 160

/* Opens the archive, whose bytes must outlive it. NULL after an error. */
zip_t *zip_archive_open(const unsigned char *bytes, size_t size, const char *path, char *error);

/* Whether the name of a member ends so. */
bool zip_archive_has(zip_t *zip, const char *suffix);

/* What the archive claims of a member, before a byte of it is read: method, encryption, and whether
 * so many bytes can come from so few. false with the reason. */
bool zip_claims_are_possible(const zip_stat_t *status, char reason[ZIP_REASON_SIZE]);

#endif
