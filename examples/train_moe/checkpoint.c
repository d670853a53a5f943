/* checkpoint.c - header, pending sums, history, parameters, moments, checksum; in this order.
 *
 * The parameters are those of all ranks, in the order of one process. */
#include "checkpoint.h"

#include <errno.h>
#include <string.h>

#include "model/output_file.h"
#include "ranks/ranks.h"

static const char magic[16] = "train_moe ckpt2";

struct header {
    char magic[16];
    struct config config;
    uint64_t text_checksum;
    int64_t step, history_count, parameters_count;
};

struct writer {
    struct output_file file;
    uint64_t checksum;
};

static void put(struct writer *writer, const void *bytes, int64_t count)
{
    if (ranks_rank() != 0)
        return;
    writer->checksum = checksum_add(writer->checksum, bytes, count);
    output_file_write(&writer->file, bytes, (size_t)count);
}

static void put_piece(void *writer, const void *bytes, int64_t count)
{
    put(writer, bytes, count);
}

/* One number for each parameter. */
static void put_values(struct writer *writer, const struct model *model, const real *values)
{
    for (int i = 0; i < model->tensors_count; i++) {
        const struct tensor *tensor = &model->tensors[i];
        int64_t bytes = tensor->count * (int64_t)sizeof(real);
        if (tensor->of_experts)
            ranks_collect(values + tensor->offset, bytes, put_piece, writer);
        else
            put(writer, values + tensor->offset, bytes);
    }
}

void checkpoint_write(const char *path, const struct trainer *trainer)
{
    struct writer writer = {.checksum = CHECKSUM_START};
    const struct model *model = trainer->model;
    struct header header = {.config = trainer->config,
                            .text_checksum = trainer->text->checksum,
                            .step = trainer->step,
                            .history_count = trainer->history_count,
                            .parameters_count = model_all_parameters(model)};
    if (ranks_rank() == 0)
        writer.file = output_file_open(path);
    memcpy(header.magic, magic, sizeof magic);
    put(&writer, &header, sizeof header);
    put(&writer, &trainer->pending, sizeof trainer->pending);
    put(&writer, trainer->history, trainer->history_count * (int64_t)sizeof trainer->history[0]);
    put_values(&writer, model, model->parameters);
    put_values(&writer, model, trainer->first);
    put_values(&writer, model, trainer->second);
    if (ranks_rank() != 0)
        return;
    output_file_write(&writer.file, &writer.checksum, sizeof writer.checksum);
    output_file_commit(&writer.file);
}

struct reader {
    FILE *file;
    const char *path;
    uint64_t checksum;
};

static bool get(struct reader *reader, void *bytes, int64_t count)
{
    if (fread(bytes, 1, (size_t)count, reader->file) != (size_t)count) {
        complain("the checkpoint %s ends too early", reader->path);
        return false;
    }
    reader->checksum = checksum_add(reader->checksum, bytes, count);
    return true;
}

static bool get_header(struct reader *reader, struct header *header)
{
    if (!get(reader, header, sizeof *header))
        return false;
    if (memcmp(header->magic, magic, sizeof magic) != 0) {
        complain("%s is not a checkpoint of this program", reader->path);
        return false;
    }
    if (!config_check(&header->config))
        return false;
    int64_t rows = header->config.steps / header->config.evaluate_every + 1;
    if (header->step < 0 || header->step > header->config.steps || header->history_count < 0 ||
        header->history_count > rows) {
        complain("the checkpoint %s is at step %lld of %lld with %lld rows", reader->path,
                 (long long)header->step, (long long)header->config.steps,
                 (long long)header->history_count);
        return false;
    }
    return true;
}

static bool open_reader(struct reader *reader, const char *path, struct header *header)
{
    *reader = (struct reader){fopen(path, "rb"), path, CHECKSUM_START};
    if (!reader->file) {
        complain("cannot open the checkpoint %s: %s", path, strerror(errno));
        return false;
    }
    if (get_header(reader, header))
        return true;
    fclose(reader->file);
    return false;
}

bool checkpoint_read_config(const char *path, struct config *config)
{
    struct reader reader;
    struct header header;
    if (!open_reader(&reader, path, &header))
        return false;
    fclose(reader.file);
    *config = header.config;
    return true;
}

/* Of the experts' tensors this rank keeps its part. */
static bool get_values(struct reader *reader, const struct model *model, real *values)
{
    bool good = true;
    for (int i = 0; good && i < model->tensors_count; i++) {
        const struct tensor *tensor = &model->tensors[i];
        int64_t bytes = tensor->count * (int64_t)sizeof(real);
        int parts = tensor->of_experts ? ranks_count() : 1;
        int own = tensor->of_experts ? ranks_rank() : 0;
        real *others = allocate(parts > 1 ? tensor->count : 0, sizeof(real));
        for (int part = 0; good && part < parts; part++)
            good = get(reader, part == own ? values + tensor->offset : others, bytes);
        free(others);
    }
    return good;
}

static bool get_body(struct reader *reader, const struct header *header, struct trainer *trainer)
{
    struct model *model = trainer->model;
    if (header->text_checksum != trainer->text->checksum ||
        header->parameters_count != model_all_parameters(model)) {
        complain("the checkpoint %s belongs to another %s", reader->path,
                 header->text_checksum != trainer->text->checksum ? "text" : "model");
        return false;
    }
    trainer->step = header->step;
    trainer->history_count = header->history_count;
    if (!get(reader, &trainer->pending, sizeof trainer->pending) ||
        !get(reader, trainer->history,
             header->history_count * (int64_t)sizeof trainer->history[0]) ||
        !get_values(reader, model, model->parameters) ||
        !get_values(reader, model, trainer->first) || !get_values(reader, model, trainer->second))
        return false;
    uint64_t expected = reader->checksum, stored;
    if (!get(reader, &stored, sizeof stored))
        return false;
    if (stored != expected)
        complain("the checkpoint %s is damaged: checksum %016llx, not %016llx", reader->path,
                 (unsigned long long)expected, (unsigned long long)stored);
    return stored == expected;
}

bool checkpoint_read(const char *path, struct trainer *trainer)
{
    struct reader reader;
    struct header header;
    if (!open_reader(&reader, path, &header))
        return false;
    bool good = get_body(&reader, &header, trainer);
    fclose(reader.file);
    return good;
}

struct record *checkpoint_read_history(const char *path, struct config *config, int64_t *count)
{
    struct reader reader;
    struct header header;
    struct record pending;
    if (!open_reader(&reader, path, &header))
        return NULL;
    struct record *history = allocate(header.history_count, sizeof *history);
    bool good = get(&reader, &pending, sizeof pending) &&
                get(&reader, history, header.history_count * (int64_t)sizeof *history);
    fclose(reader.file);
    if (!good) {
        free(history);
        return NULL;
    }
    *config = header.config;
    *count = header.history_count;
    return history;
}
