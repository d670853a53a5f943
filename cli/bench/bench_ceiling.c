/* bench_ceiling.c - plain streaming loops: a copy as far as reads and writes pair up, then reads
 * alone or writes alone, in steps that keep both going at once. */
#include "bench_ceiling.h"

#include "bench_team.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#include <moetoken/moetoken.h>
#endif

#define LINE_BYTES 64
#define STEP_BYTES (64 * 1024)

/* What is written where there is nothing to copy: some CPUs write lines of zeros at twice the speed
 * of any others, which no operator can use. */
#define FILL_BEGIN INT64_C(0x3f8ccccd40490fdb)
#define FILL_STEP  INT64_C(0x0123456789abcdef)

/* What a loop moves in one step; all sizes are multiples of LINE_BYTES. */
struct step {
    const char *from; /* copied to `to` */
    char *to;
    size_t copy_bytes;
    const char *read[2];
    size_t read_bytes[2];
    size_t fill_bytes; /* written behind the copy */
};

/* Passed by value: stores through `to` cannot change it, so the loops need not reload it. */
typedef void step_fn(struct step step, bool streaming);

#if defined(__x86_64__)

__attribute__((target("avx2"))) static inline void write_line_avx2(char *to, __m256i a, __m256i b,
                                                                   bool streaming)
{
    if (streaming) {
        _mm256_stream_si256((__m256i *)(void *)to, a);
        _mm256_stream_si256((__m256i *)(void *)(to + 32), b);
    } else {
        _mm256_store_si256((__m256i *)(void *)to, a);
        _mm256_store_si256((__m256i *)(void *)(to + 32), b);
    }
}

__attribute__((target("avx2"))) static void step_avx2(struct step step, bool streaming)
{
    __m256i a = _mm256_set1_epi64x(FILL_BEGIN), b = _mm256_set1_epi64x(FILL_STEP);
    for (size_t at = 0; at < step.copy_bytes; at += LINE_BYTES)
        write_line_avx2(step.to + at, _mm256_load_si256((const void *)(step.from + at)),
                        _mm256_load_si256((const void *)(step.from + at + 32)), streaming);
    for (size_t at = 0; at < step.fill_bytes; at += LINE_BYTES) {
        write_line_avx2(step.to + step.copy_bytes + at, a, b, streaming);
        a = _mm256_add_epi64(a, b);
    }
    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < step.read_bytes[i]; at += LINE_BYTES) {
            a = _mm256_load_si256((const void *)(step.read[i] + at));
            b = _mm256_load_si256((const void *)(step.read[i] + at + 32));
            __asm__ volatile("" : : "x"(a), "x"(b)); /* read, though nobody looks at it */
        }
}

static inline void write_16_bytes(char *to, __m128i value, bool streaming)
{
    if (streaming)
        _mm_stream_si128((__m128i *)(void *)to, value);
    else
        _mm_store_si128((__m128i *)(void *)to, value);
}

static void step_sse2(struct step step, bool streaming)
{
    __m128i value = _mm_set1_epi64x(FILL_BEGIN);
    for (size_t at = 0; at < step.copy_bytes; at += 16)
        write_16_bytes(step.to + at, _mm_load_si128((const void *)(step.from + at)), streaming);
    for (size_t at = 0; at < step.fill_bytes; at += 16) {
        write_16_bytes(step.to + step.copy_bytes + at, value, streaming);
        value = _mm_add_epi64(value, _mm_set1_epi64x(FILL_STEP));
    }
    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < step.read_bytes[i]; at += 16) {
            value = _mm_load_si128((const void *)(step.read[i] + at));
            __asm__ volatile("" : : "x"(value));
        }
}

static step_fn *choose_step(void)
{
    return (moetoken_isa_detected() & MOETOKEN_ISA_AVX2) != 0 ? step_avx2 : step_sse2;
}

void ceiling_fence(void)
{
    _mm_sfence();
}

#else

