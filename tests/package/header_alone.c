/* header_alone.c - compiled as C11 and as C++11 and never linked: the public headers need
 * nothing before them. */
#include <moetoken/router.h>

#include <moetoken/moetoken.h>
