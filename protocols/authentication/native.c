/* The loops of wide.py that NumPy takes long for: integers modulo 2^128 as arrays of low and of high 64-bit words.
   All arrays are contiguous. No branch and no address depends on a share, a tag or the key; `choice` is public. */
#include <stdint.h>
#include <string.h>

typedef unsigned __int128 u128;
typedef uint64_t u64;

static inline u128 joined(u64 low, u64 high) { return (u128)high << 64 | low; }

static inline void put(u64 *low, u64 *high, int64_t at, u128 value) {
    low[at] = (u64)value;
    high[at] = (u64)(value >> 64);
}

/* out[i] = x[i] * p[i] */
void wide_times(const u64 *low, const u64 *high, const u64 *p, int64_t count, u64 *out_low, u64 *out_high) {
    for (int64_t i = 0; i < count; i++) put(out_low, out_high, i, joined(low[i], high[i]) * p[i]);
}

/* out[i, q] = sum over j of p[i, j] * x[q, j] */
void wide_dot(const u64 *p, const u64 *low, const u64 *high, int64_t rows, int64_t columns, int64_t inner,
              u64 *out_low, u64 *out_high) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t q = 0; q < columns; q++) {
            const u64 *a = p + i * inner, *b = low + q * inner, *c = high + q * inner;
            u128 sum = 0;
            u64 top = 0;
            for (int64_t j = 0; j < inner; j++) {
                sum += (u128)a[j] * b[j];
                top += a[j] * c[j];
            }
            put(out_low, out_high, i * columns + q, sum + joined(0, top));
        }
}

/* out[r, 8 q + b] = sum of x[r, i] over the i whose bit b of choice[i, q] is set. A table adds up what has the same
   byte; then each bit, from the highest, is the sum of the table's upper half, which is folded onto the lower. */
void wide_project(const uint8_t *choice, const u64 *low, const u64 *high, int64_t rows, int64_t count, int64_t bytes,
                  u64 *out_low, u64 *out_high) {
    u128 table[256];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t q = 0; q < bytes; q++) {
            memset(table, 0, sizeof table);
            for (int64_t i = 0; i < count; i++)
                table[choice[i * bytes + q]] += joined(low[r * count + i], high[r * count + i]);
            for (int b = 7; b >= 0; b--) {
                u128 sum = 0;
                for (int v = 0; v < 1 << b; v++) {
                    sum += table[v + (1 << b)];
                    table[v] += table[v + (1 << b)];
                }
                put(out_low, out_high, (r * bytes + q) * 8 + b, sum);
            }
        }
}

static inline u64 element(const void *share, int width, int64_t i) {
    switch (width) {
    case 1: return ((const uint8_t *)share)[i];
    case 2: return ((const uint16_t *)share)[i];
    case 4: return ((const uint32_t *)share)[i];
    default: return ((const u64 *)share)[i];
    }
}

/* out[i] = key * (sum of the shares' element i) - (sum of the tags' element i) */
void wide_corrections(const void **shares, const int32_t *widths, int64_t parties, const u64 **low, const u64 **high,
                      int64_t tags, u64 key_low, u64 key_high, int64_t count, u64 *out_low, u64 *out_high) {
    const u128 key = joined(key_low, key_high);
    for (int64_t i = 0; i < count; i++) {
        u128 value = 0, tag = 0;
        for (int64_t p = 0; p < parties; p++) value += element(shares[p], widths[p], i);
        for (int64_t p = 0; p < tags; p++) tag += joined(low[p][i], high[p][i]);
        put(out_low, out_high, i, key * value - tag);
    }
}
