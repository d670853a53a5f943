/* child.c - starting and ending the commands that are judged. See child.h. */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "terminal/progress.h"

extern char **environ;

static sigset_t waited_for, before;

void children_begin(void)
{
    sigemptyset(&waited_for);
    sigaddset(&waited_for, SIGCHLD);
    sigaddset(&waited_for, SIGINT);
    sigaddset(&waited_for, SIGTERM);
    sigaddset(&waited_for, SIGHUP);
    sigprocmask(SIG_BLOCK, &waited_for, &before);
}

void children_end(void)
{
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* Signals as a program expects them, and a group of its own that can be ended as a whole. */
static void set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t usual = waited_for;
    sigaddset(&usual, SIGXFSZ);
    sigaddset(&usual, SIGPIPE);
    posix_spawnattr_init(attributes);
    posix_spawnattr_setpgroup(attributes, 0);
    posix_spawnattr_setsigmask(attributes, &before);
    posix_spawnattr_setsigdefault(attributes, &usual);
    posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                             POSIX_SPAWN_SETSIGDEF);
}

bool child_start(struct child *child, const char *command, const char *log, double seconds)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char shell[] = "sh", option[] = "-c";
    char *arguments[] = {shell, option, (char *)command, NULL};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log, O_WRONLY | O_CREAT | O_TRUNC,
                                     0644);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    set_attributes(&attributes);
    *child = (struct child){.deadline = seconds_now() + seconds};
    int failed = posix_spawn(&child->pid, "/bin/sh", &actions, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0)
        child->pid = 0;
    return failed == 0;
}

void child_kill(struct child *child)
{
    if (child->pid == 0)
        return;
    kill(-child->pid, SIGKILL);
    while (waitpid(child->pid, &child->status, 0) < 0 && errno == EINTR)
        continue;
    child->pid = 0;
}

/* Whether the child has ended, or must. */
static bool has_ended(struct child *child)
{
    if (waitpid(child->pid, &child->status, WNOHANG) == child->pid) {
        kill(-child->pid, SIGKILL); /* what it left running */
        child->pid = 0;
        return true;
    }
    if (seconds_now() < child->deadline)
        return false;
    child->timed_out = true;
    child_kill(child);
    return true;
}

/* Until the next deadline. */
static struct timespec time_left(struct child *const *children, int count)
{
    double left = 60, now = seconds_now();
    for (int i = 0; i < count; i++)
        if (children[i]->pid != 0 && children[i]->deadline - now < left)
            left = children[i]->deadline - now;
    left = left < 0.001 ? 0.001 : left;
    return (struct timespec){.tv_sec = (time_t)left,
                             .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
}

int children_wait(struct child *const *children, int count)
{
    for (;;) {
        int running = 0, ended = 0;
        for (int i = 0; i < count; i++) {
            if (children[i]->pid == 0)
                continue;
            running++;
            ended += has_ended(children[i]);
        }
        if (ended > 0 || running == 0)
            return 0;
        struct timespec left = time_left(children, count);
        int signal = sigtimedwait(&waited_for, NULL, &left);
        if (signal > 0 && signal != SIGCHLD)
            return signal;
    }
}
