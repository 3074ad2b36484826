/* Matrix products: out[r][c] = bias[c] + sum over records of left[record][r] * weight * right[record][c], `call` records at
 * a time, the sums of calls one after the other. What is added, and in which order, is the same for every entry, whichever
 * others are computed with it, wherever it lies in memory. Factors are copied into panels of a few columns, record after
 * record; but a left one that is *turned*, in memory column after column, is read as it is. */
#define PANEL_ROWS 8 /* at most, of the left factor */
#define PANEL_COLUMNS 32
#define PANELS 4 /* of the right factor that are copied at a time */
#define LEFT_BYTES (1 << 18) /* of the left factor that are used at a time, so that they stay in the cache */
#define RIGHT_BYTES (1 << 22) /* of the right factor that are copied before they are used, so that memory stays bounded */
#define SPAN 64 /* records of a turned factor that are copied at a time */

typedef struct {
    const float *left, *right, *weights, *bias; /* the last two may be missing */
    float *out, *panels; /* of the columns of `right` from `first` to `end`, multiplied by the weights */
    size_t records, rows, columns, call, width, first, end, tasks;
    int turned_left, turned_right;
    atomic_int failed;
} Products;

/* One panel of each: total[r][c], the rows `apart`, beginning with begin[c]. Rows of a turned left factor are `records`
 * apart. */
typedef void (*Meet)(const float *left, const float *right, const float *begin, size_t records, size_t call,
                     float *total, size_t apart);

/* HEIGHT rows times one or two registers of columns; never inlined, as `TILE`. */
#define MEET(name, bytes, height, registers, across, along, target)                                                   \
    target __attribute__((noinline)) static void meet_##name(const float *left, const float *right,                   \
                                                             const float *begin, size_t records, size_t call,         \
                                                             float *total, size_t apart) {                            \
        typedef float Vector __attribute__((vector_size(bytes), aligned(4), may_alias));                              \
        enum { LENGTH = bytes / 4 };                                                                                  \
        for (size_t lo = 0; lo < records; lo += call) {                                                               \
            size_t n = records - lo < call ? records - lo : call;                                                     \
            Vector sum[height][registers];                                                                            \
            for (int r = 0; r < height; r++)                                                                          \
                for (int v = 0; v < registers; v++)                                                                   \
                    sum[r][v] = lo ? (Vector){0} : *(const Vector *)(begin + v * LENGTH);                             \
            for (size_t i = 0; i < n; i++, left += along, right += registers * LENGTH)                                \
                for (int r = 0; r < height; r++)                                                                      \
                    for (int v = 0; v < registers; v++)                                                               \
                        sum[r][v] += left[r * (across)] * *(const Vector *)(right + v * LENGTH);                      \
            for (int r = 0; r < height; r++)                                                                          \
                for (int v = 0; v < registers; v++) {                                                                 \
                    Vector *here = (Vector *)(total + r * apart + v * LENGTH);                                        \
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

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t Choice __attribute__((vector_size(16)));
#if defined(__clang__)
#define CHOOSE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define CHOOSE(a, b, i, j, k, l) __builtin_shuffle(a, b, (Choice){i, j, k, l})
#endif

/* Four by four numbers, rows that lie `apart` becoming columns that lie `pitch` apart. */
INLINE void turn_four(const float *from, size_t apart, float *to, size_t pitch) {
    Four a = *(const Four *)from, b = *(const Four *)(from + apart);
    Four c = *(const Four *)(from + 2 * apart), d = *(const Four *)(from + 3 * apart);
    Four low = CHOOSE(a, b, 0, 4, 1, 5), high = CHOOSE(a, b, 2, 6, 3, 7);
    Four low2 = CHOOSE(c, d, 0, 4, 1, 5), high2 = CHOOSE(c, d, 2, 6, 3, 7);
    *(Four *)to = CHOOSE(low, low2, 0, 1, 4, 5);
    *(Four *)(to + pitch) = CHOOSE(low, low2, 2, 3, 6, 7);
    *(Four *)(to + 2 * pitch) = CHOOSE(high, high2, 0, 1, 4, 5);
    *(Four *)(to + 3 * pitch) = CHOOSE(high, high2, 2, 3, 6, 7);
}

/* The same panels of a factor that is turned. */
INLINE void turned_in(const float *matrix, size_t records, size_t first, size_t count, size_t width, float *panels) {
    for (size_t k = 0; k < count; k += width)
        for (size_t lo = 0; lo < records; lo += SPAN) {
            size_t n = at_most(records - lo, SPAN), there = at_most(count - k, width), c = 0;
            const float *from = matrix + (first + k) * records + lo;
            float *to = panels + k * records + lo * width;
            for (; c + 4 <= there; c += 4) {
                size_t i = 0;
                for (; i + 4 <= n; i += 4) turn_four(from + c * records + i, records, to + i * width + c, width);
                for (; i < n; i++)
                    for (size_t j = c; j < c + 4; j++) to[i * width + j] = from[j * records + i];
            }
            for (; c < width; c++)
                for (size_t i = 0; i < n; i++) to[i * width + c] = c < there ? from[c * records + i] : 0.0f;
        }
}

/* Some panels of the right factor. */
INLINE void right_in(const Products *p, size_t i, size_t width) {
    size_t ahead = i * PANELS * width, first = p->first + ahead, count = at_most(p->end - first, PANELS * width);
    float *panels = p->panels + ahead * p->records;
    if (p->turned_right)
        turned_in(p->right, p->records, first, count, width, panels);
    else
        panels_in(p->right, p->weights, p->records, p->columns, first, count, width, panels);
}

/* With which panel of the left factor task i begins. The first ones have one more where they cannot all have as many: if
 * these took turns with the others, so would the threads, and one of two would have all of them. */
INLINE size_t first_panel(const Products *p, size_t i, size_t height) {
    size_t panels = (p->rows + height - 1) / height;
    return panels / p->tasks * i + at_most(i, panels % p->tasks);
}

/* Task i of as many: some panels of the left factor, for which `left` has room, with all of the right one. */
INLINE void products_in(const Products *p, size_t i, float *left, size_t height, size_t width, Meet meet) {
    size_t above = first_panel(p, i, height) * height, end = at_most(p->rows, first_panel(p, i + 1, height) * height);
    size_t whole = end - (end - above) % height;
    float total[PANEL_ROWS * PANEL_COLUMNS], begin[PANEL_COLUMNS] = {0.0f};
    if (!p->turned_left) {
        panels_in(p->left, NULL, p->records, p->rows, above, end - above, height, left);
    } else if (whole < end) { /* the last rows, and zeros */
        memcpy(left, p->left + whole * p->records, (end - whole) * p->records * sizeof(float));
        memset(left + (end - whole) * p->records, 0, (height - (end - whole)) * p->records * sizeof(float));
    }
    for (size_t c = p->first; c < p->end; c += width) {
        size_t n = at_most(p->end - c, width);
        if (p->bias) memcpy(begin, p->bias + c, n * sizeof(float));
        for (size_t r = above; r < end; r += height) {
            const float *rows = !p->turned_left ? left + (r - above) * p->records
                                                : r < whole ? p->left + r * p->records : left;
            size_t m = at_most(end - r, height);
            float *out = p->out + r * p->columns + c;
            int inside = n == width && m == height;
            meet(rows, p->panels + (c - p->first) * p->records, begin, p->records, p->call, inside ? out : total,
                 inside ? p->columns : PANEL_COLUMNS);
            for (size_t k = 0; !inside && k < m; k++)
                memcpy(out + k * p->columns, total + k * PANEL_COLUMNS, n * sizeof(float));
        }
    }
}
