/* The same functions for processors with wider registers; which ones are used is decided when the module is loaded. */
#define VERSION(name, bytes, height, target)                                                                      \
    TILE(name, bytes, target)                                                                                     \
    MEET(name, bytes, height, target)                                                                             \
    target static size_t at_once_##name(const Products *p) { return rows_at_once(p, height); }                     \
    target static void panels_##name(const Products *p, size_t i) {                                               \
        size_t width = 2 * bytes / 4, first = i * PANELS * width;                                                 \
        panels_in(p->right, p->weights, p->records, p->columns, first, at_most(p->columns - first, PANELS * width), \
                  width, p->panels + first * p->records);                                                         \
    }                                                                                                             \
    target static void products_##name(const Products *p, size_t above, float *left) {                            \
        products_in(p, above, left, height, 2 * bytes / 4, meet_##name);                                          \
    }                                                                                                             \
    target static void normal_##name(const uint8_t *key, float *out, size_t n, float std, float grid) {             \
        normal_in(key, out, n, std, grid);                                                                        \
    }                                                                                                             \
    target static void outer_sum_##name(const float *narrow, const float *wide, float *out, size_t n, size_t rows, \
                                        size_t columns, size_t call, size_t first, size_t end) {                  \
        outer_sum_in(narrow, wide, out, n, rows, columns, call, first, end);                                      \
    }                                                                                                             \
    target static void squares_##name(const float *rows, float *out, size_t n, size_t width) {                     \
        squares_in(rows, out, n, width);                                                                          \
    }                                                                                                             \
    target static uint64_t digest_##name(const uint32_t *w, size_t n, const uint32_t *key) {                       \
        return digest_in(w, n, key);                                                                              \
    }                                                                                                             \
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
    static const Versions name = {normal_##name, outer_sum_##name, squares_##name, digest_##name,                 \
                                  form_##name, measure_##name, add_##name,                                        \
                                  lstm_forward_##name, lstm_backward_##name, at_once_##name, panels_##name,         \
                                  products_##name, pool_##name, 2 * bytes / 4};

typedef struct {
    void (*normal)(const uint8_t *, float *, size_t, float, float);
    void (*outer_sum)(const float *, const float *, float *, size_t, size_t, size_t, size_t, size_t, size_t);
    void (*squares)(const float *, float *, size_t, size_t);
    uint64_t (*digest)(const uint32_t *, size_t, const uint32_t *);
    void (*form)(const Windows *, size_t, float *);
    float (*measure)(const Windows *, size_t);
    void (*add)(const Windows *, const float *, size_t, float *);
    void (*lstm_forward)(float *, float *, float *, float *, float *, size_t);
    void (*lstm_backward)(const float *, const float *, const float *, const float *, float *, float *, size_t);
    size_t (*at_once)(const Products *);
    void (*panels)(const Products *, size_t); /* PANELS of them */
    void (*products)(const Products *, size_t, float *);
    void (*pool)(const Pooling *, size_t, float *, float *, float *, float *);
    size_t width; /* columns of a panel */
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
