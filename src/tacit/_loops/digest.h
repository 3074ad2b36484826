/* A number that other words have with probability 2^-27. */
#define PORTION 1024 /* words that have a key each: the same keys for every portion */
#define STRIP 64 /* portions that one task takes */
#define PRIME 0x1fffffffffffffffULL

typedef struct {
    const uint32_t *words, *key;
    uint64_t point, (*found)[8]; /* of every strip */
    size_t size;
} Digest;

/* a b + c modulo the prime 2^61 - 1, of which a and b are remainders. */
INLINE uint64_t modulo(uint64_t a, uint64_t b, uint64_t c) {
    unsigned __int128 exact = (unsigned __int128)a * b + c;
    uint64_t above = (uint64_t)(exact >> 61), sum = ((uint64_t)exact & PRIME) + (above & PRIME) + (above >> 61);
    sum = (sum & PRIME) + (sum >> 61);
    return sum < PRIME ? sum : sum - PRIME;
}

/* NH (Black et al. 1999) of each portion, in eight parts: the sum of (a + key) (b + key') modulo 2^64, with a and b eight
 * words apart. Two portions have sums that differ by a given number with probability 2^-32 at most, and so the same
 * remainder with at most 16 times that. The remainders are the coefficients of a polynomial, whose value is taken at a
 * random point modulo a prime (modulo 2^64 there are polynomials that vanish at all odd points). */
INLINE void portion(const uint32_t *words, const uint32_t *key, uint64_t point, uint64_t *result) {
    uint64_t sum[8] = {0};
    for (size_t j = 0; j < PORTION; j += 16)
        for (size_t k = 0; k < 8; k++)
            sum[k] += (uint64_t)(words[j + k] + key[j + k]) * (words[j + 8 + k] + key[j + 8 + k]);
    for (size_t k = 0; k < 8; k++) result[k] = modulo(result[k], point, sum[k]);
}

/* The polynomial of strip i; what is missing of the last portion are zeros. */
INLINE void strip_in(const Digest *d, size_t i) {
    size_t first = i * STRIP * PORTION, end = at_most(first + STRIP * PORTION, d->size), whole = end - end % PORTION;
    uint64_t result[8] = {0};
    uint32_t last[PORTION] = {0};
    for (size_t j = first; j < whole; j += PORTION) portion(d->words + j, d->key, d->point, result);
    if (whole < end) {
        memcpy(last, d->words + whole, (end - whole) * sizeof(uint32_t));
        portion(last, d->key, d->point, result);
    }
    memcpy(d->found[i], result, sizeof(result));
}

/* Those of all strips together are one polynomial, of the point to the power of STRIP; then one of its eight parts. */
static uint64_t digest_of(const Digest *d, size_t strips) {
    uint64_t result[8] = {0}, power = d->point, all = d->size % PRIME;
    for (size_t n = 1; n < STRIP; n *= 2) power = modulo(power, power, 0);
    for (size_t i = 0; i < strips; i++)
        for (size_t k = 0; k < 8; k++) result[k] = modulo(result[k], power, d->found[i][k]);
    for (size_t k = 0; k < 8; k++) all = modulo(all, d->point, result[k]);
    return all;
}
