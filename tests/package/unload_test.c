/* unload_test.c - loads the shared library, lets it start threads, and unloads it, again and again;
 * at last the process ends while they sleep. Expects the library's path. */
#include <dlfcn.h>
#include <moetoken/moetoken.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    ROUNDS = 50,
    TOKENS = 64,
    HIDDEN = 2048
};

typedef moetoken_status unpermute_fn(const moetoken_unpermute_args *, const moetoken_options *);

static int call_once(unpermute_fn *unpermute)
{
    static float in[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
    static int32_t rows[TOKENS];
    int64_t shape[] = {TOKENS, HIDDEN};
    const DLDevice cpu = {kDLCPU, 0};
    for (int32_t i = 0; i < TOKENS; i++)
        rows[i] = TOKENS - 1 - i;
    in[TOKENS * HIDDEN - 1] = 3; /* the last element of the last row, which goes to token 0 */
    memset(out, 0xff, sizeof out);
    DLTensor in_dl = {in, cpu, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
    DLTensor out_dl = {out, cpu, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
    DLTensor rows_dl = {rows, cpu, 1, {kDLInt, 32, 1}, shape, NULL, 0};
    const moetoken_unpermute_args args = {.struct_size = sizeof args,
                                          .permuted_tokens = &in_dl,
                                          .sorted_indices = &rows_dl,
                                          .unpermuted_tokens = &out_dl};
    const moetoken_options options = {.threads = 3};
    return unpermute(&args, &options) == MOETOKEN_OK && out[HIDDEN - 1] == 3 &&
           out[TOKENS * HIDDEN - 1] == 0;
}

int main(int argc, char **argv)
{
    for (int i = 0; argc == 2 && i < ROUNDS; i++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        void *symbol = library ? dlsym(library, "moetoken_unpermute") : NULL;
        unpermute_fn *unpermute;
        memcpy(&unpermute, &symbol, sizeof symbol);
        if (!symbol || !call_once(unpermute)) {
            fprintf(stderr, "round %d: %s\n", i, library ? "wrong result" : dlerror());
            return 1;
        }
        dlclose(library);
        usleep(i < 10 ? 3000 : 0); /* asleep or not */
    }
    return argc == 2 ? 0 : 2;
}
