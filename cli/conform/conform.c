/* conform.c - runs a suite, several cases at a time. See conform.h. */
#include "conform.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "properties.h"

/* ---- folders --------------------------------------------------------------------------------- */

static bool make_folder(struct conform *conform)
{
    const char *parent = getenv("TMPDIR");
    snprintf(conform->folder, sizeof conform->folder, "%s/moetoken-conform-XXXXXX",
             parent != NULL && parent[0] != '\0' ? parent : "/tmp");
    if (mkdtemp(conform->folder) != NULL)
        return true;
    snprintf(conform->problem, sizeof conform->problem, "%.300s: no folder can be made there",
             conform->folder);
    conform->folder[0] = '\0';
    return false;
}

static void job_folder(const struct conform *conform, int job, char folder[PATH_SIZE])
{
    snprintf(folder, PATH_SIZE, "%s/%d", conform->folder, job);
    mkdir(folder, 0700);
}

static void remove_files(const char *folder)
{
    DIR *directory = opendir(folder);
    char path[2 * PATH_SIZE];
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    if (directory != NULL)
        closedir(directory);
    rmdir(folder);
}

void conform_end(struct conform *conform)
{
    char folder[PATH_SIZE];
    for (int job = 0; conform->folder[0] != '\0' && job <= conform->jobs; job++) {
        snprintf(folder, sizeof folder, "%s/%d", conform->folder, job);
        remove_files(folder);
    }
    if (conform->folder[0] != '\0')
        remove_files(conform->folder);
    free(conform->results);
    conform->results = NULL;
}

/* ---- running --------------------------------------------------------------------------------- */

/* A case on its way. */
struct job {
    struct trial trial;
    struct problem problem;
    int64_t number; /* -1: idle */
};

static void finish_job(struct conform *conform, struct job *job)
{
    struct result *result = &conform->results[job->number];
    result->tried = true;
    result->finding = job->trial.finding;
    if (job->trial.finding.kind != FINDING_INTERNAL)
        result->properties = properties_of(&job->problem, &job->trial.layout);
    result->size = job->problem.tokens * job->problem.hidden;
    trial_free(&job->trial);
    problem_free(&job->problem);
    job->number = -1;
    if (result->finding.kind == FINDING_INTERNAL)
        snprintf(conform->problem, sizeof conform->problem, "%.500s", result->finding.text);
    int status = job->trial.child.status;
    if (result->finding.kind == FINDING_STATUS &&
        (WEXITSTATUS(status) == 126 || WEXITSTATUS(status) == 127))
        snprintf(conform->problem, sizeof conform->problem, "the command cannot be run: %.400s",
                 result->finding.text);
}

static void start_job(struct conform *conform, struct job *job, int place, int64_t number)
{
    char folder[PATH_SIZE];
    job_folder(conform, place, folder);
    job->number = number;
    if (!suite_problem(&conform->suite, number, &job->problem)) {
        snprintf(conform->problem, sizeof conform->problem, "no memory for a case");
        job->number = -1;
        return;
    }
    trial_begin(&job->trial, &conform->trial, &job->problem, folder);
    if (!job->trial.going)
        finish_job(conform, job);
}

static void advance_jobs(struct conform *conform, struct job *jobs, struct progress *progress)
{
    for (int i = 0; i < conform->jobs; i++) {
        if (jobs[i].number < 0 || jobs[i].trial.child.pid != 0)
            continue;
        trial_advance(&jobs[i].trial);
        if (jobs[i].trial.going)
            continue;
        finish_job(conform, &jobs[i]);
        progress_add(progress, 1);
    }
}

static void abandon_jobs(const struct conform *conform, struct job *jobs)
{
    for (int i = 0; i < conform->jobs; i++) {
        if (jobs[i].number < 0)
            continue;
        trial_free(&jobs[i].trial);
        problem_free(&jobs[i].problem);
    }
}

static void run_jobs(struct conform *conform, struct job *jobs, struct child **children,
                     struct progress *progress)
{
    int64_t next = 0;
    for (;;) {
        int busy = 0;
        for (int i = 0; i < conform->jobs && conform->problem[0] == '\0'; i++) {
            while (jobs[i].number < 0 && next < conform->suite.cases && conform->problem[0] == '\0')
                start_job(conform, &jobs[i], i, next++);
            busy += jobs[i].number >= 0;
        }
        if (busy == 0 || conform->problem[0] != '\0')
            return;
        conform->interrupted = children_wait(children, conform->jobs);
        if (conform->interrupted != 0)
            return;
        advance_jobs(conform, jobs, progress);
    }
}

bool conform_run(struct conform *conform)
{
    struct progress progress = {0};
    struct job *jobs = calloc((size_t)conform->jobs, sizeof *jobs);
    struct child **children = calloc((size_t)conform->jobs, sizeof(struct child *));
    conform->results = calloc((size_t)conform->suite.cases + 1, sizeof *conform->results);
    if (jobs == NULL || children == NULL || conform->results == NULL) {
        snprintf(conform->problem, sizeof conform->problem, "no memory for the results");
    } else if (make_folder(conform)) {
        for (int i = 0; i < conform->jobs; i++) {
            jobs[i].number = -1;
            children[i] = &jobs[i].trial.child;
        }
        progress_begin(&progress, "conform", conform->suite.cases);
        run_jobs(conform, jobs, children, &progress);
        progress_end(&progress);
        abandon_jobs(conform, jobs);
    }
    free(jobs);
    free(children);
    return conform->problem[0] == '\0' && conform->interrupted == 0;
}

void conform_list(const struct suite *suite)
{
    for (int64_t i = 0; i < suite->cases; i++) {
        struct problem problem;
        struct layout layout;
        char text[256];
        if (!suite_problem(suite, i, &problem))
            return;
        if (layout_build(&problem, &layout)) {
            problem_describe(&problem, &layout, text, sizeof text);
            printf("%5lld  %s\n", (long long)i, text);
            layout_free(&layout);
        }
        problem_free(&problem);
    }
}
