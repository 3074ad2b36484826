/* Maxima of the windows of images, where they were found, and gradients brought back there. Nothing is rounded but sums of
 * gradients where windows overlap, in PyTorch's order. */
typedef struct {
    const float *images;
    float *out;
    uint8_t *places; /* in the window, row by row, or NULL if they are not wanted */
    size_t planes, height, width, kernel[2], stride[2], padding[2];
    size_t rows, columns; /* of a plane of `out` */
    size_t pitch;         /* so much of a row, padded, that it holds its windows: a multiple of the stride */
    size_t down[256], along[256]; /* from a window's first entry to each, less the padding */
    size_t tasks;
    atomic_int failed;
} Pooling;

#define NOWHERE 0x1p20f /* the row of padding */

/* Whether PyTorch would go on with `value`: of equal ones it keeps the first, and not a number once it has met one (of
 * several the last row by row, here the last column by column). */
INLINE int goes_on(float value, float with) { return (value > with) | (value != value); }

/* The larger of two lines, and from which row it is. */
INLINE void down(const float *restrict image, float *restrict line, float *restrict rows, size_t width, float row,
                 int placed) {
    for (size_t x = 0; x < width; x++) {
        int better = goes_on(image[x], line[x]);
        line[x] = better ? image[x] : line[x];
        if (placed) rows[x] = better ? row : rows[x];
    }
}

/* Of every window the largest of its columns' maxima, of equal ones that in the upper row. Windows at the ends of lines look
 * into the next ones; they are not used. Places are whole numbers, of the type that values have: so are vectors. */
INLINE void across(const float *restrict lines, const float *restrict rows, float *restrict found,
                   float *restrict place, size_t size, size_t kernel, size_t stride, int placed) {
    for (size_t i = 0; i < size; i++) {
        found[i] = lines[i * stride];
        if (placed) place[i] = rows[i * stride] * (float)kernel;
    }
    for (size_t k = 1; k < kernel; k++)
        for (size_t i = 0; i < size; i++) {
            float value = lines[i * stride + k];
            int better = goes_on(value, found[i]);
            if (placed) {
                float here = rows[i * stride + k] * (float)kernel + (float)k;
                better |= (value == found[i]) & (here < place[i]);
                place[i] = better ? here : place[i];
            }
            found[i] = better ? value : found[i];
        }
}

INLINE void narrowed(const float *restrict place, uint8_t *restrict places, size_t count) {
    for (size_t x = 0; x < count; x++) places[x] = (uint8_t)(int32_t)place[x];
}

/* One plane: down every column, then across. `lines` and `rows` have the padding, which stays as it is, and `found` and
 * `place` room for every window, used or not. */
INLINE void pool_in(const Pooling *p, size_t plane, float *lines, float *rows, float *found, float *place, int placed) {
    const float *image = p->images + plane * p->height * p->width;
    size_t width = at_most(p->width, p->pitch - p->padding[1]), each = p->pitch / p->stride[1], size = p->rows * each;
    /* Windows that move down by one row have their lines where the image has them: all are compared at once. */
    size_t together = p->stride[0] == 1 && p->pitch == p->width && !p->padding[0] && !p->padding[1] ? p->rows : 1;
    width *= together;
    for (size_t y = 0; y < p->rows; y += together) {
        size_t top = y * p->stride[0], first = top > p->padding[0] ? top - p->padding[0] : 0;
        size_t end = at_most(top + p->kernel[0] - p->padding[0], p->height), at = y * p->pitch + p->padding[1];
        memcpy(lines + at, image + first * p->width, width * sizeof(float));
        if (placed)
            for (size_t x = 0; x < width; x++) rows[at + x] = (float)(first + p->padding[0] - top);
        for (size_t row = first + 1; row < end; row++)
            down(image + row * p->width, lines + at, rows + at, width, (float)(row + p->padding[0] - top), placed);
    }
    float *out = p->out + plane * p->rows * p->columns;
    if (each == p->columns) found = out;
    switch (p->stride[1]) {
        case 1: across(lines, rows, found, place, size, p->kernel[1], 1, placed); break;
        case 2: across(lines, rows, found, place, size, p->kernel[1], 2, placed); break;
        case 3: across(lines, rows, found, place, size, p->kernel[1], 3, placed); break;
        default: across(lines, rows, found, place, size, p->kernel[1], p->stride[1], placed);
    }
    if (found != out)
        for (size_t y = 0; y < p->rows; y++)
            memcpy(out + y * p->columns, found + y * each, p->columns * sizeof(float));
    if (placed) {
        uint8_t *places = p->places + plane * p->rows * p->columns;
        for (size_t y = 0; y < p->rows; y++) narrowed(place + y * each, places + y * p->columns, p->columns);
    }
}

/* Gradients of `out` added where its values were found, in a plane of zeros; what cannot be a place is passed over. */
static void unpool(const Pooling *p, const float *grads, size_t plane, float *restrict image) {
    size_t rows = p->rows, columns = p->columns, height = p->height, width = p->width;
    const uint8_t *places = p->places + plane * rows * columns;
    grads += plane * rows * columns;
    memset(image, 0, height * width * sizeof(float));
    for (size_t y = 0; y < rows; y++)
        for (size_t x = 0; x < columns; x++, places++, grads++) {
            size_t row = y * p->stride[0] + p->down[*places], column = x * p->stride[1] + p->along[*places];
            if (row < height && column < width) image[row * width + column] += *grads;
        }
}
