// Matrix products with weights in panels: the 32 weights that a step of the sum needs lie side by
// side, so a batch of any size streams them from memory once, in order, at full width.
//
// weight: [ceil(cols / 32)][depth / PAIR][32][PAIR]. With bfloat16 two steps of the sum go together,
// for which some processors have one instruction. A row's result does not depend on how many rows
// there are: its sums are always added in the same order.

#pragma once
#include "operations.h"
#if defined(BF16) && defined(__AVX512BF16__)
#include <immintrin.h>
#endif

enum {
    PANEL = 32,
    MOST_BLOCK = 96,  // rows that go through a panel while it is in the cache
    RUN = 192,        // steps that are summed alone and then added: sums of sums round less
};

// A register of this processor, and the tile of sums that all its registers hold: ROWS rows of
// VECTORS registers.
#if defined(__AVX512F__)
enum { WIDTH = 16, ROWS = 8, VECTORS = 2 };
#elif defined(__AVX2__)
enum { WIDTH = 8, ROWS = 4, VECTORS = 2 };
#else
enum { WIDTH = 4, ROWS = 4, VECTORS = 4 };
#endif
typedef float wide __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t wide_bits __attribute__((vector_size(4 * WIDTH)));

#ifdef BF16
enum { PAIR = 2 };
typedef wide_bits weights;
#else
enum { PAIR = 1 };
typedef wide weights;
#endif

// sum += x[0] * w, or with pairs x[0] * (the first of each) + x[1] * (the second of each).
static inline wide add_product(wide sum, const cell *x, weights w) {
#if defined(BF16) && defined(__AVX512BF16__)
    int pair;
    memcpy(&pair, x, sizeof pair);
    return (wide)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32(pair));
#elif defined(BF16)
    sum += to_float(x[0]) * (wide)(w << 16);  // little-endian: the first is the low half
    return sum + to_float(x[1]) * (wide)(w & 0xffff0000u);
#else
    return sum + x[0] * w;
#endif
}

// to[rows][VECTORS * WIDTH] = x[rows][depth] * as many columns of a panel. `rows` is a constant
// wherever this is put in, so that the sums stay in registers.
static inline __attribute__((always_inline)) void tile(const cell *x, i64 stride, const cell *weight,
                                                       i64 depth, float (*to)[PANEL],
                                                       const int rows) {
    for (i64 start = 0; start < depth; start += RUN) {
        wide s[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) s[r][v] = (wide){0};
        i64 end = depth < start + RUN ? depth : start + RUN;
        for (i64 k = start; k < end; k += PAIR, weight += PAIR * PANEL) {
            weights w[VECTORS];
            for (int v = 0; v < VECTORS; v++)  // one by one: as a whole it would go through memory
                memcpy(&w[v], weight + v * PAIR * WIDTH, sizeof w[v]);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < VECTORS; v++)
                    s[r][v] = add_product(s[r][v], x + r * stride + k, w[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) {
                wide before = {0};
                if (start) memcpy(&before, to[r] + v * WIDTH, sizeof before);
                before += s[r][v];
                memcpy(to[r] + v * WIDTH, &before, sizeof before);
            }
    }
}

// to[num_rows][32] = x[num_rows][depth] * one panel.
static void multiply_panel(const cell *x, i64 stride, i64 num_rows, const cell *weight, i64 depth,
                           float (*to)[PANEL]) {
    for (; num_rows > 0; num_rows -= ROWS, x += ROWS * stride, to += ROWS)
        for (int v = 0; v < PANEL; v += VECTORS * WIDTH) {
            const cell *w = weight + v * PAIR;
            float(*at)[PANEL] = (float(*)[PANEL])(to[0] + v);
            switch (num_rows) {
#define CASE(n) \
    case n: tile(x, stride, w, depth, at, n < ROWS ? n : ROWS); break
                CASE(1);
                CASE(2);
                CASE(3);
                CASE(4);
                CASE(5);
                CASE(6);
                CASE(7);
                default: tile(x, stride, w, depth, at, ROWS);
            }
        }
}

// out = x * weight + bias + plus, divided among the threads of a parallel region; bias and plus may
// be NULL, and plus may be out itself. x: rows of `depth` cells, `stride` apart. With `floats`, what
// would go to out goes there, rounded as it would be.
static inline void multiply_shared(const cell *x, i64 stride, i64 rows, i64 depth,
                                   const cell *weight, const cell *bias, const cell *plus,
                                   cell *out, float *floats, i64 cols) {
#pragma omp for collapse(2) schedule(dynamic)
    for (i64 first = 0; first < rows; first += MOST_BLOCK)
        for (i64 col = 0; col < cols; col += PANEL) {
            i64 num_rows = rows - first < MOST_BLOCK ? rows - first : MOST_BLOCK;
            i64 width = cols - col < PANEL ? cols - col : PANEL;
            float s[MOST_BLOCK][PANEL];
            multiply_panel(x + first * stride, stride, num_rows, weight + col * depth, depth, s);
            for (i64 r = 0; r < num_rows; r++) {
                i64 at = (first + r) * cols + col;
                if (bias)
                    for (i64 c = 0; c < width; c++) s[r][c] += to_float(bias[col + c]);
                if (plus)
                    for (i64 c = 0; c < width; c++) s[r][c] += to_float(plus[at + c]);
                if (floats)
                    for (i64 c = 0; c < width; c++) floats[at + c] = to_float(to_cell(s[r][c]));
                else
                    for (i64 c = 0; c < width; c++) out[at + c] = to_cell(s[r][c]);
            }
        }
}

// out = silu(gate) * up, where gate and up are the two halves of x * weight: [2 * cols] columns,
// both halves whole panels. Neither is ever written to memory.
static inline void multiply_silu_shared(const cell *x, i64 rows, i64 depth, const cell *weight,
                                        cell *out, i64 cols) {
#pragma omp for collapse(2) schedule(dynamic)
    for (i64 first = 0; first < rows; first += MOST_BLOCK)
        for (i64 col = 0; col < cols; col += PANEL) {
            i64 num_rows = rows - first < MOST_BLOCK ? rows - first : MOST_BLOCK;
            float gate[MOST_BLOCK][PANEL], up[MOST_BLOCK][PANEL];
            multiply_panel(x + first * depth, depth, num_rows, weight + col * depth, depth, gate);
            multiply_panel(x + first * depth, depth, num_rows, weight + (cols + col) * depth, depth,
                           up);
            for (i64 r = 0; r < num_rows; r++) {
                cell g[PANEL], u[PANEL];  // rounded as they would be on their way through memory
                for (int c = 0; c < PANEL; c++) g[c] = to_cell(gate[r][c]), u[c] = to_cell(up[r][c]);
                silu_mul_row(g, u, out + (first + r) * cols + col, PANEL);
            }
        }
}
