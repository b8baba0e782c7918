// Attention over the block table where it stands: no gather, no padding, no copy.

#pragma once
#include "cells.h"

enum {
    TILE = 32,         // keys looked at together: two vectors
    GROUP = 4,         // query rows that one pass of the small product handles
    MOST_ROWS = 64,    // query rows of one work item
    MOST_WIDTH = 256,  // largest head_dim
};

// The sum of the 16 lanes, by halves: adding lane after lane would wait for each sum.
static inline float sum_of(vec x) {
    half_vec a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, (float *)&x + LANES / 2, sizeof b);
    a += b;
    quarter_vec c, d;
    memcpy(&c, &a, sizeof c);
    memcpy(&d, (float *)&a + LANES / 4, sizeof d);
    c += d;
    return (c[0] + c[1]) + (c[2] + c[3]);
}

// sums[4][32] += a[4][depth] * b[depth][32]: eight vectors that stay in registers.
static inline void product(const float *a, i64 a_stride, const float *b, i64 b_stride, i64 depth,
                           float *sums, i64 sums_stride) {
    vec s[GROUP][2];
    for (int r = 0; r < GROUP; r++) memcpy(s[r], sums + r * sums_stride, sizeof s[r]);
    for (i64 i = 0; i < depth; i++) {
        vec b0 = at(b + i * b_stride), b1 = at(b + i * b_stride + LANES);
#pragma GCC unroll 4
        for (int r = 0; r < GROUP; r++) {
            s[r][0] += a[r * a_stride + i] * b0;
            s[r][1] += a[r * a_stride + i] * b1;
        }
    }
    for (int r = 0; r < GROUP; r++) memcpy(sums + r * sums_stride, s[r], sizeof s[r]);
}

// What one work item reads and keeps. A row is one query head of one query token.
typedef struct {
    float q[MOST_ROWS][MOST_WIDTH];
    float sums[MOST_ROWS][MOST_WIDTH];  // of weight * value, not yet divided
    float largest[MOST_ROWS], total[MOST_ROWS];
    float scores[MOST_ROWS][TILE];
    const cell *key[TILE], *value[TILE];  // where the keys and values of this tile lie
    cell padded[2][TILE][MOST_WIDTH];     // copies of them, if a head is not whole vectors
    float turned[MOST_WIDTH][TILE], v[TILE][MOST_WIDTH];
} scratch;

// Scores of four rows, key by key: for decode, where each key is looked at once. `width` is a
// constant wherever this is put in, so that the queries stay in registers.
static inline __attribute__((always_inline)) void few_scores(scratch *s, i64 r, i64 num_keys,
                                                             const i64 width) {
    for (i64 j = 0; j < num_keys; j++) {
        vec a = {0}, b = {0}, c = {0}, d = {0};  // as an array they would go through memory
#pragma GCC unroll 8
        for (i64 i = 0; i < width; i += LANES) {
            vec k = cells_at(s->key[j] + i);
            a += at(s->q[r] + i) * k;
            b += at(s->q[r + 1] + i) * k;
            c += at(s->q[r + 2] + i) * k;
            d += at(s->q[r + 3] + i) * k;
        }
        s->scores[r][j] = sum_of(a), s->scores[r + 1][j] = sum_of(b);
        s->scores[r + 2][j] = sum_of(c), s->scores[r + 3][j] = sum_of(d);
    }
}

static inline void few_sums(scratch *s, i64 r, i64 num_keys, i64 width) {
    for (i64 i = 0; i < width; i += 2 * LANES) {
        vec sums[GROUP][2];
        for (int n = 0; n < GROUP; n++) memcpy(sums[n], s->sums[r + n] + i, sizeof sums[n]);
        for (i64 j = 0; j < num_keys; j++) {
            vec v0 = cells_at(s->value[j] + i), v1 = cells_at(s->value[j] + i + LANES);
#pragma GCC unroll 4
            for (int n = 0; n < GROUP; n++) {
                sums[n][0] += s->scores[r + n][j] * v0;
                sums[n][1] += s->scores[r + n][j] * v1;
            }
        }
        for (int n = 0; n < GROUP; n++) memcpy(s->sums[r + n] + i, sums[n], sizeof sums[n]);
    }
}

// Scores to weights, for one row that sees the keys begin to end of this tile (online softmax).
static inline void weigh(scratch *s, i64 r, i64 begin, i64 end, i64 width) {
    float *scores = s->scores[r], largest = s->largest[r], total = 0;
    if (end <= begin) {
        memset(scores, 0, sizeof s->scores[r]);
        return;
    }
#pragma omp simd reduction(max : largest)
    for (i64 j = begin; j < end; j++) largest = scores[j] > largest ? scores[j] : largest;
#pragma omp simd reduction(+ : total)
    for (int j = 0; j < TILE; j++) {
        float weight = exp_of(scores[j] - largest);
        scores[j] = j >= begin && j < end ? weight : 0.0f;
        total += scores[j];
    }
    if (largest > s->largest[r]) {  // rescale what was summed under the old maximum
        float factor = s->largest[r] == -INFINITY ? 0.0f : exp_of(s->largest[r] - largest);
        for (i64 d = 0; d < width; d++) s->sums[r][d] *= factor;
        s->total[r] *= factor;
        s->largest[r] = largest;
    }
    s->total[r] += total;
}

