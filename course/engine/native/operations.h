// The small operations of a layer, a row at a time.

#pragma once
#include "cells.h"

// to = from / sqrt(mean(from^2) + eps) * weight
static inline void norm_row(const cell *from, const cell *weight, cell *to, i64 width, float eps) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (i64 d = 0; d < width; d++) squares += to_float(from[d]) * to_float(from[d]);
    float factor = 1.0f / sqrtf(squares / width + eps);
    i64 d = 0;
    for (; d + LANES <= width; d += LANES)
        put(to + d, cells_at(from + d) * factor * cells_at(weight + d));
    for (; d < width; d++) to[d] = to_cell(to_float(from[d]) * factor * to_float(weight[d]));
}

// Turn the heads of a row in place; cos and sin: [head_dim / 2], of the row's position.
static inline void turn_row(cell *row, const float *cos, const float *sin, i64 num_heads,
                            i64 head_dim) {
    i64 half = head_dim / 2;
    for (i64 h = 0; h < num_heads; h++) {
        cell *a = row + h * head_dim, *b = a + half;
        i64 d = 0;
        for (; d + LANES <= half; d += LANES) {
            vec u = cells_at(a + d), v = cells_at(b + d);
            put(a + d, u * at(cos + d) - v * at(sin + d));
            put(b + d, v * at(cos + d) + u * at(sin + d));
        }
        for (; d < half; d++) {
            float u = to_float(a[d]), v = to_float(b[d]);
            a[d] = to_cell(u * cos[d] - v * sin[d]);
            b[d] = to_cell(v * cos[d] + u * sin[d]);
        }
    }
}

// to = silu(gate) * up
static inline void silu_mul_row(const cell *gate, const cell *up, cell *to, i64 width) {
    i64 d = 0;
    for (; d + LANES <= width; d += LANES) {
        vec g = cells_at(gate + d), zero = {0};
        int_vec is_low = g < -88.0f;
        vec all = choose(is_low, zero, g / (1.0f + exp_of_all(choose(is_low, zero, -g))));
        put(to + d, all * cells_at(up + d));
    }
    for (; d < width; d++) {
        float g = to_float(gate[d]);
        to[d] = to_cell(g / (1.0f + exp_of(-g)) * to_float(up[d]));
    }
}

// The largest of a row and its first place, which the return value is; NaN counts as the largest.
static inline i64 largest_of_row(const float *x, i64 width, float *largest) {
    float most = -INFINITY;
    int has_nan = 0;
#pragma omp simd reduction(max : most) reduction(| : has_nan)
    for (i64 i = 0; i < width; i++) {
        most = x[i] > most ? x[i] : most;
        has_nan |= x[i] != x[i];
    }
    *largest = has_nan ? NAN : most;
    i64 at = 0;
    for (; at + 64 <= width; at += 64) {  // which 64 it is in, without a branch for each
        int is_here = 0;
#pragma omp simd reduction(| : is_here)
        for (i64 i = at; i < at + 64; i++) is_here |= has_nan ? x[i] != x[i] : x[i] == most;
        if (is_here) break;
    }
    while (at + 1 < width && !(has_nan ? x[at] != x[at] : x[at] == most)) at++;
    return at;
}

// The first place where the running total of the weights passes u times their total. A weight of 0
// does not raise the total, so it is never found.
static inline i64 place_of(const float *weights, i64 width, double u) {
    enum { RUN_OF = 256 };
    double total = 0, running = 0;
    for (i64 at = 0; at < width; at += RUN_OF) {
        i64 end = at + RUN_OF < width ? at + RUN_OF : width;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 i = at; i < end; i++) sum += weights[i];
        total += sum;
    }
    double goal = u * total;
    for (i64 at = 0; at < width; at += RUN_OF) {
        i64 end = at + RUN_OF < width ? at + RUN_OF : width;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 i = at; i < end; i++) sum += weights[i];
        if (running + sum > goal) {
            double within = running;
            for (i64 i = at; i < end; i++)
                if ((within += weights[i]) > goal) return i;
        }
        running += sum;
    }
    i64 last = width - 1;  // u is so near to 1 that rounding took what was left
    while (last > 0 && weights[last] == 0) last--;
    return last;
}
