/* The functions that polyrank.search calls through ctypes: products of int8 rows with a few int16 columns, bounds of
   scores, and softmax-weighted means.

   OpenMP divides the rows among its threads. Loaded after torch, this library uses torch's OpenMP runtime and threads, so
   that no second team spins. `form` selects the instructions, which the machine must support (polyrank_has). Products of
   int8 are the same in all forms, because they are sums of integers. registers.c and tiles.c contain the loops. */

#ifndef POLYRANK_ALONE /* without Python */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#endif

#include "kernels.h"

#include <stdlib.h>

/* ---- products: out[n, q] = row_scale[n] * column_scale[q] * (rows[n, d] . columns[q, d]) ---- */

/* Vectorized along d, because there may be fewer columns than a register holds; registers.h handles many columns. */
static void products_plain(const int8_t *rows, const int16_t *columns, const float *row_scales,
                           const float *column_scales, float *out, int64_t n, int64_t q, int64_t d) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < q; j++) {
            int32_t sum = 0;
            for (int64_t l = 0; l < d; l++) sum += (int32_t)rows[i * d + l] * columns[j * d + l];
            out[i * q + j] = (float)sum * (row_scales[i] * column_scales[j]);
        }
}

#ifdef X86
/* Four rows are widened to int16 once and stay in the L1 cache; registers hold R rows times C columns. */
#define TILE512(DOT, R, C)                                                                                         \
    for (; j + C <= q; j += C) {                                                                                   \
        __m512i sums[R][C];                                                                                        \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < C; c++) sums[r][c] = _mm512_setzero_si512();                                \
        for (int64_t l = 0; l < d; l += 32) {                                                                      \
            __m512i y[R];                                                                                          \
            UNROLL for (int r = 0; r < R; r++) y[r] = _mm512_load_si512((const void *)(wide[r] + l));              \
            UNROLL for (int c = 0; c < C; c++) {                                                                   \
                __m512i x = _mm512_loadu_si512((const void *)(columns + (j + c) * d + l));                         \
                UNROLL for (int r = 0; r < R; r++) sums[r][c] = DOT(sums[r][c], y[r], x);                          \
            }                                                                                                      \
        }                                                                                                          \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < C; c++)                                                                     \
                out[(i + r) * q + j + c] =                                                                         \
                    (float)_mm512_reduce_add_epi32(sums[r][c]) * (row_scales[i + r] * column_scales[j + c]);       \
    }

#define DOT_AVX512(sum, y, x) _mm512_add_epi32(sum, _mm512_madd_epi16(y, x))
#define DOT_VNNI(sum, y, x) _mm512_dpwssd_epi32(sum, y, x)

#define PRODUCTS512(NAME, TARGET, DOT)                                                                             \
    __attribute__((target(TARGET))) static void NAME(                                                              \
        const int8_t *rows, const int16_t *columns, const float *row_scales, const float *column_scales, float *out,\
        int64_t n, int64_t q, int64_t d) {                                                                         \
        static __thread int16_t wide[4][WIDEST] __attribute__((aligned(64)));                                      \
        int64_t i = 0;                                                                                             \
        for (; i + 4 <= n; i += 4) {                                                                               \
            for (int r = 0; r < 4; r++) {                                                                          \
                const int8_t *row = rows + (i + r) * d;                                                            \
                for (int64_t l = 0; l < d; l += 32) {                                                              \
                    _mm_prefetch((const char *)(row + 4 * d + l), _MM_HINT_T0);                                    \
                    _mm512_store_si512((void *)(wide[r] + l),                                                      \
                                       _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(row + l))));      \
                }                                                                                                  \
            }                                                                                                      \
            int64_t j = 0;                                                                                         \
            TILE512(DOT, 4, 6)                                                                                     \
            TILE512(DOT, 4, 2)                                                                                     \
            TILE512(DOT, 4, 1)                                                                                     \
        }                                                                                                          \
        products_plain(rows + i * d, columns, row_scales + i, column_scales, out + i * q, n - i, q, d);            \
    }

PRODUCTS512(products_avx512, "avx512f,avx512bw", DOT_AVX512)
PRODUCTS512(products_vnni, "avx512f,avx512bw,avx512vnni", DOT_VNNI)

__attribute__((target("avx2"))) static int32_t sum256(__m256i x) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half);
}

