/* operator_command.c - what the commands of operators and router share: options, output file,
 * summary. Files -> operator_job -> one library call that writes straight into the output file. */
#include "operator_command.h"

#include <inttypes.h>
#include <string.h>

#include "terminal/progress.h"
#include "values/number_formats.h"

bool job_input(struct operator_job *job, const char *name, bool required, const DLTensor **tensor)
{
    if (!case_tensor(&job->files, name, required, tensor))
        return false;
    if (*tensor != NULL)
        job->input_bytes += tensor_bytes(*tensor);
    return true;
}

moetoken_type tensor_type(const DLTensor *tensor)
{
    moetoken_type type = MOETOKEN_F32;
    type_of_tensor(tensor, &type);
    return type;
}

/* Whether `names`, split at commas, holds the name; NULL holds all. */
static bool is_wanted(const char *names, const char *name)
{
    if (names == NULL)
        return true;
    size_t length = strlen(name);
    for (;;) {
        size_t span = strcspn(names, ",");
        if (span == length && strncmp(names, name, span) == 0)
            return true;
        if (names[span] == '\0')
            return false;
        names += span + 1;
    }
}

void job_output(struct operator_job *job, enum operator_kind kind, int i, moetoken_type type,
                int ndim, int64_t first, int64_t second)
{
    const char *name = operator_outputs[kind].outputs[i];
    if (is_wanted(job->settings->outputs, name))
        job->specs[i] = (struct tensor_spec){
            .name = name, .type = type, .ndim = ndim, .shape = {first, second}};
}

moetoken_type weights_type(const struct operator_job *job, const DLTensor *logits)
{
    int wanted = job->settings->weights_type;
    if (wanted == 2 || (wanted < 0 && tensor_type(logits) == MOETOKEN_F64))
        return tensor_type(logits);
    return wanted == 1 ? MOETOKEN_F64 : MOETOKEN_F32;
}

static bool read_switches(struct operator_job *job, enum operator_kind kind)
{
    const struct operator_settings *settings = job->settings;
    if (is_router(kind))
        return router_options_resolve(&settings->router, &job->files, kind == OPERATOR_ROUTER,
                                      &job->config);
    bool masks = kind == OPERATOR_UNPERMUTE || kind == OPERATOR_UNPERMUTE_GRAD;
    bool tolerates = kind != OPERATOR_PERMUTE;
    return case_switch(&job->files, "drop_and_pad", settings->drop_and_pad, &job->drop_and_pad) &&
           (!masks || case_switch(&job->files, "mask_fill_slots", settings->mask_fill_slots,
                                  &job->mask_fill_slots)) &&
           (!tolerates ||
            case_switch(&job->files, "tolerate_routing_mismatch",
                        settings->tolerate_routing_mismatch, &job->tolerate_routing_mismatch));
}

static bool read_attributes(struct operator_job *job, enum operator_kind kind)
{
    const struct operator_settings *settings = job->settings;
    job->experts_num = -1;
    if (!read_switches(job, kind))
        return false;
    static const uint32_t masks[] = {MOETOKEN_ISA_SCALAR, MOETOKEN_ISA_SCALAR | MOETOKEN_ISA_AVX2,
                                     MOETOKEN_ISA_SCALAR | MOETOKEN_ISA_AVX2 | MOETOKEN_ISA_AVX512,
                                     MOETOKEN_ISA_SCALAR | MOETOKEN_ISA_NEON};
    static const uint32_t stores[] = {0, MOETOKEN_CACHED_STORES, MOETOKEN_STREAMING_STORES};
    job->options.threads = (int32_t)settings->threads;
    job->options.isa_mask = settings->isa < 0 ? 0 : masks[settings->isa];
    job->options.flags = stores[settings->stores] |
                         (job->mask_fill_slots ? MOETOKEN_MASK_FILL_SLOTS : 0) |
                         (job->tolerate_routing_mismatch ? MOETOKEN_TOLERATE_ROUTING_MISMATCH : 0);
    return is_router(kind) || case_restore_shape(&job->files, settings->restore_shape,
                                                 job->restore_shape, &job->has_restore_shape);
}

