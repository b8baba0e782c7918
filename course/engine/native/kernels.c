// The engine's small operations for a CPU, in C. PyTorch keeps the matrix products.
//
// A decode step of a small model is some 600 tiny operations, and in PyTorch the price of calling
// them is higher than the price of the arithmetic. Here each is one call, and attention walks the
// block table where it stands, as the Triton kernel does: no gather, no padding, no copy.
//
// The file is compiled once for float32 and once, with -DBF16, for bfloat16. A `cell` is a stored
// number; all arithmetic is float32. It says nothing about errors: Python has checked the shapes.

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef BF16
typedef uint16_t cell;  // the upper half of a float
static inline float to_float(cell c) {
    uint32_t bits = (uint32_t)c << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline cell to_cell(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;     // NaN stays NaN
}
#else
typedef float cell;
static inline float to_float(cell c) { return c; }
static inline cell to_cell(float x) { return x; }
#endif

typedef int64_t i64;
typedef float vec __attribute__((vector_size(64)));  // 16 floats; the compiler splits it if need be
typedef uint32_t bits_vec __attribute__((vector_size(64)));
typedef uint16_t cell_vec __attribute__((vector_size(32)));
typedef float half_vec __attribute__((vector_size(32)));
typedef float quarter_vec __attribute__((vector_size(16)));

enum {
    LANES = 16,
    TILE = 32,         // keys looked at together: two vectors
    ROWS = 4,          // query rows that one pass of the small product handles
    MOST_ROWS = 64,    // query rows of one work item
    MOST_WIDTH = 256,  // largest head_dim
    SMALL = 1 << 15,   // fewer numbers than this are not worth waking a second thread
};

// e^x in arithmetic that the compiler can do 16 at a time; relative error about 1e-7.
static inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to a whole number
    int32_t power;
    memcpy(&power, &n, 4);
    n -= 12582912.0f;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2, in two parts
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5.0000001e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &p, 4);
    bits += power << 23;
    memcpy(&p, &bits, 4);
    return p;
}

// out[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight, for each of `rows` rows.
void rms_norm(const cell *x, const cell *weight, cell *out, i64 rows, i64 width, float eps) {
#pragma omp parallel for if (rows * width > SMALL)
    for (i64 i = 0; i < rows; i++) {
        const cell *from = x + i * width;
        cell *to = out + i * width;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (i64 d = 0; d < width; d++) squares += to_float(from[d]) * to_float(from[d]);
        float factor = 1.0f / sqrtf(squares / width + eps);
#pragma omp simd
        for (i64 d = 0; d < width; d++) to[d] = to_cell(to_float(from[d]) * factor * to_float(weight[d]));
    }
}

// Turn the first `num_heads` heads of every row in place; cos and sin: float32 [rows, head_dim / 2].
void rope(cell *x, i64 stride, const float *cos, const float *sin, i64 rows, i64 num_heads,
          i64 head_dim) {
    i64 half = head_dim / 2;
#pragma omp parallel for if (rows * num_heads * head_dim > SMALL)
    for (i64 i = 0; i < rows; i++) {
        const float *c = cos + i * half, *s = sin + i * half;
        for (i64 h = 0; h < num_heads; h++) {
            cell *a = x + i * stride + h * head_dim, *b = a + half;
#pragma omp simd
            for (i64 d = 0; d < half; d++) {
                float u = to_float(a[d]), v = to_float(b[d]);
                a[d] = to_cell(u * c[d] - v * s[d]);
                b[d] = to_cell(v * c[d] + u * s[d]);
            }
        }
    }
}

// out[i] = silu(gate[i]) * up[i]; a row of gate_up is gate, then up.
void silu_mul(const cell *gate_up, cell *out, i64 rows, i64 width) {
#pragma omp parallel for if (rows * width > SMALL)
    for (i64 i = 0; i < rows; i++) {
        const cell *gate = gate_up + i * 2 * width, *up = gate + width;
        cell *to = out + i * width;
#pragma omp simd
        for (i64 d = 0; d < width; d++) {
            float g = to_float(gate[d]);
            to[d] = to_cell(g / (1.0f + exp_of(-g)) * to_float(up[d]));
        }
    }
}

// Row i of k and v, `width` cells, goes to slot slots[i] of one layer of the cache. Gives the first
// row whose slot is outside the cache, and then writes nothing; -1 is none.
i64 write(const cell *k, i64 k_stride, const cell *v, i64 v_stride, const i64 *slots, i64 rows,
          i64 width, cell *keys, cell *values, i64 num_slots) {
    for (i64 i = 0; i < rows; i++)
        if (slots[i] < 0 || slots[i] >= num_slots) return i;
    for (i64 i = 0; i < rows; i++) {
        memcpy(keys + slots[i] * width, k + i * k_stride, width * sizeof(cell));
        memcpy(values + slots[i] * width, v + i * v_stride, width * sizeof(cell));
    }
    return -1;
}

