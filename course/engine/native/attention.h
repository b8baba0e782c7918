// Attention over the block table where it stands: no gather, no padding, no copy of the cache.
//
// It goes through the keys a tile at a time. The scores of a tile, and what their weights make of the
// values, are products of small matrices, with the tile's keys and values as panels.

#pragma once
#include "panels.h"

enum {
    MOST_ROWS = 64,    // query rows of one work item
    MOST_WIDTH = 256,  // largest head_dim
};

// What one work item reads and keeps. A row is one query head of one query token. Its numbers lie
// `width` behind the last row's: with MOST_WIDTH, all rows would share a few places of the cache.
typedef struct {
    cell query[MOST_ROWS * MOST_WIDTH];
    float sums[MOST_WIDTH / PANEL][MOST_ROWS][PANEL];  // of weight * value, not yet divided
    vec total[MOST_ROWS];                              // of the weights; its lanes are to be added
    float largest[MOST_ROWS];                          // score until now
    float scores[MOST_ROWS][TILE];
    cell weights[MOST_ROWS][TILE];                  // e^(score - largest)
    i64 begin[MOST_ROWS], end[MOST_ROWS];           // which keys of this tile a row sees
    const cell *key[TILE], *value[TILE];            // where the keys and values of this tile lie
    const cell *next_key[TILE], *next_value[TILE];  // and those of the tile that comes after it
    cell padded[2][TILE][MOST_WIDTH];               // copies of them, if a head is not whole panels
    key_panel keys[MOST_WIDTH];
    cell values[MOST_WIDTH / PANEL][TILE * PANEL];  // panels
} scratch;

// Each thread's own, and not on its stack: a quarter of a megabyte is more than some stacks hold.
static _Thread_local scratch own __attribute__((aligned(64)));

// For each line of memory that is used, one of the next tile is asked for: blocks lie anywhere, so the
// processor cannot know what comes next, and asked for all at once they would hold it up.
INLINE void ask_for(const cell *line) { __builtin_prefetch(line, 0, 2); }

INLINE void keys_to_panel(scratch *s, const i64 width) {
    for (i64 j = 0; j < TILE; j += TURNED) {
        for (int k = 0; k < TURNED; k++)
            for (i64 d = 0; d < width; d += LINE) ask_for(s->next_key[j + k] + d);
        for (i64 word = 0; word < width / PAIR; word += TURNED) turn_keys(s->key, word, s->keys, j);
    }
}

// Of an odd number the last is there twice: its second weight is 0.
INLINE void values_to_panels(scratch *s, i64 num_keys, const i64 width) {
    for (i64 j = 0; j < TILE; j += PAIR) {
        for (int k = 0; k < PAIR; k++)
            for (i64 d = 0; d < width; d += LINE) ask_for(s->next_value[j + k] + d);
        if (j < num_keys)
            for (i64 d = 0; d < width; d += PANEL)
                lay_values(s->value + j, d, s->values[d / PANEL] + j * PANEL);
    }
}

// Which lanes are from begin to end.
static inline int_vec between(i64 begin, i64 end) {
    int_vec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (lane >= (int32_t)begin) & (lane < (int32_t)end);
}

// Scores to weights, for rows from r on (online softmax). All rows go through the first half before the
// second, as each half of one row is a chain of sums in which every one waits for the one before.
INLINE void weigh(scratch *s, i64 r, i64 rows, float scale, const i64 width) {
    for (i64 n = r; n < r + rows; n++) {
        float *scores = s->scores[n], largest = s->largest[n];
        i64 begin = s->begin[n], end = s->end[n];
        for (int j = 0; j < TILE; j++) scores[j] *= scale;
        if (begin > 0 || end < TILE)
            for (int j = 0; j < TILE; j++) scores[j] = j >= begin && j < end ? scores[j] : -INFINITY;
#pragma omp simd reduction(max : largest)
        for (int j = 0; j < TILE; j++) largest = scores[j] > largest ? scores[j] : largest;
        if (largest > s->largest[n]) {  // rescale what was summed under the old one
            float factor = s->largest[n] == -INFINITY ? 0.0f : exp_of(s->largest[n] - largest);
            for (i64 panel = 0; panel < width / PANEL; panel++)
                for (int i = 0; i < PANEL; i++) s->sums[panel][n][i] *= factor;
            s->total[n] *= factor;
            s->largest[n] = largest;
        }
    }
    for (i64 n = r; n < r + rows; n++) {
        i64 begin = s->begin[n], end = s->end[n];
        for (int j = 0; j < TILE; j += LANES) {
            vec weights = exp_of_all(at(s->scores[n] + j) - s->largest[n]);
            if (begin > j || end < j + LANES) weights = choose(between(begin - j, end - j), weights, (vec){0});
            s->total[n] += weights;
            put(s->weights[n] + j, weights);
        }
    }
}

