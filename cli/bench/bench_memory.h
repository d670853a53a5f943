/* bench_memory.h - what the system says about memory, for bench: how much a case may use, and how
 * much a call used beyond its tensors. */
#ifndef MOETOKEN_CLI_BENCH_MEMORY_H
#define MOETOKEN_CLI_BENCH_MEMORY_H

#include <stdint.h>

/* All in bytes; -1 where the system does not tell. */

/* What can be taken without pushing others out: MemAvailable, or the limit of a control group. */
int64_t memory_available(void);
/* What this process has in memory now. */
int64_t memory_resident(void);
/* The most that it had in memory since the last memory_peak_reset() or, on systems that do not
 * reset it, since it began. */
int64_t memory_peak(void);
void memory_peak_reset(void);
/* The last-level cache that the first processor shares. */
int64_t memory_last_cache(void);

#endif
