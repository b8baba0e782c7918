// The engine's work on a CPU, in C: what Python calls. The parts are in the headers beside this.
//
// A decode step of a small model is some 600 tiny operations, and in PyTorch the price of calling
// them is higher than the price of the arithmetic. Here each is one call, or, with `forward`, all
// layers are. Nothing here says anything about errors: Python has checked the shapes.
//
// A function whose name ends in _shared is called by every thread of a team: they divide its work and
// leave it together.

#include "attention.h"
#include "cells.h"
#include "linear.h"
#include "operations.h"

// out[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight, for each of `rows` rows.
void rms_norm(const cell *x, const cell *weight, cell *out, i64 rows, i64 width, float eps) {
#pragma omp parallel for if (rows * width > SMALL)
    for (i64 i = 0; i < rows; i++) norm_row(x + i * width, weight, out + i * width, width, eps);
}

// Turn the first `num_heads` heads of every row in place; cos and sin: float32 [rows, head_dim / 2].
void rope(cell *x, i64 stride, const float *cos, const float *sin, i64 rows, i64 num_heads,
          i64 head_dim) {
    i64 half = head_dim / 2;
#pragma omp parallel for if (rows * num_heads * head_dim > SMALL)
    for (i64 i = 0; i < rows; i++)
        turn_row(x + i * stride, cos + i * half, sin + i * half, num_heads, head_dim);
}

// out[i] = silu(gate[i]) * up[i]; a row of gate_up is gate, then up.
void silu_mul(const cell *gate_up, cell *out, i64 rows, i64 width) {
#pragma omp parallel for if (rows * width > SMALL)
    for (i64 i = 0; i < rows; i++) {
        const cell *gate = gate_up + i * 2 * width;
        silu_mul_row(gate, gate + width, out + i * width, width);
    }
}

// The largest number of each row and its first place, as torch.max gives them.
void largest(const float *x, i64 rows, i64 width, float *most, i64 *places) {
#pragma omp parallel for if (rows * width > SMALL)
    for (i64 i = 0; i < rows; i++) places[i] = largest_of_row(x + i * width, width, most + i);
}

// For each row of weights, the place that its u, from [0, 1), falls on: see place_of.
void places(const float *weights, i64 rows, i64 width, const double *u, i64 *found) {
#pragma omp parallel for if (rows * width > SMALL)
    for (i64 i = 0; i < rows; i++) found[i] = place_of(weights + i * width, width, u[i]);
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

// The attention of one layer: see attend_shared.
void attend(const attention *a, const cell *q, i64 q_stride, const cell *keys, const cell *values,
            cell *out, float *lse) {
    team t = {0};
#pragma omp parallel if (a->work * a->num_heads * a->head_dim > SMALL)
    {
        join(&t);
        attend_shared(&t, a, q, q_stride, keys, values, out, lse);
    }
}

// out = x * weight + bias + plus: see multiply_shared. Or, with floats instead of out, the same
// numbers as float32; and then, unless they are NULL, each row's largest and its first place, too.
void linear(const cell *x, i64 stride, i64 rows, i64 depth, const cell *weight, const cell *bias,
            const cell *plus, cell *out, float *floats, i64 cols, float *most, i64 *places) {
    team t = {0};
    largest_yet found = {most, (uint64_t *)places};
    for (i64 i = 0; most && i < rows; i++) most[i] = -INFINITY, places[i] = 0;
#pragma omp parallel if (rows * depth * cols > SMALL)
    {
        join(&t);
        multiply_shared(&t, x, stride, rows, depth, weight, bias, plus, out, floats, cols,
                        most ? &found : NULL, weight);
    }
    for (i64 i = 0; most && i < rows; i++) {
        places[i] = UINT32_MAX - (uint32_t)found.place[i];
        most[i] = floats[i * cols + places[i]];
    }
}

typedef struct {
    const cell *attention_norm, *qkv, *qkv_bias, *o, *mlp_norm, *gate_up, *down;
} layer;

// What is the same in every step of one model and one cache.
typedef struct {
    const layer *layers;
    const cell *final_norm;
    i64 num_layers, hidden_size, intermediate_size;
    cell *keys, *values;
    i64 layer_stride;  // cells between one layer of the cache and the next
    float eps;
} model;

// All layers of one step: hidden [rows, hidden_size] goes in as embeddings and comes out normed. cos
// and sin are those of all positions. qkv, out and inner are memory to work in, as wide as their names
// say. Each layer writes its keys and values before it attends, since a token sees itself too.
void forward(const model *m, const attention *a, cell *hidden, i64 rows, const i64 *positions,
             const float *cos, const float *sin, const i64 *slots, cell *normed, cell *qkv, cell *out,
             cell *inner) {
    i64 head_dim = a->head_dim, kv_width = a->num_kv_heads * head_dim;
    i64 q_width = a->num_heads * head_dim, qkv_width = q_width + 2 * kv_width;
    i64 num_turned = a->num_heads + a->num_kv_heads, size = m->hidden_size;
    team t = {0};
#pragma omp parallel if (rows * size * m->intermediate_size > SMALL)
    {
        join(&t);
        const layer *end = m->layers + m->num_layers;
        for (const layer *l = m->layers; l < end; l++) {
            cell *keys = m->keys + (l - m->layers) * m->layer_stride;
            cell *values = m->values + (l - m->layers) * m->layer_stride;
            for (i64 i = take(&t); i < rows; i = take(&t))
                norm_row(hidden + i * size, l->attention_norm, normed + i * size, size, m->eps);
            meet(&t);
            multiply_shared(&t, normed, size, rows, size, l->qkv, l->qkv_bias, NULL, qkv, NULL,
                            qkv_width, NULL, l->o);
            for (i64 i = take(&t); i < rows; i = take(&t)) {
                cell *row = qkv + i * qkv_width, *k = row + q_width;
                i64 at = positions[i] * (head_dim / 2);
                turn_row(row, cos + at, sin + at, num_turned, head_dim);
                memcpy(keys + slots[i] * kv_width, k, kv_width * sizeof(cell));
                memcpy(values + slots[i] * kv_width, k + kv_width, kv_width * sizeof(cell));
            }
            meet(&t);
            attend_shared(&t, a, qkv, qkv_width, keys, values, out, NULL);
            multiply_shared(&t, out, q_width, rows, q_width, l->o, NULL, hidden, hidden, NULL, size,
                            NULL, l->gate_up);
            for (i64 i = take(&t); i < rows; i = take(&t))
                norm_row(hidden + i * size, l->mlp_norm, normed + i * size, size, m->eps);
            meet(&t);
            multiply_silu_shared(&t, normed, rows, size, l->gate_up, inner, m->intermediate_size,
                                 l->down);
            multiply_shared(&t, inner, m->intermediate_size, rows, m->intermediate_size, l->down,
                            NULL, hidden, hidden, NULL, size, NULL, l + 1 < end ? l[1].qkv : l->down);
        }
        for (i64 i = take(&t); i < rows; i = take(&t))
            norm_row(hidden + i * size, m->final_norm, normed + i * size, size, m->eps);
    }
}
