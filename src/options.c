/* options.c - the checks of moetoken_options. */
#include "options.h"

#include "rows/isa.h"
#include "status.h"

#include <inttypes.h>

moetoken_status moetoken_options_check(const moetoken_options *options, uint32_t flags_taken,
                                       moetoken_options *checked)
{
    *checked = options ? *options : (moetoken_options){0};
    uint32_t stores = MOETOKEN_CACHED_STORES | MOETOKEN_STREAMING_STORES;
    if (checked->flags & ~(flags_taken | stores))
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "options.flags = 0x%" PRIx32 ", of which this operator takes only "
                             "0x%" PRIx32,
                             checked->flags, flags_taken | stores);
    if ((checked->flags & stores) == stores)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "options.flags = 0x%" PRIx32
                             " asks for cached and for streaming stores, expected at most one",
                             checked->flags);
    const char *word = moetoken_isa_unknown_word();
    if (word)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "environment variable MOETOKEN_ISA = \"%s\", expected scalar, avx2, "
                             "avx512 or neon",
                             word);
    if (checked->isa_mask & ~MOETOKEN_ISA_ALL)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "options.isa_mask = 0x%" PRIx32 " has unknown bits 0x%" PRIx32
                             ", expected MOETOKEN_ISA_... bits",
                             checked->isa_mask, checked->isa_mask & ~MOETOKEN_ISA_ALL);
    if (checked->threads < 0)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "options.threads = %" PRId32 ", expected at least 0",
                             checked->threads);
    if (checked->reserved != 0)
        return moetoken_fail(MOETOKEN_ERR_OPTION, "options.reserved = %" PRId32 ", expected 0",
                             checked->reserved);
    if (checked->workspace == NULL && checked->workspace_bytes != 0)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "options.workspace is NULL but options.workspace_bytes = %zu",
                             checked->workspace_bytes);
    return MOETOKEN_OK;
}