// A few rows, as in decode, are done with a tile before its panels could be written and read: here the
// same products are made while the panels are in registers. `rows` and `width` are constants.
#ifdef __AVX512BW__
enum { FEW_ROWS = 4 };

INLINE void few_scores(scratch *s, i64 r, const int rows, const i64 width) {
    const cell *query = s->query + r * width;
    for (i64 j = 0; j < TILE; j += TURNED) {
        wide sums[FEW_ROWS] = {{0}};
        for (i64 word = 0; word < width / PAIR; word += TURNED) {
            words t[4][4], turned[4];
            const cell **key = s->key + j;
            __asm__("" : "+r"(key));  // else all addresses are kept, in registers that are needed
            half_turn(key, word, t);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                turn(t, i, turned);
                for (int k = 0; k < 4; k++) ask_for(s->next_key[j + 4 * i + k] + word * PAIR);
#pragma GCC unroll 4
                for (int k = 0; k < 4; k++)
#pragma GCC unroll 4
                    for (int n = 0; n < rows; n++)
                        sums[n] = add_product(sums[n], query + n * width + (word + 4 * i + k) * PAIR,
                                              (weights)turned[k]);
            }
        }
#pragma GCC unroll 4
        for (int n = 0; n < rows; n++) memcpy(s->scores[r + n] + j, &sums[n], sizeof sums[n]);
    }
}

INLINE void few_sums(scratch *s, i64 r, i64 num_keys, const int rows, const i64 width) {
    enum { PANELS = 2, PARTS = 2 };  // panels at once, and registers of each
    for (i64 first = 0; first < width / PANEL; first += PANELS) {
        const int parts = PARTS * (width / PANEL - first < PANELS ? width / PANEL - first : PANELS);
        wide sums[FEW_ROWS][PANELS * PARTS];
#pragma GCC unroll 4
        for (int n = 0; n < rows; n++)
            for (int i = 0; i < parts; i++) sums[n][i] = (wide){0};
        for (i64 j = 0; j < num_keys; j += PAIR) {
            words v[PANELS * PARTS];
            for (int i = 0; i < parts; i += PARTS) {
                i64 d = (first + i / PARTS) * PANEL;
                for (int k = 0; k < PAIR; k++)
                    for (int at = 0; at < PANEL; at += LINE) ask_for(s->next_value[j + k] + d + at);
                turn_values(s->value + j, d, v + i);
            }
#pragma GCC unroll 4
            for (int n = 0; n < rows; n++)
#pragma GCC unroll 4
                for (int i = 0; i < parts; i++)
                    sums[n][i] = add_product(sums[n][i], s->weights[r + n] + j, (weights)v[i]);
        }
#pragma GCC unroll 4
        for (int n = 0; n < rows; n++)
            for (int i = 0; i < parts; i++) {
                float *to = s->sums[first + i / PARTS][r + n] + i % PARTS * WIDTH;
                wide before;
                memcpy(&before, to, sizeof before);
                before += sums[n][i];
                memcpy(to, &before, sizeof before);
            }
    }
}

INLINE void few(scratch *s, i64 r, i64 num_keys, float scale, const int rows, const i64 width) {
    few_scores(s, r, rows, width);
    weigh(s, r, rows, scale, width);
    few_sums(s, r, num_keys, rows, width);
}
#else
enum { FEW_ROWS = 0 };
INLINE void few(scratch *s, i64 r, i64 num_keys, float scale, const int rows, const i64 width) {}
#endif

