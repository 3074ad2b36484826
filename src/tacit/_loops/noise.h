/* Normal values from random words, by Box and Muller. How far one may be from the real value is stated in tacit.randomness
 * and tested. */
#define BLOCK (4 * AT_ONCE) /* pairs kept in the innermost cache between the loops */
#define MORE (2 * AT_ONCE) /* edges that get their bits at once */

/* Whether a radius word has too few significant bits: as in tacit._normal. */
INLINE uint32_t is_edge(uint32_t word) { return word + (1u << 22) < 1u << 23; }

/* log u, u being t or 1 + t, t the signed word / 2^32 with the 64 bits of `more` after it. */
static float log_of_edge(uint32_t word, uint64_t more) {
    double fraction = ((double)more + 0.5) * 0x1p-64;
    int64_t wide = (int32_t)word;
    double small = ((double)(wide >= 0 ? wide : ~wide) + fraction) * 0x1p-32;
    return (float)(wide >= 0 ? log(small) : log1p(-small));
}

/* log(word / 2^32) for a word that is no edge. With u = 2^e (1 + f), 2/3 <= 1 + f < 4/3: e log 2 + log1p(f), the last by
 * a polynomial that is right to 2^-25. For e = 0 the logarithm is small and f is taken from the word, not from u, which
 * is rounded: the word less 2^32 is its value as a signed number. */
INLINE float log_of(uint32_t word) {
    float u = (float)word * 0x1p-32f, signed_f = (float)(int32_t)word * 0x1p-32f, m;
    int32_t bits, e;
    memcpy(&bits, &u, 4);
    e = (bits - 0x3f2aaaab) >> 23;
    bits -= (int32_t)((uint32_t)e << 23);
    memcpy(&m, &bits, 4);
    float f = e == 0 && (int32_t)word < 0 ? signed_f : m - 1.0f;
    float p = -0.1212558065f;
    p = p * f + 0.1342574901f;
    p = p * f - 0.1234619025f;
    p = p * f + 0.141183099f;
    p = p * f - 0.1667014069f;
    p = p * f + 0.2000378032f;
    p = p * f - 0.249999879f;
    p = p * f + 0.3333332017f;
    return (float)e * 0.693147181f + (f + f * f * (p * f - 0.5f));
}

INLINE float negated(float value, uint32_t sign) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits ^= sign;
    memcpy(&value, &bits, 4);
    return value;
}

/* r cos and r sin of 2 pi word / 2^32: the nearest quarter turn is split off exactly, in whole numbers; the rest is at
 * most an eighth of a turn, where the polynomials are right to 2^-26. */
INLINE void turn(float r, uint32_t word, float *cosine, float *sine) {
    uint32_t quarter = (word + 0x20000000u) >> 30;
    float x = (float)(int32_t)(word - (quarter << 30)) * 1.4629180793e-9f, z = x * x;
    float s = x + x * z * ((-0.0001958789088f * z + 0.008332748271f) * z - 0.1666666466f);
    float c = 1.0f - 0.5f * z + z * z * ((2.454794209e-5f * z - 0.001388830304f) * z + 0.04166666466f);
    *cosine = r * negated(quarter & 1 ? s : c, ((quarter + 1) & 2) << 30);
    *sine = r * negated(quarter & 1 ? c : s, (quarter & 2) << 30);
}

INLINE size_t edges_in(const uint32_t *words, size_t size) {
    uint32_t count = 0;
    for (size_t i = 0; i < size; i++) count += is_edge(words[i]);
    return count;
}

/* The grid is a power of two: nothing rounds but the addition and `rintf`, which rounds halves to even. */
INLINE void add_rounded(const float *noise, float *total, size_t size, float grid) {
    float units = 1.0f / grid;
    for (size_t i = 0; i < size; i++) total[i] = rintf(noise[i] + total[i] * units) * grid;
}

/* The keystream of one key, and how far its words for edges are used up. */
typedef struct {
    RoundKeys keys;
    uint64_t more[MORE];
    size_t edges;
} Stream;

/* What a piece of noise is made from and of, beside its streams: all of it secret. */
typedef struct {
    uint32_t radii[BLOCK], angles[BLOCK];
    float radius[BLOCK], cosine[BLOCK], sine[BLOCK];
} Secrets;

/* The logarithms of the radii of a block of n pairs that begins at `start`, of `blocks` blocks of keystream. */
INLINE void logs_in(Stream *stream, Secrets *s, size_t start, size_t n, size_t blocks) {
    aes.blocks(stream->keys, start / 4, s->radii);
    aes.blocks(stream->keys, blocks + start / 4, s->angles);
    for (size_t i = 0; i < n; i++) s->radius[i] = log_of(s->radii[i]);
    if (edges_in(s->radii, n))
        for (size_t i = 0; i < n; i++)
            if (is_edge(s->radii[i])) {
                if (stream->edges % MORE == 0) aes.blocks(stream->keys, 2 * blocks + stream->edges / 2, stream->more);
                s->radius[i] = log_of_edge(s->radii[i], stream->more[stream->edges++ % MORE]);
            }
}

