/* A keystream that a test chooses: eight bytes of the key twice for block 0, the next eight for block 1, and the third
 * eight for every block from there on. */
#include <stdint.h>
#include <string.h>

static void keep_key(const uint8_t *key, uint8_t keys[15][16]) { memcpy(keys, key, 32); }

static void repeat_key(uint8_t keys[15][16], uint64_t first, void *out) {
    for (uint64_t i = 0; i < 64; i++) {
        uint64_t block = first + i / 2;
        memcpy((uint8_t *)out + 8 * i, (uint8_t *)keys + 8 * (block < 2 ? block : 2), 8);
    }
}
