/* Sums of outer products with few rows, and the squares of rows. */
#define COLUMNS 64 /* that are summed at a time, for at most ROWS rows: as many as registers hold */
#define ROWS 8
#define CALL 192 /* the most records in one call, as in tacit.gradients.precision */
#define LANES 32 /* sums of squares side by side, over a STRETCH of entries */
#define STRETCH 4096

/* `height` x COLUMNS entries over up to CALL records, added to `out`; `factors` has ROWS numbers for each record. Columns
 * before `from` are left as they are: at the end of a row the last COLUMNS are computed, whether or not they are new. */
INLINE void tile(const float *factors, const float *wide, float *out, size_t columns, size_t records, int height,
                 size_t from) {
    float sum[ROWS][COLUMNS] = {{0.0f}};
    for (size_t i = 0; i < records; i++) {
        for (int c = 0; c < COLUMNS; c += 16) FETCH(wide + i * columns + COLUMNS + c); /* for the next tile */
        for (int r = 0; r < height; r++)
            for (int c = 0; c < COLUMNS; c++) sum[r][c] += factors[i * ROWS + r] * wide[i * columns + c];
    }
    for (int r = 0; r < height; r++)
        for (size_t c = from; c < COLUMNS; c++) out[r * columns + c] += sum[r][c];
}

/* The same for one row of fewer than COLUMNS columns. */
INLINE void narrow_tile(const float *factors, const float *wide, float *out, size_t columns, size_t records) {
    float sum[COLUMNS] = {0.0f};
    for (size_t i = 0; i < records; i++)
        for (size_t c = 0; c < columns; c++) sum[c] += factors[i * ROWS] * wide[i * columns + c];
    for (size_t c = 0; c < columns; c++) out[c] += sum[c];
}

/* Of some columns, `first` a multiple of COLUMNS: the sum over each call of `call` records in registers, then added to
 * those of the calls before. Each entry is summed in the same order whichever columns are computed with it. */
INLINE void outer_sum_in(const float *narrow, const float *wide, float *out, size_t records, size_t rows, size_t columns,
                         size_t call, size_t first, size_t end) {
    float factors[CALL * ROWS];
    size_t bands = (rows + ROWS - 1) / ROWS;
    for (size_t r = 0; r < rows; r++) memset(out + r * columns + first, 0, (end - first) * sizeof(float));
    for (size_t lo = 0; lo < records; lo += call) {
        size_t n = records - lo < call ? records - lo : call;
        for (size_t band = 0; band < bands; band++) { /* of nearly the same height each */
            size_t above = rows * band / bands;
            int height = (int)(rows * (band + 1) / bands - above);
            const float *here = wide + lo * columns;
            float *sum = out + above * columns;
            for (size_t i = 0; i < n; i++)
                for (int r = 0; r < height; r++)
                    factors[i * ROWS + r] = narrow[(lo + i) * rows + above + r];
            if (columns < COLUMNS) { /* one row, then */
                narrow_tile(factors, here, sum, columns, n);
                continue;
            }
            for (size_t next = first; next < end; next += COLUMNS) {
                size_t at = next + COLUMNS <= columns ? next : columns - COLUMNS, from = next - at;
                switch (height) {
                    case 1: tile(factors, here + at, sum + at, columns, n, 1, from); break;
                    case 2: tile(factors, here + at, sum + at, columns, n, 2, from); break;
                    case 3: tile(factors, here + at, sum + at, columns, n, 3, from); break;
                    case 4: tile(factors, here + at, sum + at, columns, n, 4, from); break;
                    case 5: tile(factors, here + at, sum + at, columns, n, 5, from); break;
                    case 6: tile(factors, here + at, sum + at, columns, n, 6, from); break;
                    case 7: tile(factors, here + at, sum + at, columns, n, 7, from); break;
                    default: tile(factors, here + at, sum + at, columns, n, ROWS, from);
                }
            }
        }
    }
}

/* Every row alike, wherever it lies: LANES sums in float32 for each stretch, and stretches in float64. */
INLINE void squares_in(const float *rows, float *out, size_t count, size_t width) {
    for (size_t i = 0; i < count; i++, rows += width) {
        double total = 0.0;
        for (size_t first = 0; first < width; first += STRETCH) {
            size_t n = width - first < STRETCH ? width - first : STRETCH, whole = n - n % LANES;
            const float *here = rows + first;
            float sum[LANES] = {0.0f};
            for (size_t j = 0; j < whole; j += LANES)
                for (size_t k = 0; k < LANES; k++) sum[k] += here[j + k] * here[j + k];
            for (size_t j = whole; j < n; j++) sum[j - whole] += here[j] * here[j];
            for (size_t half = LANES / 2; half; half /= 2)
                for (size_t k = 0; k < half; k++) sum[k] += sum[k + half];
            total += sum[0];
        }
        out[i] = (float)total;
    }
}