/* Every name in --outputs must be one that the operator writes in this case. */
static bool check_wanted_names(const struct operator_job *job)
{
    const char *names = job->settings->outputs;
    int wanted = 0, found = 0;
    for (const char *at = names; at != NULL; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        wanted++;
    for (int i = 0; i < OUTPUTS_MOST; i++)
        found += job->specs[i].name != NULL;
    if (names == NULL || found == wanted)
        return true;
    fprintf(stderr, "moetoken: %s: --outputs %.100s: this case has no such outputs\n",
            job->files.paths[0], names);
    return false;
}

/* Outputs, and the library's workspace, before any of it is taken. */
static bool check_work(const struct operator_job *job)
{
    double bytes = 16.0 * ((double)job->tokens_num + (double)job->slots_num) +
                   (job->experts_num > 0 ? 80.0 * (double)job->experts_num : 0);
    for (int i = 0; i < OUTPUTS_MOST; i++)
        if (job->outputs[i] != NULL)
            bytes += (double)tensor_bytes(job->outputs[i]);
    return case_justifies(&job->files, job->input_bytes, bytes);
}

/* The library's checks, with outputs that have no memory yet, and whether the input justifies the
 * work. */
static bool check_plan(struct operator_job *job, const struct operator_calls *calls, void *args)
{
    DLTensor planned[OUTPUTS_MOST];
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        struct tensor_spec *spec = &job->specs[i];
        planned[i] = moetoken_tensor(NULL, spec->type, spec->ndim, spec->shape);
        job->outputs[i] = spec->name == NULL ? NULL : &planned[i];
    }
    bool good = calls->call(job, args, true) == MOETOKEN_OK;
    if (!good)
        report_input(&job->files, moetoken_last_error());
    return good && check_work(job);
}

static const char *text_of_bool(bool value)
{
    return value ? "true" : "false";
}

#define METADATA_MOST 14

struct output_metadata {
    const char *pairs[2 * METADATA_MOST + 1];
    char text[7][48];
    struct router_metadata router;
    int count;
};

static void add_metadata(struct output_metadata *metadata, const char *key, const char *value)
{
    metadata->pairs[2 * metadata->count] = key;
    metadata->pairs[2 * metadata->count + 1] = value;
    metadata->count++;
    metadata->pairs[2 * metadata->count] = NULL;
}

static void describe_router(const struct operator_job *job, struct output_metadata *metadata)
{
    const size_t size = sizeof metadata->text[0];
    snprintf(metadata->text[0], size, "%" PRId64, job->tokens_num);
    add_metadata(metadata, "tokens_num", metadata->text[0]);
    snprintf(metadata->text[1], size, "%" PRId64, job->experts_num);
    add_metadata(metadata, "experts_num", metadata->text[1]);
    router_describe(&job->config, &metadata->router);
    for (int i = 0; i < ROUTER_SETTINGS_COUNT; i++)
        add_metadata(metadata, metadata->router.keys[i], metadata->router.text[i]);
}

