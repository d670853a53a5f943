/* routing_map.c - reading routing_map [T,E], 64 experts at a time. */
#include "routing/routing_map.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define EXPERTS_PER_WORD 8

/* Bit j is set where from[j] is not zero, for eight bytes. */
static uint64_t mask_of_word(const char *from)
{
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f); /* all but the top bit of each byte */
    uint64_t word;
    memcpy(&word, from, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    uint64_t tops = (((word & low) + low) | word) & ~low;    /* bit 8 j + 7 */
    return (tops >> 7) * UINT64_C(0x0102040810204080) >> 56; /* which moves bit 8 j to 56 + j */
}

#if defined(__SSE2__) /* part of x86-64 */

/* The same for 64 bytes. */
static uint64_t mask_of_64(const char *from)
{
    uint64_t zero = 0;
    for (int j = 0; j < 64; j += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(from + j));
        int mask = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_setzero_si128()));
        zero |= (uint64_t)(unsigned)mask << j;
    }
    return ~zero;
}

#else

static uint64_t mask_of_64(const char *from)
{
    uint64_t mask = 0;
    for (int j = 0; j < 64; j += EXPERTS_PER_WORD)
        mask |= mask_of_word(from + j) << j;
    return mask;
}

#endif

/* The same for up to 64 bytes of a row of the map, which has at least 8 bytes before their end.
 * Nothing past the end is read: the last word starts earlier instead. */
static uint64_t mask_of_bytes(const char *from, int64_t count)
{
    uint64_t mask = 0;
    int64_t j = 0;
    if (count == 64)
        return mask_of_64(from);
    for (; j + EXPERTS_PER_WORD <= count; j += EXPERTS_PER_WORD)
        mask |= mask_of_word(from + j) << j;
    if (j < count) {
        j = count - EXPERTS_PER_WORD;
        uint64_t last = mask_of_word(from + j);
        mask |= j < 0 ? last >> -j : last << j;
    }
    return mask;
}

uint64_t moetoken_map_mask(const struct moetoken_view *map, int64_t token, int64_t first,
                           int64_t end)
{
    int64_t count = end - first, stride = map->stride[1];
    const char *map_row = moetoken_view_at(map, token, 0);
    if (count > MOETOKEN_EXPERTS_PER_MASK)
        count = MOETOKEN_EXPERTS_PER_MASK;
    if (stride == 1 && first + count >= EXPERTS_PER_WORD)
        return mask_of_bytes(map_row + first, count);
    uint64_t mask = 0;
    for (int64_t j = 0; j < count; j++)
        mask |= (uint64_t)(map_row[(first + j) * stride] != 0) << j;
    return mask;
}

int64_t moetoken_map_count_set(const struct moetoken_view *map, int64_t token)
{
    int64_t count = 0, experts = map->shape[1];
    for (int64_t e = 0; e < experts; e += MOETOKEN_EXPERTS_PER_MASK)
        count += __builtin_popcountll(moetoken_map_mask(map, token, e, experts));
    return count;
}