INLINE void put_in(const Secrets *s, float *out, size_t pairs, size_t start, size_t n, size_t rest, float grid) {
    if (grid) {
        add_rounded(s->cosine, out + start, n, grid);
        add_rounded(s->sine, out + pairs + start, rest, grid);
    } else {
        memcpy(out + start, s->cosine, n * sizeof(float));
        memcpy(out + pairs + start, s->sine, rest * sizeof(float));
    }
}

/* What is kept of the noise of earlier steps: `count` rows of `stride` values. Without decays a row is one step's noise, and
 * the one at `at` is the oldest; with decays each is a decaying sum of all. */
typedef struct {
    float *rows;
    size_t stride, count, at;
    const float *weights, *decays;
} Past;

/* Less the weighted sum of the rows from value `first` on, which are then brought up to date. */
INLINE void recur(const Past *past, size_t first, float *values, size_t n) {
    for (size_t k = 0; k < past->count; k++) {
        const float *row = past->rows + k * past->stride + first, weight = past->weights[k];
        for (size_t i = 0; i < n; i++) values[i] -= weight * row[i];
    }
    if (!past->decays) {
        memcpy(past->rows + past->at * past->stride + first, values, n * sizeof(float));
        return;
    }
    for (size_t k = 0; k < past->count; k++) {
        float *row = past->rows + k * past->stride + first, decay = past->decays[k];
        for (size_t i = 0; i < n; i++) row[i] = decay * row[i] + values[i];
    }
}

/* The first half of `out`, rounded up, has the cosines and the rest the sines. Without a grid they are overwritten. The
 * keystream has the words of the radii, from the next block on those of the angles, and likewise 64 bits for every edge.
 * With a past, whose values `first` on are those of `out`, the noise is less what is taken back of it. */
INLINE void normal_in(const uint8_t *key, float *out, size_t size, float std, float grid, const Past *past, size_t first) {
    Stream stream;
    Secrets s;
    size_t pairs = (size + 1) / 2, blocks = (pairs + 3) / 4;
    stream.edges = 0;
    aes.expand(key, stream.keys);
    for (size_t start = 0; start < pairs; start += BLOCK) {
        size_t n = at_most(pairs - start, BLOCK), rest = at_most(size - pairs - start, n);
        logs_in(&stream, &s, start, n, blocks);
        float scale = past ? 1.0f : std;
        for (size_t i = 0; i < n; i++)
            turn(scale * sqrtf(-2.0f * s.radius[i]), s.angles[i], s.cosine + i, s.sine + i);
        if (past) {
            recur(past, first + start, s.cosine, n);
            recur(past, first + pairs + start, s.sine, rest);
            for (size_t i = 0; i < n; i++) s.cosine[i] *= std, s.sine[i] *= std;
        }
        put_in(&s, out, pairs, start, n, rest, grid);
    }
    wipe(&stream, sizeof(stream));
    wipe(&s, sizeof(s));
}

/* The weighted sum of the normal values of several keys, `stride` bytes apart, while they are in the innermost cache. The
 * weights are applied as they are; the sum is then brought to the deviation. */
#define STREAMS 64 /* at most */

INLINE void mixed_in(const uint8_t *keys, size_t stride, const float *weights, size_t streams, float *out, size_t size,
                     float std, float grid) {
    Stream all[STREAMS];
    Secrets s;
    size_t pairs = (size + 1) / 2, blocks = (pairs + 3) / 4;
    for (size_t k = 0; k < streams; k++) all[k].edges = 0, aes.expand(keys + k * stride, all[k].keys);
    for (size_t start = 0; start < pairs; start += BLOCK) {
        size_t n = at_most(pairs - start, BLOCK), rest = at_most(size - pairs - start, n);
        memset(s.cosine, 0, sizeof(s.cosine));
        memset(s.sine, 0, sizeof(s.sine));
        for (size_t k = 0; k < streams; k++) {
            logs_in(all + k, &s, start, n, blocks);
            for (size_t i = 0; i < n; i++) {
                float cosine, sine;
                turn(weights[k] * sqrtf(-2.0f * s.radius[i]), s.angles[i], &cosine, &sine);
                s.cosine[i] += cosine, s.sine[i] += sine;
            }
        }
        for (size_t i = 0; i < n; i++) s.cosine[i] *= std, s.sine[i] *= std;
        put_in(&s, out, pairs, start, n, rest, grid);
    }
    wipe(all, streams * sizeof(*all));
    wipe(&s, sizeof(s));
}
