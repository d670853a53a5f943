/* pt_test.c - PyTorch files: views, nested dicts and lists, metadata; and everything in a pickle
 * that is not for tensors, each refused with its name and place. Files of PyTorch itself are read
 * in python/tests/test_pt_files.py. */
#include "pt_bytes.h"

#include "io/tensor_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const float twelve[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
static const struct pickle_view whole = {"FloatStorage", "0", 12, 0, 2, {3, 4}, {4, 1}};

static struct tensor_file *open_bytes(const struct file_bytes *bytes, char *error)
{
    return tensor_file_open_memory(bytes->bytes, bytes->size, "dir/f.pt", error);
}

static void check_floats(struct tensor_file *file, const char *name, int count,
                         const float *expected)
{
    const DLTensor *tensor = tensor_file_find(file, name);
    assert_non_null(tensor);
    assert_null(tensor_file_problem(file, name));
    assert_memory_equal(tensor->data, expected, (size_t)count * sizeof *expected);
}

/* ---- what is read --------------------------------------------------------------------------- */

static void test_a_tensor_alone_has_the_files_name(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes program = pickle_begin();
    pickle_tensor(&program, &whole);
    pickle_add(&program, ".");
    struct file_bytes bytes = pt_bytes(&program, twelve, sizeof twelve);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    assert_int_equal(tensor_file_format(file), TENSOR_FILE_PT);
    assert_int_equal(tensor_file_count(file), 1);
    assert_string_equal(tensor_file_name(file, 0), "f");
    assert_int_equal(tensor_file_find(file, "f")->shape[0], 3);
    assert_int_equal(tensor_file_find(file, "f")->shape[1], 4);
    check_floats(file, "f", 12, twelve);
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

/* Views of one storage: a column, a transpose, an offset, a repeated row, a scalar, nothing. */
static void test_views(void **state)
{
    (void)state;
    static const struct {
        struct pickle_view view;
        int count;
        float expected[12];
    } cases[] = {
        {{"FloatStorage", "0", 12, 1, 1, {3}, {4}}, 3, {1, 5, 9}},
        {{"FloatStorage", "0", 12, 0, 2, {4, 3}, {1, 4}},
         12,
         {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}},
        {{"FloatStorage", "0", 12, 8, 2, {1, 4}, {77, 1}}, 4, {8, 9, 10, 11}},
        {{"FloatStorage", "0", 12, 2, 2, {3, 2}, {0, 1}}, 6, {2, 3, 2, 3, 2, 3}},
        {{"FloatStorage", "0", 12, 11, 0, {0}, {0}}, 1, {11}},
        {{"FloatStorage", "0", 12, 500, 2, {0, 4}, {4, 1}}, 0, {0}},
        {{"FloatStorage", "0", 12, 0, 3, {2, 1, 3}, {6, 9, 2}}, 6, {0, 2, 4, 6, 8, 10}},
    };
    enum {
        COUNT = sizeof cases / sizeof cases[0]
    };
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes program = pickle_begin();
    pickle_add(&program, "](");
    for (int i = 0; i < COUNT; ++i) {
        pickle_tensor(&program, &cases[i].view);
    }
    pickle_add(&program, "e.");
    struct file_bytes bytes = pt_bytes(&program, twelve, sizeof twelve);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    for (int i = 0; i < COUNT; ++i) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        const DLTensor *tensor = tensor_file_find(file, name);
        assert_int_equal(tensor->ndim, cases[i].view.ndim);
        for (int d = 0; d < tensor->ndim; ++d) {
            assert_int_equal(tensor->shape[d], cases[i].view.sizes[d]);
        }
        check_floats(file, name, cases[i].count, cases[i].expected);
    }
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

/* {"a": {"b": [tensor, tensor]}, 7: tensor}, and values that become metadata. */
static void test_nested_dicts_and_lists(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes program = pickle_begin();
    pickle_add(&program, "ccollections\nOrderedDict\n)R(");
    pickle_text(&program, "a");
    pickle_add(&program, "}(");
    pickle_text(&program, "b");
    pickle_add(&program, "]q\1");
    pickle_tensor(&program, &whole);
    pickle_add(&program, "a");
    pickle_tensor(&program, &whole);
    pickle_add(&program, "a");
    pickle_text(&program, "on");
    pickle_add(&program, "\x88");
    pickle_text(&program, "n");
    pickle_add(&program, "J\xfe\xff\xff\xff"); /* -2 */
    pickle_text(&program, "word");
    pickle_text(&program, "x\"y");
    pickle_text(&program, "none");
    pickle_add(&program, "N");
    pickle_text(&program, "shape");
    pickle_add(&program, "ctorch\nSize\n");
    pickle_integers(&program, (int64_t[]){3, 4}, 2);
    pickle_add(&program, "\x85Ru");
    pickle_integer(&program, 7);
    pickle_add(&program, "h\1"); /* the list again */
    pickle_add(&program, "u}(");
    pickle_text(&program, "_metadata");
    pickle_add(&program, "}ub.");
    struct file_bytes bytes = pt_bytes(&program, twelve, sizeof twelve);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    assert_int_equal(tensor_file_count(file), 4);
    check_floats(file, "a.b.0", 12, twelve);
    check_floats(file, "a.b.1", 12, twelve);
    check_floats(file, "7.0", 12, twelve);
    assert_string_equal(tensor_file_metadata(file, "a.on"), "true");
    assert_string_equal(tensor_file_metadata(file, "a.n"), "-2");
    assert_string_equal(tensor_file_metadata(file, "a.word"), "x\"y");
    assert_string_equal(tensor_file_metadata(file, "a.shape"), "3,4");
    assert_null(tensor_file_metadata(file, "a.none"));
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

static void test_types(void **state)
{
    (void)state;
    static const struct {
        const char *storage;
        int code, bits;
    } types[] = {{"FloatStorage", kDLFloat, 32}, {"HalfStorage", kDLFloat, 16},
                 {"BFloat16Storage", 4, 16},     {"DoubleStorage", kDLFloat, 64},
                 {"IntStorage", kDLInt, 32},     {"LongStorage", kDLInt, 64},
                 {"BoolStorage", 6, 8},          {"CharStorage", kDLInt, 8},
                 {"ByteStorage", kDLUInt, 8}};
    static const char data[] = "abcdefghijklmnop";
    char error[TENSOR_FILE_ERROR_SIZE];
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
        struct pickle_view view = {types[i].storage, "0", 2, 0, 1, {2}, {1}};
        struct file_bytes program = pickle_begin();
        pickle_tensor(&program, &view);
        pickle_add(&program, ".");
        struct file_bytes bytes = pt_bytes(&program, data, 2 * (size_t)types[i].bits / 8);
        struct tensor_file *file = open_bytes(&bytes, error);
        assert_string_equal(error, "");
        const DLTensor *tensor = tensor_file_find(file, "f");
        assert_null(tensor_file_problem(file, "f"));
        assert_int_equal(tensor->dtype.code, types[i].code);
        assert_int_equal(tensor->dtype.bits, types[i].bits);
        assert_memory_equal(tensor->data, data, 2 * (size_t)types[i].bits / 8);
        tensor_file_close(file);
        file_bytes_free(&bytes);
    }
}

/* Protocol 4: frames, short text, names from the stack, a memo without numbers. */
static void test_protocol_4(void **state)
{
    (void)state;
    static const char code[] =
        "\x80\4\x95\0\0\0\0\0\0\0\0}\x94(\x8c\1a\x94\x8c\5torch\x94\x8c\4Size\x94"
        "\x93\x94K\2K\3\x86\x94\x85\x94R\x94\x8c\1bh\1u.";
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes program = {0};
    file_bytes_add(&program, code, sizeof code - 1);
    struct file_bytes bytes = pt_bytes(&program, NULL, 0);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    assert_string_equal(tensor_file_metadata(file, "a"), "2,3");
    assert_string_equal(tensor_file_metadata(file, "b"), "a"); /* memo 1 */
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void check_refused(struct file_bytes *bytes, const char *expected)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_file *file = open_bytes(bytes, error);
    assert_null(file);
    assert_string_equal(error, expected);
    file_bytes_free(bytes);
}

static void check_program(const char *code, size_t size, const char *expected)
{
    char line[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes program = {0};
    file_bytes_add(&program, code, size);
    struct file_bytes bytes = pt_bytes(&program, twelve, sizeof twelve);
    snprintf(line, sizeof line, "dir/f.pt: data.pkl: %s", expected);
    check_refused(&bytes, line);
}
#define REFUSED(code, expected) check_program(code, sizeof(code) - 1, expected)

static void test_names_that_could_do_something(void **state)
{
    (void)state;
    REFUSED("\x80\2cos\nsystem\nX\2\0\0\0id\x85R.",
            "the name 'os.system', which no tensor needs at byte 2");
    REFUSED("\x80\4\x8c\x08"
            "builtins\x8c\4eval\x93.",
            "the name 'builtins.eval', which no tensor needs at byte 18");
    REFUSED("\x80\2ctorch\nload\n.", "the name 'torch.load', which no tensor needs at byte 2");
    REFUSED("\x80\2ctorch._utils\n_rebuild_qtensor\n.",
            "the name 'torch._utils._rebuild_qtensor', which no tensor needs at byte 2");
    REFUSED("\x80\2c\x1b[2J\nx\n.", "the name '?[2J.x', which no tensor needs at byte 2");
    REFUSED("\x80\2(S'id'\nios\nsystem\n.",
            "instruction STRING (0x53), which no tensor needs at byte 3");
    REFUSED("\x80\2(ios\nsystem\n.", "instruction INST (0x69), which no tensor needs at byte 3");
    REFUSED("\x80\2)o.", "instruction OBJ (0x6f), which no tensor needs at byte 3");
    REFUSED("\x80\2ctorch\nSize\n)\x81.",
            "instruction NEWOBJ (0x81), which no tensor needs at byte 15");
    REFUSED("\x80\2)\x92.", "instruction NEWOBJ_EX (0x92), which no tensor needs at byte 3");
    REFUSED("\x80\2\x82\1.", "instruction EXT1 (0x82), which no tensor needs at byte 2");
    REFUSED("\x80\2P1\n.", "instruction PERSID (0x50), which no tensor needs at byte 2");
    REFUSED("\x80\2\xff.", "instruction unknown (0xff), which no tensor needs at byte 2");
    REFUSED("\x80\2]}b.", "state for what is no OrderedDict at byte 4");
}

static void test_programs_that_make_no_sense(void **state)
{
    (void)state;
    REFUSED("", "no STOP where the program ends at byte 0");
    REFUSED("\x80", "the program ends within an instruction at byte 0");
    REFUSED("\x80\6.", "protocol 6, expected 2 to 5 at byte 0");
    REFUSED("\x80\2", "no STOP where the program ends at byte 2");
    REFUSED("\x80\2.", "0 values left at the end, expected one at byte 2");
    REFUSED("\x80\2NN.", "2 values left at the end, expected one at byte 4");
    REFUSED("\x80\2(.", "a mark where a value is needed at byte 3");
    REFUSED("\x80\2t.", "no mark on the stack where one is needed at byte 2");
    REFUSED("\x80\2N\x86.", "a tuple of more values than are on the stack at byte 3");
    REFUSED("\x80\2(N\x86.", "a mark where a value is needed at byte 4");
    REFUSED("\x80\2Na.", "nothing on the stack that values could be added to at byte 3");
    REFUSED("\x80\2NNa.", "values for what is no list at byte 4");
    REFUSED("\x80\2}(Nu.", "pairs for what is no dict at byte 5");
    REFUSED("\x80\2(Na.", "values for what is no list at byte 4");
    REFUSED("\x80\2h\1.", "memo 1, which holds nothing at byte 2");
    REFUSED("\x80\2q\1.", "nothing on the stack where a value is needed at byte 2");
    REFUSED("\x80\2Nr\xff\xff\xff\xff.", "memo 4294967295, expected numbers below 9 at byte 3");
    REFUSED("\x80\2Nq\6.", "memo 6, expected numbers below 6 at byte 3");
    REFUSED("\x80\2X\5\0\0\0abc.", "the program ends within an instruction at byte 2");
    REFUSED("\x80\2X\xff\xff\xff\xff.", "the program ends within an instruction at byte 2");
    REFUSED("\x80\2X\2\0\0\0a\0.", "text that is not UTF-8 or holds a NUL at byte 2");
    REFUSED("\x80\2X\1\0\0\0\xff.", "text that is not UTF-8 or holds a NUL at byte 2");
    REFUSED("\x80\2\x8a\x09"
            "123456789.",
            "an integer of 9 bytes, expected at most 8 at byte 2");
    REFUSED("\x80\2ctorch\nSize", "the program ends within a name at byte 2");
    REFUSED("\x80\2N)R.", "a call of what is no name, or not with a tuple at byte 4");
    REFUSED("\x80\2ctorch\nSize\n)R.", "a torch.Size that is no tuple of integers at byte 15");
    REFUSED("\x80\2ctorch\nFloatStorage\n)R.",
            "a call of torch.FloatStorage, which is a type at byte 23");
    REFUSED("\x80\2ccollections\nOrderedDict\nN\x85R.",
            "an OrderedDict with arguments, expected none at byte 29");
    REFUSED(
        "\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R.",
        "arguments that make no tensor, expected storage, offset, sizes and strides at byte 36");
    REFUSED("\x80\2NQ.", "a reference that is no storage: expected ('storage', type, key, device, "
                         "elements) at byte 3");
}

/* A view that is no view of its storage. */
static void check_view(const struct pickle_view *view, const char *expected)
{
    struct file_bytes program = pickle_begin();
    pickle_tensor(&program, view);
    pickle_add(&program, ".");
    struct file_bytes bytes = pt_bytes(&program, twelve, sizeof twelve);
    check_refused(&bytes, expected);
}

static void test_views_beyond_the_storage(void **state)
{
    (void)state;
    static const struct {
        struct pickle_view view;
        const char *from;
    } cases[] = {
        {{"FloatStorage", "0", 12, 1, 2, {3, 4}, {4, 1}}, "1"},
        {{"FloatStorage", "0", 12, 12, 0, {0}, {0}}, "12"},
        {{"FloatStorage", "0", 12, -1, 1, {2}, {1}}, "-1"},
        {{"FloatStorage", "0", 12, 0, 1, {-1}, {1}}, "0"},
        {{"FloatStorage", "0", 12, 5, 1, {2}, {-1}}, "5"},
        {{"FloatStorage", "0", 12, 0, 2, {2, INT64_MAX}, {1, 1}}, "0"},
        {{"FloatStorage", "0", 12, 0, 2, {3, 3}, {INT64_MAX / 2, INT64_MAX / 2}}, "0"},
        {{"FloatStorage", "0", 12, INT64_MAX, 1, {2}, {1}}, "9223372036854775807"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char expected[256];
        snprintf(expected, sizeof expected,
                 "dir/f.pt: tensor 'f': its sizes and strides from offset %s on do not fit its "
                 "storage of 12 elements",
                 cases[i].from);
        check_view(&cases[i].view, expected);
    }
    check_view(&(struct pickle_view){"FloatStorage", "0", INT64_MAX, 0, 1, {1}, {1}},
               "dir/f.pt: tensor 'f': its storage has 9223372036854775807 elements");
    check_view(&(struct pickle_view){"FloatStorage", "0", -4, 0, 1, {0}, {1}},
               "dir/f.pt: tensor 'f': its storage has -4 elements");
}

/* Faults of one tensor, which spoil nothing else. */
static void check_problem(const struct pickle_view *view, const void *data, size_t size,
                          const char *expected)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes program = pickle_begin();
    pickle_tensor(&program, view);
    pickle_add(&program, ".");
    struct file_bytes bytes = pt_bytes(&program, data, size);
    struct tensor_file *file = open_bytes(&bytes, error);
    assert_string_equal(error, "");
    assert_non_null(tensor_file_problem(file, "f"));
    assert_memory_equal(tensor_file_problem(file, "f"), expected, strlen(expected));
    assert_null(tensor_file_find(file, "f")->data);
    tensor_file_close(file);
    file_bytes_free(&bytes);
}

static void test_tensors_that_cannot_be_used(void **state)
{
    (void)state;
    check_problem(&whole, NULL, 0, "dir/f.pt: member 'dump/data/0': is missing");
    check_problem(&whole, twelve, 44,
                  "dir/f.pt: member 'dump/data/0' has 44 bytes, expected 48 for 12 elements of "
                  "FloatStorage");
    check_problem(&(struct pickle_view){"FloatStorage", "0", 11, 0, 1, {11}, {1}}, twelve, 48,
                  "dir/f.pt: member 'dump/data/0' has 48 bytes, expected 44 for 11 elements of "
                  "FloatStorage");
    check_problem(&(struct pickle_view){"ShortStorage", "0", 24, 0, 1, {24}, {1}}, twelve, 48,
                  "dir/f.pt: tensor 'f' has type ShortStorage, expected one of BOOL, I8, U8, I32, "
                  "I64, F16, BF16, F32 or F64");
    /* One number, a million million times: a file of a few hundred bytes. */
    check_problem(&(struct pickle_view){"FloatStorage", "0", 12, 0, 1, {1000000000000}, {0}},
                  twelve, 48,
                  "dir/f.pt: tensor 'f' takes 4000000000000 bytes as no view, which a file of ");
}

/* Marks behind the hooks say that the numbers are to be negated, or conjugated, when they are read.
 */
static void test_marks(void **state)
{
    (void)state;
    for (int marked = 0; marked < 2; ++marked) {
        char error[TENSOR_FILE_ERROR_SIZE];
        struct file_bytes program = pickle_begin();
        pickle_tensor(&program, &whole);
        program.size -= 2; /* the end of its arguments and the call */
        pickle_add(&program, "}");
        if (marked) {
            pickle_text(&program, "neg");
            pickle_add(&program, "\x88s");
        }
        pickle_add(&program, "tR.");
        struct file_bytes bytes = pt_bytes(&program, twelve, sizeof twelve);
        struct tensor_file *file = open_bytes(&bytes, error);
        assert_int_equal(file == NULL, marked);
        assert_int_equal(strstr(error, "a tensor with marks such as a lazy conjugate") != NULL,
                         marked);
        tensor_file_close(file);
        file_bytes_free(&bytes);
    }
}

static void test_deep_and_endless_values(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes program = pickle_begin();
    pickle_add(&program, "]q\1h\1a."); /* a list in itself */
    struct file_bytes bytes = pt_bytes(&program, NULL, 0);
    assert_null(open_bytes(&bytes, error));
    assert_non_null(strstr(error, "is nested deeper than 32"));
    file_bytes_free(&bytes);

    /* Each list holds the one before it twice: 2^31 values in 200 bytes. */
    program = pickle_begin();
    pickle_add(&program, "(Nq\1");
    for (int i = 2; i < 33; ++i) {
        char put[] = {'q', (char)i, 0}, get[] = {'h', (char)(i - 1), 0};
        pickle_add(&program, "](");
        pickle_add(&program, get);
        pickle_add(&program, get);
        pickle_add(&program, "e");
        pickle_add(&program, put);
    }
    pickle_add(&program, "t.");
    bytes = pt_bytes(&program, NULL, 0);
    assert_null(open_bytes(&bytes, error));
    assert_non_null(strstr(error, "holds more than 1000000 values"));
    file_bytes_free(&bytes);
}

static void test_names(void **state)
{
    (void)state;
    struct file_bytes program = pickle_begin();
    pickle_add(&program, "}N");
    pickle_tensor(&program, &whole);
    pickle_add(&program, "s.");
    struct file_bytes bytes = pt_bytes(&program, twelve, sizeof twelve);
    check_refused(&bytes, "dir/f.pt: the dict '' has a key that is neither text nor an integer");
    program = pickle_begin();
    pickle_add(&program, "}(");
    pickle_text(&program, "0");
    pickle_tensor(&program, &whole);
    pickle_add(&program, "K");
    file_bytes_add(&program, "\0", 1);
    pickle_tensor(&program, &whole);
    pickle_add(&program, "u.");
    bytes = pt_bytes(&program, twelve, sizeof twelve);
    check_refused(&bytes, "dir/f.pt: has two tensors named '0'");
    char name[700];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    program = pickle_begin();
    pickle_add(&program, "}");
    pickle_text(&program, name);
    pickle_add(&program, "Ns.");
    bytes = pt_bytes(&program, NULL, 0);
    char error[TENSOR_FILE_ERROR_SIZE];
    assert_null(open_bytes(&bytes, error));
    assert_non_null(strstr(error, "has a name of more than 511 bytes: 'xxx"));
    file_bytes_free(&bytes);
}

static void test_archives(void **state)
{
    (void)state;
    struct file_bytes program = pickle_begin();
    pickle_tensor(&program, &whole);
    pickle_add(&program, ".");
    /* Big-endian, said since PyTorch 2.1. */
    struct file_bytes archive = {0};
    zip_add(&archive, "archive/data.pkl", program.bytes, program.size);
    zip_add(&archive, "archive/byteorder", "BIGEND", 6);
    zip_end(&archive);
    check_refused(&archive, "dir/f.pt: member 'archive/byteorder': is not little, which is all "
                            "that can be read");
    archive = (struct file_bytes){0};
    zip_add(&archive, "archive/data.pkl", program.bytes, program.size);
    zip_add(&archive, "archive/byteorder", "big", 3);
    zip_end(&archive);
    check_refused(&archive, "dir/f.pt: member 'archive/byteorder': expected little");
    /* A pickle that is said to inflate to what deflate cannot reach. */
    archive = (struct file_bytes){0};
    struct zip_claim claim = {.method = 8, .size = 1 << 30};
    zip_add_claim(&archive, "archive/data.pkl", program.bytes, program.size, claim);
    zip_end(&archive);
    char error[TENSOR_FILE_ERROR_SIZE];
    assert_null(open_bytes(&archive, error));
    assert_non_null(strstr(error, "1073741824 bytes are said to come from"));
    file_bytes_free(&archive);
    /* Another checksum. */
    archive = (struct file_bytes){0};
    claim = (struct zip_claim){.method = 0, .size = (uint32_t)program.size, .crc = 1};
    zip_add_claim(&archive, "archive/data.pkl", program.bytes, program.size, claim);
    zip_end(&archive);
    check_refused(&archive, "dir/f.pt: member 'archive/data.pkl': CRC error");
    file_bytes_free(&program);
    /* What PyTorch wrote before version 1.6. */
    static const char old[] = "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\2M\xe9\3.";
    struct file_bytes bytes = {0};
    file_bytes_add(&bytes, old, sizeof old - 1);
    check_refused(&bytes, "dir/f.pt: is a PyTorch file of the old kind, expected one of version "
                          "1.6 or later (a zip archive)");
}

/* Cut off anywhere it is an error, never a crash. */
static void test_cut_files(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct file_bytes program = pickle_begin();
    pickle_tensor(&program, &whole);
    pickle_add(&program, ".");
    struct file_bytes cut_program = {0};
    for (size_t size = 0; size < program.size; ++size) {
        file_bytes_add(&cut_program, program.bytes, size);
        struct file_bytes bytes = pt_bytes(&cut_program, twelve, sizeof twelve);
        assert_null(open_bytes(&bytes, error));
        assert_non_null(strstr(error, "data.pkl: "));
        file_bytes_free(&bytes);
        cut_program = (struct file_bytes){0};
    }
    struct file_bytes bytes = pt_bytes(&program, twelve, sizeof twelve);
    for (size_t size = 1; size < bytes.size; ++size) {
        unsigned char *cut = malloc(size);
        assert_non_null(cut);
        memcpy(cut, bytes.bytes, size);
        assert_null(tensor_file_open_memory(cut, size, "f", error));
        free(cut);
    }
    file_bytes_free(&bytes);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tensor_alone_has_the_files_name),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_nested_dicts_and_lists),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_protocol_4),
        cmocka_unit_test(test_names_that_could_do_something),
        cmocka_unit_test(test_programs_that_make_no_sense),
        cmocka_unit_test(test_views_beyond_the_storage),
        cmocka_unit_test(test_tensors_that_cannot_be_used),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_deep_and_endless_values),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_archives),
        cmocka_unit_test(test_cut_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