/* What a later command, or verify, needs to know of this one. */
static void describe_job(const struct operator_job *job, enum operator_kind kind,
                         struct output_metadata *metadata)
{
    metadata->count = 0;
    const size_t size = sizeof metadata->text[0];
    add_metadata(metadata, "operator", operator_outputs[kind].name);
    if (is_router(kind)) {
        describe_router(job, metadata);
        return;
    }
    add_metadata(metadata, "drop_and_pad", text_of_bool(job->drop_and_pad));
    if (kind == OPERATOR_UNPERMUTE || kind == OPERATOR_UNPERMUTE_GRAD) {
        add_metadata(metadata, "mask_fill_slots", text_of_bool(job->mask_fill_slots));
    }
    add_metadata(metadata, "tolerate_routing_mismatch",
                 text_of_bool(job->tolerate_routing_mismatch));
    snprintf(metadata->text[0], size, "%" PRId64 ",%" PRId64, job->tokens_num, job->hidden_size);
    add_metadata(metadata, "restore_shape", metadata->text[0]);
    snprintf(metadata->text[1], size, "%" PRId64, job->slots_num);
    add_metadata(metadata, "num_out_tokens", metadata->text[1]);
    snprintf(metadata->text[2], size, "%" PRId64, job->tokens_num);
    add_metadata(metadata, "tokens_num", metadata->text[2]);
    snprintf(metadata->text[3], size, "%" PRId64, job->experts_num);
    if (job->experts_num >= 0)
        add_metadata(metadata, "experts_num", metadata->text[3]);
    if (!job->ranged)
        return;
    static const char *const keys[] = {"expert_begin", "expert_end", "capacity"};
    const int64_t values[] = {job->expert_begin, job->expert_end, job->capacity};
    for (int i = 0; i < 3; i++) {
        snprintf(metadata->text[4 + i], size, "%" PRId64, values[i]);
        add_metadata(metadata, keys[i], metadata->text[4 + i]);
    }
}

static struct tensor_writer *open_writer(struct operator_job *job, enum operator_kind kind)
{
    struct tensor_spec specs[OUTPUTS_MOST];
    size_t count = 0;
    for (int i = 0; i < OUTPUTS_MOST; i++)
        if (job->specs[i].name != NULL)
            specs[count++] = job->specs[i];
    struct output_metadata metadata;
    describe_job(job, kind, &metadata);
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_writer *writer =
        tensor_writer_open(job->settings->output, specs, count, metadata.pairs, error);
    if (writer == NULL) {
        report_error(error);
        return NULL;
    }
    count = 0;
    for (int i = 0; i < OUTPUTS_MOST; i++)
        job->outputs[i] = job->specs[i].name == NULL ? NULL : tensor_writer_tensor(writer, count++);
    return writer;
}

/* Runs the operator as often as asked; the seconds of the fastest run. */
static bool run_and_time(const struct operator_job *job, const struct operator_calls *calls,
                         void *args, double *seconds)
{
    struct progress progress = {0};
    progress_begin(&progress, operator_outputs[calls->kind].name,
                   job->settings->repeat > 1 ? job->settings->repeat : 0);
    moetoken_status status = MOETOKEN_OK;
    for (int64_t i = 0; i < job->settings->repeat && status == MOETOKEN_OK; i++) {
        double began = seconds_now();
        status = calls->call(job, args, false);
        double here = seconds_now() - began;
        *seconds = i == 0 || here < *seconds ? here : *seconds;
        progress_add(&progress, 1);
    }
    progress_end(&progress);
    if (status != MOETOKEN_OK)
        report_input(&job->files, moetoken_last_error());
    return status == MOETOKEN_OK;
}

static const char *isa_in_use(const struct operator_job *job)
{
    return moetoken_isa_name(moetoken_isa_chosen(job->options.isa_mask));
}

static int threads_in_use(const struct operator_job *job)
{
    return moetoken_threads_chosen(job->options.threads);
}

static int64_t bytes_moved(const struct operator_job *job)
{
    int64_t bytes = job->input_bytes;
    for (int i = 0; i < OUTPUTS_MOST; i++)
        if (job->outputs[i] != NULL)
            bytes += tensor_bytes(job->outputs[i]);
    return bytes;
}

static void print_json(const struct operator_job *job, enum operator_kind kind, int64_t bytes,
                       double seconds, double speed)
{
    printf("{\"operator\": \"%s\", \"tokens_num\": %" PRId64 ", ", operator_outputs[kind].name,
           job->tokens_num);
    if (!is_router(kind))
        printf("\"hidden_size\": %" PRId64 ", ", job->hidden_size);
    if (job->experts_num >= 0)
        printf("\"experts_num\": %" PRId64 ", ", job->experts_num);
    printf("\"slots\": %" PRId64 ", \"dtype\": \"%s\", ", job->slots_num,
           type_name(job->token_type));
    if (!is_router(kind))
        printf("\"rows\": %" PRId64 ", \"drop_and_pad\": %s, ", job->rows_num,
               text_of_bool(job->drop_and_pad));
    printf("\"isa\": \"%s\", \"threads\": %d, \"bytes\": %" PRId64
           ", \"seconds\": %.6g, \"gb_per_second\": %.4g}\n",
           isa_in_use(job), threads_in_use(job), bytes, seconds, speed);
}

