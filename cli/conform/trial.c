/* trial.c - runs the command on a case. See trial.h; judging is in trial_judge.c. */
#include "trial.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial_judge.h"

#define COMMAND_SIZE 16384

const char *finding_kind_name(enum finding_kind kind)
{
    static const char *const names[] = {[FINDING_NONE] = "nothing",
                                        [FINDING_SKIPPED] = "skipped",
                                        [FINDING_STATUS] = "exit status",
                                        [FINDING_SIGNAL] = "crash",
                                        [FINDING_TIME] = "time limit",
                                        [FINDING_FILE] = "unreadable output",
                                        [FINDING_MISSING] = "missing output",
                                        [FINDING_FORM] = "wrong type or shape",
                                        [FINDING_UNWRITTEN] = "unwritten elements",
                                        [FINDING_VALUES] = "wrong values",
                                        [FINDING_REPEAT] = "other bits when run again",
                                        [FINDING_INTERNAL] = "not tried"};
    return names[kind];
}

void trial_path(const struct trial *trial, const char *name, char path[PATH_SIZE + 32])
{
    snprintf(path, PATH_SIZE + 32, "%s/%s.%s", trial->folder, name, trial->settings->suffix);
}

static void out_path(const struct trial *trial, int run, char path[PATH_SIZE + 32])
{
    trial_path(trial, run == 0 ? "out" : "out2", path);
}

static size_t add_quoted(char *to, size_t at, size_t size, const char *text)
{
    at += (size_t)snprintf(to + at, size - at, "'");
    for (; *text != '\0' && at + 8 < size; text++)
        at += (size_t)snprintf(to + at, size - at, *text == '\'' ? "'\\''" : "%c", *text);
    return at + (size_t)snprintf(to + at, size - at, "'");
}

void shell_quote(const char *text, char *quoted, size_t size)
{
    add_quoted(quoted, 0, size, text);
}

bool trial_command(const struct trial_settings *settings, const char *case_path,
                   const char *out_path_text, char *text, size_t size)
{
    size_t at = 0;
    for (const char *from = settings->command; *from != '\0';) {
        if (at + 2 * PATH_SIZE > size)
            return false;
        if (strncmp(from, "{case}", 6) == 0) {
            at = add_quoted(text, at, size, case_path);
            from += 6;
        } else if (strncmp(from, "{out}", 5) == 0) {
            at = add_quoted(text, at, size, out_path_text);
            from += 5;
        } else {
            text[at++] = *from++;
        }
    }
    text[at] = '\0';
    return true;
}

static void stop(struct trial *trial, enum finding_kind kind, const char *text)
{
    trial->going = false;
    trial->finding.kind = kind;
    trial->finding.output = -1;
    snprintf(trial->finding.text, sizeof trial->finding.text, "%s", text);
}

static void start_run(struct trial *trial)
{
    char input[PATH_SIZE + 32], output[PATH_SIZE + 32], log[PATH_SIZE + 32];
    char command[COMMAND_SIZE], error[TENSOR_FILE_ERROR_SIZE];
    trial_path(trial, "case", input);
    out_path(trial, trial->run, output);
    snprintf(log, sizeof log, "%s/log", trial->folder);
    if (!trial_write_blank(trial, output, trial->run, error))
        stop(trial, FINDING_INTERNAL, error);
    else if (!trial_command(trial->settings, input, output, command, sizeof command))
        stop(trial, FINDING_INTERNAL, "the command is too long");
    else if (!child_start(&trial->child, command, log, trial->settings->seconds))
        stop(trial, FINDING_INTERNAL, "no process could be started");
}

void trial_begin(struct trial *trial, const struct trial_settings *settings,
                 const struct problem *problem, const char *folder)
{
    char path[PATH_SIZE + 32], error[TENSOR_FILE_ERROR_SIZE];
    *trial = (struct trial){.settings = settings, .problem = problem, .going = true};
    snprintf(trial->folder, sizeof trial->folder, "%s", folder);
    if (!layout_build(problem, &trial->layout)) {
        stop(trial, FINDING_INTERNAL, "no memory for the case");
        return;
    }
    trial_path(trial, "case", path);
    if (!problem_write(problem, &trial->layout, path, error))
        stop(trial, FINDING_INTERNAL, error);
    else
        start_run(trial);
}

void trial_free(struct trial *trial)
{
    child_kill(&trial->child);
    layout_free(&trial->layout);
}

/* The last line that the command printed, without what a terminal would obey. */
static void last_line(const struct trial *trial, char *line, size_t size)
{
    char path[PATH_SIZE + 32], text[2048];
    snprintf(path, sizeof path, "%s/log", trial->folder);
    line[0] = '\0';
    FILE *log = fopen(path, "rb");
    if (log == NULL)
        return;
    if (fseek(log, -(long)(sizeof text - 1), SEEK_END) != 0)
        rewind(log);
    size_t length = fread(text, 1, sizeof text - 1, log);
    fclose(log);
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\0'))
        length--;
    text[length] = '\0';
    const char *begin = strrchr(text, '\n');
    snprintf(line, size, ": %.190s", begin == NULL ? text : begin + 1);
    for (char *c = line; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    if (length == 0)
        line[0] = '\0';
}

/* What the end of the process says by itself. */
static bool ended_well(struct trial *trial)
{
    char text[320], line[200];
    int status = trial->child.status;
    last_line(trial, line, sizeof line);
    if (trial->child.timed_out) {
        snprintf(text, sizeof text, "no answer within %g s%s", trial->settings->seconds, line);
        stop(trial, FINDING_TIME, text);
    } else if (WIFSIGNALED(status)) {
        snprintf(text, sizeof text, "ended by signal %d (%s)%s", WTERMSIG(status),
                 strsignal(WTERMSIG(status)), line);
        stop(trial, FINDING_SIGNAL, text);
    } else if (WEXITSTATUS(status) > 128 && WEXITSTATUS(status) <= 128 + SIGSYS) {
        snprintf(text, sizeof text, "exit status %d, by signal %d%s", WEXITSTATUS(status),
                 WEXITSTATUS(status) - 128, line); /* the shell tells so of its command */
        stop(trial, FINDING_SIGNAL, text);
    } else if (WEXITSTATUS(status) == STATUS_SKIPPED) {
        stop(trial, FINDING_SKIPPED, line);
    } else if (WEXITSTATUS(status) != 0) {
        snprintf(text, sizeof text, "exit status %d%s", WEXITSTATUS(status), line);
        stop(trial, FINDING_STATUS, text);
    }
    return trial->going;
}

void trial_advance(struct trial *trial)
{
    char path[PATH_SIZE + 32], first[PATH_SIZE + 32];
    if (!ended_well(trial))
        return;
    out_path(trial, trial->run, path);
    out_path(trial, 0, first);
    if (trial->run == 0 ? !trial_judge(trial, path) : !trial_compare_runs(trial, first, path)) {
        trial->going = false;
        return;
    }
    if (++trial->run < trial->settings->repeats)
        start_run(trial);
    else
        trial->going = false;
}
