/* tensor_writer_test.c - writing both formats: round trips of every type, bytes worked by hand,
 * and what is on the disk before, during and after: the file is whole or it is not there. */
#include "io/tensor_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[] = "/tmp/moetoken-io-XXXXXX";

static const char *in_directory(const char *name)
{
    static char path[2][256];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", directory, name);
    return path[turn];
}

static size_t count_files(void)
{
    size_t count = 0;
    DIR *open = opendir(directory);
    assert_non_null(open);
    while (readdir(open) != NULL) {
        ++count;
    }
    closedir(open);
    return count - 2; /* . and .. */
}

static size_t read_file(const char *path, unsigned char *bytes, size_t size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t length = fread(bytes, 1, size, file);
    fclose(file);
    return length;
}

static void put_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void assert_file(const char *path, const char *text)
{
    unsigned char bytes[64];
    size_t length = read_file(path, bytes, sizeof bytes);
    assert_int_equal(length, strlen(text));
    assert_memory_equal(bytes, text, length);
}

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int remove_directory(void **state)
{
    (void)state;
    return rmdir(directory); /* fails when a test has left something */
}

/* ---- contents ------------------------------------------------------------------------------- */

static const struct tensor_spec specs[] = {
    {"bool", MOETOKEN_BOOL, 2, {3, 5}},
    {"f64", MOETOKEN_F64, 1, {7}},
    {"i8 \"quoted\" \xE2\x82\xAC", MOETOKEN_I8, 0, {0}},
    {"bf16", MOETOKEN_BF16, 3, {1, 3, 3}},
    {"u8", MOETOKEN_U8, 1, {1}},
    {"empty", MOETOKEN_F32, 2, {0, 9}},
    {"i32", MOETOKEN_I32, 2, {5, 1}},
    {"i64", MOETOKEN_I64, 1, {3}},
    {"f16", MOETOKEN_F16, 1, {11}},
    {"f32", MOETOKEN_F32, 8, {1, 2, 1, 3, 1, 1, 1, 2}},
};
static const size_t specs_count = sizeof specs / sizeof specs[0];
static const char *const metadata[] = {"drop_and_pad",    "true", "seed", "", "note",
                                       "a\n\"\xC3\xA9\"", NULL};

static size_t spec_bytes(const DLTensor *tensor)
{
    size_t bytes = tensor->dtype.bits / 8;
    for (int i = 0; i < tensor->ndim; ++i) {
        bytes *= (size_t)tensor->shape[i];
    }
    return bytes;
}

static unsigned char pattern(size_t tensor, size_t byte)
{
    return (unsigned char)(37 * tensor + 11 * byte + byte / 256 + 1);
}

static void write_all(const char *path)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_writer *writer = tensor_writer_open(path, specs, specs_count, metadata, error);
    assert_string_equal(error, "");
    for (size_t i = 0; i < specs_count; ++i) {
        const DLTensor *tensor = tensor_writer_tensor(writer, i);
        unsigned char *bytes = tensor->data;
        assert_int_equal(tensor->ndim, specs[i].ndim);
        assert_int_equal((uintptr_t)bytes % (tensor->dtype.bits / 8), 0);
        for (size_t j = 0; j < spec_bytes(tensor); ++j) {
            assert_int_equal(bytes[j], 0);
            bytes[j] = pattern(i, j);
        }
    }
    assert_null(tensor_writer_tensor(writer, specs_count));
    assert_true(tensor_writer_commit(writer, error));
    assert_string_equal(error, "");
}

static void check_all(const char *path, enum tensor_file_format format)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_file *file = tensor_file_open(path, error);
    assert_string_equal(error, "");
    assert_int_equal(tensor_file_format(file), format);
    assert_int_equal(tensor_file_count(file), specs_count);
    for (size_t i = 0; i < specs_count; ++i) {
        const DLTensor *tensor = tensor_file_find(file, specs[i].name);
        assert_non_null(tensor);
        assert_null(tensor_file_problem(file, specs[i].name));
        DLDataType type = moetoken_dtype(specs[i].type);
        assert_memory_equal(&tensor->dtype, &type, sizeof type);
        assert_int_equal(tensor->ndim, specs[i].ndim);
        assert_memory_equal(tensor->shape, specs[i].shape, 8 * (size_t)specs[i].ndim);
        for (size_t j = 0; j < spec_bytes(tensor); ++j) {
            assert_int_equal(((unsigned char *)tensor->data)[j], pattern(i, j));
        }
    }
    for (size_t i = 0; metadata[i] != NULL; i += 2) {
        assert_string_equal(tensor_file_metadata(file, metadata[i]), metadata[i + 1]);
    }
    tensor_file_close(file);
}