/* memmove (in place, both are one buffer) and memset are what the C library considers fastest. */
static void step_libc(struct step step, bool streaming)
{
    (void)streaming;
    if (step.copy_bytes != 0)
        memmove(step.to, step.from, step.copy_bytes);
    if (step.fill_bytes != 0)
        memset(step.to + step.copy_bytes, FILL_BEGIN & 0xff, step.fill_bytes);
    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < step.read_bytes[i]; at += 16) {
            uint64_t value[2];
            memcpy(value, step.read[i] + at, sizeof value);
            __asm__ volatile("" : : "r"(value[0]), "r"(value[1]));
        }
}

static step_fn *choose_step(void)
{
    return step_libc;
}

void ceiling_fence(void)
{
}

#endif

size_t traffic_bytes(const struct traffic *traffic)
{
    return traffic->read_bytes[0] + traffic->read_bytes[1] + traffic->write_bytes;
}

/* [begin, end) of part `i` of `parts` of a buffer, in whole lines. */
static void part(size_t bytes, size_t i, size_t parts, size_t *begin, size_t *size)
{
    size_t lines = bytes / LINE_BYTES, first = lines * i / parts, end = lines * (i + 1) / parts;
    *begin = first * LINE_BYTES;
    *size = (end - first) * LINE_BYTES;
}

/* Part `i` of `parts` of everything. The write is copied from its own buffer in place, else from
 * the larger read. */
static struct step make_step(const struct traffic *traffic, size_t i, size_t parts)
{
    struct step step = {0};
    size_t begin[2], size[2], write_begin, write_size;
    bool in_place = traffic->read[0] == traffic->write;
    int source = !in_place && traffic->read_bytes[1] > traffic->read_bytes[0];
    for (int r = 0; r < 2; r++) {
        part(traffic->read_bytes[r], i, parts, &begin[r], &size[r]);
        step.read[r] = traffic->read[r] == NULL ? NULL : traffic->read[r] + begin[r];
        step.read_bytes[r] = size[r];
    }
    part(traffic->write_bytes, i, parts, &write_begin, &write_size);
    step.to = traffic->write + write_begin;
    step.copy_bytes = size[source] < write_size ? size[source] : write_size;
    step.fill_bytes = write_size - step.copy_bytes;
    step.from = step.read[source];
    step.read_bytes[source] -= step.copy_bytes;
    if (step.read_bytes[source] != 0)
        step.read[source] += step.copy_bytes;
    return step;
}

struct turn {
    const struct traffic *traffic;
    step_fn *run;
    bool streaming;
};

/* One member's steps, which lie side by side. */
static void run_steps(const void *context, int member, int members)
{
    const struct turn *turn = context;
    size_t each = traffic_bytes(turn->traffic) / STEP_BYTES / (size_t)members + 1;
    for (size_t i = 0; i < each; i++)
        turn->run(make_step(turn->traffic, (size_t)member * each + i, (size_t)members * each),
                  turn->streaming);
    ceiling_fence();
}

/* Asked for once: it asks the CPU for its features, which takes microseconds on some machines. */
static step_fn *chosen_step(void)
{
    static step_fn *chosen;
    if (chosen == NULL)
        chosen = choose_step();
    return chosen;
}

void ceiling_run(const struct traffic *traffic, int threads, enum ceiling_stores stores)
{
    const struct turn turn = {traffic, chosen_step(), stores == CEILING_STREAMING};
    team_run(threads, run_steps, &turn);
}

void ceiling_copy(const char *from, char *to, size_t bytes, bool streaming)
{
    bool aligned = ((uintptr_t)from | (uintptr_t)to) % LINE_BYTES == 0;
    size_t lines = aligned ? bytes / LINE_BYTES * LINE_BYTES : 0;
    if (lines != 0)
        chosen_step()((struct step){.from = from, .to = to, .copy_bytes = lines}, streaming);
    memmove(to + lines, from + lines, bytes - lines);
}

void ceiling_read(const char *from, size_t bytes)
{
    size_t before = -(uintptr_t)from % LINE_BYTES, lines = 0;
    if (before < bytes)
        lines = (bytes - before) / LINE_BYTES * LINE_BYTES;
    if (lines != 0)
        chosen_step()((struct step){.read = {from + before}, .read_bytes = {lines}}, false);
}
