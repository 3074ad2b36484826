/* A number that other words have with probability 2^-27. */
#define PORTION 1024 /* words that have a key each: the same keys for every portion */
#define PRIME 0x1fffffffffffffffULL

/* a b + c modulo the prime 2^61 - 1, for any a and c and b below it. */
INLINE uint64_t modulo(uint64_t a, uint64_t b, uint64_t c) {
    unsigned __int128 exact = (unsigned __int128)(a % PRIME) * b + c % PRIME;
    return (uint64_t)(exact % PRIME);
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

INLINE uint64_t digest_in(const uint32_t *words, size_t size, const uint32_t *key) {
    uint64_t result[8] = {0}, point = ((uint64_t)key[PORTION] << 32 | key[PORTION + 1]) % PRIME, all = size;
    size_t whole = size - size % PORTION;
    uint32_t last[PORTION] = {0};
    for (size_t j = 0; j < whole; j += PORTION) portion(words + j, key, point, result);
    memcpy(last, words + whole, (size - whole) * sizeof(uint32_t));
    portion(last, key, point, result);
    for (size_t k = 0; k < 8; k++) all = modulo(all, point, result[k]);
    return all;
}
