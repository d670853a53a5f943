/* file_faults_test.c - readers and writers when the n-th call fails that asks the system for memory
 * or for something with a file: an error line, no leak, no file. And where files must have names.
 * The linker puts the functions below in front of the real ones (--wrap). */
#include "pt_bytes.h"

#include "io/tensor_file.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static size_t calls_to_go; /* the call that makes it 0 fails; 0: none does */
static bool failed;        /* it has come to that */
static bool names_only;    /* no files without a name, as on some file systems */

static bool fails(void)
{
    bool now = calls_to_go > 0 && --calls_to_go == 0;
    failed = failed || now;
    return now;
}

/* ---- in front of libc ----------------------------------------------------------------------- */

/* NOLINTBEGIN: the names are the linker's */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
int __real_open(const char *path, int flags, ...);
void *__real_mmap(void *at, size_t size, int protection, int flags, int descriptor, off_t offset);
int __real_posix_fallocate(int descriptor, off_t offset, off_t size);
int __real_dup(int descriptor);
int __real_linkat(int from, const char *old, int to, const char *new, int flags);
int __real_rename(const char *old, const char *new);
ssize_t __real_pwrite(int descriptor, const void *bytes, size_t size, off_t offset);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);
int __wrap_open(const char *path, int flags, ...);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int descriptor, off_t offset);
int __wrap_posix_fallocate(int descriptor, off_t offset, off_t size);
int __wrap_dup(int descriptor);
int __wrap_linkat(int from, const char *old, int to, const char *new, int flags);
int __wrap_rename(const char *old, const char *new);
ssize_t __wrap_pwrite(int descriptor, const void *bytes, size_t size, off_t offset);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return fails() ? NULL : __real_realloc(memory, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return fails() ? NULL : __real_strndup(text, size);
}

static int fail_with(int reason)
{
    errno = reason;
    return -1;
}

