/* futex.h - sleeping on a word of memory, Linux's way. Unlike pthread_cond_wait this is no
 * cancellation point and keeps no lock that a fork could find taken. */
#ifndef MOETOKEN_FUTEX_H
#define MOETOKEN_FUTEX_H

#include <stdint.h>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Sleeps while *word == value; may return at any time. */
static inline void moetoken_futex_wait(uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

/* Wakes one thread that sleeps there. The word itself is not touched and may be gone. */
static inline void moetoken_futex_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
