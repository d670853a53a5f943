/* version.c - the version of the library, from the header it was built with. */
#include <moetoken/moetoken.h>

#define TEXT(number)    TEXT_OF(number)
#define TEXT_OF(number) #number

const char *moetoken_version(void)
{
    return TEXT(MOETOKEN_VERSION_MAJOR) "." TEXT(MOETOKEN_VERSION_MINOR) "." TEXT(
        MOETOKEN_VERSION_PATCH);
}
