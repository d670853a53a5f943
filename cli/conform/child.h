/* child.h - commands that are judged: started in process groups of their own, with a time limit,
 * waited for several at a time.
 *
 * children_begin blocks the signals that are waited for; between it and children_end nothing else
 * may start processes. */
#ifndef MOETOKEN_CLI_CONFORM_CHILD_H
#define MOETOKEN_CLI_CONFORM_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

struct child {
    pid_t pid; /* 0: none */
    double deadline;
    int status; /* as waitpid has it, of one that has ended */
    bool timed_out;
};

void children_begin(void);
void children_end(void);

/* Runs `command` with the shell; its standard output and error go to the file `log`. */
bool child_start(struct child *child, const char *command, const char *log, double seconds);
/* Waits until a child has ended, or is stopped because its time is over, and marks all that have:
 * pid is 0 then. Returns 0, or the signal by which the tool itself is asked to end. */
int children_wait(struct child *const *children, int count);
/* Ends a child and all that it started. */
void child_kill(struct child *child);

#endif
