/* npz_test.c - reading .npz: hand-made archives with known contents, and every way in which an
 * archive, a member or an array header can be broken, with its message. */
#include "file_bytes.h"

#include "io/tensor_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEADER(descr, order, shape)                                                                \
    "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }"

static struct tensor_file *open_bytes(const struct file_bytes *bytes, char *error)
{
    return tensor_file_open_memory(bytes->bytes, bytes->size, "f", error);
}

/* An archive of the one member "a.npy". */
static struct file_bytes archive_of(const char *header, const void *data, size_t size)
{
    struct file_bytes bytes = {0};
    zip_add_npy(&bytes, "a.npy", header, data, size);
    zip_end(&bytes);
    return bytes;
}

static void check_failure(struct file_bytes *bytes, const char *expected)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_file *file = open_bytes(bytes, error);
    assert_string_equal(error, expected);
    assert_null(file);
    file_bytes_free(bytes);
}

/* A fault in the data of "a" shows when they are asked for, and spoils nothing else. */
static void check_broken_data(struct file_bytes *bytes, const char *expected)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_file *file = open_bytes(bytes, error);
    assert_string_equal(error, "");
    assert_string_equal(tensor_file_problem(file, "a"), expected);
    assert_int_equal(tensor_file_find(file, "a")->dtype.bits, 0);
    assert_null(tensor_file_find(file, "a")->data);
    tensor_file_close(file);
    file_bytes_free(bytes);
}

/* ---- good files ----------------------------------------------------------------------------- */

static void test_every_type(void **state)
{
    (void)state;
    static const struct {
        const char *descr;
        int code;
        int bits;
    } types[] = {{"|b1", 6, 8},        {"|i1", kDLInt, 8},  {"|u1", kDLUInt, 8},
                 {"<i4", kDLInt, 32},  {"<i8", kDLInt, 64}, {"<f2", kDLFloat, 16},
                 {"<V2", 4, 16},       {"|V2", 4, 16},      {"<f4", kDLFloat, 32},
                 {"<f8", kDLFloat, 64}};
    char error[TENSOR_FILE_ERROR_SIZE];
    char data[48];
    for (size_t j = 0; j < sizeof data; ++j) {
        data[j] = (char)(0x51 * j + 7);
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
        char header[128];
        size_t size = 6 * (size_t)types[i].bits / 8;
        snprintf(header, sizeof header, HEADER("%s", "False", "(3, 2)"), types[i].descr);
        struct file_bytes bytes = archive_of(header, data, size);
        struct tensor_file *file = open_bytes(&bytes, error);
        assert_string_equal(error, "");
        assert_int_equal(tensor_file_format(file), TENSOR_FILE_NPZ);
        assert_int_equal(tensor_file_count(file), 1);
        const DLTensor *tensor = tensor_file_find(file, "a");
        assert_int_equal(tensor->device.device_type, kDLCPU);
        assert_int_equal(tensor->dtype.code, types[i].code);
        assert_int_equal(tensor->dtype.bits, types[i].bits);
        assert_int_equal(tensor->ndim, 2);
        assert_int_equal(tensor->shape[0], 3);
        assert_int_equal(tensor->shape[1], 2);
        assert_null(tensor->strides);
        assert_memory_equal(tensor->data, data, size);
        tensor_file_close(file);
        file_bytes_free(&bytes);
    }
}

