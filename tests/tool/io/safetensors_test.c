/* safetensors_test.c - reading safetensors: hand-made files with known contents, and every way in
 * which a file can be broken, with its message. */
#include "file_bytes.h"

#include "io/tensor_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tensor_file *open_text(struct file_bytes *bytes, const char *header, const void *data,
                                     size_t size, char *error)
{
    *bytes = safetensors_bytes(header, data, size);
    return tensor_file_open_memory(bytes->bytes, bytes->size, "f", error);
}

/* One file, byte for byte: x, two bfloat16 numbers, 1.0 and -2.5. */
static const unsigned char literal_file[] = {
    0x38, 0,   0,   0,   0,   0,   0,   0,   '{', '"', 'x', '"', ':', '{',  '"',  'd',  't',
    'y',  'p', 'e', '"', ':', '"', 'B', 'F', '1', '6', '"', ',', '"', 's',  'h',  'a',  'p',
    'e',  '"', ':', '[', '2', ']', ',', '"', 'd', 'a', 't', 'a', '_', 'o',  'f',  'f',  's',
    'e',  't', 's', '"', ':', '[', '0', ',', '4', ']', '}', '}', ' ', 0x80, 0x3F, 0x20, 0xC0};

static void test_literal_file(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_file *file =
        tensor_file_open_memory(literal_file, sizeof literal_file, "f", error);
    assert_string_equal(error, "");
    assert_non_null(file);
    assert_int_equal(tensor_file_format(file), TENSOR_FILE_SAFETENSORS);
    assert_int_equal(tensor_file_count(file), 1);
    assert_string_equal(tensor_file_at(file, 0)->name, "x");
    assert_null(tensor_file_at(file, 1));
    const DLTensor *x = tensor_file_find(file, "x");
    assert_ptr_equal(x, &tensor_file_at(file, 0)->tensor);
    assert_int_equal(x->device.device_type, kDLCPU);
    assert_int_equal(x->dtype.code, kDLBfloat);
    assert_int_equal(x->dtype.bits, 16);
    assert_int_equal(x->dtype.lanes, 1);
    assert_int_equal(x->ndim, 1);
    assert_int_equal(x->shape[0], 2);
    assert_null(x->strides);
    assert_memory_equal((const char *)x->data + x->byte_offset, "\x80\x3F\x20\xC0", 4);
    assert_null(tensor_file_find(file, "y"));
    assert_null(tensor_file_metadata(file, "x"));
    tensor_file_close(file);
}

static void test_every_type(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int code;
        int bits;
    } types[] = {{"BOOL", 6, 8},      {"I8", kDLInt, 8},     {"U8", kDLUInt, 8},
                 {"I32", kDLInt, 32}, {"I64", kDLInt, 64},   {"F16", kDLFloat, 16},
                 {"BF16", 4, 16},     {"F32", kDLFloat, 32}, {"F64", kDLFloat, 64}};
    char error[TENSOR_FILE_ERROR_SIZE];
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
        struct file_bytes bytes;
        char header[128];
        char data[24];
        size_t size = 3 * (size_t)types[i].bits / 8;
        for (size_t j = 0; j < sizeof data; ++j) {
            data[j] = (char)(0x51 * j + 7);
        }
        snprintf(header, sizeof header,
                 "{\"a\":{\"data_offsets\":[0,%zu],\"shape\":[1,3],\"dtype\":\"%s\"}}", size,
                 types[i].name);
        struct tensor_file *file = open_text(&bytes, header, data, size, error);
        assert_string_equal(error, "");
        const DLTensor *tensor = tensor_file_find(file, "a");
        assert_int_equal(tensor->dtype.code, types[i].code);
        assert_int_equal(tensor->dtype.bits, types[i].bits);
        assert_int_equal(tensor->ndim, 2);
        assert_int_equal(tensor->shape[0], 1);
        assert_int_equal(tensor->shape[1], 3);
        assert_memory_equal(tensor->data, data, size);
        tensor_file_close(file);
        file_bytes_free(&bytes);
    }
}

