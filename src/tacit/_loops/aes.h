/* The keystream of AES-256 in counter mode, by the processor's own instructions: their time does not depend on the key.
 * tacit._aes compares it with another implementation before it uses it. */
#define AT_ONCE 32 /* blocks of 16 bytes */
#define KEY 32     /* bytes */

typedef uint8_t RoundKeys[15][16];

typedef struct {
    void (*expand)(const uint8_t *key, RoundKeys keys);
    void (*blocks)(RoundKeys keys, uint64_t first, void *out); /* AT_ONCE, of the counters from `first` on */
} Aes;

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>

#define WITH_AES __attribute__((target("aes")))
#define WITH_VAES __attribute__((target("vaes,avx512f,avx512bw")))

/* Words 4 to 7 of the key schedule from four words before: each is the sum of those up to its place, and of `more`. */
WITH_AES static inline __m128i next_key(__m128i words, __m128i more) {
    words = _mm_xor_si128(words, _mm_slli_si128(words, 4));
    words = _mm_xor_si128(words, _mm_slli_si128(words, 8));
    return _mm_xor_si128(words, more);
}

#define TWO_KEYS(round, constant)                                                                     \
    even = next_key(even, _mm_shuffle_epi32(_mm_aeskeygenassist_si128(odd, constant), 0xff));         \
    _mm_storeu_si128((__m128i *)keys[round], even);                                                   \
    if (round == 14) return;                                                                          \
    odd = next_key(odd, _mm_shuffle_epi32(_mm_aeskeygenassist_si128(even, 0), 0xaa));                 \
    _mm_storeu_si128((__m128i *)keys[round + 1], odd);

WITH_AES static void expand_aes(const uint8_t *key, RoundKeys keys) {
    __m128i even = _mm_loadu_si128((const __m128i *)key), odd = _mm_loadu_si128((const __m128i *)(key + 16));
    _mm_storeu_si128((__m128i *)keys[0], even);
    _mm_storeu_si128((__m128i *)keys[1], odd);
    TWO_KEYS(2, 0x01)
    TWO_KEYS(4, 0x02)
    TWO_KEYS(6, 0x04)
    TWO_KEYS(8, 0x08)
    TWO_KEYS(10, 0x10)
    TWO_KEYS(12, 0x20)
    TWO_KEYS(14, 0x40)
}

/* Eight registers at a time: an instruction begins every cycle and takes several. */
#define REGISTERS 8

WITH_AES static void blocks_aes(RoundKeys keys, uint64_t first, void *out) {
    for (size_t start = 0; start < AT_ONCE; start += REGISTERS) {
        __m128i state[REGISTERS], key = _mm_loadu_si128((const __m128i *)keys[0]);
        for (size_t i = 0; i < REGISTERS; i++)
            state[i] = _mm_xor_si128(key, _mm_set_epi64x((int64_t)__builtin_bswap64(first + start + i), 0));
        for (int round = 1; round < 14; round++) {
            key = _mm_loadu_si128((const __m128i *)keys[round]);
            for (size_t i = 0; i < REGISTERS; i++) state[i] = _mm_aesenc_si128(state[i], key);
        }
        key = _mm_loadu_si128((const __m128i *)keys[14]);
        for (size_t i = 0; i < REGISTERS; i++)
            _mm_storeu_si128((__m128i *)out + start + i, _mm_aesenclast_si128(state[i], key));
    }
}

WITH_VAES static inline __m512i four_times(const uint8_t *key) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)key));
}

WITH_VAES static void blocks_vaes(RoundKeys keys, uint64_t first, void *out) {
    const __m512i backwards = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f));
    __m512i state[REGISTERS], key = four_times(keys[0]);
    for (size_t i = 0; i < REGISTERS; i++) {
        int64_t count = (int64_t)(first + 4 * i);
        __m512i counters = _mm512_set_epi64(0, count + 3, 0, count + 2, 0, count + 1, 0, count);
        state[i] = _mm512_xor_si512(key, _mm512_shuffle_epi8(counters, backwards));
    }
    for (int round = 1; round < 14; round++) {
        key = four_times(keys[round]);
        for (size_t i = 0; i < REGISTERS; i++) state[i] = _mm512_aesenc_epi128(state[i], key);
    }
    key = four_times(keys[14]);
    for (size_t i = 0; i < REGISTERS; i++)
        _mm512_storeu_si512((__m512i *)out + i, _mm512_aesenclast_epi128(state[i], key));
}

static const Aes none, narrow_aes = {expand_aes, blocks_aes}, wide_aes = {expand_aes, blocks_vaes};

static Aes choose_aes(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("aes")) return none;
    int wide = __builtin_cpu_supports("vaes") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    return wide ? wide_aes : narrow_aes;
}
#else
static Aes choose_aes(void) { return (Aes){NULL, NULL}; }
#endif

#ifndef AES /* tests compile each version, and one with a keystream that they choose */
#define AES choose_aes()
#endif

static Aes aes; /* of this processor; empty if it has no such instructions */

/* Overwrites what is secret. The compiler takes the empty instruction for one that reads it. */
static void wipe(void *secret, size_t size) {
    memset(secret, 0, size);
#if defined(__GNUC__)
    __asm__ volatile("" : : "r"(secret) : "memory");
#endif
}
