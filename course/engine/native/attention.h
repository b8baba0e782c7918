// Attention over the block table where it stands: no gather, no padding, no copy.

#pragma once
#include "linear.h"
#if defined(BF16) && defined(__AVX512BF16__)
#include <immintrin.h>
#endif

enum {
    TILE = 32,         // keys looked at together: two vectors
    GROUP = 4,         // query rows that one pass handles
    FEW_ROWS = 2 * GROUP,  // up to which a tile is looked at as it lies
    KEYS = 4,          // keys whose scores are summed up together
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

// Lane i of the result is the sum of v[i]: four rounds, in each of which two vectors become one.
static inline vec sums_of(vec *v) {
#ifdef __AVX512F__
#define HALVES(a, b, ...) \
    (__builtin_shufflevector(a, b, __VA_ARGS__))
    for (int i = 0; i < 8; i++) {
        vec a = v[i], b = v[i + 8];
        v[i] = HALVES(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               HALVES(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    for (int i = 0; i < 4; i++) {
        vec a = v[i], b = v[i + 4];
        v[i] = HALVES(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               HALVES(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    }
    for (int i = 0; i < 2; i++) {
        vec a = v[i], b = v[i + 2];
        v[i] = HALVES(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               HALVES(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
    vec a = v[0], b = v[1];
    return HALVES(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           HALVES(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
#undef HALVES
#else
    vec sums;
    for (int i = 0; i < LANES; i++) sums[i] = sum_of(v[i]);
    return sums;
#endif
}

// What one work item reads and keeps. A row is one query head of one query token. Its numbers lie
// `width` behind the last row's: with MOST_WIDTH, all rows would share a few places of the cache.
typedef struct {
    cell query[MOST_ROWS * MOST_WIDTH];
    float sums[MOST_ROWS * MOST_WIDTH];  // of weight * value, not yet divided
    float largest[MOST_ROWS], total[MOST_ROWS];
    float scores[MOST_ROWS][TILE];
    const cell *key[TILE], *value[TILE];            // where the keys and values of this tile lie
    const cell *next_key[TILE], *next_value[TILE];  // and those of the tile that comes after it
    cell padded[2][TILE][MOST_WIDTH];   // copies of them, if a head is not whole vectors
    uint32_t turned[MOST_WIDTH][TILE];  // the keys, as a panel of linear.h
    float v[TILE * MOST_WIDTH];         // the values
} scratch;

// Each thread's own, and not on its stack: a third of a megabyte is more than some stacks hold.
static _Thread_local scratch own __attribute__((aligned(64)));

// sum += q * k, over STEP cells; its lanes are to be added.
#if defined(BF16) && defined(__AVX512BF16__)
enum { STEP = 2 * LANES };
static inline vec add_dot(vec sum, const cell *q, const cell *k) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(q),
                                 (__m512bh)_mm512_loadu_si512(k));
}
#else
enum { STEP = LANES };
static inline vec add_dot(vec sum, const cell *q, const cell *k) {
    return sum + cells_at(q) * cells_at(k);
}
#endif

// Scores of a few rows, for decode, where each key is looked at once: four keys at a time. `rows`
// and `width` are constants wherever this is put in, so that the sums stay in registers.
//
// For each line of memory that is used, one of the next tile is asked for: blocks lie anywhere, so the
// processor cannot know what comes next, and asked for all at once they would hold it up.
static inline __attribute__((always_inline)) void few_scores(scratch *s, i64 r, i64 num_keys,
                                                             float scale, const int rows,
                                                             const i64 width) {
    for (i64 j = 0; j < num_keys; j += KEYS) {
        vec sums[GROUP * KEYS] = {{0}};
#pragma GCC unroll 8
        for (i64 i = 0; i < width; i += STEP) {
#pragma GCC unroll 4
            for (int k = 0; k < KEYS; k++) __builtin_prefetch(s->next_key[j + k] + i, 0, 2);
#pragma GCC unroll 4
            for (int n = 0; n < rows; n++)
#pragma GCC unroll 4
                for (int k = 0; k < KEYS; k++)
                    sums[n * KEYS + k] =
                        add_dot(sums[n * KEYS + k], s->query + (r + n) * width + i, s->key[j + k] + i);
        }
        vec all = sums_of(sums) * scale;
#pragma GCC unroll 4
        for (int n = 0; n < rows; n++)
            memcpy(s->scores[r + n] + j, (float *)&all + n * KEYS, KEYS * sizeof(float));
    }
}

static inline __attribute__((always_inline)) void few_sums(scratch *s, i64 r, i64 num_keys,
                                                           i64 width, const int rows) {
    for (i64 i = 0; i < width; i += 2 * LANES) {
        vec sums[GROUP][2];
#pragma GCC unroll 4
        for (int n = 0; n < rows; n++) {
            sums[n][0] = at(s->sums + (r + n) * width + i);
            sums[n][1] = at(s->sums + (r + n) * width + i + LANES);
        }
        for (i64 j = 0; j < num_keys; j++) {
            vec v0 = cells_at(s->value[j] + i), v1 = cells_at(s->value[j] + i + LANES);
            for (int at = 0; at < 2 * LANES; at += LINE)
                __builtin_prefetch(s->next_value[j] + i + at, 0, 2);
#pragma GCC unroll 4
            for (int n = 0; n < rows; n++) {
                sums[n][0] += s->scores[r + n][j] * v0;
                sums[n][1] += s->scores[r + n][j] * v1;
            }
        }
#pragma GCC unroll 4
        for (int n = 0; n < rows; n++) memcpy(s->sums + (r + n) * width + i, sums[n], sizeof sums[n]);
    }
}

// The two for 1 to GROUP rows, from r on.
static void score_few(scratch *s, i64 r, i64 rows, i64 num_keys, float scale, i64 width) {
#define SCORES(n) \
    (width == 64    ? few_scores(s, r, num_keys, scale, n, 64) \
     : width == 128 ? few_scores(s, r, num_keys, scale, n, 128) \
                    : few_scores(s, r, num_keys, scale, n, width))
    switch (rows) {
        case 1: SCORES(1); break;
        case 2: SCORES(2); break;
        case 3: SCORES(3); break;
        default: SCORES(GROUP);
    }
#undef SCORES
}

static void sum_few(scratch *s, i64 r, i64 rows, i64 num_keys, i64 width) {
    switch (rows) {
        case 1: few_sums(s, r, num_keys, width, 1); break;
        case 2: few_sums(s, r, num_keys, width, 2); break;
        case 3: few_sums(s, r, num_keys, width, 3); break;
        default: few_sums(s, r, num_keys, width, GROUP);
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
        for (i64 d = 0; d < width; d++) s->sums[r * width + d] *= factor;
        s->total[r] *= factor;
        s->largest[r] = largest;
    }
    s->total[r] += total;
}

// What one work item looks at: the tokens first to last of a sequence, in one KV head.
typedef struct {
    const cell *keys, *values;  // this head's in the first slot
    const i64 *table;
    i64 first, last, block_size, slot_stride;
} seen;

// Find a tile's keys and values; gives their number. Slots past the last token are not touched.
static i64 find(scratch *s, const seen *of, i64 start) {
    i64 num_keys = of->last + 1 - start < TILE ? of->last + 1 - start : TILE;
    i64 block = start / of->block_size, row = start % of->block_size;
    for (i64 j = 0; j < num_keys; j++) {
        i64 at = (of->table[block] * of->block_size + row) * of->slot_stride;
        if (++row == of->block_size) row = 0, block++;
        s->next_key[j] = of->keys + at, s->next_value[j] = of->values + at;
    }
    for (i64 j = num_keys; j < TILE; j++) {  // looked at, perhaps, and not used
        s->next_key[j] = s->next_key[num_keys - 1];
        s->next_value[j] = s->next_value[num_keys - 1];
    }
    return num_keys;
}

// One query tile of one KV head. Rows: (query token, query head of the group), token first.
// width: head_dim, padded with zeros to whole pairs of vectors. next: what probably comes after it.
static void attend_tile(scratch *s, const seen *of, const seen *next, i64 head_dim, i64 width,
                        i64 num_rows, i64 group, i64 first_position, i64 window, float scale) {
    i64 rows = (num_rows + GROUP - 1) / GROUP * GROUP;
    int many = rows > FEW_ROWS;  // then it pays to turn the keys round and to make the values floats
    memset(s->sums, 0, rows * width * sizeof(float));
    for (i64 r = 0; r < rows; r++) {
        s->largest[r] = -INFINITY;
        s->total[r] = 0;
    }
    for (i64 start = of->first, num_keys = find(s, of, start), later; start <= of->last;
         start += TILE, num_keys = later) {
        memcpy(s->key, s->next_key, sizeof s->key);
        memcpy(s->value, s->next_value, sizeof s->value);
        later = start + TILE <= of->last ? find(s, of, start + TILE) : find(s, next, next->first);
        for (i64 j = num_keys; j < later; j++)  // those that no key of this tile asks for
            for (i64 d = 0; d < head_dim; d += LINE) {
                __builtin_prefetch(s->next_key[j] + d, 0, 2);
                __builtin_prefetch(s->next_value[j] + d, 0, 2);
            }
        if (width != head_dim) {
            for (i64 j = 0; j < num_keys; j++) {
                s->key[j] = memcpy(s->padded[0][j], s->key[j], head_dim * sizeof(cell));
                s->value[j] = memcpy(s->padded[1][j], s->value[j], head_dim * sizeof(cell));
            }
            for (i64 j = num_keys; j % KEYS; j++) s->key[j] = s->key[num_keys - 1];
        }
        if (many)
            for (i64 j = 0; j < num_keys; j++) {
                for (i64 d = 0; d < head_dim; d += LINE) {
                    __builtin_prefetch(s->next_key[j] + d, 0, 2);
                    __builtin_prefetch(s->next_value[j] + d, 0, 2);
                }
                for (i64 word = 0; word < width / PAIR; word++)
                    memcpy(s->turned[word] + j, s->key[j] + word * PAIR, sizeof(uint32_t));
                for (i64 d = 0; d < width; d += LANES) {
                    vec v = cells_at(s->value[j] + d);
                    memcpy(s->v + j * width + d, &v, sizeof v);
                }
            }
        if (many) {
            const cell *panel = (const cell *)s->turned;
            multiply_panel(s->query, width, num_rows, panel, width, panel, s->scores);
            for (i64 r = 0; r < num_rows; r++)
                for (i64 j = 0; j < TILE; j++) s->scores[r][j] *= scale;
        } else
            for (i64 r = 0; r < rows; r += GROUP)
                score_few(s, r, num_rows - r, num_keys, scale, width);
        for (i64 r = 0; r < num_rows; r++) {
            i64 position = first_position + r / group;
            i64 end = position + 1 - start < num_keys ? position + 1 - start : num_keys;
            i64 begin = window && position - window + 1 > start ? position - window + 1 - start : 0;
            weigh(s, r, begin, end, width);
        }
        for (i64 r = 0; r < rows; r += GROUP)
            if (many)
                for (i64 d = 0; d < width; d += TILE)
                    product(s->scores[r], TILE, s->v + d, width, num_keys, s->sums + r * width + d,
                            width);
            else
                sum_few(s, r, num_rows - r, num_keys, width);
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

// What the work item of a piece looks at; of the last one where there are no more pieces.
static inline seen seen_by(const attention *a, i64 piece, const cell *keys, const cell *values) {
    i64 last = a->num_items * a->num_kv_heads - 1;
    piece = piece < last ? piece : last;
    const i64 *item = a->items + 4 * (piece / a->num_kv_heads);
    i64 at = piece % a->num_kv_heads * a->head_dim, first = a->window ? item[3] - a->window + 1 : 0;
    return (seen){
        .keys = keys + at,
        .values = values + at,
        .table = a->tables + item[0] * a->max_blocks,
        .first = first > 0 ? first : 0,
        .last = item[3] + item[2] - 1,
        .block_size = a->block_size,
        .slot_stride = a->num_kv_heads * a->head_dim,
    };
}

// The attention of one layer, divided among the team. A group of query heads shares each read of a
// key and a value. lse may be NULL.
static inline void attend_shared(team *t, const attention *a, const cell *q, i64 q_stride,
                                 const cell *keys, const cell *values, cell *out, float *lse) {
    scratch *s = &own;
    __asm__("" : "+r"(s));  // else it is looked up at every use, which is 45% slower
    i64 head_dim = a->head_dim, group = a->num_heads / a->num_kv_heads;
    i64 width = (head_dim + TILE - 1) / TILE * TILE;
    if (width != head_dim) {  // the padding of a head stays zero
        memset(s->query, 0, sizeof s->query);
        memset(s->padded, 0, sizeof s->padded);
    }
    for (i64 piece = take(t); piece < a->num_items * a->num_kv_heads; piece = take(t)) {
        const i64 *item = a->items + 4 * (piece / a->num_kv_heads);
        i64 first_head = piece % a->num_kv_heads * group, num_rows = item[2] * group;
        seen of = seen_by(a, piece, keys, values);
        seen next = seen_by(a, piece + t->num_threads, keys, values);
        for (i64 r = 0; r < num_rows; r++) {
            const cell *row = q + (item[1] + r / group) * q_stride;
            row += (first_head + r % group) * head_dim;
            memcpy(s->query + r * width, row, head_dim * sizeof(cell));
        }
        attend_tile(s, &of, &next, head_dim, width, num_rows, group, item[3], a->window, a->scale);
        for (i64 r = 0; r < num_rows; r++) {
            i64 place = (item[1] + r / group) * a->num_heads + first_head + r % group;
            for (i64 d = 0; d < head_dim; d++)
                out[place * head_dim + d] = to_cell(s->sums[r * width + d] / s->total[r]);
            if (lse) lse[place] = s->largest[r] + logf(s->total[r]);
        }
    }
    meet(t);
}
