// Stored numbers, vectors of them, and e^x. Everything is compiled once for float32 and once, with
// -DBF16, for bfloat16: a `cell` is a stored number, and all arithmetic is float32.

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(BF16) && defined(__AVX512BF16__)
#include <immintrin.h>
#endif

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
typedef int32_t int_vec __attribute__((vector_size(64)));
typedef uint32_t bits_vec __attribute__((vector_size(64)));
typedef uint16_t cell_vec __attribute__((vector_size(32)));
typedef float half_vec __attribute__((vector_size(32)));
typedef float quarter_vec __attribute__((vector_size(16)));

enum {
    LANES = 16,
    LINE = 64 / sizeof(cell),  // of memory
    SMALL = 1 << 15,  // fewer numbers than this are not worth waking a second thread
};

// e^x in arithmetic that the compiler can do 16 at a time; relative error about 1e-7.
static inline float exp_of(float number) {
    float x = number < -87.0f ? -87.0f : number > 88.0f ? 88.0f : number;
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
    bits += (uint32_t)power << 23;
    memcpy(&p, &bits, 4);
    return number != number ? number : number > 88.0f ? INFINITY : p;
}

// mask ? a : b, for each lane.
static inline vec choose(int_vec mask, vec a, vec b) {
    return (vec)((mask & (int_vec)a) | (~mask & (int_vec)b));
}

// The same for 16 numbers at once, of which none is above 88.
static inline vec exp_of_all(vec number) {
    vec x = choose(number < -87.0f, (vec){0} - 87.0f, number);
    vec n = x * 1.44269504f + 12582912.0f;
    int_vec power = (int_vec)n;
    n -= 12582912.0f;
    vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * 1.9875691e-4f + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5.0000001e-1f;
    p = p * r * r + r + 1.0f;
    return choose(number != number, number, (vec)((int_vec)p + (power << 23)));
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

static inline void put(cell *to, vec x) {
#if defined(BF16) && defined(__AVX512BF16__)
    __m256bh cells = _mm512_cvtneps_pbh((__m512)x);
    memcpy(to, &cells, sizeof cells);
#else
    for (int i = 0; i < LANES; i++) to[i] = to_cell(x[i]);
#endif
}