static void print_text(const struct operator_job *job, enum operator_kind kind, int64_t bytes,
                       double seconds, double speed)
{
    printf("%s: T=%" PRId64 " ", operator_outputs[kind].name, job->tokens_num);
    if (!is_router(kind))
        printf("H=%" PRId64 " ", job->hidden_size);
    if (job->experts_num >= 0)
        printf("E=%" PRId64 " ", job->experts_num);
    printf("N=%" PRId64 " ", job->slots_num);
    if (!is_router(kind))
        printf("R=%" PRId64 " ", job->rows_num);
    printf("%s", type_name(job->token_type));
    if (!is_router(kind))
        printf(" drop_and_pad=%s", text_of_bool(job->drop_and_pad));
    printf(", kernels %s, threads %d, %" PRId64 " bytes in %.4g s, %.3g GB/s\n", isa_in_use(job),
           threads_in_use(job), bytes, seconds, speed);
}

static void print_summary(const struct operator_job *job, enum operator_kind kind, int64_t bytes,
                          double seconds)
{
    double speed = seconds > 0 ? 1e-9 * (double)bytes / seconds : 0.0;
    if (job->settings->json)
        print_json(job, kind, bytes, seconds, speed);
    else
        print_text(job, kind, bytes, seconds, speed);
}

static int run_job(struct operator_job *job, const struct operator_calls *calls, void *args)
{
    if (!read_attributes(job, calls->kind) || !calls->prepare(job, args) ||
        !check_wanted_names(job) || !check_plan(job, calls, args))
        return EXIT_INPUT;
    struct tensor_writer *writer = open_writer(job, calls->kind);
    if (writer == NULL)
        return EXIT_INPUT;
    double seconds = 0;
    if (!run_and_time(job, calls, args, &seconds)) {
        tensor_writer_abandon(writer);
        return EXIT_INPUT;
    }
    int64_t bytes = bytes_moved(job);
    char error[TENSOR_FILE_ERROR_SIZE];
    if (!tensor_writer_commit(writer, error))
        return report_error(error);
    if (!job->settings->quiet)
        print_summary(job, calls->kind, bytes, seconds);
    return EXIT_DONE;
}

int run_operator_command(const struct command *command, const struct operator_calls *calls,
                         void *args, int argc, char **argv)
{
    struct operator_settings settings = {.drop_and_pad = -1,
                                         .mask_fill_slots = -1,
                                         .tolerate_routing_mismatch = -1,
                                         .isa = -1,
                                         .index_type = -1,
                                         .weights_type = -1,
                                         .router = router_options_default(),
                                         .repeat = 1,
                                         .tokens_num = -1,
                                         .experts_num = -1,
                                         .num_out_tokens = -1,
                                         .expert_begin = -1,
                                         .expert_end = -1,
                                         .capacity = -1};
    const char *paths[CASE_FILES_MOST];
    int count;
    int status = parse_options(command, argc, argv, &settings, paths, &count);
    if (status != PARSED_RUN)
        return status;
    if (settings.output == NULL)
        return usage_error(command, "-o OUT is missing");
    struct operator_job job = {.settings = &settings};
    if (!case_files_open(&job.files, paths, count))
        return EXIT_INPUT;
    if (case_files_hold(&job.files, settings.output))
        status = usage_error(command, "-o %s: is an input of this command and would be replaced",
                             settings.output);
    else
        status = run_job(&job, calls, args);
    case_files_close(&job.files);
    return status;
}
