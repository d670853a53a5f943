/* page_template.h - page.html as text; page_template.c is made from it when the tool is built. */
#ifndef MOETOKEN_CLI_PAGE_TEMPLATE_H
#define MOETOKEN_CLI_PAGE_TEMPLATE_H

extern const unsigned char page_template[]; /* ends with 0 */

#endif