/* 94 bytes of .npy, int32 [[1, -2, 3], [40, 500, 6000]], as zlib deflates them. */
static const unsigned char deflated[] = {
    0x9B, 0xEC, 0x17, 0xEA, 0x1B, 0x10, 0xC9, 0xC8, 0x60, 0xC3, 0x50, 0xAD, 0x9E, 0x92, 0x5A,
    0x9C, 0x5C, 0xA4, 0x6E, 0xA5, 0xA0, 0x6E, 0x93, 0x69, 0xA2, 0xAE, 0xA3, 0xA0, 0x9E, 0x96,
    0x5F, 0x54, 0x52, 0x94, 0x98, 0x17, 0x9F, 0x5F, 0x94, 0x92, 0x0A, 0x12, 0x77, 0x4B, 0xCC,
    0x29, 0x4E, 0x05, 0x8A, 0x17, 0x67, 0x24, 0x16, 0xA4, 0x02, 0xF9, 0x1A, 0x46, 0x3A, 0x0A,
    0xC6, 0x9A, 0x3A, 0x0A, 0xB5, 0x5C, 0x8C, 0x0C, 0x0C, 0x0C, 0xFF, 0xFE, 0xFF, 0xFF, 0xCF,
    0x0C, 0xA4, 0x35, 0x80, 0xF8, 0x0B, 0x50, 0xA0, 0x40, 0x9C, 0x81, 0x01, 0x00};
static const struct zip_claim deflated_claim = {.method = 8, .size = 94, .crc = 0x1A9BCEE4};