// One tile, of whose keys the rows from r on see those from s->begin to s->end.
INLINE void tile_of_rows(scratch *s, i64 r, i64 rows, i64 num_keys, float scale, const i64 width) {
    switch (rows <= FEW_ROWS ? rows : 0) {
        case 1: few(s, r, num_keys, scale, 1, width); return;
        case 2: few(s, r, num_keys, scale, 2, width); return;
        case 3: few(s, r, num_keys, scale, 3, width); return;
        case 4: few(s, r, num_keys, scale, 4, width); return;
    }
    const cell *keys = (const cell *)s->keys, *query = s->query + r * width;
    i64 depth = (num_keys + PAIR - 1) / PAIR * PAIR;
    keys_to_panel(s, width);
    multiply_panel(query, width, rows, keys, width, keys, s->scores + r, 0);
    weigh(s, r, rows, scale, width);
    values_to_panels(s, num_keys, width);
    for (i64 i = 0; i < width / PANEL; i++)
        multiply_panel(s->weights[r], TILE, rows, s->values[i], depth, s->values[i], s->sums[i] + r, 1);
}

// What rows look at: the tokens first to last of a sequence, in one KV head.
typedef struct {
    const cell *keys, *values;  // this head's in the first slot
    const i64 *table;
    i64 first, last, block_size, slot_stride;
} seen;

// Find a tile's keys and values; gives their number. Slots past the last token are not touched.
static inline i64 find(scratch *s, const seen *of, i64 start) {
    i64 num_keys = of->last + 1 - start < TILE ? of->last + 1 - start : TILE;
    i64 block = start / of->block_size, row = start % of->block_size;
    for (i64 j = 0; j < num_keys; block++, row = 0) {
        i64 at = (of->table[block] * of->block_size + row) * of->slot_stride;
        i64 end = j + of->block_size - row < num_keys ? j + of->block_size - row : num_keys;
        for (; j < end; j++, at += of->slot_stride)
            s->next_key[j] = of->keys + at, s->next_value[j] = of->values + at;
    }
    for (i64 j = num_keys; j < TILE; j++) {  // multiplied, perhaps, by 0
        s->next_key[j] = s->next_key[num_keys - 1];
        s->next_value[j] = s->next_value[num_keys - 1];
    }
    return num_keys;
}

// Rows r on look at more keys. Rows: (query token, query head of the group), token first.
// width: head_dim, padded with zeros to whole panels. next: what probably comes after it.
static void look(scratch *s, i64 r, i64 rows, const seen *of, const seen *next, i64 head_dim,
                 i64 width, i64 group, i64 first_position, i64 window, float scale) {
    for (i64 start = of->first, num_keys = find(s, of, start), later; start <= of->last;
         start += TILE, num_keys = later) {
        memcpy(s->key, s->next_key, sizeof s->key);
        memcpy(s->value, s->next_value, sizeof s->value);
        later = start + TILE <= of->last ? find(s, of, start + TILE) : find(s, next, next->first);
        if (width != head_dim)
            for (i64 j = 0; j < TILE; j++) {
                s->key[j] = memcpy(s->padded[0][j], s->key[j], head_dim * sizeof(cell));
                s->value[j] = memcpy(s->padded[1][j], s->value[j], head_dim * sizeof(cell));
            }
        for (i64 n = 0; n < rows; n++) {
            i64 position = first_position + n / group, end = position + 1 - start;
            s->end[r + n] = end < num_keys ? end : num_keys;
            s->begin[r + n] = window && end > window ? end - window : 0;
        }
        if (width == 64)  // a constant, for which the compiler needs no loops
            tile_of_rows(s, r, rows, num_keys, scale, 64);
        else
            tile_of_rows(s, r, rows, num_keys, scale, width);
    }
}

// One step's attention: what is the same in every layer.
//
// A part is a few query tokens of one sequence: [sequence, first row of q, number of rows, position of
// the first]. A work item is parts that are done together, in one KV head: [first part, number of
// parts, number of keys]. Its parts begin with the same keys, so many, which are read once for all: whole
// tiles of them, so that each row goes through the same tiles as it would alone.
typedef struct {
    const i64 *tables;
    i64 max_blocks;
    const i64 *parts, *items;
    i64 num_items, num_heads, num_kv_heads, head_dim, block_size, window, work;  // keys read, all told
    float scale;
} attention;

