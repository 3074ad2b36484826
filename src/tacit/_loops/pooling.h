/* Maxima of the windows of images. Nothing is rounded: the entries of a window may be compared in any order. */
typedef struct {
    const float *images;
    float *out;
    size_t planes, height, width, kernel[2], stride[2], padding[2];
    size_t rows, columns; /* of a plane of `out` */
    size_t pitch;         /* of a row between the loops: padded, a multiple of the stride */
    size_t tasks;
    atomic_int failed;
} Pooling;

/* Not a number if one of them is, as in PyTorch. */
INLINE float larger(float a, float b) { return (a >= b) | (a != a) ? a : b; }

/* From every row the maximum with the entries after it; entries at the ends of rows look into the next ones and are not
 * used. */
INLINE void along(const float *tall, float *wide, size_t size, size_t kernel, size_t stride) {
    for (size_t i = 0; i < size; i++) wide[i] = tall[i * stride];
    for (size_t k = 1; k < kernel; k++)
        for (size_t i = 0; i < size; i++) wide[i] = larger(wide[i], tall[i * stride + k]);
}

/* One plane; `tall` has room for `rows` of `pitch` and a kernel more, its padding set, and `wide` for what is kept of it. */
INLINE void pool_in(const Pooling *p, size_t plane, float *tall, float *wide) {
    const float *image = p->images + plane * p->height * p->width;
    float *out = p->out + plane * p->rows * p->columns;
    size_t kept = p->pitch / p->stride[1], size = p->rows * kept, width = p->width;
    for (size_t y = 0; y < p->rows; y++) {
        size_t first = y * p->stride[0], last = at_most(first + p->kernel[0] - p->padding[0], p->height);
        float *here = tall + y * p->pitch + p->padding[1];
        first = first > p->padding[0] ? first - p->padding[0] : 0;
        for (size_t x = 0; x < width; x++) here[x] = image[first * width + x];
        for (size_t r = first + 1; r < last; r++)
            for (size_t x = 0; x < width; x++) here[x] = larger(here[x], image[r * width + x]);
    }
    float *found = kept == p->columns ? out : wide;
    switch (p->stride[1]) {
        case 1: along(tall, found, size, p->kernel[1], 1); break;
        case 2: along(tall, found, size, p->kernel[1], 2); break;
        case 3: along(tall, found, size, p->kernel[1], 3); break;
        default: along(tall, found, size, p->kernel[1], p->stride[1]);
    }
    if (found != out)
        for (size_t y = 0; y < p->rows; y++) memcpy(out + y * p->columns, wide + y * kept, p->columns * sizeof(float));
}
