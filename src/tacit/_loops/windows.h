/* The gradient of a convolution's weight for every record by itself, without a copy of its windows:
 *
 *     G[block][o][k] = sum over images and places p of grad[o][p] * image[starts[p] + entries[k]]
 *
 * where a record has `images` images of `blocks` groups of channels each (image: one after the other, `extent` numbers a
 * block; grad: `outputs` rows of `places` numbers a block). The order of additions follows from the dimensions alone:
 * a record gives the same bits beside any others, in every place and in every call, whatever is done with them then.
 */
#define OUTPUTS 16 /* that are summed side by side, for HEIGHT entries of the window: as many as registers hold */
#define HEIGHT 6
#define PLACES 256 /* and entries of the window at a time, so that all of it stays in the innermost caches */
#define ENTRIES 240

typedef struct {
    const float *image, *grad;
    const int32_t *starts, *entries; /* of `places` and `window` numbers */
    size_t records, images, blocks, outputs, places, window, extent;
} Windows;

/* sum[k][o] += image[start of p + entry k] * turned[p][o] for HEIGHT entries, OUTPUTS outputs and some places. */
typedef void (*Tile)(const float *image, const int32_t *starts, size_t places, const int32_t *entries,
                     const float *turned, float *sum);

/* Written with vectors as wide as a register: compilers keep arrays of that size in memory. Never inlined: all
 * callers have the same instructions, and so the same bits. */
#define TILE(name, bytes, target)                                                                                     \
    target __attribute__((noinline)) static void tile_##name(const float *image, const int32_t *starts, size_t places, \
                                                             const int32_t *entries, const float *turned,             \
                                                             float *sum) {                                            \
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

/* A piece of G: the outputs from `above` and the entries from `from` on, at most OUTPUTS and ENTRIES of them. */
typedef struct {
    size_t block, above, from, outputs, entries;
} Piece;

INLINE size_t pieces_across(const Windows *w) { return (w->window + ENTRIES - 1) / ENTRIES; }
INLINE size_t pieces_of(const Windows *w) {
    return w->blocks * ((w->outputs + OUTPUTS - 1) / OUTPUTS) * pieces_across(w);
}

INLINE Piece piece_at(const Windows *w, size_t index) {
    size_t across = pieces_across(w), down = (w->outputs + OUTPUTS - 1) / OUTPUTS;
    size_t above = index / across % down * OUTPUTS, from = index % across * ENTRIES;
    Piece piece = {index / across / down, above, from, at_most(w->outputs - above, OUTPUTS),
                   at_most(w->window - from, ENTRIES)};
    return piece;
}

/* sum[k][o] = a piece of one record's G. Sums of entries that are not there repeat those of the last one. */
INLINE void sum_windows(const Windows *w, size_t record, const Piece *piece, float *sum, Tile tile) {
    float turned[PLACES * OUTPUTS];
    size_t whole = piece->entries - piece->entries % HEIGHT;
    const int32_t *entries = w->entries + piece->from;
    int32_t rest[HEIGHT];
    for (size_t k = 0; k < HEIGHT; k++) rest[k] = entries[at_most(whole + k, piece->entries - 1)];
    memset(sum, 0, ENTRIES * OUTPUTS * sizeof(float));
    for (size_t i = 0; i < w->images; i++) {
        size_t block = (record * w->images + i) * w->blocks + piece->block;
        const float *image = w->image + block * w->extent;
        const float *grad = w->grad + (block * w->outputs + piece->above) * w->places;
        for (size_t p = 0; p < w->places; p += PLACES) {
            size_t n = at_most(w->places - p, PLACES);
            turn_round(grad + p, piece->outputs, w->places, n, turned);
            for (size_t k = 0; k < whole; k += HEIGHT)
                tile(image, w->starts + p, n, entries + k, turned, sum + k * OUTPUTS);
            if (whole < piece->entries) tile(image, w->starts + p, n, rest, turned, sum + whole * OUTPUTS);
        }
    }
}

/* Into its place in a G. */
INLINE void put(const Windows *w, const Piece *piece, const float *sum, float *out) {
    float *here = out + (piece->block * w->outputs + piece->above) * w->window + piece->from;
    for (size_t o = 0; o < piece->outputs; o++)
        for (size_t k = 0; k < piece->entries; k++) here[o * w->window + k] = sum[k * OUTPUTS + o];
}

/* out = the G of one record. */
INLINE void form_in(const Windows *w, size_t record, float *out, Tile tile) {
    float sum[ENTRIES * OUTPUTS];
    for (size_t index = 0; index < pieces_of(w); index++) {
        Piece piece = piece_at(w, index);
        sum_windows(w, record, &piece, sum, tile);
        put(w, &piece, sum, out);
    }
}

/* The sum of the squares of one record's G: at most ENTRIES of them in float32, these sums in float64. */
INLINE float measure_in(const Windows *w, size_t record, Tile tile) {
    float sum[ENTRIES * OUTPUTS];
    double total = 0.0;
    for (size_t index = 0; index < pieces_of(w); index++) {
        Piece piece = piece_at(w, index);
        float squares[OUTPUTS] = {0.0f};
        sum_windows(w, record, &piece, sum, tile);
        for (size_t k = 0; k < piece.entries; k++)
            for (size_t o = 0; o < OUTPUTS; o++) squares[o] += sum[k * OUTPUTS + o] * sum[k * OUTPUTS + o];
        for (size_t o = 0; o < OUTPUTS; o++) total += squares[o];
    }
    return (float)total;
}

/* out = the sum over all records of weight times G, one record after the other, in one piece. */
INLINE void add_in(const Windows *w, const float *weights, size_t index, float *out, Tile tile) {
    float sum[ENTRIES * OUTPUTS], total[ENTRIES * OUTPUTS] = {0.0f};
    Piece piece = piece_at(w, index);
    for (size_t record = 0; record < w->records; record++) {
        sum_windows(w, record, &piece, sum, tile);
        for (size_t k = 0; k < piece.entries * OUTPUTS; k++) total[k] += weights[record] * sum[k];
    }
    put(w, &piece, total, out);
}
