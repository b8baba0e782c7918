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
