/* bench_memory.c - what the system says about memory: Linux's /proc and control groups, read as
 * text. See bench_memory.h. */
#include "bench_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind "NAME:" in a file of lines "NAME:   123 kB", in bytes. */
static int64_t read_kilobytes(const char *path, const char *name)
{
    char line[256];
    int64_t bytes = -1;
    size_t length = strlen(name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return -1;
    while (bytes < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            bytes = strtoll(line + length + 1, NULL, 10) * 1024;
    fclose(file);
    return bytes;
}

/* The limit of the control group that a container is: one number, or the word "max". */
static int64_t read_group_limit(void)
{
    long long bytes = -1;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
    if (file == NULL)
        return -1;
    char line[64];
    if (fgets(line, sizeof line, file) != NULL && line[0] >= '0' && line[0] <= '9')
        bytes = strtoll(line, NULL, 10);
    fclose(file);
    return bytes;
}

int64_t memory_available(void)
{
    int64_t available = read_kilobytes("/proc/meminfo", "MemAvailable");
    int64_t limit = read_group_limit();
    return limit >= 0 && (available < 0 || limit < available) ? limit : available;
}

int64_t memory_resident(void)
{
    return read_kilobytes("/proc/self/status", "VmRSS");
}

int64_t memory_peak(void)
{
    return read_kilobytes("/proc/self/status", "VmHWM");
}

void memory_peak_reset(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file == NULL)
        return;
    fputs("5\n", file); /* the peak, and nothing else */
    fclose(file);
}

/* sysconf would do, but on some virtual machines it answers with the caches of the whole host. */
int64_t memory_last_cache(void)
{
    for (int index = 4; index >= 2; index--) {
        char path[80], text[32];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        long long kilobytes =
            fgets(text, sizeof text, file) ? strtoll(text, NULL, 10) : 0; /* "32768K" */
        fclose(file);
        if (kilobytes > 0)
            return kilobytes * 1024;
    }
    return -1;
}
