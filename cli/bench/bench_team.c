/* bench_team.c - threads that wait for the next turn by its number. For one caller at a time. */
#include "bench_team.h"

#include <pthread.h>
#include <stdbool.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    unsigned turn;
    int started; /* threads, members [1, started] */
    int members, left;
    void (*body)(const void *context, int member, int members);
    const void *context;
} team = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .begin = PTHREAD_COND_INITIALIZER,
          .end = PTHREAD_COND_INITIALIZER};

static void *member_main(void *argument)
{
    int member = (int)((char *)argument - (char *)&team);
    unsigned seen = 0;
    pthread_mutex_lock(&team.lock);
    for (;;) {
        while (team.turn == seen)
            pthread_cond_wait(&team.begin, &team.lock);
        seen = team.turn;
        if (member >= team.members)
            continue;
        pthread_mutex_unlock(&team.lock);
        team.body(team.context, member, team.members);
        pthread_mutex_lock(&team.lock);
        if (--team.left == 0)
            pthread_cond_signal(&team.end);
    }
    return NULL;
}

/* Their number travels as an address that is never used as one. They end with the process. */
static void start_members(int members)
{
    pthread_t thread;
    while (team.started + 1 < members &&
           pthread_create(&thread, NULL, member_main, (char *)&team + team.started + 1) == 0) {
        pthread_detach(thread);
        team.started++;
    }
}

void team_run(int members, void (*body)(const void *context, int member, int members),
              const void *context)
{
    if (members <= 1) {
        body(context, 0, 1);
        return;
    }
    pthread_mutex_lock(&team.lock);
    start_members(members);
    int helpers = team.started < members - 1 ? team.started : members - 1;
    team.members = helpers + 1;
    team.left = helpers;
    team.body = body;
    team.context = context;
    team.turn++;
    pthread_cond_broadcast(&team.begin);
    pthread_mutex_unlock(&team.lock);
    body(context, 0, helpers + 1);
    pthread_mutex_lock(&team.lock);
    while (team.left > 0)
        pthread_cond_wait(&team.end, &team.lock);
    pthread_mutex_unlock(&team.lock);
}