/* The same with registers of half the width. */
#define TILE256(DOT, R, C)                                                                                         \
    for (; j + C <= q; j += C) {                                                                                   \
        __m256i sums[R][C];                                                                                        \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < C; c++) sums[r][c] = _mm256_setzero_si256();                                \
        for (int64_t l = 0; l < d; l += 16) {                                                                      \
            __m256i y[R];                                                                                          \
            UNROLL for (int r = 0; r < R; r++) y[r] = _mm256_load_si256((const __m256i *)(wide[r] + l));           \
            UNROLL for (int c = 0; c < C; c++) {                                                                   \
                __m256i x = _mm256_loadu_si256((const __m256i *)(columns + (j + c) * d + l));                      \
                UNROLL for (int r = 0; r < R; r++) sums[r][c] = DOT(sums[r][c], y[r], x);                          \
            }                                                                                                      \
        }                                                                                                          \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < C; c++)                                                                     \
                out[(i + r) * q + j + c] = (float)sum256(sums[r][c]) * (row_scales[i + r] * column_scales[j + c]); \
    }

#define DOT_AVX2(sum, y, x) _mm256_add_epi32(sum, _mm256_madd_epi16(y, x))
#define DOT_AVX_VNNI(sum, y, x) _mm256_dpwssd_avx_epi32(sum, y, x)

#define PRODUCTS256(NAME, TARGET, DOT)                                                                             \
    __attribute__((target(TARGET))) static void NAME(                                                              \
        const int8_t *rows, const int16_t *columns, const float *row_scales, const float *column_scales, float *out,\
        int64_t n, int64_t q, int64_t d) {                                                                         \
        static __thread int16_t wide[4][WIDEST] __attribute__((aligned(64)));                                      \
        int64_t i = 0;                                                                                             \
        for (; i + 4 <= n; i += 4) {                                                                               \
            for (int r = 0; r < 4; r++) {                                                                          \
                const int8_t *row = rows + (i + r) * d;                                                            \
                for (int64_t l = 0; l < d; l += 16)                                                                \
                    _mm256_store_si256((__m256i *)(wide[r] + l),                                                   \
                                       _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row + l))));         \
            }                                                                                                      \
            int64_t j = 0;                                                                                         \
            TILE256(DOT, 4, 2)                                                                                     \
            TILE256(DOT, 4, 1)                                                                                     \
        }                                                                                                          \
        products_plain(rows + i * d, columns, row_scales + i, column_scales, out + i * q, n - i, q, d);            \
    }

PRODUCTS256(products_avx2, "avx2", DOT_AVX2)
PRODUCTS256(products_avx_vnni, "avx2,avxvnni", DOT_AVX_VNNI)
#endif

typedef void (*products_form)(const int8_t *, const int16_t *, const float *, const float *, float *, int64_t, int64_t,
                              int64_t);

static products_form products_of(int form) {
    switch (form) {
#ifdef X86
    case AVX2: return products_avx2;
    case AVX_VNNI: return products_avx_vnni;
    case AVX512: return products_avx512;
    case AVX512_VNNI:
    case AMX_TILES: return products_vnni;
#endif
    default: return products_plain;
    }
}

/* d is a multiple of 64 (pad with zeros). tiles: the columns in AMX's layout (polyrank_lay_codes), or null to compute
   without AMX. Returns -1 if the form is not supported. */
API int polyrank_products(const int8_t *rows, const int16_t *columns, const uint8_t *tiles, const float *row_scales,
                          const float *column_scales, float *out, int64_t n, int64_t q, int64_t d, int form,
                          int threads) {
    products_form call = products_of(form);
    if (d % 64 || d > WIDEST || !polyrank_has(form)) return -1;
    SHARE {
        int64_t i = PART(0), stop = PART(1);
        if (form == AMX_TILES && tiles)
            polyrank_products_by_amx(8, rows + i * d, row_scales + i, tiles, column_scales, out + i * q, stop - i, q, d,
                                     stop - i);
        else
            call(rows + i * d, columns, row_scales + i, column_scales, out + i * q, stop - i, q, d);
    }
    return 0;
}

/* ---- bounds of scores from products[n, q] with a subspace's columns, rows `apart` numbers apart ---- */

API void polyrank_bounds(const float *products, int64_t apart, int64_t n, int64_t q, const float *norms,
                         const float *lost, const numbers *of, float *upper, float *errors, int form, int threads) {
    const loops *by = polyrank_loops(form);
    SHARE {
        int64_t i = PART(0), stop = PART(1);
        by->coarse(products + i * apart, apart, stop - i, q, norms + i, lost + i, of, upper + i, errors + i);
    }
}

