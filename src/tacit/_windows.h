/* Sums over the windows of an image: for every record by itself the gradient of a convolution's weight,
 *
 *     out[record][block][o][k] = sum over images and places p of grad[o][p] * image[starts[p] + entries[k]]
 *
 * where a record has `images` images of `blocks` groups of channels each (image: one after the other, `extent` numbers a
 * block; grad: `outputs` rows of `places` numbers a block). No window is copied. The order of additions follows from the
 * dimensions alone: a record gives the same bits beside any others, in every place and in every call.
 */
#define OUTPUTS 16 /* that are summed side by side, for HEIGHT entries of the window: as many as registers hold */
#define HEIGHT 6
#define PLACES 256 /* whose gradients are turned round at a time, so that they stay in the innermost cache */

typedef struct {
    const int32_t *starts, *entries; /* of `places` and `width` numbers, the latter a multiple of HEIGHT */
    size_t records, images, blocks, outputs, places, window, width, extent;
} Windows;

/* sum[k][o] += image[start of p + entry k] * turned[p][o] for HEIGHT entries, OUTPUTS outputs and some places. */
typedef void (*Tile)(const float *image, const int32_t *starts, size_t places, const int32_t *entries,
                     const float *turned, float *sum);

/* Written with vectors as wide as a register: compilers keep arrays of that size in memory. */
#define TILE(name, bytes, target)                                                                                     \
    target static void tile_##name(const float *image, const int32_t *starts, size_t places, const int32_t *entries,  \
                                   const float *turned, float *sum) {                                                 \
        typedef float Vector __attribute__((vector_size(bytes), aligned(4), may_alias));                              \
        enum { LENGTH = bytes / 4, PARTS = OUTPUTS / LENGTH };                                                        \
        Vector kept[HEIGHT][PARTS];                                                                                   \
        for (int k = 0; k < HEIGHT; k++)                                                                              \
            for (int v = 0; v < PARTS; v++) kept[k][v] = *(const Vector *)(sum + k * OUTPUTS + v * LENGTH);           \
        for (size_t p = 0; p < places; p++, turned += OUTPUTS)                                                        \
            for (int k = 0; k < HEIGHT; k++)                                                                          \
                for (int v = 0; v < PARTS; v++)                                                                       \
                    kept[k][v] += image[starts[p] + entries[k]] * *(const Vector *)(turned + v * LENGTH);             \
        for (int k = 0; k < HEIGHT; k++)                                                                              \
            for (int v = 0; v < PARTS; v++) *(Vector *)(sum + k * OUTPUTS + v * LENGTH) = kept[k][v];                 \
    }

/* Up to OUTPUTS rows of `places` numbers as columns; what is missing are zeros. */
INLINE void turn_round(const float *rows, size_t count, size_t row, size_t places, float *turned) {
    for (size_t p = 0; p < places; p++)
        for (size_t o = 0; o < OUTPUTS; o++) turned[p * OUTPUTS + o] = o < count ? rows[o * row + p] : 0.0f;
}

/* `sum` has OUTPUTS numbers for each of `width` entries, and `turned` for each of PLACES places. */
INLINE void windows_in(const float *image, const float *grad, float *out, const Windows *w, float *sum, float *turned,
                       Tile tile) {
    size_t rows = w->outputs * w->places;
    for (size_t at = 0; at < w->records * w->blocks; at++) {
        size_t first = at / w->blocks * w->images * w->blocks + at % w->blocks; /* of the record's first image */
        for (size_t above = 0; above < w->outputs; above += OUTPUTS) {
            size_t count = w->outputs - above < OUTPUTS ? w->outputs - above : OUTPUTS;
            memset(sum, 0, w->width * OUTPUTS * sizeof(float));
            for (size_t i = 0; i < w->images; i++)
                for (size_t p = 0; p < w->places; p += PLACES) {
                    size_t n = w->places - p < PLACES ? w->places - p : PLACES, block = first + i * w->blocks;
                    turn_round(grad + block * rows + above * w->places + p, count, w->places, n, turned);
                    for (size_t k = 0; k < w->width; k += HEIGHT)
                        tile(image + block * w->extent, w->starts + p, n, w->entries + k, turned, sum + k * OUTPUTS);
                }
            float *here = out + (at * w->outputs + above) * w->window;
            for (size_t o = 0; o < count; o++)
                for (size_t k = 0; k < w->window; k++) here[o * w->window + k] = sum[k * OUTPUTS + o];
        }
    }
}
