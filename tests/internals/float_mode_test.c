/* float_mode_test.c - enter and leave put back rounding and exception flags, whichever way this
 * processor has; built a second time with the way of processors that the library does not know. */
#include "support/check.h"
#include "threads/float_mode.h"

#include <fenv.h>

static volatile float one = 1, three = 3, huge = 3e38f, zero = 0;

/* By hand: 1/3 lies between 0x1.555554p-2 and 0x1.555556p-2, nearer to the latter. */
static void rounding_comes_back(void **state)
{
    static const struct {
        int direction;
        float third;
    } rows[] = {{FE_TONEAREST, 0x1.555556p-2f},
                {FE_UPWARD, 0x1.555556p-2f},
                {FE_DOWNWARD, 0x1.555554p-2f},
                {FE_TOWARDZERO, 0x1.555554p-2f}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        moetoken_float_mode mode;
        fesetround(rows[i].direction);
        moetoken_float_mode_enter(&mode);
        volatile float within = one / three, fraction = -one / three;
        moetoken_float_mode_leave(&mode);
        volatile float after = one / three;
        fesetround(FE_TONEAREST);
        check(within == 0x1.555556p-2f && fraction == -0x1.555556p-2f, "%a within", (double)within);
        check(after == rows[i].third, "%a after, expected %a", (double)after,
              (double)rows[i].third);
    }
}

/* What is raised within is forgotten, what was raised before is kept. */
static void flags_come_back(void **state)
{
    moetoken_float_mode mode;
    (void)state;
    feclearexcept(FE_ALL_EXCEPT);
    volatile float infinite = one / zero;
    moetoken_float_mode_enter(&mode);
    volatile float overflow = huge * huge, inexact = one / three, invalid = zero / zero;
    moetoken_float_mode_leave(&mode);
    int after = fetestexcept(FE_DIVBYZERO | FE_OVERFLOW | FE_INEXACT | FE_INVALID);
    (void)infinite, (void)overflow, (void)inexact, (void)invalid;
    assert_int_equal(after, FE_DIVBYZERO);
    feclearexcept(FE_ALL_EXCEPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_comes_back),
        cmocka_unit_test(flags_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
