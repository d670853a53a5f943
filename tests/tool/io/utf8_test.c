/* utf8_test.c - strict UTF-8: every code point there and back, and what is refused. */
#include "io/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_every_code_point(void **state)
{
    (void)state;
    for (uint32_t code_point = 0; code_point <= 0x110010; ++code_point) {
        char text[UTF8_MAX];
        uint32_t decoded = 0;
        size_t length = utf8_encode(code_point, text);
        bool scalar = code_point <= 0xD7FF || (code_point >= 0xE000 && code_point <= 0x10FFFF);
        assert_true((length > 0) == scalar);
        if (scalar) {
            assert_int_equal(utf8_decode((unsigned char *)text, length, &decoded), length);
            assert_int_equal(decoded, code_point);
            assert_int_equal(utf8_decode((unsigned char *)text, length - 1, &decoded), 0);
        }
    }
}

/* From the tables of the standard: the first and last of each length. */
static void test_literals(void **state)
{
    (void)state;
    static const struct {
        uint32_t code_point;
        const char *text;
        size_t length;
    } cases[] = {{0x7F, "\x7F", 1},
                 {0x80, "\xC2\x80", 2},
                 {0x7FF, "\xDF\xBF", 2},
                 {0x800, "\xE0\xA0\x80", 3},
                 {0xFFFF, "\xEF\xBF\xBF", 3},
                 {0x10000, "\xF0\x90\x80\x80", 4},
                 {0x10FFFF, "\xF4\x8F\xBF\xBF", 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[UTF8_MAX];
        assert_int_equal(utf8_encode(cases[i].code_point, text), cases[i].length);
        assert_memory_equal(text, cases[i].text, cases[i].length);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "\x80",
        "\xC0\x80",
        "\xC1\xBF",
        "\xC2",
        "\xC2\x41",
        "\xE0\x9F\xBF",
        "\xED\xA0\x80",
        "\xED\xBF\xBF",
        "\xE2\x82",
        "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80",
        "\xFE",
        "\xFF",
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        assert_false(utf8_is_valid(cases[i]));
    }
    assert_true(utf8_is_valid(""));
    assert_true(utf8_is_valid("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"));
    assert_int_equal(utf8_valid_length((const unsigned char *)"a\xC3\xA9\xE2\x82", 5), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_literals),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
