/* One step of an LSTM after its matrix product, forward and backward, entry by entry for one record. */

/* exp x, right to 2 units in the last place; infinite from 88.4 on, exp -87 below -87, and NaN stays. With
 * x = n log 2 + r, |r| <= log(2) / 2, it is 2^n exp(r); n is found by rounding, in the last bits of a large number. */
INLINE float exp_of(float x) {
    x = x > 89.0f ? 89.0f : x; /* where n is 128 */
    x = x < -87.0f ? -87.0f : x;
    float large = x * 1.442695041f + 0x1.8p23f, n = large - 0x1.8p23f, power;
    float r = x - n * 0.693359375f + n * 2.121944401e-4f;
    float p = 0.001381446476f;
    p = p * r + 0.008368780623f;
    p = p * r + 0.04166839426f;
    p = p * r + 0.1666652011f;
    p = p * r + 0.4999999341f;
    uint32_t bits;
    memcpy(&bits, &large, 4);
    bits = (bits + 127) << 23;
    memcpy(&power, &bits, 4);
    return (1.0f + (r + r * r * p)) * power;
}

INLINE float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

/* By a polynomial near zero, where the other form would lose digits. */
INLINE float tanh_of(float x) {
    float z = x * x, size = fabsf(x), p = -0.005528624594f;
    p = p * z + 0.02048330652f;
    p = p * z - 0.05369296452f;
    p = p * z + 0.1333089971f;
    p = p * z - 0.3333326288f;
    return copysignf(size > 0.65f ? 1.0f - 2.0f / (exp_of(2.0f * size) + 1.0f) : size + size * z * p, x);
}

/* Gates: output, input, forget and candidate, which are squashed here. `cells` keeps the cell as it was before. */
INLINE void lstm_forward_in(float *restrict gates, float *restrict cell, float *restrict cells, float *restrict squashed,
                            float *restrict out, size_t hidden) {
    for (size_t j = 0; j < hidden; j++) {
        float o = sigmoid_of(gates[j]), i = sigmoid_of(gates[hidden + j]);
        float f = sigmoid_of(gates[2 * hidden + j]), g = tanh_of(gates[3 * hidden + j]);
        float c = f * cell[j] + i * g, s = tanh_of(c);
        gates[j] = o, gates[hidden + j] = i, gates[2 * hidden + j] = f, gates[3 * hidden + j] = g;
        cells[j] = cell[j], cell[j] = c, squashed[j] = s, out[j] = o * s;
    }
}

/* Gradients of the gates, in PyTorch's order: input, forget, candidate, output. */
INLINE void lstm_backward_in(const float *restrict gates, const float *restrict cells, const float *restrict squashed,
                             const float *restrict d_state, float *restrict d_cell, float *restrict d_gates,
                             size_t hidden) {
    for (size_t j = 0; j < hidden; j++) {
        float o = gates[j], i = gates[hidden + j], f = gates[2 * hidden + j], g = gates[3 * hidden + j];
        float s = squashed[j], d_s = d_state[j], d_c = d_cell[j] + d_s * (o * (1.0f - s * s));
        d_gates[j] = d_c * (g * (i * (1.0f - i)));
        d_gates[hidden + j] = d_c * (cells[j] * (f * (1.0f - f)));
        d_gates[2 * hidden + j] = d_c * (i * (1.0f - g * g));
        d_gates[3 * hidden + j] = d_s * (s * (o * (1.0f - o)));
        d_cell[j] = d_c * f;
    }
}
