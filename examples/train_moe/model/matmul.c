/* matmul.c - matrix products in tiles of c that stay in registers while a and b run past.
 *
 * The vectors lie along the columns of b and c: no sum is ever reordered, so that tiles, vectors
 * and threads change the speed and never the bits. */
#include "matmul.h"

enum {
    LANES = 16 / sizeof(real),
    TILE_ROWS = 4,
    TILE_VECTORS = 2,
    TILE_COLUMNS = TILE_VECTORS * LANES,
    DEPTH = 256, /* rows of b at a time, so that a tile's share of b stays in the cache */
    TASK_ROWS = 16,
    TASK_COLUMNS = 64
};
#define SERIAL_PRODUCTS 65536 /* below this, threads cost more than they bring */

/* 16 bytes, which the base instruction sets of x86-64 and AArch64 have. Vector types of gcc and
 * clang, because neither keeps a tile that is written as plain loops in registers. */
typedef real vector
    __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real)), may_alias));

struct product {
    real *c;
    const real *a, *b;
    int64_t a_row, a_column, m, n, k;
    bool accumulate;
};

static inline int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static void tile(const struct product *p, int64_t row, int64_t column, int64_t first, int64_t last)
{
    vector sum[TILE_ROWS][TILE_VECTORS];
    real *c = p->c + row * p->n + column;
    for (int r = 0; r < TILE_ROWS; r++)
        for (int j = 0; j < TILE_VECTORS; j++)
            sum[r][j] = *(const vector *)(c + r * p->n + j * LANES);
    const real *a = p->a + row * p->a_row + first * p->a_column;
    const real *b = p->b + first * p->n + column;
    for (int64_t i = first; i < last; i++, a += p->a_column, b += p->n) {
        for (int r = 0; r < TILE_ROWS; r++)
            for (int j = 0; j < TILE_VECTORS; j++)
                sum[r][j] += a[r * p->a_row] * *(const vector *)(b + j * LANES);
    }
    for (int r = 0; r < TILE_ROWS; r++)
        for (int j = 0; j < TILE_VECTORS; j++)
            *(vector *)(c + r * p->n + j * LANES) = sum[r][j];
}

/* What is left at the right and at the bottom: the same sums, one row at a time. */
static void edge(const struct product *p, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, int64_t first, int64_t last)
{
    for (int64_t r = row; r < row + rows; r++)
        for (int64_t i = first; i < last; i++) {
            real a = p->a[r * p->a_row + i * p->a_column];
            for (int64_t j = column; j < column + columns; j++)
                p->c[r * p->n + j] += a * p->b[i * p->n + j];
        }
}

static void product_task(const struct product *p, int64_t row, int64_t rows, int64_t column,
                         int64_t columns)
{
    if (!p->accumulate)
        for (int64_t r = row; r < row + rows; r++)
            for (int64_t j = column; j < column + columns; j++)
                p->c[r * p->n + j] = 0;
    for (int64_t first = 0; first < p->k; first += DEPTH) {
        int64_t last = least(first + DEPTH, p->k), j = 0;
        for (; j + TILE_COLUMNS <= columns; j += TILE_COLUMNS) {
            int64_t r = 0;
            for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
                tile(p, row + r, column + j, first, last);
            edge(p, row + r, rows - r, column + j, TILE_COLUMNS, first, last);
        }
        edge(p, row, rows, column + j, columns - j, first, last);
    }
}

void matmul(real *c, const real *a, int64_t a_row, int64_t a_column, const real *b, int64_t m,
            int64_t n, int64_t k, bool accumulate)
{
    struct product p = {c, a, b, a_row, a_column, m, n, k, accumulate};
    int64_t down = (m + TASK_ROWS - 1) / TASK_ROWS;
    int64_t across = (n + TASK_COLUMNS - 1) / TASK_COLUMNS;
#pragma omp parallel for schedule(static) if (m * n * k > SERIAL_PRODUCTS)
    for (int64_t task = 0; task < down * across; task++) {
        int64_t row = task / across * TASK_ROWS, column = task % across * TASK_COLUMNS;
        product_task(&p, row, least(TASK_ROWS, m - row), column, least(TASK_COLUMNS, n - column));
    }
}

void transpose(real *out, const real *in, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            out[c * rows + r] = in[r * columns + c];
}
