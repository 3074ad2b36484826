/* The same functions for processors with wider registers; which ones are used is decided when the module is loaded. */
#define VERSION(name, bytes, height, target)                                                                      \
    TILE(name, bytes, target)                                                                                     \
    MEET(name, bytes, height, 2, 1, height, target)                                                               \
    MEET(name##_turned, bytes, height, 2, records, 1, target)                                                     \
    MEET(name##_narrow, bytes, height, 1, records, 1, target)                                                     \
    target static void panels_##name(const Products *p, size_t i) {                                               \
        if (p->width == bytes / 4)                                                                                \
            right_in(p, i, bytes / 4);                                                                            \
        else                                                                                                      \
            right_in(p, i, 2 * bytes / 4);                                                                        \
    }                                                                                                             \
    target static void products_##name(const Products *p, size_t i, float *left) {                                \
        if (p->width == bytes / 4)                                                                                \
            products_in(p, i, left, height, bytes / 4, meet_##name##_narrow);                                     \
        else                                                                                                      \
            products_in(p, i, left, height, 2 * bytes / 4, p->turned_left ? meet_##name##_turned : meet_##name);    \
    }                                                                                                             \
    target static void normal_##name(const uint8_t *key, float *out, size_t n, float std, float grid,               \
                                     const Past *past, size_t first) {                                            \
        normal_in(key, out, n, std, grid, past, first);                                                           \
    }                                                                                                             \
    target static void mixed_##name(const uint8_t *keys, size_t stride, const float *weights, size_t streams,       \
                                    float *out, size_t n, float std, float grid) {                                \
        mixed_in(keys, stride, weights, streams, out, n, std, grid);                                              \
    }                                                                                                             \
    target static void outer_sum_##name(const float *narrow, const float *wide, float *out, size_t n, size_t rows, \
                                        size_t columns, size_t call, size_t first, size_t end) {                  \
        outer_sum_in(narrow, wide, out, n, rows, columns, call, first, end);                                      \
    }                                                                                                             \
    target static void squares_##name(const float *rows, float *out, size_t n, size_t width) {                     \
        squares_in(rows, out, n, width);                                                                          \
    }                                                                                                             \
    target static void strip_##name(const Digest *d, size_t i) { strip_in(d, i); }                                 \
    target static void pool_##name(const Pooling *p, size_t plane, float *lines, float *rows, float *found,         \
                                   float *place) {                                                                \
        if (p->places)                                                                                            \
            pool_in(p, plane, lines, rows, found, place, 1);                                                      \
        else                                                                                                      \
            pool_in(p, plane, lines, rows, found, place, 0);                                                      \
    }                                                                                                             \
    target static void form_##name(const Windows *w, size_t i, float *out) { form_in(w, i, out, tile_##name); }     \
    target static float measure_##name(const Windows *w, size_t i) { return measure_in(w, i, tile_##name); }       \
    target static void add_##name(const Windows *w, const float *weights, size_t i, float *out) {                  \
        add_in(w, weights, i, out, tile_##name);                                                                  \
    }                                                                                                             \
    target static void lstm_forward_##name(float *gates, float *cell, float *cells, float *squashed, float *out,   \
                                           size_t n) {                                                            \
        lstm_forward_in(gates, cell, cells, squashed, out, n);                                                    \
    }                                                                                                             \
    target static void lstm_backward_##name(const float *gates, const float *cells, const float *squashed,         \
                                            const float *d_state, float *d_cell, float *d_gates, size_t n) {      \
        lstm_backward_in(gates, cells, squashed, d_state, d_cell, d_gates, n);                                    \
    }                                                                                                             \
    static const Versions name = {normal_##name, mixed_##name, outer_sum_##name, squares_##name, strip_##name,    \
                                  form_##name, measure_##name, add_##name,                                        \
                                  lstm_forward_##name, lstm_backward_##name, panels_##name, products_##name,        \
                                  pool_##name, bytes / 4, height};

typedef struct {
    void (*normal)(const uint8_t *, float *, size_t, float, float, const Past *, size_t);
    void (*mixed)(const uint8_t *, size_t, const float *, size_t, float *, size_t, float, float);
    void (*outer_sum)(const float *, const float *, float *, size_t, size_t, size_t, size_t, size_t, size_t);
    void (*squares)(const float *, float *, size_t, size_t);
    void (*strip)(const Digest *, size_t);
    void (*form)(const Windows *, size_t, float *);
    float (*measure)(const Windows *, size_t);
    void (*add)(const Windows *, const float *, size_t, float *);
    void (*lstm_forward)(float *, float *, float *, float *, float *, size_t);
    void (*lstm_backward)(const float *, const float *, const float *, const float *, float *, float *, size_t);
    void (*panels)(const Products *, size_t); /* PANELS of them */
    void (*products)(const Products *, size_t, float *);
    void (*pool)(const Pooling *, size_t, float *, float *, float *, float *);
    size_t length, height; /* numbers in a register, rows of a panel of the left factor */
} Versions;

VERSION(plain, 16, 6, )
static Versions best;

#if defined(__GNUC__) && defined(__x86_64__)
VERSION(avx2, 32, 6, __attribute__((target("avx2,fma"))))
VERSION(avx512, 64, 8, __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma"))))

static Versions choose(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return plain;
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    return wide ? avx512 : avx2;
}
#else
static Versions choose(void) { return plain; }
#endif

#ifndef BEST /* tests compile each version */
#define BEST choose()
#endif