static inline vec at(const float *x) {
    vec loaded;
    memcpy(&loaded, x, sizeof loaded);
    return loaded;
}

static inline vec cells_at(const cell *x) {
#ifdef BF16
    cell_vec loaded;
    memcpy(&loaded, x, sizeof loaded);
    return (vec)(__builtin_convertvector(loaded, bits_vec) << 16);
#else
    return at(x);
#endif
}

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
    vec s[ROWS][2];
    for (int r = 0; r < ROWS; r++) memcpy(s[r], sums + r * sums_stride, sizeof s[r]);
    for (i64 i = 0; i < depth; i++) {
        vec b0 = at(b + i * b_stride), b1 = at(b + i * b_stride + LANES);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            s[r][0] += a[r * a_stride + i] * b0;
            s[r][1] += a[r * a_stride + i] * b1;
        }
    }
    for (int r = 0; r < ROWS; r++) memcpy(sums + r * sums_stride, s[r], sizeof s[r]);
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
        vec sums[ROWS][2];
        for (int n = 0; n < ROWS; n++) memcpy(sums[n], s->sums[r + n] + i, sizeof sums[n]);
        for (i64 j = 0; j < num_keys; j++) {
            vec v0 = cells_at(s->value[j] + i), v1 = cells_at(s->value[j] + i + LANES);
#pragma GCC unroll 4
            for (int n = 0; n < ROWS; n++) {
                sums[n][0] += s->scores[r + n][j] * v0;
                sums[n][1] += s->scores[r + n][j] * v1;
            }
        }
        for (int n = 0; n < ROWS; n++) memcpy(s->sums[r + n] + i, sums[n], sizeof sums[n]);
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
    i64 rows = (num_rows + ROWS - 1) / ROWS * ROWS;
    i64 last = first_position + (num_rows - 1) / group;
    i64 first = window && first_position - window + 1 > 0 ? first_position - window + 1 : 0;
    int many = rows > 2 * ROWS;  // then copying the tile as floats, the keys turned round, pays
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
        for (i64 r = 0; r < rows; r += ROWS)
            if (many) {
                memset(s->scores[r], 0, sizeof s->scores[r] * ROWS);
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
        for (i64 r = 0; r < rows; r += ROWS)
            if (many)
                for (i64 d = 0; d < width; d += TILE)
                    product(s->scores[r], TILE, s->v[0] + d, MOST_WIDTH, num_keys, s->sums[r] + d,
                            MOST_WIDTH);
            else
                few_sums(s, r, num_keys, width);
    }
}

// Attention of one layer. items: [num_items][4]: sequence, first row of q, number of rows, position
// of the first. A group of query heads shares each read of a key and a value.
void attend(const cell *q, i64 q_stride, const cell *keys, const cell *values, const i64 *tables,
            i64 max_blocks, const i64 *items, i64 num_items, i64 num_heads, i64 num_kv_heads,
            i64 head_dim, i64 block_size, i64 window, float scale, i64 work, cell *out,
            float *lse) {
    i64 group = num_heads / num_kv_heads, slot_stride = num_kv_heads * head_dim;
    i64 width = (head_dim + TILE - 1) / TILE * TILE;
#pragma omp parallel if (work > SMALL)
    {
        scratch s;
        if (width != head_dim) {  // the padding of a head stays zero
            memset(s.q, 0, sizeof s.q);
            memset(s.padded, 0, sizeof s.padded);
        }
#pragma omp for collapse(2) schedule(dynamic)
        for (i64 item = 0; item < num_items; item++)
            for (i64 h = 0; h < num_kv_heads; h++) {
                const i64 *of = items + 4 * item;
                i64 num_rows = of[2] * group;
                for (i64 r = 0; r < num_rows; r++) {
                    const cell *row = q + (of[1] + r / group) * q_stride;
                    row += (h * group + r % group) * head_dim;
                    for (i64 d = 0; d < head_dim; d++) s.q[r][d] = to_float(row[d]) * scale;
                }
                attend_tile(&s, keys + h * head_dim, values + h * head_dim,
                            tables + of[0] * max_blocks, block_size, slot_stride, head_dim, width,
                            num_rows, group, of[3], window);
                for (i64 r = 0; r < num_rows; r++) {
                    i64 place = (of[1] + r / group) * num_heads + h * group + r % group;
                    for (i64 d = 0; d < head_dim; d++)
                        out[place * head_dim + d] = to_cell(s.sums[r][d] / s.total[r]);
                    if (lse) lse[place] = s.largest[r] + logf(s.total[r]);
                }
            }
    }
}
