/* The processor instructions that the compiled loops use, in plain C after the manual's descriptions, so that every loop
   runs on any machine, slowly. Registers are arrays of numbers; a tile is 16 rows of 64 bytes.

   Invalid use ends the process, as on a processor: an unconfigured tile, an unaligned address, VNNI on a processor
   without it. */

#ifndef EMULATED_H
#define EMULATED_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- features of the emulated processor; tests select them before the first call ---- */

enum { HAS_AVX2 = 1, HAS_AVX512 = 2, HAS_VNNI = 4, HAS_BF16 = 8, HAS_TILES = 16, MAY_USE_TILES = 32, HAS_AVX_VNNI = 64 };
__attribute__((visibility("default"), weak)) int emulated_processor = 127;
/* Disabled bits of the answer to leaf 7: of edx in part 0. */
__attribute__((visibility("default"), weak)) uint32_t emulated_lacks = 0;

static inline int emulated_supports(const char *name) {
    int has = !strcmp(name, "avx2")         ? HAS_AVX2
              : !strcmp(name, "fma")        ? HAS_AVX2
              : !strcmp(name, "avx512bw")   ? HAS_AVX512
              : !strcmp(name, "avx512vnni") ? HAS_VNNI
                                            : 0;
    if (!has) abort();
    return emulated_processor & has;
}
#define __builtin_cpu_supports(name) emulated_supports(name)

/* Sets only the bits of the requested instructions, so that a test of any other bit fails. */
static inline int __get_cpuid_count(unsigned leaf, unsigned part, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    *a = *b = *c = *d = 0;
    if (leaf != 7 || part > 1) return 0;
    if (part) *a = (emulated_processor & HAS_BF16 ? 1u << 5 : 0) | (emulated_processor & HAS_AVX_VNNI ? 1u << 4 : 0);
    if (!part && emulated_processor & HAS_TILES) *d = (1u << 22 | 1u << 24 | 1u << 25) & ~emulated_lacks;
    return 1;
}

/* ARCH_REQ_XCOMP_PERM for the state of tiles' data; anything else is refused. */
static inline int emulated_request(long what, long state) {
    return what == 0x1023 && state == 18 && emulated_processor & MAY_USE_TILES ? 0 : -1;
}
#define syscall(number, what, state) emulated_request(what, state)

/* ---- memory: NaN until written, with a check for writes after its end ---- */

enum { EMULATED_BEHIND = 4096 };
static inline void *emulated_malloc(size_t size) {
    char *block = malloc(64 + size + EMULATED_BEHIND);
    memcpy(block, &size, sizeof size);
    memset(block + 64, 0xff, size + EMULATED_BEHIND);
    return block + 64;
}
static inline void emulated_free(void *address) {
    char *block = (char *)address - 64;
    size_t size;
    memcpy(&size, block, sizeof size);
    for (size_t i = 0; i < EMULATED_BEHIND; i++)
        if ((unsigned char)block[64 + size + i] != 0xff) abort();
    free(block);
}
#define malloc(size) emulated_malloc(size)
#define free(address) emulated_free(address)

/* ---- registers ---- */

#define target(name) /* none of the processor's own instructions */
#define TAKE static inline __attribute__((always_inline))
#define EACH(n) for (int i = 0; i < (n); i++)

typedef int32_t __m128i __attribute__((vector_size(16)));
typedef int32_t __m256i __attribute__((vector_size(32)));
typedef int32_t __m512i __attribute__((vector_size(64)));
typedef float __m512 __attribute__((vector_size(64)));
typedef uint16_t __m512bh __attribute__((vector_size(64)));
typedef uint16_t __mmask16;

#define _MM_HINT_T0 0
#define _MM_HINT_T1 1
#define _mm_prefetch(address, hint) ((void)(address))

TAKE void emulated_aligned(const void *address, size_t size) {
    if ((uintptr_t)address % size) abort();
}