static void test_round_trips(void **state)
{
    (void)state;
    static const char *const names[] = {"a.npz", "a.safetensors", "a"};
    static unsigned char first[8192];
    static unsigned char second[8192];
    for (size_t i = 0; i < 3; ++i) {
        const char *path = in_directory(names[i]);
        write_all(path);
        check_all(path, i == 0 ? TENSOR_FILE_NPZ : TENSOR_FILE_SAFETENSORS);
        size_t length = read_file(path, first, sizeof first);
        write_all(path); /* replaces it, with the same bytes */
        assert_int_equal(read_file(path, second, sizeof second), length);
        assert_memory_equal(first, second, length);
        assert_int_equal(count_files(), 1);
        unlink(path);
    }
}

/* One safetensors file to the byte: the data of the float64 before those of the int8. */
static void test_safetensors_bytes(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"k\":\"v\"},"
                                 "\"c\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[8,10]},"
                                 "\"x\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}";
    static const struct tensor_spec two[] = {{"c", MOETOKEN_I8, 1, {2}},
                                             {"x", MOETOKEN_F64, 1, {1}}};
    static const char *const one[] = {"k", "v", NULL};
    char error[TENSOR_FILE_ERROR_SIZE];
    static const unsigned char length[8] = {192 - 8};
    static const unsigned char data[10] = {0,   0,   0, 0, 0, 0, 0xF8, 0x3F, /* 1.5 */
                                           127, 0xFE};                       /* 127, -2 */
    unsigned char expected[202];
    unsigned char bytes[256];
    memset(expected, ' ', sizeof expected);
    memcpy(expected, length, sizeof length);
    memcpy(expected + 8, header, sizeof header - 1);
    memcpy(expected + 192, data, sizeof data);
    const char *path = in_directory("x");
    struct tensor_writer *writer = tensor_writer_open(path, two, 2, one, error);
    assert_string_equal(error, "");
    memcpy(tensor_writer_tensor(writer, 0)->data, "\x7F\xFE", 2);
    memcpy(tensor_writer_tensor(writer, 1)->data, "\0\0\0\0\0\0\xF8\x3F", 8);
    assert_true(tensor_writer_commit(writer, error));
    assert_int_equal(read_file(path, bytes, sizeof bytes), sizeof expected);
    assert_memory_equal(bytes, expected, sizeof expected);
    unlink(path);
}

/* The array in a stored member, to the byte: what numpy.save writes for it. */
static void test_npz_bytes(void **state)
{
    (void)state;
    static const char array[] =
        "\x93NUMPY\1\0v\0{'descr': '<V2', 'fortran_order': False, 'shape': (3,), }"
        "                                                            \n"
        "\x80\x3F\x00\x40\x40\x40";
    static const struct tensor_spec one = {"x", MOETOKEN_BF16, 1, {3}};
    char error[TENSOR_FILE_ERROR_SIZE];
    unsigned char bytes[512];
    const char *path = in_directory("x.npz");
    struct tensor_writer *writer = tensor_writer_open(path, &one, 1, NULL, error);
    assert_string_equal(error, "");
    memcpy(tensor_writer_tensor(writer, 0)->data, "\x80\x3F\x00\x40\x40\x40", 6);
    assert_true(tensor_writer_commit(writer, error));
    size_t length = read_file(path, bytes, sizeof bytes);
    assert_int_equal(sizeof array - 1, 134);
    assert_true(length > 35 + 134);
    assert_memory_equal(bytes, "PK\3\4", 4);
    assert_memory_equal(bytes + 8, "\0\0\0\0\x21\0", 6); /* stored, 1980-01-01 00:00 */
    assert_memory_equal(bytes + 30, "x.npy", 5);
    assert_memory_equal(bytes + 35, array, 134);
    unlink(path);
}

static void test_nothing_to_write(void **state)
{
    (void)state;
    static const char *const names[] = {"none.npz", "none"};
    char error[TENSOR_FILE_ERROR_SIZE];
    for (size_t i = 0; i < 2; ++i) {
        const char *path = in_directory(names[i]);
        struct tensor_writer *writer = tensor_writer_open(path, NULL, 0, NULL, error);
        assert_string_equal(error, "");
        assert_true(tensor_writer_commit(writer, error));
        struct tensor_file *file = tensor_file_open(path, error);
        assert_string_equal(error, "");
        assert_int_equal(tensor_file_count(file), 0);
        tensor_file_close(file);
        unlink(path);
    }
}