// One query tile of one KV head. Rows: (query token, query head of the group), token first.
// width: head_dim, padded with zeros to whole pairs of vectors.
static void attend_tile(scratch *s, const cell *keys, const cell *values, const i64 *table,
                        i64 block_size, i64 slot_stride, i64 head_dim, i64 width, i64 num_rows,
                        i64 group, i64 first_position, i64 window) {
    i64 rows = (num_rows + GROUP - 1) / GROUP * GROUP;
    i64 last = first_position + (num_rows - 1) / group;
    i64 first = window && first_position - window + 1 > 0 ? first_position - window + 1 : 0;
    int many = rows > 2 * GROUP;  // then copying the tile as floats, the keys turned round, pays
    for (i64 r = 0; r < rows; r++) {
        s->largest[r] = -INFINITY;
        s->total[r] = 0;
        memset(s->sums[r], 0, width * sizeof(float));
    }
    for (i64 start = first; start <= last; start += TILE) {
        i64 num_keys = last + 1 - start < TILE ? last + 1 - start : TILE;
        i64 block = start / block_size, row = start % block_size;
        for (i64 j = 0; j < num_keys; j++) {  // slots past the last token are not touched
            i64 at = (table[block] * block_size + row) * slot_stride;
            if (++row == block_size) row = 0, block++;
            s->key[j] = keys + at, s->value[j] = values + at;
            if (width != head_dim) {
                s->key[j] = memcpy(s->padded[0][j], s->key[j], head_dim * sizeof(cell));
                s->value[j] = memcpy(s->padded[1][j], s->value[j], head_dim * sizeof(cell));
            }
        }
        if (many)
            for (i64 j = 0; j < num_keys; j++) {
                for (i64 d = 0; d < head_dim; d++) s->turned[d][j] = to_float(s->key[j][d]);
                for (i64 d = 0; d < width; d += LANES) {
                    vec v = cells_at(s->value[j] + d);
                    memcpy(s->v[j] + d, &v, sizeof v);
                }
            }
        for (i64 r = 0; r < rows; r += GROUP)
            if (many) {
                memset(s->scores[r], 0, sizeof s->scores[r] * GROUP);
                product(s->q[r], MOST_WIDTH, s->turned[0], TILE, head_dim, s->scores[r], TILE);
            } else if (width == 64)
                few_scores(s, r, num_keys, 64);
            else if (width == 128)
                few_scores(s, r, num_keys, 128);
            else
                few_scores(s, r, num_keys, width);
        for (i64 r = 0; r < num_rows; r++) {
            i64 position = first_position + r / group;
            i64 end = position + 1 - start < num_keys ? position + 1 - start : num_keys;
            i64 begin = window && position - window + 1 > start ? position - window + 1 - start : 0;
            weigh(s, r, begin, end, width);
        }
        for (i64 r = 0; r < rows; r += GROUP)
            if (many)
                for (i64 d = 0; d < width; d += TILE)
                    product(s->scores[r], TILE, s->v[0] + d, MOST_WIDTH, num_keys, s->sums[r] + d,
                            MOST_WIDTH);
            else
                few_sums(s, r, num_keys, width);
    }
}

// One step's attention: what is the same in every layer. items: [num_items][4]: sequence, first row
// of q, number of rows, position of the first. work: numbers of keys that are read, all together.
typedef struct {
    const i64 *tables;
    i64 max_blocks;
    const i64 *items;
    i64 num_items, num_heads, num_kv_heads, head_dim, block_size, window, work;
    float scale;
} attention;

// The attention of one layer, divided among the threads of a parallel region, each with its own
// scratch. A group of query heads shares each read of a key and a value. lse may be NULL.
static inline void attend_shared(const attention *a, scratch *s, const cell *q, i64 q_stride,
                                 const cell *keys, const cell *values, cell *out, float *lse) {
    i64 head_dim = a->head_dim, group = a->num_heads / a->num_kv_heads;
    i64 slot_stride = a->num_kv_heads * head_dim;
    i64 width = (head_dim + TILE - 1) / TILE * TILE;
    if (width != head_dim) {  // the padding of a head stays zero
        memset(s->q, 0, sizeof s->q);
        memset(s->padded, 0, sizeof s->padded);
    }
#pragma omp for collapse(2) schedule(dynamic)
    for (i64 item = 0; item < a->num_items; item++)
        for (i64 h = 0; h < a->num_kv_heads; h++) {
            const i64 *of = a->items + 4 * item;
            i64 num_rows = of[2] * group;
            for (i64 r = 0; r < num_rows; r++) {
                const cell *row = q + (of[1] + r / group) * q_stride;
                row += (h * group + r % group) * head_dim;
                for (i64 d = 0; d < head_dim; d++) s->q[r][d] = to_float(row[d]) * a->scale;
            }
            attend_tile(s, keys + h * head_dim, values + h * head_dim,
                        a->tables + of[0] * a->max_blocks, a->block_size, slot_stride, head_dim,
                        width, num_rows, group, of[3], a->window);
            for (i64 r = 0; r < num_rows; r++) {
                i64 place = (of[1] + r / group) * a->num_heads + h * group + r % group;
                for (i64 d = 0; d < head_dim; d++)
                    out[place * head_dim + d] = to_cell(s->sums[r][d] / s->total[r]);
                if (lse) lse[place] = s->largest[r] + logf(s->total[r]);
            }
        }
}