/* Loads, stores, zeros and sums of each width. */
#define OF_WIDTH(PREFIX, BITS, TYPE)                                                                               \
    TAKE TYPE PREFIX##_loadu_si##BITS(const void *from) {                                                          \
        TYPE x;                                                                                                    \
        memcpy(&x, from, sizeof x);                                                                                \
        return x;                                                                                                  \
    }                                                                                                              \
    TAKE TYPE PREFIX##_load_si##BITS(const void *from) {                                                           \
        emulated_aligned(from, sizeof(TYPE));                                                                      \
        return PREFIX##_loadu_si##BITS(from);                                                                      \
    }                                                                                                              \
    TAKE void PREFIX##_storeu_si##BITS(void *to, TYPE x) { memcpy(to, &x, sizeof x); }                             \
    TAKE void PREFIX##_store_si##BITS(void *to, TYPE x) {                                                          \
        emulated_aligned(to, sizeof x);                                                                            \
        PREFIX##_storeu_si##BITS(to, x);                                                                           \
    }                                                                                                              \
    TAKE TYPE PREFIX##_setzero_si##BITS(void) { return (TYPE){0}; }                                                \
    TAKE TYPE PREFIX##_add_epi32(TYPE x, TYPE y) { return x + y; }                                                 \
    /* int16 of x and y, products of neighbours added in int32 */                                                  \
    TAKE TYPE PREFIX##_madd_epi16(TYPE x, TYPE y) {                                                                \
        int16_t a[sizeof x / 2], b[sizeof x / 2];                                                                  \
        TYPE sums;                                                                                                 \
        memcpy(a, &x, sizeof x);                                                                                   \
        memcpy(b, &y, sizeof y);                                                                                   \
        EACH((int)sizeof x / 4) sums[i] = (int32_t)a[2 * i] * b[2 * i] + (int32_t)a[2 * i + 1] * b[2 * i + 1];     \
        return sums;                                                                                               \
    }

OF_WIDTH(_mm, 128, __m128i)
OF_WIDTH(_mm256, 256, __m256i)
OF_WIDTH(_mm512, 512, __m512i)

/* int8 to int16, twice as wide. */
#define WIDENED(NAME, FROM, TO)                                                                                    \
    TAKE TO NAME(FROM x) {                                                                                         \
        int8_t narrow[sizeof x];                                                                                   \
        int16_t wide[sizeof x];                                                                                    \
        TO result;                                                                                                 \
        memcpy(narrow, &x, sizeof x);                                                                              \
        EACH((int)sizeof x) wide[i] = narrow[i];                                                                   \
        memcpy(&result, wide, sizeof result);                                                                      \
        return result;                                                                                             \
    }
WIDENED(_mm256_cvtepi8_epi16, __m128i, __m256i)
WIDENED(_mm512_cvtepi8_epi16, __m256i, __m512i)

TAKE __m128i _mm256_castsi256_si128(__m256i x) { return (__m128i){x[0], x[1], x[2], x[3]}; }
TAKE __m128i _mm256_extracti128_si256(__m256i x, int part) {
    return (__m128i){x[4 * part], x[4 * part + 1], x[4 * part + 2], x[4 * part + 3]};
}
TAKE __m128i _mm_shuffle_epi32(__m128i x, int from) {
    return (__m128i){x[from & 3], x[from >> 2 & 3], x[from >> 4 & 3], x[from >> 6 & 3]};
}
TAKE int32_t _mm_cvtsi128_si32(__m128i x) { return x[0]; }

TAKE int32_t _mm512_reduce_add_epi32(__m512i x) {
    int32_t sum = 0;
    EACH(16) sum += x[i];
    return sum;
}
TAKE void emulated_needs(int what) {
    if (!(emulated_processor & what)) abort();
}
TAKE __m256i _mm256_dpwssd_avx_epi32(__m256i sums, __m256i x, __m256i y) {
    emulated_needs(HAS_AVX_VNNI);
    return sums + _mm256_madd_epi16(x, y);
}
TAKE __m512i _mm512_dpwssd_epi32(__m512i sums, __m512i x, __m512i y) {
    emulated_needs(HAS_VNNI);
    return sums + _mm512_madd_epi16(x, y);
}
TAKE __m512i _mm512_slli_epi32(__m512i x, int places) {
    EACH(16) x[i] = (int32_t)((uint32_t)x[i] << places);
    return x;
}
TAKE __m256i _mm512_castsi512_si256(__m512i x) { return (__m256i){x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]}; }
TAKE __m256i _mm512_extracti64x4_epi64(__m512i x, int part) {
    __m256i half;
    EACH(8) half[i] = x[8 * part + i];
    return half;
}
TAKE __m512i _mm512_cvtepu16_epi32(__m256i x) {
    uint16_t narrow[16];
    __m512i wide;
    memcpy(narrow, &x, sizeof x);
    EACH(16) wide[i] = narrow[i];
    return wide;
}
TAKE __m512 _mm512_cvtepi32_ps(__m512i x) {
    __m512 result;
    EACH(16) result[i] = (float)x[i];
    return result;
}
TAKE __m512 _mm512_set1_ps(float x) {
    __m512 result;
    EACH(16) result[i] = x;
    return result;
}
TAKE __m512 _mm512_mul_ps(__m512 x, __m512 y) { return x * y; }
TAKE __m512 _mm512_sub_ps(__m512 x, __m512 y) { return x - y; }
TAKE __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float *from) {
    __m512 result = {0};
    EACH(16) if (mask >> i & 1) result[i] = from[i];
    return result;
}
TAKE void _mm512_mask_storeu_ps(float *to, __mmask16 mask, __m512 x) {
    EACH(16) if (mask >> i & 1) to[i] = x[i];
}

