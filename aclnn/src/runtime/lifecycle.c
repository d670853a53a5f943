/* lifecycle.c - aclInit and the two ways to end: any number of times in one process. */
#include "../../include/acl/acl.h"
#include "../../include/aclnn/aclnn_base.h"
#include "context.h"
#include "message.h"
#include "registry.h"
#include "stream.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t references; /* aclInit calls since the last end */
static bool ended;          /* ended since the last aclInit */

aclError aclInit(const char *configPath)
{
    (void)configPath;
    pthread_mutex_lock(&lock);
    bool repeated = ++references > 1;
    ended = false;
    pthread_mutex_unlock(&lock);
    if (repeated)
        return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit: initialised already");
    registry_read_environment();
    return ACL_SUCCESS;
}

static aclError end(const char *function)
{
    streams_wait(-1, function);
    context_release_device();
    bool intact = registry_verify();
    size_t leaks = registry_report_leaks();
    streams_forget_orphans();
    if (leaks > 0)
        return fail(ACL_ERROR_FAILURE, "%s: %zu objects or blocks were never released", function,
                    leaks);
    return intact ? ACL_SUCCESS : ACL_ERROR_FAILURE;
}

aclError aclFinalize(void)
{
    pthread_mutex_lock(&lock);
    bool repeated = ended;
    references = 0;
    ended = true;
    pthread_mutex_unlock(&lock);
    if (repeated)
        return fail(ACL_ERROR_REPEAT_FINALIZE, "%s: finalised already", __func__);
    return end(__func__);
}

aclError aclFinalizeReference(uint64_t *refCount)
{
    pthread_mutex_lock(&lock);
    bool repeated = ended;
    if (references > 0)
        references--;
    uint64_t left = references;
    ended = left == 0;
    pthread_mutex_unlock(&lock);
    if (refCount)
        *refCount = left;
    if (repeated)
        return fail(ACL_ERROR_REPEAT_FINALIZE, "%s: finalised already", __func__);
    return left > 0 ? ACL_SUCCESS : end(__func__);
}

aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion)
{
    if (majorVersion == NULL || minorVersion == NULL || patchVersion == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: a version's pointer is NULL", __func__);
    *majorVersion = ACL_MAJOR_VERSION;
    *minorVersion = ACL_MINOR_VERSION;
    *patchVersion = ACL_PATCH_VERSION;
    return ACL_SUCCESS;
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