/* ---- refused -------------------------------------------------------------------------------- */

static void check_refused(const char *name, const struct tensor_spec *wrong, size_t count,
                          const char *const *pairs, const char *what)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    char expected[TENSOR_FILE_ERROR_SIZE];
    const char *path = in_directory(name);
    snprintf(expected, sizeof expected, "%s: %s", path, what);
    assert_null(tensor_writer_open(path, wrong, count, pairs, error));
    assert_string_equal(error, expected);
    assert_int_equal(count_files(), 0);
}

static void test_refused_specs(void **state)
{
    (void)state;
    static const struct {
        struct tensor_spec spec;
        const char *what;
    } cases[] = {
        {{NULL, MOETOKEN_F32, 1, {1}}, "a tensor to be written has no name"},
        {{"", MOETOKEN_F32, 1, {1}}, "a tensor to be written has no name"},
        {{"\xFF", MOETOKEN_F32, 1, {1}}, "tensor '?' is not UTF-8"},
        {{"__metadata__", MOETOKEN_F32, 1, {1}},
         "tensor '__metadata__': names that begin with __metadata__ are for metadata"},
        {{"a", (moetoken_type)42, 1, {1}}, "tensor 'a' has the unknown type 42"},
        {{"a", MOETOKEN_F32, 9, {1}}, "tensor 'a' has 9 dimensions, expected 0 to 8"},
        {{"a", MOETOKEN_F32, -1, {1}}, "tensor 'a' has -1 dimensions, expected 0 to 8"},
        {{"a", MOETOKEN_F32, 2, {1, -1}}, "tensor 'a': size 1 is -1, expected 0 to 2^53 - 1"},
        {{"a", MOETOKEN_F32, 2, {1 << 30, 1 << 30}}, "tensor 'a': its bytes do not fit in 53 bits"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        check_refused("x", &cases[i].spec, 1, NULL, cases[i].what);
        check_refused("x.npz", &cases[i].spec, 1, NULL, cases[i].what);
    }
    static const struct tensor_spec twice[] = {
        {"a", MOETOKEN_U8, 1, {1}}, {"b", MOETOKEN_U8, 1, {1}}, {"a", MOETOKEN_U8, 1, {1}}};
    check_refused("x", twice, 3, NULL, "two tensors to be written are named 'a'");
    static const struct tensor_spec big[] = {{"a", MOETOKEN_U8, 1, {INT64_C(1) << 52}},
                                             {"b", MOETOKEN_U8, 1, {INT64_C(1) << 52}}};
    check_refused("x", big, 2, NULL, "the bytes of all tensors do not fit in 53 bits");
    static const char *const pairs[] = {"k", "1", "k", "2", NULL};
    check_refused("x", NULL, 0, pairs, "two metadata entries to be written are named 'k'");
    static const char *const wrong[] = {"k", "\x80", NULL};
    check_refused("x", NULL, 0, wrong, "metadata '?' is not UTF-8");
}

/* More than any disk has: an error when the file is laid out, not a signal when it is filled. */
static void test_full_disk(void **state)
{
    (void)state;
    static const struct tensor_spec huge = {"a", MOETOKEN_U8, 1, {INT64_C(1) << 52}};
    char error[TENSOR_FILE_ERROR_SIZE];
    assert_null(tensor_writer_open(in_directory("x"), &huge, 1, NULL, error));
    assert_non_null(strstr(error, "/x: 4503599627370624 bytes cannot be reserved: "));
    assert_null(tensor_writer_open(in_directory("x.npz"), &huge, 1, NULL, error));
    assert_non_null(strstr(error, "/x.npz: no memory for tensor 'a' (4503599627370496 bytes)"));
    assert_int_equal(count_files(), 0);
}

static void check_path(const char *path, const char *what)
{
    static const struct tensor_spec one = {"x", MOETOKEN_U8, 1, {1}};
    char error[TENSOR_FILE_ERROR_SIZE];
    assert_null(tensor_writer_open(path, &one, 1, NULL, error));
    assert_non_null(strstr(error, what));
}

static void test_refused_paths(void **state)
{
    (void)state;
    check_path(directory, "cannot be written: it is not a regular file");
    check_path("/dev/null", "/dev/null: cannot be written: it is not a regular file");
    check_path("", "is not the name of a file");
    check_path(in_directory("sub/"), "sub/: is not the name of a file");
    check_path(in_directory("sub/x"), "sub/: No such file or directory");
    put_file(in_directory("plain"), "");
    check_path(in_directory("plain/x"), "plain/: Not a directory");
    unlink(in_directory("plain"));
}

static void test_reading_refused(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    const char *path = in_directory("fifo");
    assert_null(tensor_file_open(in_directory("absent"), error));
    assert_non_null(strstr(error, "/absent: cannot be opened: No such file or directory"));
    assert_null(tensor_file_open(directory, error));
    assert_non_null(strstr(error, ": is a directory, expected a regular file"));
    assert_null(tensor_file_open("/dev/null", error));
    assert_string_equal(error, "/dev/null: is a device, expected a regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_null(tensor_file_open(path, error));
    assert_non_null(strstr(error, "/fifo: is a FIFO, expected a regular file"));
    unlink(path);
    put_file(path, "");
    assert_null(tensor_file_open(path, error));
    assert_non_null(strstr(error, "/fifo: is empty"));
    if (geteuid() != 0) { /* root may read everything */
        chmod(path, 0);
        assert_null(tensor_file_open(path, error));
        assert_non_null(strstr(error, "/fifo: cannot be opened: Permission denied"));
    }
    unlink(path);
}

/* ---- whole or not there --------------------------------------------------------------------- */

static struct tensor_writer *open_one(const char *path)
{
    static const struct tensor_spec one = {"x", MOETOKEN_U8, 1, {4}};
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_writer *writer = tensor_writer_open(path, &one, 1, NULL, error);
    assert_string_equal(error, "");
    memcpy(tensor_writer_tensor(writer, 0)->data, "abcd", 4);
    return writer;
}

static void test_abandon(void **state)
{
    (void)state;
    static const char *const names[] = {"old.npz", "old"};
    for (size_t i = 0; i < 2; ++i) {
        const char *path = in_directory(names[i]);
        tensor_writer_abandon(open_one(path));
        assert_int_equal(count_files(), 0);
        put_file(path, "old");
        struct tensor_writer *writer = open_one(path);
        assert_file(path, "old");
        tensor_writer_abandon(writer);
        assert_file(path, "old");
        assert_int_equal(count_files(), 1);
        unlink(path);
    }
    tensor_writer_abandon(NULL);
}

/* The reader keeps the old contents, the path has the new ones: a file may replace its source. */
static void test_replace_open_file(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    const char *path = in_directory("x");
    assert_true(tensor_writer_commit(open_one(path), error));
    struct tensor_file *old = tensor_file_open(path, error);
    struct tensor_writer *writer = open_one(path);
    memcpy(tensor_writer_tensor(writer, 0)->data, "wxyz", 4);
    assert_true(tensor_writer_commit(writer, error));
    struct tensor_file *new = tensor_file_open(path, error);
    assert_memory_equal(tensor_file_find(old, "x")->data, "abcd", 4);
    assert_memory_equal(tensor_file_find(new, "x")->data, "wxyz", 4);
    tensor_file_close(old);
    tensor_file_close(new);
    assert_int_equal(count_files(), 1);
    unlink(path);
}

static void test_links_are_followed(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct stat status;
    put_file(in_directory("target"), "old");
    assert_int_equal(symlink("target", in_directory("link")), 0);
    assert_true(tensor_writer_commit(open_one(in_directory("link")), error));
    assert_int_equal(lstat(in_directory("link"), &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    struct tensor_file *file = tensor_file_open(in_directory("target"), error);
    assert_string_equal(error, "");
    tensor_file_close(file);
    unlink(in_directory("link"));
    unlink(in_directory("target"));
}

static void test_mode_is_of_umask(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct stat status;
    mode_t before = umask(027);
    assert_true(tensor_writer_commit(open_one(in_directory("x")), error));
    umask(before);
    assert_int_equal(stat(in_directory("x"), &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
    unlink(in_directory("x"));
}

static void test_mode_of_the_old_file_stays(void **state)
{
    (void)state;
    static const char *const names[] = {"x", "x.npz"};
    static const mode_t modes[] = {0600, 0640, 0666, 0755};
    char error[TENSOR_FILE_ERROR_SIZE];
    struct stat status;
    mode_t before = umask(022);
    for (size_t i = 0; i < 8; ++i) {
        const char *name = names[i % 2];
        put_file(in_directory(name), "old");
        assert_int_equal(chmod(in_directory(name), modes[i / 2]), 0);
        assert_true(tensor_writer_commit(open_one(in_directory(name)), error));
        assert_int_equal(stat(in_directory(name), &status), 0);
        assert_int_equal(status.st_mode & 07777, modes[i / 2]);
        assert_true(status.st_size > 3);
        unlink(in_directory(name));
    }
    umask(before);
}

static void test_dangling_links_are_followed(void **state)
{
    (void)state;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct stat status;
    assert_int_equal(mkdir(in_directory("sub"), 0700), 0);
    assert_int_equal(symlink("sub/second", in_directory("first")), 0);
    assert_int_equal(symlink("../target", in_directory("sub/second")), 0);
    assert_true(tensor_writer_commit(open_one(in_directory("first")), error));
    assert_int_equal(lstat(in_directory("first"), &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    assert_int_equal(lstat(in_directory("sub/second"), &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    assert_int_equal(lstat(in_directory("target"), &status), 0);
    assert_true(S_ISREG(status.st_mode));
    unlink(in_directory("target"));
    unlink(in_directory("sub/second"));
    unlink(in_directory("first"));
    rmdir(in_directory("sub"));

    const struct tensor_spec spec = {"x", MOETOKEN_U8, 1, {4}};
    assert_int_equal(symlink("loop", in_directory("loop")), 0);
    assert_null(tensor_writer_open(in_directory("loop"), &spec, 1, NULL, error));
    assert_non_null(strstr(error, "cannot be resolved"));
    unlink(in_directory("loop"));
}

/* A limit on the size of files is an error in one line, not the end of the process. */
static void test_file_size_limit(void **state)
{
    (void)state;
    static const char *const names[] = {"x", "x.npz"};
    for (size_t i = 0; i < 2; ++i) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char error[TENSOR_FILE_ERROR_SIZE] = "";
            const struct tensor_spec spec = {"x", MOETOKEN_U8, 1, {100000}};
            struct rlimit limit = {50000, 50000};
            tensor_writer_handle_signals();
            setrlimit(RLIMIT_FSIZE, &limit);
            struct tensor_writer *writer =
                tensor_writer_open(in_directory(names[i]), &spec, 1, NULL, error);
            bool done = writer != NULL && tensor_writer_commit(writer, error);
            _exit(!done && strstr(error, "File too large") != NULL ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_int_equal(count_files(), 0);
    }
}

static void test_lost_directory(void **state)
{
    (void)state;
    static const char *const names[] = {"sub/x.npz", "sub/x"};
    char error[TENSOR_FILE_ERROR_SIZE];
    for (size_t i = 0; i < 2; ++i) {
        assert_int_equal(mkdir(in_directory("sub"), 0700), 0);
        struct tensor_writer *writer = open_one(in_directory(names[i]));
        tensor_writer_remove_temporary(); /* so that rmdir works on every file system */
        assert_int_equal(rmdir(in_directory("sub")), 0);
        assert_false(tensor_writer_commit(writer, error));
        assert_non_null(strstr(error, ": cannot be given its name: No such file or directory"));
    }
}

/* Killed without warning, and ended by a signal whose handler removes the temporary file. */
static void stop_when_killed(int number)
{
    tensor_writer_remove_temporary(); /* NOLINT(bugprone-signal-handler): only unlinks */
    _exit(number);
}

static void test_killed(void **state)
{
    (void)state;
    static const char *const names[] = {"x.npz", "x"};
    for (size_t i = 0; i < 2; ++i) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            signal(SIGTERM, stop_when_killed);
            open_one(in_directory(names[i]));
            raise(SIGTERM);
            _exit(99);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), SIGTERM);
        assert_int_equal(count_files(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_safetensors_bytes),
        cmocka_unit_test(test_npz_bytes),
        cmocka_unit_test(test_nothing_to_write),
        cmocka_unit_test(test_refused_specs),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_refused_paths),
        cmocka_unit_test(test_reading_refused),
        cmocka_unit_test(test_abandon),
        cmocka_unit_test(test_replace_open_file),
        cmocka_unit_test(test_links_are_followed),
        cmocka_unit_test(test_mode_is_of_umask),
        cmocka_unit_test(test_mode_of_the_old_file_stays),
        cmocka_unit_test(test_dangling_links_are_followed),
        cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_lost_directory),
        cmocka_unit_test(test_killed),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
