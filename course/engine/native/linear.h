// Matrix products with weights in panels: the 32 weights that a step of the sum needs lie side by
// side, so a batch of any size streams them from memory once, in order, at full width.
//
// weight: [ceil(cols / 32)][depth / PAIR][32][PAIR]. With bfloat16 two steps of the sum go together,
// for which some processors have one instruction. A row's result does not depend on how many rows
// there are: its sums are always added in the same order.

#pragma once
#include "operations.h"
#include "team.h"
#if defined(BF16) && defined(__AVX512BF16__)
#include <immintrin.h>
#endif

enum {
    PANEL = 32,
    MOST_BLOCK = 96,  // rows that go through a panel while it is in the cache
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

// RUN: steps that are summed alone and then added: sums of sums round less. With bfloat16 the cells
// themselves are rounder by far.
#ifdef BF16
enum { PAIR = 2, RUN = 768 };
typedef wide_bits weights;
#else
enum { PAIR = 1, RUN = 192 };
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
//
// Meanwhile memory is asked for what is needed soon. Many rows take their time with a panel: each tile
// asks for `step` bytes of the next panel, from `soon` on, for each pair. A few rows do nothing but
// wait for memory, and with a step of 0 ask for this panel's next steps, or the next panel's first.
static inline __attribute__((always_inline)) void tile(const cell *x, i64 stride, const cell *weight,
                                                       i64 depth, float (*to)[PANEL], int add,
                                                       const char *soon, i64 step,
                                                       const int rows) {
    const i64 distance = rows == 1 ? 64 : rows < 5 ? 96 : 192;  // in steps; the more rows the later
    for (i64 start = 0; start < depth; start += RUN) {
        wide s[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) s[r][v] = (wide){0};
        i64 end = depth < start + RUN ? depth : start + RUN;
        for (i64 k = start; k < end;) {
            i64 stop = end < k + distance ? end : k + distance;
            const cell *later = weight + distance * PANEL;
            const char *ahead = k + distance < depth ? (const char *)later : soon;
            for (; k < stop; k += PAIR, weight += PAIR * PANEL) {
                if (step)
                    __builtin_prefetch(soon, 0, 2), soon += step;
                else
                    for (i64 i = 0; i < PAIR * PANEL; i += LINE, ahead += 64)
                        __builtin_prefetch(ahead, 0, 2);
                weights w[VECTORS];
                for (int v = 0; v < VECTORS; v++)  // one by one: as a whole it would go through memory
                    memcpy(&w[v], weight + v * PAIR * WIDTH, sizeof w[v]);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    for (int v = 0; v < VECTORS; v++)
                        s[r][v] = add_product(s[r][v], x + r * stride + k, w[v]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) {
                wide before = {0};
                if (start || add) memcpy(&before, to[r] + v * WIDTH, sizeof before);
                before += s[r][v];
                memcpy(to[r] + v * WIDTH, &before, sizeof before);
            }
    }
}

// to[num_rows][32] = x[num_rows][depth] * one panel, or, with `add`, so much more. `next` is the panel
// that this thread will probably do next.
//
// One or two rows take nearly as long as four: each has a chain of sums that waits for itself. So where
// so few would be left over, the last whole tile is shared with them; not where all wait for memory.
static void multiply_panel(const cell *x, i64 stride, i64 num_rows, const cell *weight, i64 depth,
                           const cell *next, float (*to)[PANEL], int add) {
    i64 left_over = num_rows % ROWS, bytes = PAIR * PANEL * sizeof(cell), now;
    int is_shared = num_rows > 2 * ROWS && (left_over == 1 || left_over == 2);
    i64 num_tiles = num_rows / ROWS - is_shared;
    i64 step = num_tiles > 1 ? bytes / num_tiles : 0;
    const char *soon = (const char *)next;
    for (; num_rows > 0; num_rows -= now, x += now * stride, to += now) {
        now = num_rows < ROWS ? num_rows : ROWS;
        if (is_shared && num_rows == ROWS + left_over) now = ROWS / 2 + 1;
        for (int v = 0; v < PANEL; v += VECTORS * WIDTH) {
            const cell *w = weight + v * PAIR;
            float(*at)[PANEL] = (float(*)[PANEL])(to[0] + v);
            switch (now) {
#define CASE(n) \
    case n: tile(x, stride, w, depth, at, add, soon, 0, n < ROWS ? n : ROWS); break
                CASE(1);
                CASE(2);
                CASE(3);
                CASE(4);
                CASE(5);
                CASE(6);
                CASE(7);
                default:
                    tile(x, stride, w, depth, at, add, soon, step, ROWS);
                    soon += step * (depth / PAIR) / (PANEL / (VECTORS * WIDTH));
            }
        }
    }
}

// The largest number of each row so far. place: as one number that threads can raise, with the
// number's rank in the upper half, NaN above all, and UINT32_MAX - place in the lower. most: the number
// itself, or a smaller one, if two threads have just raised it.
typedef struct {
    float *most;
    uint64_t *place;
} largest_yet;

static void raise_largest(largest_yet *found, i64 row, const float *x, i64 at, i64 width) {
    float most;
    i64 place = at + largest_of_row(x, width, &most);
    float no_sign = most + 0.0f;  // -0 is as large as 0
    uint32_t bits, rank = UINT32_MAX;
    memcpy(&bits, &no_sign, sizeof bits);
    if (most == most) rank = bits >> 31 ? ~bits : bits | 0x80000000u;
    uint64_t mine = (uint64_t)rank << 32 | (UINT32_MAX - place);
    uint64_t now = __atomic_load_n(found->place + row, __ATOMIC_RELAXED);
    while (mine > now)
        if (__atomic_compare_exchange_n(found->place + row, &now, mine, 1, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            __atomic_store(found->most + row, &most, __ATOMIC_RELAXED);
            break;
        }
}

// Look at `width` more numbers of a row, from the place `at` on, in any order. Nearly always all are
// smaller than what was seen before.
static inline __attribute__((always_inline)) void look_for_largest(largest_yet *found, i64 row,
                                                                   const float *x, i64 at,
                                                                   const i64 width) {
    float most;
    int may_be = 0;
    __atomic_load(found->most + row, &most, __ATOMIC_RELAXED);
#pragma omp simd reduction(| : may_be)
    for (i64 i = 0; i < width; i++) may_be |= !(x[i] < most);  // NaN, too
    if (may_be) raise_largest(found, row, x, at, width);
}

// One row of a panel's sums to where it belongs: see multiply_shared.
static inline void put_row(float *sums, const cell *bias, const cell *plus, cell *out, float *floats,
                           i64 width) {
    cell row[PANEL];
    if (width < PANEL) {  // the rest of a panel is in no column
        for (i64 c = 0; c < width; c++) {
            if (bias) sums[c] += to_float(bias[c]);
            if (plus) sums[c] += to_float(plus[c]);
            row[c] = to_cell(sums[c]);
        }
        for (i64 c = 0; floats && c < width; c++) floats[c] = to_float(row[c]);
        if (!floats) memcpy(out, row, width * sizeof(cell));
        return;
    }
    for (int c = 0; c < PANEL; c += LANES) {
        vec sum = at(sums + c);
        if (bias) sum += cells_at(bias + c);
        if (plus) sum += cells_at(plus + c);
        put(row + c, sum);
        if (floats) {
            sum = cells_at(row + c);
            memcpy(floats + c, &sum, sizeof sum);
        } else {
            memcpy(out + c, row + c, LANES * sizeof(cell));
        }
    }
}

// out = x * weight + bias + plus, divided among the team; bias and plus may be NULL, and plus may be
// out itself. x: rows of `depth` cells, `stride` apart. With `floats`, what would go to out goes
// there, rounded as it would be, and the largest of each row to `found`, unless it is NULL.
// following: the weight that is multiplied by next.
static inline void multiply_shared(team *t, const cell *x, i64 stride, i64 rows, i64 depth,
                                   const cell *weight, const cell *bias, const cell *plus,
                                   cell *out, float *floats, i64 cols, largest_yet *found,
                                   const cell *following) {
    i64 num_panels = (cols + PANEL - 1) / PANEL, size = PANEL * depth;
    i64 pieces = (rows + MOST_BLOCK - 1) / MOST_BLOCK * num_panels;
    for (i64 piece = take(t); piece < pieces; piece = take(t)) {
        i64 first = piece / num_panels * MOST_BLOCK, panel = piece % num_panels;
        i64 num_rows = rows - first < MOST_BLOCK ? rows - first : MOST_BLOCK, col = panel * PANEL;
        i64 width = cols - col < PANEL ? cols - col : PANEL, later = piece + t->num_threads;
        const cell *next = later < pieces ? weight + later % num_panels * size
                                          : following + (later - pieces) * size;
        float s[MOST_BLOCK][PANEL];
        multiply_panel(x + first * stride, stride, num_rows, weight + panel * size, depth, next, s, 0);
        for (i64 r = 0; r < num_rows; r++) {
            i64 at = (first + r) * cols + col;
#define PUT(width) \
    put_row(s[r], bias ? bias + col : NULL, plus ? plus + at : NULL, out + at, \
            floats ? floats + at : NULL, width); \
    if (found) look_for_largest(found, first + r, floats + at, col, width)
            if (width == PANEL) {  // a constant, for which the compiler needs no loops
                PUT(PANEL);
            } else {
                PUT(width);
            }
#undef PUT
        }
    }
    meet(t);
}

// out = silu(gate) * up, where gate and up are the two halves of x * weight: [2 * cols] columns,
// both halves whole panels. Neither is ever written to memory.
static inline void multiply_silu_shared(team *t, const cell *x, i64 rows, i64 depth,
                                        const cell *weight, cell *out, i64 cols,
                                        const cell *following) {
    i64 num_panels = cols / PANEL, size = PANEL * depth;
    i64 pieces = (rows + MOST_BLOCK - 1) / MOST_BLOCK * num_panels;
    for (i64 piece = take(t); piece < pieces; piece = take(t)) {
        i64 first = piece / num_panels * MOST_BLOCK, panel = piece % num_panels;
        i64 num_rows = rows - first < MOST_BLOCK ? rows - first : MOST_BLOCK, col = panel * PANEL;
        i64 later = piece + t->num_threads;
        const cell *gates = weight + panel * size, *ups = gates + cols * depth;
        const cell *next = later < pieces ? weight + later % num_panels * size : following;
        float gate[MOST_BLOCK][PANEL], up[MOST_BLOCK][PANEL];
        multiply_panel(x + first * depth, depth, num_rows, gates, depth, ups, gate, 0);
        multiply_panel(x + first * depth, depth, num_rows, ups, depth, next, up, 0);
        for (i64 r = 0; r < num_rows; r++) {
            cell g[PANEL], u[PANEL];  // rounded as they would be on their way through memory
            for (int c = 0; c < PANEL; c += LANES)
                put(g + c, at(gate[r] + c)), put(u + c, at(up[r] + c));
            silu_mul_row(g, u, out + (first + r) * cols + col, PANEL);
        }
    }
    meet(t);
}