int __wrap_open(const char *path, int flags, ...)
{
    /* O_TMPFILE contains O_DIRECTORY, and nothing else here does. */
    if (names_only && (flags & O_DIRECTORY) != 0) {
        return fail_with(EOPNOTSUPP);
    }
    return fails() ? fail_with(EMFILE) : __real_open(path, flags, (mode_t)0666);
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int descriptor, off_t offset)
{
    if (fails()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(at, size, protection, flags, descriptor, offset);
}

int __wrap_posix_fallocate(int descriptor, off_t offset, off_t size)
{
    return fails() ? ENOSPC : __real_posix_fallocate(descriptor, offset, size);
}

int __wrap_dup(int descriptor)
{
    return fails() ? fail_with(EMFILE) : __real_dup(descriptor);
}

int __wrap_linkat(int from, const char *old, int to, const char *new, int flags)
{
    return fails() ? fail_with(EDQUOT) : __real_linkat(from, old, to, new, flags);
}

int __wrap_rename(const char *old, const char *new)
{
    return fails() ? fail_with(EDQUOT) : __real_rename(old, new);
}

ssize_t __wrap_pwrite(int descriptor, const void *bytes, size_t size, off_t offset)
{
    return fails() ? fail_with(ENOSPC) : __real_pwrite(descriptor, bytes, size, offset);
}
/* NOLINTEND */

/* ---- what is tried -------------------------------------------------------------------------- */

static char directory[] = "/tmp/moetoken-io-XXXXXX";
static char path[64];

static int set_up(void **state)
{
    (void)state;
    cJSON_Hooks hooks = {__wrap_malloc, free};
    cJSON_InitHooks(&hooks);
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(directory); /* fails when a test has left something */
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

static bool write_file(char *error)
{
    static const struct tensor_spec specs[] = {{"a", MOETOKEN_F32, 2, {2, 3}},
                                               {"b", MOETOKEN_U8, 1, {5}}};
    static const char *const metadata[] = {"k", "v", NULL};
    struct tensor_writer *writer = tensor_writer_open(path, specs, 2, metadata, error);
    if (writer == NULL) {
        return false;
    }
    memcpy(tensor_writer_tensor(writer, 1)->data, "abcde", 5);
    return tensor_writer_commit(writer, error);
}

/* Data that are read late fail late. false with the problem in `error`. */
static bool take_problem(struct tensor_file *file, const char *name, char *error)
{
    const char *problem = tensor_file_problem(file, name);
    if (problem != NULL) {
        snprintf(error, TENSOR_FILE_ERROR_SIZE, "%s", problem);
    }
    return problem == NULL;
}

static bool read_file(char *error)
{
    struct tensor_file *file = tensor_file_open(path, error);
    if (file == NULL) {
        return false;
    }
    bool done = take_problem(file, "b", error);
    if (done) {
        assert_memory_equal(tensor_file_find(file, "b")->data, "abcde", 5);
        assert_string_equal(tensor_file_metadata(file, "k"), "v");
    }
    tensor_file_close(file);
    return done;
}

/* Lets the first call fail, then the second, ... until no call is left that could. Returns how many
 * times that was an error; where there is another way it is not. */
static size_t fail_each_call(bool (*action)(char *error), size_t files_before, bool remove)
{
    size_t errors = 0;
    failed = true;
    for (size_t n = 1; failed; ++n) {
        char error[TENSOR_FILE_ERROR_SIZE];
        failed = false;
        calls_to_go = n;
        bool done = action(error);
        calls_to_go = 0;
        if (done) {
            assert_string_equal(error, "");
            if (remove) {
                unlink(path);
            }
        } else {
            assert_true(failed);
            assert_memory_equal(error, path, strlen(path));
            assert_memory_equal(error + strlen(path), ": ", 2);
            assert_null(strstr(error, "JSON")); /* the file is a good one */
            assert_null(strstr(error, "No error"));
            assert_int_equal(count_files(), files_before);
            ++errors;
        }
    }
    return errors;
}

static void try_file(const char *name, size_t fewest_errors)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    assert_true(fail_each_call(write_file, 0, true) >= fewest_errors);
    assert_true(write_file(error));
    assert_true(fail_each_call(write_file, 1, false) >= fewest_errors); /* replacing */
    assert_true(fail_each_call(read_file, 1, false) >= fewest_errors);
    unlink(path);
    assert_int_equal(count_files(), 0);
}

static void test_safetensors(void **state)
{
    (void)state;
    try_file("x", 12);
}

static void test_npz(void **state)
{
    (void)state;
    try_file("x.npz", 12);
}

/* A dict of a tensor, which has to be copied into a run, and metadata. */
static void test_pt(void **state)
{
    (void)state;
    static const struct pickle_view view = {"ByteStorage", "0", 9, 0, 1, {5}, {2}};
    struct file_bytes program = pickle_begin();
    pickle_add(&program, "}(");
    pickle_text(&program, "b");
    pickle_tensor(&program, &view);
    pickle_text(&program, "k");
    pickle_text(&program, "v");
    pickle_add(&program, "u.");
    struct file_bytes bytes = pt_bytes(&program, "a.b.c.d.e", 9);
    snprintf(path, sizeof path, "%s/x.pt", directory);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes.bytes, 1, bytes.size, file), bytes.size);
    assert_int_equal(fclose(file), 0);
    file_bytes_free(&bytes);
    assert_true(fail_each_call(read_file, 1, false) >= 20);
    unlink(path);
}

static void test_named_temporary_files(void **state)
{
    (void)state;
    names_only = true;
    try_file("x", 12);
    try_file("x.npz", 12);
    names_only = false;
}

/* There the temporary file is seen while it is written, and a signal handler removes it. */
static void stop_when_killed(int number)
{
    tensor_writer_remove_temporary(); /* NOLINT(bugprone-signal-handler): only unlinks */
    _exit(number);
}