/* Order in the header is free, names are JSON strings, spaces and an empty tensor are allowed. */
static void test_several_tensors(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes;
    struct tensor_file *file = open_text(
        &bytes,
        "{ \"__metadata__\": {\"k\":\"v\",\"\":\"\",\"\\u00e9\":\"a\\\"b\"},\n"
        "\"b\\/\\u20ac\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[3,7]},\t"
        "\"none\":{\"dtype\":\"F64\",\"shape\":[4,0,9007199254740991],\"data_offsets\":[3,3]},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}  \r\n  ",
        "abc\x01\x02\x03\x04", 7, error);
    assert_string_equal(error, "");
    assert_int_equal(tensor_file_count(file), 3);
    assert_memory_equal(tensor_file_find(file, "a")->data, "abc", 3);
    const DLTensor *scalar = tensor_file_find(file, "b/\xE2\x82\xAC");
    assert_int_equal(scalar->ndim, 0);
    assert_memory_equal(scalar->data, "\x01\x02\x03\x04", 4);
    assert_int_equal(tensor_file_find(file, "none")->shape[2], 9007199254740991);
    assert_non_null(tensor_file_find(file, "none")->data);
    assert_string_equal(tensor_file_metadata(file, "k"), "v");
    assert_string_equal(tensor_file_metadata(file, ""), "");
    assert_string_equal(tensor_file_metadata(file, "\xC3\xA9"), "a\"b");
    assert_null(tensor_file_metadata(file, "z"));
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

static void test_no_tensors(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes;
    static const char *const headers[] = {"{}", "{\"__metadata__\":null}"};
    for (int i = 0; i < 2; ++i) {
        struct tensor_file *file = open_text(&bytes, headers[i], "", 0, error);
        assert_string_equal(error, "");
        assert_int_equal(tensor_file_count(file), 0);
        assert_null(tensor_file_metadata(file, "k"));
        tensor_file_close(file);
        file_bytes_free(&bytes);
    }
}

/* What this tool does not know spoils nothing before it is wanted, and the rest can be used. */
static void test_unusable_tensors(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes;
    struct tensor_file *file = open_text(
        &bytes,
        "{\"u\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[0,2]},"
        "\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[2,3]},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}",
        "wxyz", 4, error);
    assert_string_equal(error, "");
    assert_int_equal(tensor_file_count(file), 3);
    assert_string_equal(tensor_file_problem(file, "u"),
                        "f: tensor 'u' has type U16, expected BOOL, I8, U8, I32, I64, F16, BF16, "
                        "F32 or F64");
    assert_string_equal(tensor_file_problem(file, "deep"),
                        "f: tensor 'deep' has 9 dimensions, expected at most 8");
    assert_null(tensor_file_problem(file, "a"));
    assert_null(tensor_file_problem(file, "absent"));
    assert_int_equal(tensor_file_find(file, "u")->dtype.bits, 0);
    assert_null(tensor_file_find(file, "u")->data);
    assert_memory_equal(tensor_file_find(file, "a")->data, "z", 1);
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

/* ---- broken headers ------------------------------------------------------------------------- */

/* Where exactly it stopped is cJSON's choice. */
#define NOT_JSON "f: header is not valid JSON near byte "

struct broken {
    const char *header;
    size_t data_size;
    const char *error;
};

#define U8(name, begin, end, size)                                                                 \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" size "],\"data_offsets\":[" begin "," end "]}"

static const struct broken broken_layouts[] = {
    {"{" U8("a", "0", "2", "2") "," U8("b", "1", "3", "2") "}", 3,
     "f: tensor 'b' begins at data byte 1, which overlaps what goes up to byte 2, where 'a' ends"},
    {"{" U8("a", "0", "4", "4") "," U8("b", "1", "1", "0") "}", 4,
     "f: tensor 'b' begins at data byte 1, which overlaps what goes up to byte 4, where 'a' ends"},
    {"{" U8("a", "0", "2", "2") "," U8("b", "3", "4", "1") "}", 4,
     "f: tensor 'b' begins at data byte 3, which leaves a hole after byte 2, where 'a' ends"},
    {"{" U8("a", "1", "2", "1") "}", 2,
     "f: tensor 'a' begins at data byte 1, which leaves a hole after byte 0, where 'the header' "
     "ends"},
    {"{" U8("a", "0", "2", "2") "}", 5, "f: has 5 bytes of data, of which tensors use only 2"},
    {"{}", 1, "f: has 1 bytes of data, of which tensors use only 0"},
    {"{" U8("a", "0", "3", "3") "}", 2,
     "f: tensor 'a': data_offsets [0, 3] are not inside of the 2 bytes of data"},
    {"{" U8("a", "2", "1", "1") "}", 2,
     "f: tensor 'a': data_offsets [2, 1] are not inside of the 2 bytes of data"},
    {"{" U8("a", "0", "9007199254740991", "9007199254740991") "}", 2,
     "f: tensor 'a': data_offsets [0, 9007199254740991] are not inside of the 2 bytes of data"},
    {"{" U8("a", "0", "9007199254740993", "2") "}", 2,
     "f: tensor 'a': data_offsets has 9007199254740992, expected at most 2^53 - 1"},
    {"{" U8("a", "18446744073709551615", "2", "2") "}", 2,
     "f: tensor 'a': data_offsets has 1.8446744073709552e+19, expected at most 2^53 - 1"},
    {"{" U8("a", "0", "2", "3") "}", 2,
     "f: tensor 'a': its type U8 and shape take 3 bytes, its data_offsets [0, 2] hold 2"},
    {"{" U8("a", "0", "1", "") "}", 1, NULL},
    {"{" U8("a", "0", "0", "") "}", 0,
     "f: tensor 'a': its type U8 and shape take 1 bytes, its data_offsets [0, 0] hold 0"},
    {"{" U8("a", "0", "2", "4294967296,4294967296") "}", 2,
     "f: tensor 'a': the bytes of its shape do not fit in 53 bits"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0,
     "f: tensor 'a': shape has 2.305843009213694e+18, expected at most 2^53 - 1"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2251799813685248],\"data_offsets\":[0,0]}}", 0,
     "f: tensor 'a': the bytes of its shape do not fit in 53 bits"},
    {"{" U8("a", "0", "1", "1") "," U8("a", "1", "2", "1") "}", 2, "f: has two tensors named 'a'"},
    {"{" U8("a", "0", "1", "1") "," U8("\\u0061", "1", "2", "1") "}", 2,
     "f: has two tensors named 'a'"},
};

static const char entry_expected[] =
    "f: tensor 'a': expected an object with dtype, shape and data_offsets, each once";

static const struct broken broken_entries[] = {
    {"{\"a\":3}", 0, entry_expected},
    {"{\"a\":{}}", 0, entry_expected},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, entry_expected},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"shape\":[0]}}", 0,
     entry_expected},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"more\":\"\"}}", 0,
     entry_expected},
    {"{\"a\":{\"Dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, entry_expected},
    {"{\"a\":{\"dtype\":8,\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
     "f: tensor 'a': dtype is not a string"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":{},\"data_offsets\":[0,0]}}", 0,
     "f: tensor 'a': shape and data_offsets must be arrays"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":0}}", 0,
     "f: tensor 'a': shape and data_offsets must be arrays"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[\"0\"],\"data_offsets\":[0,0]}}", 0,
     "f: tensor 'a': shape has an element that is not a number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0]}}", 0,
     "f: tensor 'a': data_offsets must have two elements"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0,0]}}", 0,
     "f: tensor 'a': data_offsets must have two elements"},
    {"{\"__metadata__\":[]}", 0, "f: __metadata__ is not an object of strings"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "f: __metadata__ 'k' is not a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "f: has __metadata__ twice"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}}", 0, "f: has two metadata entries named 'k'"},
    /* A name that would move the cursor of a terminal. */
    {"{\"\\u001b[2J\\n\\u009b\":3}", 0,
     "f: tensor '?[2J?\?\?': expected an object with dtype, shape and data_offsets, each once"},
};