static void test_deflated(void **state)
{
    (void)state;
    static const unsigned char expected[24] = {1,    0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF,
                                               3,    0, 0, 0, 40,   0,    0,    0,
                                               0xF4, 1, 0, 0, 0x70, 0x17, 0,    0};
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = {0};
    zip_add_claim(&bytes, "x y.npy", deflated, sizeof deflated, deflated_claim);
    zip_end(&bytes);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    assert_int_equal(tensor_file_find(file, "x y")->dtype.code, kDLInt);
    assert_int_equal(tensor_file_find(file, "x y")->shape[1], 3);
    assert_memory_equal(tensor_file_find(file, "x y")->data, expected, sizeof expected);
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

/* Versions 2.0 and 3.0 have 4 bytes of header length. */
static void test_versions(void **state)
{
    (void)state;
    static const char header[] = "{\"shape\":(2,),\"descr\":\"|u1\",\"fortran_order\":False}";
    char error[TENSOR_FILE_ERROR_SIZE];
    for (int version = 1; version <= 4; ++version) {
        struct file_bytes npy = {0};
        struct file_bytes bytes = {0};
        file_bytes_add(&npy, "\x93NUMPY", 6);
        file_bytes_add_number(&npy, (uint64_t)version, 2);
        file_bytes_add_number(&npy, sizeof header - 1, version == 1 ? 2 : 4);
        file_bytes_add(&npy, header, sizeof header - 1);
        file_bytes_add(&npy, "hi", 2);
        zip_add(&bytes, "a.npy", npy.bytes, npy.size);
        zip_end(&bytes);
        struct tensor_file *file = open_bytes(&bytes, error);
        if (version < 4) {
            assert_string_equal(error, "");
            assert_memory_equal(tensor_file_find(file, "a")->data, "hi", 2);
        } else {
            assert_string_equal(error,
                                "f: tensor 'a': has .npy version 4.0, expected 1.0, 2.0 or 3.0");
        }
        tensor_file_close(file);
        file_bytes_free(&bytes);
        file_bytes_free(&npy);
    }
}

static void check_data(const char *header, const void *data, size_t size, const void *expected)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = archive_of(header, data, size);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    assert_memory_equal(tensor_file_find(file, "a")->data, expected, size);
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

/* In columns: element (i, j) of (2, 3) is at i + 2 j; (i, j, k) of (2, 3, 2) at i + 2 j + 6 k. */
static void test_fortran_order(void **state)
{
    (void)state;
    check_data(HEADER("|u1", "True", "(2, 3)"), "adbecf", 6, "abcdef");
    check_data(HEADER("|u1", "True", "(2, 3, 2)"), "agciekbhdjfl", 12, "abcdefghijkl");
    check_data(HEADER("<f2", "True", "(2, 2)"), "a.c.b.d.", 8, "a.b.c.d.");
    check_data(HEADER("|u1", "True", "(3,)"), "abc", 3, "abc");
    check_data(HEADER("|u1", "True", "()"), "a", 1, "a");
    check_data(HEADER("|u1", "True", "(3, 0)"), "", 0, "");
    check_data(HEADER("|u1", "True", "(1, 3)"), "abc", 3, "abc");
}

static void test_metadata(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = {0};
    zip_add_npy(&bytes, "__metadata__.s.npy", HEADER("|S5", "False", "()"), "abc\0\0", 5);
    zip_add_npy(&bytes, "__metadata__.u.npy", HEADER("<U3", "False", "(1,)"),
                "x\0\0\0\xAC\x20\0\0\x00\xF6\x01\0", 12);
    zip_add_npy(&bytes, "__metadata__.empty.npy", HEADER("<U1", "False", "()"), "\0\0\0\0", 4);
    zip_add_npy(&bytes, "__metadata__.none.npy", HEADER("|S0", "False", "()"), "", 0);
    zip_add_npy(&bytes, "a.npy", HEADER("|u1", "False", "(1,)"), "a", 1);
    zip_end(&bytes);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    assert_int_equal(tensor_file_count(file), 1);
    assert_string_equal(tensor_file_metadata(file, "s"), "abc");
    assert_string_equal(tensor_file_metadata(file, "u"), "x\xE2\x82\xAC\xF0\x9F\x98\x80");
    assert_string_equal(tensor_file_metadata(file, "empty"), "");
    assert_string_equal(tensor_file_metadata(file, "none"), "");
    assert_null(tensor_file_metadata(file, "absent"));
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

static void test_empty_archive(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = {0};
    zip_end(&bytes);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    assert_int_equal(tensor_file_format(file), TENSOR_FILE_NPZ);
    assert_int_equal(tensor_file_count(file), 0);
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

/* ---- what is not for us --------------------------------------------------------------------- */

#define EXPECTED_TYPES "expected |b1, |i1, |u1, <i4, <i8, <f2, <V2 (bfloat16), <f4 or <f8"

static const struct {
    const char *header;
    const char *problem;
} unusable[] = {
    {HEADER("|O", "False", "(1,)"),
     "f: tensor 'a' has type |O: Python objects are pickles, which are never loaded"},
    {HEADER(">f4", "False", "(1,)"), "f: tensor 'a' has big-endian type >f4, " EXPECTED_TYPES},
    {HEADER("<u2", "False", "(1,)"), "f: tensor 'a' has type <u2, " EXPECTED_TYPES},
    {HEADER("<c8", "False", "(1,)"), "f: tensor 'a' has type <c8, " EXPECTED_TYPES},
    {HEADER("|V1", "False", "(1,)"), "f: tensor 'a' has type |V1, " EXPECTED_TYPES},
    {HEADER("|i4", "False", "(1,)"), "f: tensor 'a' has type |i4, " EXPECTED_TYPES},
    {HEADER("", "False", "(1,)"), "f: tensor 'a' has type , " EXPECTED_TYPES},
    {HEADER("<U1", "False", "(1,)"), "f: tensor 'a' holds text, expected numbers"},
    {HEADER("<f4", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"),
     "f: tensor 'a' has 9 dimensions, expected at most 8"},
    {"{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }",
     "f: tensor 'a' has a structured type, " EXPECTED_TYPES},
};

static void test_unusable_tensors(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    for (size_t i = 0; i < sizeof unusable / sizeof unusable[0]; ++i) {
        struct file_bytes bytes = {0};
        zip_add_npy(&bytes, "a.npy", unusable[i].header, "abcd", 4);
        zip_add_npy(&bytes, "b.npy", HEADER("|u1", "False", "(1,)"), "b", 1);
        zip_add(&bytes, "README", "text", 4);
        zip_end(&bytes);
        struct tensor_file *file = open_bytes(&bytes, error);
        assert_string_equal(error, "");
        assert_string_equal(tensor_file_problem(file, "a"), unusable[i].problem);
        assert_int_equal(tensor_file_find(file, "a")->dtype.bits, 0);
        assert_null(tensor_file_find(file, "a")->data);
        assert_string_equal(tensor_file_problem(file, "README"),
                            "f: member 'README' is not an array (.npy)");
        assert_null(tensor_file_problem(file, "b"));
        assert_memory_equal(tensor_file_find(file, "b")->data, "b", 1);
        tensor_file_close(file);
        file_bytes_free(&bytes);
    }
}

/* ---- broken array headers ------------------------------------------------------------------- */

#define WRONG "f: tensor 'a': array header: expected "

static const struct {
    const char *header;
    const char *error;
} broken_headers[] = {
    {"", WRONG "'{' at byte 1"},
    {"descr", WRONG "'{' at byte 0"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (4,), ", WRONG "a string at byte 57"},
    {HEADER("|u1", "False", "(4,)") "x", WRONG "spaces up to the end at byte 57"},
    {HEADER("|u1", "false", "(4,)"), WRONG "True or False at byte 34"},
    {HEADER("|u1", "0", "(4,)"), WRONG "True or False at byte 34"},
    {HEADER("|u1", "False", "(4)"), WRONG "a tuple, which '(5)' is not, at byte 53"},
    {HEADER("|u1", "False", "4"), WRONG "a tuple of sizes at byte 50"},
    {HEADER("|u1", "False", "[4]"), WRONG "a tuple of sizes at byte 50"},
    {HEADER("|u1", "False", "(4 4)"), WRONG "',' or ')' at byte 53"},
    {HEADER("|u1", "False", "(-4,)"), WRONG "a size at byte 51"},
    {HEADER("|u1", "False", "(4L,)"), WRONG "',' or ')' at byte 52"},
    {HEADER("|u1", "False", "(04,)"), WRONG "a size at byte 51"},
    {HEADER("|u1", "False", "(4.0,)"), WRONG "',' or ')' at byte 52"},
    {HEADER("|u1", "False", "(,)"), WRONG "a size at byte 51"},
    {HEADER("|u1", "False", "(4,"), WRONG "a size at byte 53"},
    {HEADER("|u1", "False", "(9007199254740992,)"),
     "f: tensor 'a': array header: shape has a size above 2^53 - 1"},
    {HEADER("|u1", "False", "(99999999999999999999999999,)"),
     "f: tensor 'a': array header: shape has a size above 2^53 - 1"},
    {HEADER("<f8", "False", "(2147483648, 2147483648)"),
     "f: tensor 'a': array header: the bytes of its shape do not fit in 53 bits"},
    {"{'descr': '|u1', 'shape': (4,)}",
     WRONG "descr, fortran_order and shape, each once, at byte 31"},
    {"{'descr': '|u1', 'descr': '|u1'}",
     WRONG "descr, fortran_order and shape, each once, at byte 24"},
    {"{'more': 1}", WRONG "descr, fortran_order and shape, each once, at byte 7"},
    {"{'descr' '|u1'}", WRONG "':' at byte 9"},
    {"{'descr': '|u1' 'shape': (4,)}", WRONG "',' or '}' at byte 16"},
    {"{'descr': '|\\x75'}", WRONG "the end of a short plain string at byte 12"},
    {"{'descr': '12345678901234567890123456789012'}",
     WRONG "the end of a short plain string at byte 42"},
    {"{'descr': '|u1", WRONG "the end of a short plain string at byte 14"},
    {"{'descr': |u1}", WRONG "a string at byte 10"},
    {HEADER("|u1", "False", "(3,)"),
     "f: tensor 'a': its type and shape take 3 bytes, the archive has 4"},
    {HEADER("|u1", "False", "(5,)"),
     "f: tensor 'a': its type and shape take 5 bytes, the archive has 4"},
    {HEADER("<f8", "False", "(1000000, 1000000)"),
     "f: tensor 'a': its type and shape take 8000000000000 bytes, the archive has 4"},
    {HEADER("|u1", "False", "()"),
     "f: tensor 'a': its type and shape take 1 bytes, the archive has 4"},
};

static void test_broken_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken_headers / sizeof broken_headers[0]; ++i) {
        struct file_bytes bytes = archive_of(broken_headers[i].header, "abcd", 4);
        check_failure(&bytes, broken_headers[i].error);
    }
}

static void check_member(const char *npy, size_t size, const char *expected)
{
    struct file_bytes bytes = {0};
    zip_add(&bytes, "a.npy", npy, size);
    zip_end(&bytes);
    check_failure(&bytes, expected);
}

static void test_broken_prefixes(void **state)
{
    (void)state;
    check_member("", 0, "f: tensor 'a' ends early: 8 of 8 bytes are missing");
    check_member("\x93NUMPY\1", 7, "f: tensor 'a' ends early: 1 of 8 bytes are missing");
    check_member("\x93NUMPY\1\0\5", 9, "f: tensor 'a' ends early: 1 of 2 bytes are missing");
    check_member("\x93NUMPX\1\0\2\0{}", 12, "f: tensor 'a': does not begin like an .npy file");
    check_member("\x93NUMPY\1\1\2\0{}", 12,
                 "f: tensor 'a': has .npy version 1.1, expected 1.0, 2.0 or 3.0");
    check_member("\x93NUMPY\1\0\3\0{}", 12,
                 "f: tensor 'a': array header of 3 bytes in 12, expected at most 65536");
    check_member("\x93NUMPY\2\0\xFF\xFF\xFF\xFF{}", 14,
                 "f: tensor 'a': array header of 4294967295 bytes in 14, expected at most 65536");
}

static void test_broken_metadata(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        const char *data;
        size_t size;
        const char *what;
    } cases[] = {
        {HEADER("|u1", "False", "()"), "a", 1, "metadata must be an array of one string (S or U)"},
        {HEADER("|S1", "False", "(2,)"), "ab", 2,
         "metadata must be an array of one string (S or U)"},
        {HEADER("|S2", "False", "(0,)"), "", 0, "metadata must be an array of one string (S or U)"},
        {HEADER("|S2", "False", "()"), "\xC3(", 2, "is not valid Unicode text"},
        {HEADER("|S3", "False", "()"), "a\0b", 3, "is not valid Unicode text"},
        {HEADER("<U1", "False", "()"), "\0\xD8\0\0", 4, "is not valid Unicode text"},
        {HEADER("<U1", "False", "()"), "\0\0\x11\0", 4, "is not valid Unicode text"},
        {HEADER("<U2", "False", "()"), "\0\0\0\0a\0\0\0", 8, "is not valid Unicode text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char expected[128];
        struct file_bytes bytes = {0};
        zip_add_npy(&bytes, "__metadata__.k.npy", cases[i].header, cases[i].data, cases[i].size);
        zip_end(&bytes);
        snprintf(expected, sizeof expected, "f: tensor '__metadata__.k': %s", cases[i].what);
        check_failure(&bytes, expected);
    }
}

static void test_long_metadata(void **state)
{
    (void)state;
    static const char text[65540] = {0};
    struct file_bytes bytes = {0};
    zip_add_npy(&bytes, "__metadata__.k.npy", HEADER("<U16385", "False", "()"), text, 65540);
    zip_end(&bytes);
    check_failure(&bytes, "f: tensor '__metadata__.k': metadata of 65540 bytes, expected at most "
                          "65536");
}

/* ---- broken archives ------------------------------------------------------------------------ */

static void check_claim(const void *stored, size_t size, struct zip_claim claim,
                        const char *expected)
{
    struct file_bytes bytes = {0};
    zip_add_claim(&bytes, "a.npy", stored, size, claim);
    zip_end(&bytes);
    check_failure(&bytes, expected);
}

static void check_data_claim(const void *stored, size_t size, struct zip_claim claim,
                             const char *expected)
{
    struct file_bytes bytes = {0};
    zip_add_claim(&bytes, "a.npy", stored, size, claim);
    zip_end(&bytes);
    check_broken_data(&bytes, expected);
}

static void test_broken_claims(void **state)
{
    (void)state;
    struct zip_claim claim = deflated_claim;
    claim.crc ^= 1;
    check_data_claim(deflated, sizeof deflated, claim, "f: tensor 'a': CRC error");
    claim = deflated_claim;
    claim.size += 1;
    check_claim(deflated, sizeof deflated, claim,
                "f: tensor 'a': its type and shape take 24 bytes, the archive has 25");
    claim.size = 0xFFFFFFF0;
    check_claim(deflated, sizeof deflated, claim,
                "f: tensor 'a': 4294967280 bytes are said to come from 88, which cannot be");
    claim = deflated_claim;
    claim.method = 0;
    check_claim(deflated, sizeof deflated, claim,
                "f: tensor 'a': 94 bytes are said to come from 88, which cannot be");
    claim.method = 12;
    check_claim(deflated, sizeof deflated, claim,
                "f: tensor 'a': compression method 12, expected stored (0) or deflated (8)");
    claim = deflated_claim;
    claim.flags = 1;
    check_claim(deflated, sizeof deflated, claim, "f: tensor 'a': is encrypted");
    claim = deflated_claim;
    check_claim("\xFF\xFF", 2, claim, "f: tensor 'a': Zlib error: data error");
}

/* A member whose data ends before, or goes on after, what the archive and the array agree on. */
static void test_wrong_stream_length(void **state)
{
    (void)state;
    /* "stored" deflate blocks: final, length, its complement, bytes */
    struct file_bytes npy = npy_bytes(HEADER("|u1", "False", "(4,)"), "abcd", 4);
    struct file_bytes block = {0};
    size_t length = npy.size;
    file_bytes_add_number(&block, 1, 1);
    file_bytes_add_number(&block, length - 2, 2);
    file_bytes_add_number(&block, ~(length - 2), 2);
    file_bytes_add(&block, npy.bytes, length - 2);
    struct zip_claim claim = {
        .method = 8, .size = (uint32_t)length, .crc = zip_crc(npy.bytes, length - 2)};
    check_data_claim(block.bytes, block.size, claim,
                     "f: tensor 'a' ends early: 2 of 4 bytes are missing");
    file_bytes_free(&block);
    file_bytes_add_number(&block, 1, 1);
    file_bytes_add_number(&block, length + 2, 2);
    file_bytes_add_number(&block, ~(length + 2), 2);
    file_bytes_add(&block, npy.bytes, length);
    file_bytes_add(&block, "ef", 2);
    claim.crc = zip_crc(npy.bytes, length);
    check_data_claim(block.bytes, block.size, claim,
                     "f: tensor 'a': is longer than the archive says");
    file_bytes_free(&block);
    file_bytes_free(&npy);
}

/* Nobody has to read, or can be hurt by, data that nobody asks for. */
static void test_data_are_read_when_asked_for(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = {0};
    struct zip_claim claim = deflated_claim;
    claim.crc ^= 1;
    zip_add_claim(&bytes, "a.npy", deflated, sizeof deflated, claim);
    zip_add_npy(&bytes, "b.npy", HEADER("|u1", "False", "(2,)"), "ok", 2);
    zip_end(&bytes);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    assert_true(tensor_file_has(file, "a"));
    assert_false(tensor_file_has(file, "c"));
    assert_null(tensor_file_problem(file, "b"));
    assert_memory_equal(tensor_file_find(file, "b")->data, "ok", 2);
    assert_ptr_equal(tensor_file_find(file, "b")->data, tensor_file_at(file, 1)->tensor.data);
    assert_string_equal(tensor_file_problem(file, "a"), "f: tensor 'a': CRC error");
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

/* Members of text are read at once, so there is a bound for all of them together. */
static void test_much_metadata(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = {0};
    char *text = malloc(65536);
    assert_non_null(text);
    memset(text, 'x', 65536);
    for (int i = 0; i <= 256; ++i) {
        char name[48];
        snprintf(name, sizeof name, "__metadata__.%d.npy", i);
        zip_add_npy(&bytes, name, HEADER("|S65536", "False", "()"), text, 65536);
    }
    zip_end(&bytes);
    assert_null(open_bytes(&bytes, error));
    assert_string_equal(error, "f: has more than 16777216 bytes of metadata, up to tensor "
                               "'__metadata__.256'");
    free(text);
    file_bytes_free(&bytes);
}

static void test_duplicate_names(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = {0};
    zip_add_npy(&bytes, "a.npy", HEADER("|u1", "False", "(1,)"), "a", 1);
    zip_add_npy(&bytes, "a.npy", HEADER("|u1", "False", "(1,)"), "b", 1);
    zip_end(&bytes);
    assert_null(open_bytes(&bytes, error)); /* found by libzip or, in other versions, by us */
    assert_memory_equal(error, "f: has two ", 11);
    file_bytes_free(&bytes);
    zip_add_npy(&bytes, "a.npy", HEADER("|u1", "False", "(1,)"), "a", 1);
    zip_add(&bytes, "a", "b", 1);
    zip_end(&bytes);
    check_failure(&bytes, "f: has two tensors named 'a'");
}

/* Two entries of the directory for one member: the way to a small file that unpacks to a lot. */
static void test_shared_bytes(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = {0};
    zip_add_npy(&bytes, "a.npy", HEADER("|u1", "False", "(999,)"), (char[999]){0}, 999);
    size_t once = bytes.directory_size;
    unsigned char *twice = malloc(2 * once);
    assert_non_null(twice);
    memcpy(twice, bytes.directory, once);
    memcpy(twice + once, bytes.directory, once);
    free(bytes.directory);
    bytes.directory = twice;
    bytes.directory_size *= 2;
    bytes.members = 2;
    zip_end(&bytes);
    assert_null(open_bytes(&bytes, error));
    assert_memory_equal(error, "f: ", 3);
    file_bytes_free(&bytes);
}

static void test_cut_archives(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = archive_of(HEADER("|u1", "False", "(4,)"), "abcd", 4);
    for (size_t size = 1; size < bytes.size; ++size) {
        unsigned char *cut = malloc(size);
        assert_non_null(cut);
        memcpy(cut, bytes.bytes, size);
        assert_null(tensor_file_open_memory(cut, size, "f", error));
        assert_memory_equal(error, "f: ", 3);
        free(cut);
    }
    file_bytes_free(&bytes);
}

/* Any one bit turned over is found by a checksum or is one that means nothing: never anything else
 * than the tensor or an error. */
static void test_turned_bits(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes bytes = {0};
    size_t failures = 0;
    zip_add_claim(&bytes, "a.npy", deflated, sizeof deflated, deflated_claim);
    zip_end(&bytes);
    for (size_t bit = 0; bit < 8 * bytes.size; ++bit) {
        bytes.bytes[bit / 8] ^= (unsigned char)(1U << (bit % 8));
        struct tensor_file *file = open_bytes(&bytes, error);
        if (file == NULL) {
            assert_memory_equal(error, "f: ", 3);
            ++failures;
        } else {
            assert_string_equal(error, "");
            assert_true(tensor_file_count(file) <= 1);
            failures += tensor_file_at(file, 0) != NULL && tensor_file_at(file, 0)->problem != NULL;
        }
        tensor_file_close(file);
        bytes.bytes[bit / 8] ^= (unsigned char)(1U << (bit % 8));
    }
    assert_true(failures > 8 * sizeof deflated);
    file_bytes_free(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_deflated),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_fortran_order),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_empty_archive),
        cmocka_unit_test(test_unusable_tensors),
        cmocka_unit_test(test_broken_headers),
        cmocka_unit_test(test_broken_prefixes),
        cmocka_unit_test(test_broken_metadata),
        cmocka_unit_test(test_long_metadata),
        cmocka_unit_test(test_broken_claims),
        cmocka_unit_test(test_wrong_stream_length),
        cmocka_unit_test(test_data_are_read_when_asked_for),
        cmocka_unit_test(test_much_metadata),
        cmocka_unit_test(test_duplicate_names),
        cmocka_unit_test(test_shared_bytes),
        cmocka_unit_test(test_cut_archives),
        cmocka_unit_test(test_turned_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