static void fill_and_die(int number)
{
    static const struct tensor_spec spec = {"a", MOETOKEN_U8, 1, {5}};
    char error[TENSOR_FILE_ERROR_SIZE];
    if (tensor_writer_open(path, &spec, 1, NULL, error) != NULL && count_files() == 1) {
        raise(number);
    }
    _exit(99);
}

/* How a child ends that is in the middle of a file with a name when the signal comes. */
static int status_of_child(void (*handle)(void), int number)
{
    snprintf(path, sizeof path, "%s/x", directory);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        handle();
        fill_and_die(number);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void handle_sigterm(void)
{
    signal(SIGTERM, stop_when_killed);
}

static void ignore_sighup(void)
{
    signal(SIGHUP, SIG_IGN);
    tensor_writer_handle_signals();
}

static void test_killed_with_named_file(void **state)
{
    (void)state;
    names_only = true;
    int status = status_of_child(handle_sigterm, SIGTERM);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), SIGTERM);
    assert_int_equal(count_files(), 0);
    names_only = false;
}

static void test_signals_leave_nothing(void **state)
{
    (void)state;
    static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGXCPU};
    names_only = true;
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; ++i) {
        int status = status_of_child(tensor_writer_handle_signals, ending[i]);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), ending[i]);
        assert_int_equal(count_files(), 0);
    }
    int status = status_of_child(ignore_sighup, SIGHUP); /* as under nohup: it goes on */
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 99);
    assert_true(write_file((char[TENSOR_FILE_ERROR_SIZE]){0})); /* which sweeps */
    unlink(path);
    assert_int_equal(count_files(), 0);
    names_only = false;
}

/* What a process leaves that was killed, the next writer removes; but nothing of a living one. */
static void test_next_run_sweeps(void **state)
{
    (void)state;
    static const struct tensor_spec spec = {"a", MOETOKEN_U8, 1, {5}};
    char error[TENSOR_FILE_ERROR_SIZE], living_path[64];
    names_only = true;
    int status = status_of_child(tensor_writer_handle_signals, SIGKILL);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(count_files(), 1);
    snprintf(living_path, sizeof living_path, "%s/living", directory);
    struct tensor_writer *living = tensor_writer_open(living_path, &spec, 1, NULL, error);
    assert_non_null(living);
    assert_int_equal(count_files(), 1); /* the dead one's has gone, the living one's has come */
    for (int nameless = 0; nameless < 2; ++nameless) {
        names_only = nameless == 0;
        assert_true(write_file(error));
        unlink(path);
        assert_int_equal(count_files(), 1);
    }
    assert_true(tensor_writer_commit(living, error));
    assert_int_equal(unlink(living_path), 0);
    assert_int_equal(count_files(), 0);
}

/* Arrays in Fortran order need memory twice; no writer makes them. */
static bool read_fortran_order(char *error)
{
    struct file_bytes bytes = {0};
    size_t to_go = calls_to_go;
    calls_to_go = 0;
    zip_add_npy(&bytes, "a.npy", "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 2)}", "abcd",
                4);
    zip_add_npy(&bytes, "b.npy", "{'descr': '>u2', 'fortran_order': True, 'shape': (2,)}", "abcd",
                4);
    zip_end(&bytes);
    calls_to_go = to_go;
    struct tensor_file *file = tensor_file_open_memory(bytes.bytes, bytes.size, path, error);
    bool done = file != NULL && take_problem(file, "a", error);
    if (done) {
        assert_memory_equal(tensor_file_find(file, "a")->data, "acbd", 4);
    }
    tensor_file_close(file);
    file_bytes_free(&bytes);
    return done;
}

static void test_fortran_order(void **state)
{
    (void)state;
    assert_true(fail_each_call(read_fortran_order, 0, false) >= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_npz),
        cmocka_unit_test(test_pt),
        cmocka_unit_test(test_named_temporary_files),
        cmocka_unit_test(test_killed_with_named_file),
        cmocka_unit_test(test_signals_leave_nothing),
        cmocka_unit_test(test_next_run_sweeps),
        cmocka_unit_test(test_fortran_order),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
