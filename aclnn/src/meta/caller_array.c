/* caller_array.c - tells a C++ caller from a C one, for the arrays that the getters in tensor.c
 * return: a C++ caller's file is linked against the C++ runtime. (That the runtime is loaded proves
 * nothing: sanitizers load it.) */
#include "caller_array.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* C++'s operator new[](size_t), where some file of the process provides it. */
extern void *_Znam(size_t bytes) __attribute__((weak));

#ifdef __GLIBC__
#include <link.h>

static bool is_cxx_run_time(const char *name)
{
    return strncmp(name, "libstdc++", 9) == 0 || strncmp(name, "libc++", 6) == 0;
}

/* Whether the file's dynamic section needs the C++ runtime. */
static bool needs_cxx(const struct link_map *file)
{
    const char *strings = NULL;
    for (const ElfW(Dyn) *entry = file->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB)
            memcpy(&strings, &entry->d_un.d_ptr, sizeof strings); /* an address as a number */
    if (strings == NULL)
        return false;
    for (const ElfW(Dyn) *entry = file->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_NEEDED && is_cxx_run_time(strings + entry->d_un.d_val))
            return true;
    return false;
}

static bool is_cxx(const void *caller)
{
    Dl_info info;
    struct link_map *file = NULL;
    return dladdr1(caller, &info, (void **)&file, RTLD_DL_LINKMAP) && file && needs_cxx(file);
}
#else
static bool is_cxx(const void *caller)
{
    (void)caller;
    return false;
}
#endif

void *caller_array(size_t bytes, const void *caller)
{
    return _Znam && is_cxx(caller) ? _Znam(bytes) : malloc(bytes);
}
