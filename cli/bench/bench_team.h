/* bench_team.h - threads for the ceiling that sleep between its turns. Those of an OpenMP runtime
 * would spin for milliseconds, on the cores of the operator that is measured next. */
#ifndef MOETOKEN_CLI_BENCH_TEAM_H
#define MOETOKEN_CLI_BENCH_TEAM_H

/* Calls body(context, member, members) for each member of [0, members), each on a thread of its
 * own, member 0 on the caller's. Where a thread cannot be started the caller does its part too. */
void team_run(int members, void (*body)(const void *context, int member, int members),
              const void *context);

#endif