static const struct broken broken_texts[] = {
    {"{ ", 0, NOT_JSON},
    {"{}}", 0, "f: header has a stray bracket at byte 2"},
    {"{}{}", 0, NOT_JSON},
    {"{\"a\":{]}", 0, NOT_JSON},
    {"{\"a\":1,}", 0, NOT_JSON},
    {"{\"a\" 1}", 0, NOT_JSON},
    {"{\"a\":\"\\ud800\"}", 0, NOT_JSON},
    {"{\"a\":\"\\q\"}", 0, NOT_JSON},
    {"{\"a", 0, "f: the string that begins at header byte 1 has no end"},
    {"{\"a\\", 0, "f: the string that begins at header byte 1 has no end"},
    {"{\"a\n\":1}", 0, "f: header byte 3 is control character 0x0a inside of a string"},
    {"{\"a\\u0000\":1}", 0, "f: header byte 3 is an escaped NUL character"},
    {"{\"a\":\"\xC3(\"}", 0, "f: header byte 6 is 0xc3, which is not UTF-8"},
    {"{\"a\":\"\xED\xA0\x80\"}", 0, "f: header byte 6 is 0xed, which is not UTF-8"},
    {"{\"a\":-1}", 0,
     "f: header byte 5 is 0x2d, expected an object, an array, a string or a whole number that is "
     "not negative"},
    {"{\"a\":1.5}", 0,
     "f: header byte 6 is 0x2e, expected an object, an array, a string or a whole number that is "
     "not negative"},
    {"{\"a\":1e3}", 0,
     "f: header byte 6 is 0x65, expected an object, an array, a string or a whole number that is "
     "not negative"},
    {"{\"a\":true}", 0,
     "f: header byte 5 is 0x74, expected an object, an array, a string or a whole number that is "
     "not negative"},
    {"{\"a\":007}", 0, "f: the number at header byte 5 begins with a needless 0"},
    {"{\"a\":{\"b\":{\"c\":[]}}}", 0, "f: header is nested deeper than 3 at byte 15"},
    {"{\v}", 0,
     "f: header byte 1 is 0x0b, expected an object, an array, a string or a whole number that is "
     "not negative"},
};

