/* header_alone.c - compiled as C11 and as C++11 and never linked: the public header needs nothing
 * before it. */
#include <moetoken/moetoken.h>