// The keys from `first` on that a part sees in one head.
static inline seen seen_by(const attention *a, const i64 *part, i64 first, i64 kv_head,
                           const cell *keys, const cell *values) {
    i64 at = kv_head * a->head_dim, visible = a->window ? part[3] - a->window + 1 : 0;
    return (seen){
        .keys = keys + at,
        .values = values + at,
        .table = a->tables + part[0] * a->max_blocks,
        .first = first > visible ? first : visible,
        .last = part[3] + part[2] - 1,
        .block_size = a->block_size,
        .slot_stride = a->num_kv_heads * a->head_dim,
    };
}

// A row begins: its query, with the words in the order of `word_of`, and nothing seen yet.
static inline void begin_row(scratch *s, i64 r, const cell *query, i64 head_dim, i64 width) {
    cell row[MOST_WIDTH], *to = s->query + r * width;
    memcpy(row, query, head_dim * sizeof(cell));
    memset(row + head_dim, 0, (width - head_dim) * sizeof(cell));
    for (i64 i = 0; i < width / PAIR; i++)
        memcpy(to + i * PAIR, row + word_of(i) * PAIR, PAIR * sizeof(cell));
    for (i64 i = 0; i < width / PANEL; i++) memset(s->sums[i][r], 0, sizeof s->sums[i][r]);
    s->largest[r] = -INFINITY;
    s->total[r] = (vec){0};
}

// A row has seen all of its keys. lse may be NULL.
static inline void end_row(const scratch *s, i64 r, cell *out, i64 head_dim, float *lse) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += s->total[r][i];
    for (i64 d = 0; d < head_dim; d += PANEL) {
        i64 size = head_dim - d < PANEL ? head_dim - d : PANEL;
        cell row[PANEL];
        for (int i = 0; i < PANEL; i += LANES) put(row + i, at(s->sums[d / PANEL][r] + i) / total);
        memcpy(out + d, row, size * sizeof(cell));
    }
    if (lse) *lse = s->largest[r] + logf(total);
}

// The attention of one layer, divided among the team. A group of query heads shares each read of a
// key and a value. lse may be NULL.
static inline void attend_shared(team *t, const attention *a, const cell *q, i64 q_stride,
                                 const cell *keys, const cell *values, cell *out, float *lse) {
    scratch *s = &own;
    __asm__("" : "+r"(s));  // else it is looked up at every use, which is 45% slower
    i64 head_dim = a->head_dim, group = a->num_heads / a->num_kv_heads;
    i64 width = (head_dim + PANEL - 1) / PANEL * PANEL, pieces = a->num_items * a->num_kv_heads;
    if (width != head_dim) memset(s->padded, 0, sizeof s->padded);
    for (i64 piece = take(t); piece < pieces; piece = take(t)) {
        const i64 *item = a->items + 3 * (piece / a->num_kv_heads);
        const i64 *parts = a->parts + 4 * item[0], *end = parts + 4 * item[1];
        i64 kv_head = piece % a->num_kv_heads, first_head = kv_head * group, rows = 0, r = 0;
        i64 later = piece + t->num_threads < pieces ? piece + t->num_threads : pieces - 1;
        const i64 *later_part = a->parts + 4 * a->items[3 * (later / a->num_kv_heads)];
        seen next = seen_by(a, later_part, 0, later % a->num_kv_heads, keys, values);
        for (const i64 *part = parts; part < end; part += 4)
            for (i64 n = 0; n < part[2] * group; n++, rows++) {
                const cell *query = q + (part[1] + n / group) * q_stride;
                begin_row(s, rows, query + (first_head + n % group) * head_dim, head_dim, width);
            }
        if (item[2]) {
            seen after = seen_by(a, parts, item[2], kv_head, keys, values), all = after;
            all.first = 0, all.last = item[2] - 1;
            look(s, 0, rows, &all, &after, head_dim, width, group, all.last, 0, a->scale);
        }
        for (const i64 *part = parts; part < end; part += 4) {
            seen of = seen_by(a, part, item[2], kv_head, keys, values), after = next;
            if (part + 4 < end) after = seen_by(a, part + 4, item[2], kv_head, keys, values);
            i64 rows_of = part[2] * group;
            look(s, r, rows_of, &of, &after, head_dim, width, group, part[3], a->window, a->scale);
            for (i64 n = 0; n < rows_of; n++, r++) {
                i64 place = (part[1] + n / group) * a->num_heads + first_head + n % group;
                end_row(s, r, out + place * head_dim, head_dim, lse ? lse + place : NULL);
            }
        }
    }
    meet(t);
}