static void check_broken(const struct broken *cases, size_t count)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    static const char data[16] = {0};
    for (size_t i = 0; i < count; ++i) {
        struct file_bytes bytes;
        struct tensor_file *file =
            open_text(&bytes, cases[i].header, data, cases[i].data_size, error);
        if (cases[i].error != NULL && strcmp(cases[i].error, NOT_JSON) == 0) {
            assert_memory_equal(error, NOT_JSON, strlen(NOT_JSON));
        } else {
            assert_string_equal(error, cases[i].error == NULL ? "" : cases[i].error);
        }
        assert_true((file == NULL) == (cases[i].error != NULL));
        tensor_file_close(file);
        file_bytes_free(&bytes);
    }
}

static void test_broken_layouts(void **state)
{
    (void)state;
    check_broken(broken_layouts, sizeof broken_layouts / sizeof broken_layouts[0]);
}

static void test_broken_entries(void **state)
{
    (void)state;
    check_broken(broken_entries, sizeof broken_entries / sizeof broken_entries[0]);
}

static void test_broken_texts(void **state)
{
    (void)state;
    check_broken(broken_texts, sizeof broken_texts / sizeof broken_texts[0]);
}

/* ---- broken lengths and sizes --------------------------------------------------------------- */

static void check_bytes(const void *bytes, size_t size, const char *expected)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    void *exact = malloc(size == 0 ? 1 : size);
    assert_non_null(exact);
    memcpy(exact, bytes, size);
    assert_null(tensor_file_open_memory(exact, size, "f", error));
    assert_string_equal(error, expected);
    free(exact);
}

