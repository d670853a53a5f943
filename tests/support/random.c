/* random.c - random test data: a counter put through a mixing function, so that every seed is
 * as good as any other. */
#include "random.h"

#include "numbers.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t random_state;

void random_seed(uint64_t seed)
{
    random_state = seed;
}

void random_start(const char *program)
{
    const char *given = getenv("MOETOKEN_TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = ((uint64_t)now.tv_sec * 1000003u) ^ (uint64_t)now.tv_nsec;
    if (given != NULL && given[0] != '\0') {
        seed = strtoull(given, NULL, 0);
    }
    fprintf(stderr, "%s: MOETOKEN_TEST_SEED=%llu\n", program, (unsigned long long)seed);
    random_seed(seed);
}

uint64_t random_bits(void)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t mixed = random_state;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

int64_t random_below(int64_t bound)
{
    return (int64_t)(random_bits() % (uint64_t)bound);
}

bool random_chance(int percent)
{
    return random_below(100) < percent;
}

uint64_t random_number(moetoken_type type)
{
    uint64_t one = number_encode(1.0, type);
    uint64_t binade = one - number_encode(0.5, type);
    uint64_t fraction = random_bits() % binade;
    uint64_t exponent = (uint64_t)random_below(12);
    uint64_t sign = random_chance(50) ? number_sign_bit(type) : 0;
    return sign | (one - 6 * binade + exponent * binade + fraction);
}

uint64_t random_special(moetoken_type type)
{
    uint64_t infinity = number_infinity(type);
    uint64_t sign = random_chance(50) ? number_sign_bit(type) : 0;
    uint64_t smallest_normal = number_encode(1.0, type) - number_encode(0.5, type);
    uint64_t payload = 1 + random_bits() % (smallest_normal / 2 - 1);
    switch (random_below(8)) {
    case 0:
        return sign | number_quiet_nan(type) | payload;
    case 1:
        return sign | infinity | payload; /* signalling */
    case 2:
        return sign | infinity;
    case 3:
        return sign;
    case 4:
        return sign | 1;
    case 5:
        return sign | (smallest_normal - 1);
    case 6:
        return sign | (infinity - 1);
    default:
        return sign | (1 + random_bits() % (2 * smallest_normal));
    }
}

void random_permutation(int64_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t j = random_below(i + 1);
        values[i] = values[j];
        values[j] = i;
    }
}