/* ---- bf16: to the nearest, ties to even; denormal numbers are zeros, before and after ---- */

TAKE float emulated_flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x; }
TAKE uint16_t emulated_half(float x) {
    uint32_t bits;
    x = emulated_flushed(x);
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
TAKE float emulated_whole(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return emulated_flushed(x);
}
/* The second operand's numbers come first. */
TAKE __m512bh _mm512_cvtne2ps_pbh(__m512 later, __m512 first) {
    __m512bh halves;
    EACH(16) halves[i] = emulated_half(first[i]), halves[16 + i] = emulated_half(later[i]);
    return halves;
}

/* ---- tiles: eight of up to 16 rows of up to 64 bytes, of each thread ---- */

typedef struct {
    int rows, bytes;
    uint8_t row[16][64];
} emulated_tile;

__attribute__((weak)) __thread emulated_tile emulated_tiles[8];
__attribute__((weak)) __thread int emulated_configured;

TAKE emulated_tile *emulated_at(int number) {
    if (!emulated_configured || !emulated_tiles[number].rows) abort();
    return &emulated_tiles[number];
}
static inline void _tile_loadconfig(const void *shapes) {
    const uint8_t *bytes = shapes;
    if (bytes[0] != 1 || bytes[1]) abort(); /* the palette, and the row where an interrupted load resumes */
    for (int t = 0; t < 8; t++) {
        memset(&emulated_tiles[t], 0, sizeof(emulated_tile));
        emulated_tiles[t].bytes = bytes[16 + 2 * t] | bytes[17 + 2 * t] << 8;
        emulated_tiles[t].rows = bytes[48 + t];
        if (emulated_tiles[t].bytes > 64 || emulated_tiles[t].rows > 16) abort();
    }
    emulated_configured = 1;
}
static inline void _tile_release(void) { emulated_configured = 0; }
static inline void _tile_zero(int t) { memset(emulated_at(t)->row, 0, sizeof emulated_tiles[t].row); }
static inline void _tile_loadd(int t, const void *from, int64_t apart) {
    emulated_tile *tile = emulated_at(t);
    EACH(tile->rows) memcpy(tile->row[i], (const char *)from + i * apart, (size_t)tile->bytes);
}
static inline void _tile_stored(int t, void *to, int64_t apart) {
    emulated_tile *tile = emulated_at(t);
    EACH(tile->rows) memcpy((char *)to + i * apart, tile->row[i], (size_t)tile->bytes);
}

/* sums[m][n] += rows[m][4 k + i] columns[k][4 n + i], bytes in int32; CAST is the type of the columns' bytes. */
#define BYTES_MULTIPLIED(NAME, CAST)                                                                               \
    static inline void NAME(int sums, int rows, int columns) {                                                     \
        emulated_tile *to = emulated_at(sums), *a = emulated_at(rows), *b = emulated_at(columns);                  \
        for (int m = 0; m < to->rows; m++)                                                                         \
            for (int n = 0; n < to->bytes / 4; n++) {                                                              \
                int32_t sum;                                                                                       \
                memcpy(&sum, to->row[m] + 4 * n, 4);                                                               \
                for (int k = 0; k < a->bytes / 4; k++)                                                             \
                    EACH(4) sum += (int8_t)a->row[m][4 * k + i] * (CAST)b->row[k][4 * n + i];                      \
                memcpy(to->row[m] + 4 * n, &sum, 4);                                                               \
            }                                                                                                      \
    }
BYTES_MULTIPLIED(_tile_dpbssd, int8_t)
BYTES_MULTIPLIED(_tile_dpbsud, uint8_t)

/* The same for pairs of bf16 numbers: those at even places and those at odd ones are summed in fp32, then both. */
static inline void _tile_dpbf16ps(int sums, int rows, int columns) {
    emulated_tile *to = emulated_at(sums), *a = emulated_at(rows), *b = emulated_at(columns);
    for (int m = 0; m < to->rows; m++)
        for (int n = 0; n < to->bytes / 4; n++) {
            float sum, parts[2] = {0.0f, 0.0f};
            for (int k = 0; k < a->bytes / 4; k++)
                EACH(2) {
                    uint16_t x, y;
                    memcpy(&x, a->row[m] + 4 * k + 2 * i, 2);
                    memcpy(&y, b->row[k] + 4 * n + 2 * i, 2);
                    parts[i] = emulated_flushed(parts[i] + emulated_whole(x) * emulated_whole(y));
                }
            memcpy(&sum, to->row[m] + 4 * n, 4);
            sum = emulated_flushed(sum + emulated_flushed(parts[0] + parts[1]));
            memcpy(to->row[m] + 4 * n, &sum, 4);
        }
}

#endif
