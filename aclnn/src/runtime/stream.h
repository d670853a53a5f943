/* stream.h - streams: work in order. Copies and host functions given with an ...Async call run on
 * the stream's thread, which starts with the first of them; an operator runs in the thread that
 * calls its phase two, when its turn in the stream has come. No lock is held while anything waits.
 */
#ifndef ACLNN_STREAM_H
#define ACLNN_STREAM_H

#include "../../include/acl/acl_rt.h"

#include <pthread.h>

enum {
    STREAM_FAULT_SIZE = 512
};

/* A piece of work for the stream's thread. */
struct task {
    void (*run)(const struct task *task);
    void (*cancel)(const struct task *task); /* instead of run, in a stream given up; may be NULL */
    struct task *next;
    uint64_t turn;
    void *to; /* what these four mean is the business of `run` */
    const void *from;
    size_t count;
    uint64_t value;
    aclrtHostFunc function;
};

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const void *owner;         /* what the registry holds for it: itself, or its context */
    uint64_t context;          /* the id of its context */
    uint64_t turns, finished;  /* turns given out, and turns that are over */
    struct task *first, *last; /* queued */
    bool has_thread, stopping;
    bool closed;   /* takes no more work */
    bool given_up; /* queued work is cancelled */
    bool orphan;   /* its context is gone */
    pthread_t thread;
    aclError fault; /* what the next synchronisation answers, in the words of fault_text */
    char fault_text[STREAM_FAULT_SIZE];
    uint64_t number;                /* 1 for the first of the process */
    struct stream *next, *previous; /* among all streams, by number */
};

/* What the registry holds for the stream is `owner`. */
void stream_open(struct stream *stream, const void *owner, uint64_t context);

/* Takes no more work; waits for what it has, or cancels it, and ends its thread. Does nothing to a
 * stream that somebody has closed before. */
void stream_close(struct stream *stream, bool give_up);
/* After that: out of the list of all streams. */
void stream_leave(struct stream *stream);
/* Of a stream that left: called by the registry before the memory goes. */
void stream_end_of_life(void *stream);

/* The stream of a handle, the current context's default stream for NULL: held until stream_drop.
 * ACL_SUCCESS or a status; 107003 for a stream of another context. */
aclError stream_hold(aclrtStream handle, const char *function, struct stream **stream);
void stream_drop(const struct stream *stream);

/* A turn in the stream for the calling thread: after stream_await_turn and until stream_end_turn
 * nothing else of the stream runs. */
aclError stream_reserve_turn(struct stream *stream, const char *function, uint64_t *turn);
void stream_await_turn(struct stream *stream, uint64_t turn);
void stream_end_turn(struct stream *stream);

/* Queues a copy of the task. at_once: when the stream is idle it runs before the call returns. */
aclError stream_submit(struct stream *stream, struct task task, bool at_once, const char *function);

/* The next synchronisation of the stream answers `status`, with the thread's recent message. */
void stream_set_fault(struct stream *stream, aclError status);

/* Waits for everything that was submitted before, for at most `timeout` ms (negative: no limit);
 * then the fault that was set, once. */
aclError stream_wait(struct stream *stream, int32_t timeout, const char *function);

/* Waits for everything that was submitted to any stream before, for at most `timeout` ms (negative:
 * no limit); then the first fault of any. Does nothing on a stream's own thread. */
aclError streams_wait(int32_t timeout, const char *function);

/* Closes all streams of a context that ends. Their handles stay known, so that a late use is told
 * from a wrong one, until streams_forget_orphans. */
void streams_orphan(uint64_t context, bool give_up);
void streams_forget_orphans(void);

#endif