/* ---- means of products[n, m] with rows `apart` numbers apart: sum_i softmax_i products_i, max, deviation or null ---- */

API void polyrank_means(const float *products, int64_t apart, int64_t n, int64_t m, float *mean, float *best,
                        float *spread, int form, int threads) {
    const loops *by = polyrank_loops(form);
    SHARE {
        int64_t i = PART(0), stop = PART(1);
        by->means(products + i * apart, apart, stop - i, m, mean + i, best + i, spread ? spread + i : 0);
    }
}

/* ---- bounds of scores from rows: computed from products that are still in the cache ---- */

enum { PRODUCTS = 16384 };

/* Bytes that q columns of d numbers need in tiles; `bytes`: of a number. */
API int64_t polyrank_tiles_size(int form, int64_t q, int64_t d, int bytes) {
    return form == AMX_TILES ? polyrank_amx_size(q, d, bytes) : polyrank_laid_size(q, d, bytes == 1 ? 2 : 4);
}

/* Lay out int16 columns, for int8 rows. */
API void polyrank_lay_codes(int form, const int16_t *columns, int64_t q, int64_t d, void *out) {
    if (form == AMX_TILES)
        polyrank_lay_codes_for_amx(columns, q, d, out);
    else
        polyrank_lay_codes_flat(columns, q, d, form, out);
}

/* Lay out fp32 columns, for fp32 or bf16 rows. */
API void polyrank_lay_floats(int form, const float *columns, int64_t q, int64_t d, void *out) {
    if (form == AMX_TILES)
        polyrank_lay_floats_for_amx(columns, q, d, out);
    else
        polyrank_lay_floats_flat(columns, q, d, out);
}

/* Upper bounds [n_contexts, n] of the scores of rows[n, d] for several contexts; context c has the columns edges[c] to
   edges[c + 1]. norms and lost belong to the rows; lost may be null.

   kind 8: int8 rows with scales, columns laid out as codes; d is a multiple of 64. kind 16: bf16 rows, with AMX only; only
   the larger part of the columns is used, and d is a multiple of 32. kind 32: fp32 rows, without spreads; with AMX,
   products are off by less than 2^-15 of both norms, plus rounding of the fp32 sum. Returns -1 if the kind is not
   supported, -2 if memory runs out. */
API int polyrank_bounds_in_tiles(int form, int kind, const void *rows, const float *row_scales, const void *tiles,
                                 const float *column_scales, const int64_t *edges, const limits *of, int64_t n_contexts,
                                 int64_t n, int64_t d, const float *norms, const float *lost, float *out, int threads) {
    int failed = 0, amx = form == AMX_TILES;
    int64_t q = edges[n_contexts], apart = amx ? q : polyrank_laid_size(q, 1, 1), panel = amx ? 32 : TOGETHER;
    const loops *by = polyrank_loops(form);
    if (!polyrank_has(form) || d > (amx ? polyrank_longest_for_amx() : WIDEST)) return -1;
    if ((kind == 8 && d % 64) || (kind == 16 && (!amx || d % 32))) return -1;
    SHARE {
        int64_t i = PART(0), stop = PART(1), count, most = PRODUCTS / apart / panel * panel;
        float *products, *mean, *best, *spread;
        if (most < panel) most = panel;
        products = malloc((size_t)(most * (apart + 3) + (kind == 8 && !amx ? TOGETHER * d / 2 : 0)) * sizeof(float));
        mean = products + most * apart, best = mean + most, spread = best + most;
        if (!products) failed = 1;
        for (; products && i < stop; i += count) {
            const void *some = (const char *)rows + i * d * (kind / 8);
            const float *scales = kind == 8 ? row_scales + i : 0;
            count = stop - i < most ? stop - i : most;
            if (amx)
                polyrank_products_by_amx(kind, some, scales, tiles, column_scales, products, count, q, d, stop - i);
            else if (kind == 8)
                by->codes(some, scales, tiles, column_scales, products, apart, count, q, d, (int16_t *)(spread + most));
            else
                by->floats(some, tiles, products, apart, count, q, d);
            for (int64_t c = 0; c < n_contexts; c++) {
                float *deviation = kind == 32 ? 0 : spread;
                by->means(products + edges[c], apart, count, edges[c + 1] - edges[c], mean, best, deviation);
                by->upper(mean, best, deviation, norms + i, lost ? lost + i : 0, of + c, count, out + c * n + i);
            }
        }
        free(products);
    }
    return failed ? -2 : 0;
}

#ifndef POLYRANK_ALONE
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }
#endif
