/* Sums of outer products: out[r][c] = sum over records of left[record][r] * weight * right[record][c], `call` records at a
 * time, the sums of calls one after the other. What is added, and in which order, is the same for every entry, whichever
 * others are computed with it. Both factors are copied into panels of a few columns, record after record. */
#define PANEL_ROWS 8 /* at most, of the left factor */
#define PANEL_COLUMNS 32
#define PANELS 4 /* of the right factor that are copied at a time */
#define LEFT_BYTES (1 << 18) /* of the left factor that are used at a time, so that they stay in the cache */

typedef struct {
    const float *left, *right, *weights;
    float *out, *panels; /* of `right`, multiplied by the weights */
    size_t records, rows, columns, call;
    atomic_int failed;
} Products;

/* One panel of each: total[r][c], PANEL_COLUMNS apart. */
typedef void (*Meet)(const float *left, const float *right, size_t records, size_t call, float *total);

/* HEIGHT rows times two registers of columns; never inlined, as `TILE`. */
#define MEET(name, bytes, height, target)                                                                             \
    target __attribute__((noinline)) static void meet_##name(const float *left, const float *right, size_t records,   \
                                                             size_t call, float *total) {                             \
        typedef float Vector __attribute__((vector_size(bytes), aligned(4), may_alias));                              \
        enum { LENGTH = bytes / 4 };                                                                                  \
        for (size_t lo = 0; lo < records; lo += call) {                                                               \
            size_t n = records - lo < call ? records - lo : call;                                                     \
            Vector sum[height][2];                                                                                    \
            for (int r = 0; r < height; r++) sum[r][0] = sum[r][1] = (Vector){0};                                     \
            for (size_t i = 0; i < n; i++, left += height, right += 2 * LENGTH)                                       \
                for (int r = 0; r < height; r++)                                                                      \
                    for (int v = 0; v < 2; v++) sum[r][v] += left[r] * *(const Vector *)(right + v * LENGTH);         \
            for (int r = 0; r < height; r++)                                                                          \
                for (int v = 0; v < 2; v++) {                                                                         \
                    Vector *here = (Vector *)(total + r * PANEL_COLUMNS + v * LENGTH);                                \
                    if (lo)                                                                                           \
                        *here += sum[r][v];                                                                           \
                    else                                                                                              \
                        *here = sum[r][v];                                                                            \
                }                                                                                                     \
        }                                                                                                             \
    }

/* `count` columns from `first` on, as panels of `width`, multiplied by the weights if there are any; what is missing of the
 * last panel are zeros. Record by record, as they lie in memory. */
INLINE void panels_in(const float *matrix, const float *weights, size_t records, size_t columns, size_t first,
                      size_t count, size_t width, float *panels) {
    size_t whole = count - count % width;
    matrix += first;
    for (size_t i = 0; i < records; i++, matrix += columns, panels += width) {
        float weight = weights ? weights[i] : 1.0f;
        for (size_t k = 0; k < whole; k += width)
            for (size_t c = 0; c < width; c++) panels[k * records + c] = weight * matrix[k + c];
        if (whole < count)
            for (size_t c = 0; c < width; c++)
                panels[whole * records + c] = c < count - whole ? weight * matrix[whole + c] : 0.0f;
    }
}

/* How many rows of the left factor are used at a time. */
INLINE size_t rows_at_once(const Products *p, size_t height) {
    size_t panels = LEFT_BYTES / (4 * height * (p->records ? p->records : 1));
    return height * (panels ? panels : 1);
}

/* The rows of out from `above` on, as many as are used at a time; `left` has room for panels of these. */
INLINE void products_in(const Products *p, size_t above, float *left, size_t height, size_t width, Meet meet) {
    size_t count = at_most(p->rows - above, rows_at_once(p, height));
    float total[PANEL_ROWS * PANEL_COLUMNS] = {0.0f};
    panels_in(p->left, NULL, p->records, p->rows, above, count, height, left);
    for (size_t c = 0; c < p->columns; c += width)
        for (size_t r = 0; r < count; r += height) {
            size_t n = at_most(p->columns - c, width);
            meet(left + r * p->records, p->panels + c * p->records, p->records, p->call, total);
            for (size_t k = 0; k < at_most(count - r, height); k++)
                memcpy(p->out + (above + r + k) * p->columns + c, total + k * PANEL_COLUMNS, n * sizeof(float));
        }
}
