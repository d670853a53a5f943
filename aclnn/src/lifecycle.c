/* lifecycle.c - aclInit and aclFinalize: any number of times in one process, strictly in turn. */
#include "../include/acl/acl.h"
#include "../include/aclnn/aclnn_base.h"
#include "context.h"
#include "message.h"
#include "registry.h"
#include "stream.h"

enum life {
    NEVER_INITIALISED,
    INITIALISED,
    FINALISED
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum life life = NEVER_INITIALISED;

/* Goes to `next` and returns what it was before. */
static enum life change_life(enum life next)
{
    pthread_mutex_lock(&lock);
    enum life before = life;
    if (next == INITIALISED || before == INITIALISED)
        life = next;
    pthread_mutex_unlock(&lock);
    return before;
}

aclError aclInit(const char *configPath)
{
    (void)configPath;
    if (change_life(INITIALISED) == INITIALISED)
        return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit: initialised already");
    registry_read_environment();
    return ACL_SUCCESS;
}

aclError aclFinalize(void)
{
    enum life before = change_life(FINALISED);
    if (before == NEVER_INITIALISED)
        return fail(ACL_ERROR_UNINITIALIZE, "aclFinalize: aclInit was not called");
    if (before == FINALISED)
        return fail(ACL_ERROR_REPEAT_FINALIZE, "aclFinalize: finalised already");
    streams_wait();
    context_release_device();
    bool intact = registry_verify();
    size_t leaks = registry_report_leaks();
    if (leaks > 0)
        return fail(ACL_ERROR_FAILURE, "aclFinalize: %zu objects or blocks were never released",
                    leaks);
    return intact ? ACL_SUCCESS : ACL_ERROR_FAILURE;
}

aclnnStatus aclnnInit(const char *configPath)
{
    (void)configPath;
    return ACLNN_SUCCESS;
}

aclnnStatus aclnnFinalize(void)
{
    return ACLNN_SUCCESS;
}
