/* stream.h - streams: work in order. Copies and host functions given with an ...Async call run on
 * the stream's thread, which starts with the first of them; an operator runs in the thread that
 * calls its phase two, when its turn in the stream has come. */
#ifndef ACLNN_STREAM_H
#define ACLNN_STREAM_H

#include "../include/acl/acl_rt.h"

#include <pthread.h>

/* A piece of work for the stream's thread. */
struct task {
    void (*run)(const struct task *task);
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
    uint64_t turns, finished; /* turns given out, and turns that are over */
    struct task *first, *last;
    bool has_thread, stopping;
    pthread_t thread;
    struct stream *previous, *next; /* among all streams */
};

void stream_open(struct stream *stream);
/* Waits for its work, then ends its thread. */
void stream_close(struct stream *stream);

/* The stream of a handle: the current context's default stream for NULL. ACL_SUCCESS or a status.
 */
aclError stream_of(aclrtStream handle, const char *function, struct stream **stream);

/* The calling thread's turn in the stream: between the two, nothing else of the stream runs. */
void stream_begin(struct stream *stream);
void stream_end(struct stream *stream);

/* Queues a copy of the task. at_once: when the stream is idle it runs before the call returns. */
aclError stream_submit(struct stream *stream, struct task task, bool at_once);

/* Waits for everything that was submitted before. timeout in milliseconds, negative: none. */
aclError stream_wait(struct stream *stream, int32_t timeout, const char *function);

/* Waits for all streams; does nothing on a stream's own thread. */
void streams_wait(void);

#endif