static void test_broken_lengths(void **state)
{
    (void)state;
    check_bytes("", 0, "f: is empty");
    check_bytes("\2\0\0\0\0\0\0\0{", 9,
                "f: has 9 bytes, which is too short for safetensors or .npz");
    check_bytes("\3\0\0\0\0\0\0\0{}", 10, "f: claims a header of 3 bytes, 2 bytes follow");
    check_bytes("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10,
                "f: claims a header of 18446744073709551615 bytes, 2 bytes follow");
    check_bytes("\0\0\0\0\0\0\0\0{}", 10, NOT_JSON "0 of 0");
    check_bytes("\2\0\0\0\0\0\0\0[]", 10,
                "f: is neither .npz (begins with 'PK') nor safetensors (byte 8 is '{', here "
                "0x5b)");
    check_bytes("\x93NUMPY\1\0\0\0\0\0", 12, "f: array header: expected '{' at byte 0");
    check_bytes("{\0\0\0\0\0\0\0{\0}", 11, "f: claims a header of 123 bytes, 3 bytes follow");
    check_bytes("\3\0\0\0\0\0\0\0{\0}", 11,
                "f: header byte 1 is 0x00, expected an object, an array, a string or a whole "
                "number that is not negative");
}

/* Every prefix of a good file is an error. */
static void test_cut_files(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    for (size_t size = 0; size < sizeof literal_file; ++size) {
        unsigned char *cut = malloc(size + 1);
        assert_non_null(cut);
        memcpy(cut, literal_file, size);
        assert_null(tensor_file_open_memory(cut, size, "f", error));
        assert_memory_equal(error, "f: ", 3);
        free(cut);
    }
}

/* A value takes 2 bytes of header and 64 of cJSON: limits must come first. */
static void test_hostile_headers(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes;
    size_t length = 2000000;
    char *header = malloc(length + 1);
    assert_non_null(header);
    memset(header, ',', length);
    header[0] = '{';
    header[length] = '\0';
    assert_null(open_text(&bytes, header, "", 0, error));
    assert_string_equal(error, "f: header has more than 262144 values");
    file_bytes_free(&bytes);
    memset(header + 1, '[', length - 1);
    assert_null(open_text(&bytes, header, "", 0, error));
    assert_string_equal(error, "f: header is nested deeper than 3 at byte 3");
    file_bytes_free(&bytes);
    memset(header + 1, '1', length - 1);
    memcpy(header, "{\"a\":", 5);
    assert_null(open_text(&bytes, header, "", 0, error));
    assert_memory_equal(error, NOT_JSON, strlen(NOT_JSON));
    file_bytes_free(&bytes);
    free(header);
}

static void test_header_over_the_limit(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    static const unsigned char start[9] = {0x01, 0xE1, 0xF5, 0x05, 0, 0, 0, 0, '{'};
    size_t size = 8 + (size_t)100000001;
    unsigned char *bytes = calloc(size, 1);
    assert_non_null(bytes);
    memcpy(bytes, start, sizeof start);
    assert_null(tensor_file_open_memory(bytes, size, "f", error));
    assert_string_equal(error, "f: has a header of 100000001 bytes, expected at most 100000000");
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_literal_file),     cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_several_tensors),  cmocka_unit_test(test_no_tensors),
        cmocka_unit_test(test_unusable_tensors), cmocka_unit_test(test_broken_layouts),
        cmocka_unit_test(test_broken_entries),   cmocka_unit_test(test_broken_texts),
        cmocka_unit_test(test_broken_lengths),   cmocka_unit_test(test_cut_files),
        cmocka_unit_test(test_hostile_headers),  cmocka_unit_test(test_header_over_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
