// Keys and values turned into panels, as linear.h has them: what attention multiplies by.
//
// A word is PAIR cells. In a panel of keys a step of the sum is a word of each key, and `word_of` says
// which. In a panel of values it is PAIR values, whose numbers lie side by side.

#pragma once
#include "linear.h"
#ifdef __AVX512BW__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))  // for what has constants as arguments

enum { TILE = PANEL };  // keys looked at together
typedef uint32_t key_panel[TILE];

#ifdef __AVX512BW__
enum { TURNED = 16 };  // keys that are turned round together, and words of each
typedef __m512i words;

// Of 16, in the order in which they come out.
static inline i64 word_of(i64 step) { return step / 16 * 16 + step % 4 * 4 + step / 4 % 4; }

// Lane 4 * n + k of t[g][i] is word 4 * n + i of key 4 * g + k. That is half of the way.
INLINE void half_turn(const cell **key, i64 word, words t[4][4]) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        words a[4], b[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) a[k] = _mm512_loadu_si512(key[4 * g + k] + word * PAIR);
        b[0] = _mm512_unpacklo_epi32(a[0], a[1]), b[1] = _mm512_unpackhi_epi32(a[0], a[1]);
        b[2] = _mm512_unpacklo_epi32(a[2], a[3]), b[3] = _mm512_unpackhi_epi32(a[2], a[3]);
        t[g][0] = _mm512_unpacklo_epi64(b[0], b[2]), t[g][1] = _mm512_unpackhi_epi64(b[0], b[2]);
        t[g][2] = _mm512_unpacklo_epi64(b[1], b[3]), t[g][3] = _mm512_unpackhi_epi64(b[1], b[3]);
    }
}

// The other half: to[n], lane k, is word 4 * n + i of key k.
INLINE void turn(words t[4][4], int i, words to[4]) {
    words a = _mm512_shuffle_i32x4(t[0][i], t[1][i], 0x44);
    words b = _mm512_shuffle_i32x4(t[2][i], t[3][i], 0x44);
    words c = _mm512_shuffle_i32x4(t[0][i], t[1][i], 0xee);
    words d = _mm512_shuffle_i32x4(t[2][i], t[3][i], 0xee);
    to[0] = _mm512_shuffle_i32x4(a, b, 0x88), to[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    to[2] = _mm512_shuffle_i32x4(c, d, 0x88), to[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

INLINE void turn_keys(const cell **key, i64 word, key_panel *panel, i64 j) {
    words t[4][4], to[4];
    half_turn(key + j, word, t);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        turn(t, i, to);
        for (int n = 0; n < 4; n++) memcpy(panel[word + 4 * i + n] + j, &to[n], sizeof to[n]);
    }
}
// The same for values: PANEL numbers of each, those of value[0] and value[1] side by side.
INLINE void turn_values(const cell **value, i64 d, words to[2]) {
#ifdef BF16
    static const uint16_t places[PANEL] __attribute__((aligned(64))) = {
        0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
        8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    words low = _mm512_load_si512(places), half = _mm512_set1_epi16(PANEL / 2);
    words a = _mm512_loadu_si512(value[0] + d), b = _mm512_loadu_si512(value[1] + d);
    to[0] = _mm512_permutex2var_epi16(a, low, b);
    to[1] = _mm512_permutex2var_epi16(a, _mm512_add_epi16(low, half), b);
#else
    to[0] = _mm512_loadu_si512(value[0] + d), to[1] = _mm512_loadu_si512(value[0] + d + LANES);
#endif
}

INLINE void lay_values(const cell **value, i64 d, cell *panel) {
    words v[2];
    turn_values(value, d, v);
    for (int i = 0; i < 2; i++) memcpy(panel + i * PAIR * LANES, &v[i], sizeof v[i]);
}
#else
enum { TURNED = 4 };
static inline i64 word_of(i64 step) { return step; }
typedef uint32_t words __attribute__((vector_size(16)));
#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (words){__VA_ARGS__})
#endif

INLINE void turn_keys(const cell **key, i64 word, key_panel *panel, i64 j) {
    words a[4], b[4];
    for (int k = 0; k < 4; k++) memcpy(&a[k], key[j + k] + word * PAIR, sizeof a[k]);
    b[0] = PICK(a[0], a[1], 0, 4, 1, 5), b[1] = PICK(a[0], a[1], 2, 6, 3, 7);
    b[2] = PICK(a[2], a[3], 0, 4, 1, 5), b[3] = PICK(a[2], a[3], 2, 6, 3, 7);
    a[0] = PICK(b[0], b[2], 0, 1, 4, 5), a[1] = PICK(b[0], b[2], 2, 3, 6, 7);
    a[2] = PICK(b[1], b[3], 0, 1, 4, 5), a[3] = PICK(b[1], b[3], 2, 3, 6, 7);
    for (int k = 0; k < 4; k++) memcpy(panel[word + k] + j, &a[k], sizeof a[k]);
}

INLINE void lay_values(const cell **value, i64 d, cell *panel) {
    for (int i = 0; i < PANEL; i++)
        for (int k = 0; k < PAIR; k++) panel[i * PAIR + k] = value[k][d + i];
}
#endif
