/* Three loops that torch has no fast form of: products of int8 rows with int16 columns, bounds of scores from a few
   products, and softmax-weighted means.

   Called through ctypes on plain pointers. Rows are shared among OpenMP's threads: loaded after torch, this finds
   torch's own runtime and its team, and nobody spins while another works. Each loop has forms for AVX-512 and AVX2
   where the compiler can make them and the machine has them, and a plain one; all give the same products, since those
   are sums of integers. tiles.c has the products by AMX. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

/* ---- products: out[n, q] = row_scale[n] * column_scale[q] * (rows[n, d] . columns[q, d]) ---- */

enum { WIDEST = 8192 };

/* Tiles stay in registers only when their small loops are unrolled. */
#define UNROLL _Pragma("GCC unroll 8")

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
/* Four rows are widened to int16 once and stay in the first cache; R rows meet C columns in registers. */
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

#define TILE256(R, C)                                                                                              \
    for (; j + C <= q; j += C) {                                                                                   \
        __m256i sums[R][C];                                                                                        \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < C; c++) sums[r][c] = _mm256_setzero_si256();                                \
        for (int64_t l = 0; l < d; l += 16) {                                                                      \
            __m256i y[R];                                                                                          \
            UNROLL for (int r = 0; r < R; r++) y[r] = _mm256_load_si256((const __m256i *)(wide[r] + l));           \
            UNROLL for (int c = 0; c < C; c++) {                                                                   \
                __m256i x = _mm256_loadu_si256((const __m256i *)(columns + (j + c) * d + l));                      \
                UNROLL for (int r = 0; r < R; r++)                                                                 \
                    sums[r][c] = _mm256_add_epi32(sums[r][c], _mm256_madd_epi16(y[r], x));                         \
            }                                                                                                      \
        }                                                                                                          \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < C; c++)                                                                     \
                out[(i + r) * q + j + c] = (float)sum256(sums[r][c]) * (row_scales[i + r] * column_scales[j + c]); \
    }

__attribute__((target("avx2"))) static void products_avx2(
    const int8_t *rows, const int16_t *columns, const float *row_scales, const float *column_scales, float *out,
    int64_t n, int64_t q, int64_t d) {
    static __thread int16_t wide[4][WIDEST] __attribute__((aligned(64)));
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int r = 0; r < 4; r++)
            for (int64_t l = 0; l < d; l += 16)
                _mm256_store_si256((__m256i *)(wide[r] + l),
                                   _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(rows + (i + r) * d + l))));
        int64_t j = 0;
        TILE256(4, 2)
        TILE256(4, 1)
    }
    products_plain(rows + i * d, columns, row_scales + i, column_scales, out + i * q, n - i, q, d);
}
#endif

typedef void (*products_form)(const int8_t *, const int16_t *, const float *, const float *, float *, int64_t, int64_t,
                              int64_t);

/* form: 0 the best that the machine has, 1 plain, 2 AVX2, 3 AVX-512, 4 its VNNI, 5 AMX. d is a multiple of 64 (pad with
   zeros). tiles: the columns as AMX wants them (polyrank_lay_codes), or null. Returns the form used, or -1 if it
   cannot. */
API int polyrank_products(const int8_t *rows, const int16_t *columns, const uint8_t *tiles, const float *row_scales,
                          const float *column_scales, float *out, int64_t n, int64_t q, int64_t d, int form,
                          int threads) {
    products_form call = products_plain;
    int tiled = (form == 0 || form == 5) && tiles && polyrank_longest_for_tiles() >= d;
    if (d % 64 || d > WIDEST || (form == 5 && !tiled)) return -1;
#ifdef X86
    if ((form == 0 || form >= 4) && __builtin_cpu_supports("avx512vnni")) {
        call = products_vnni;
        form = tiled ? 5 : 4;
    } else if ((form == 0 || form == 3) && __builtin_cpu_supports("avx512bw")) {
        call = products_avx512;
        form = 3;
    } else if ((form == 0 || form == 2) && __builtin_cpu_supports("avx2")) {
        call = products_avx2;
        form = 2;
    }
#endif
    if (form > 1 && call == products_plain) return -1;
    SHARE {
        int64_t i = PART(0), stop = PART(1);
        if (tiled)
            polyrank_codes_by_tiles(rows + i * d, row_scales + i, tiles, column_scales, out + i * q, stop - i, q, d);
        else
            call(rows + i * d, columns, row_scales + i, column_scales, out + i * q, stop - i, q, d);
    }
    return form ? form : 1;
}

/* ---- bounds: of scores, from products[n, q] with a subspace's columns, rows `stride` apart (Subspace.coarse_bounds) ---- */

/* Of a subspace. */
typedef struct {
    const float *centre, *weights;
    float radius, residual, slack, rounding, size;
} numbers;

CLONES static void bounds(const float *products, int64_t stride, int64_t n, int64_t q, const float *norms,
                          const float *lost, const numbers *of, float *found, float *errors) {
    for (int64_t i = 0; i < n; i++) {
        const float *row = products + i * stride;
        float inside = 0.0f, weighted = 0.0f, middle = 0.0f;
        for (int64_t l = 0; l < q; l++) {
            float square = row[l] * row[l];
            inside += square;
            weighted += of->weights[l] * square;
            middle += of->centre[l] * row[l];
        }
        float norm = norms[i] + lost[i], rest = norm * norm * of->slack - inside;
        rest = __builtin_sqrtf(rest < 0.0f ? 0.0f : rest); /* what is not a number stays so */
        errors[i] = of->residual * rest + norm * of->rounding + lost[i] * of->size;
        found[i] = errors[i] + middle + of->radius * __builtin_sqrtf(weighted);
    }
}

API void polyrank_bounds(const float *products, int64_t stride, int64_t n, int64_t q, const float *norms,
                         const float *lost, const numbers *of, float *found, float *errors, int threads) {
    SHARE {
        int64_t i = PART(0), stop = PART(1);
        bounds(products + i * stride, stride, stop - i, q, norms + i, lost + i, of, found + i, errors + i);
    }
}

/* ---- means: of products[n, m] with rows `stride` apart: max, and sum_i softmax_i products_i ---- */

typedef float v16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t i16 __attribute__((vector_size(64)));

/* The numbers of x, moved round by so many places. */
#define TURN(n) (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7, (n) + 8, (n) + 9, (n) + 10, (n) + 11, \
                (n) + 12, (n) + 13, (n) + 14, (n) + 15
#if defined(__clang__)
#define TURNED(x, n) __builtin_shufflevector(x, x, TURN(n)) /* from x and x again: 16 is the first once more */
#else
#define TURNED(x, n) __builtin_shuffle(x, x, (i16){TURN(n)})
#endif

/* One number from sixteen, into all places. */
#define MOST(x)                                                                                                    \
    (x) = MAX16(x, TURNED(x, 8));                                                                                  \
    (x) = MAX16(x, TURNED(x, 4));                                                                                  \
    (x) = MAX16(x, TURNED(x, 2));                                                                                  \
    (x) = MAX16(x, TURNED(x, 1));
#define SUM(x)                                                                                                     \
    (x) += TURNED(x, 8);                                                                                           \
    (x) += TURNED(x, 4);                                                                                           \
    (x) += TURNED(x, 2);                                                                                           \
    (x) += TURNED(x, 1);

/* The larger of each pair. */
#define MAX16(x, y) ((v16)(((i16)(x) & ((x) > (y))) | ((i16)(y) & ~((x) > (y)))))

/* exp of x in [-80, 0]: 2^k e^r with |r| <= log(2) / 2 and a polynomial of degree 6; relative error below 3e-7. */
#define EXP16(x, y)                                                                                                \
    do {                                                                                                           \
        v16 k_ = (x) * 1.44269504f + 12582912.0f;                                                                  \
        i16 e_ = ((i16)k_ - 0x4b400000 + 127) << 23;                                                               \
        k_ -= 12582912.0f;                                                                                         \
        v16 r_ = ((x) - k_ * 0.693145752f) - k_ * 1.42860677e-6f;                                                  \
        v16 p_ = r_ * 1.38888889e-3f + 8.33333333e-3f;                                                             \
        p_ = p_ * r_ + 4.16666667e-2f;                                                                             \
        p_ = p_ * r_ + 1.66666667e-1f;                                                                             \
        p_ = p_ * r_ + 0.5f;                                                                                       \
        p_ = p_ * r_ + 1.0f;                                                                                       \
        p_ = p_ * r_ + 1.0f;                                                                                       \
        (y) = p_ * (v16)e_;                                                                                        \
    } while (0)

/* What 16 products add to the sums. What is not a number stays so: the comparisons pass it over, check does not. */
#define WEIGH(x)                                                                                                   \
    do {                                                                                                           \
        v16 below_ = (x) - top, z_ = MAX16(below_, low), weight_;                                                  \
        check += below_ * 0.0f;                                                                                    \
        EXP16(z_, weight_);                                                                                        \
        total += weight_;                                                                                          \
        weight_ *= z_;                                                                                             \
        weighted += weight_;                                                                                       \
        squared += weight_ * z_;                                                                                   \
    } while (0)

/* spread: never below the deviation of the products under their weights, where it is wanted. */
CLONES void polyrank_means_of(const float *products, int64_t stride, int64_t n, int64_t m, float *mean, float *best,
                              float *spread) {
    int64_t whole = m / 16 * 16;
    v16 lowest = {0}, low = {0};
    lowest -= 3.0e38f;
    low -= 80.0f;
    for (int64_t i = 0; m == 1 && i < n; i++) {
        mean[i] = best[i] = products[i * stride];
        if (spread) spread[i] = products[i * stride] * 0.0f; /* what is not a number stays so */
    }
    for (int64_t i = 0; m > 1 && i < n; i++) {
        const float *row = products + i * stride;
        v16 top = lowest, tail = lowest; /* what only fills up the tail weighs exp(-80): nothing */
        if (whole < m) {
            memcpy(&tail, row + whole, (size_t)(m - whole) * sizeof(float));
            top = tail;
        }
        for (int64_t l = 0; l < whole; l += 16) {
            v16 x = *(const v16 *)(row + l);
            top = MAX16(x, top);
        }
        MOST(top)
        v16 total = {0}, weighted = {0}, squared = {0}, check = {0};
        for (int64_t l = 0; l < whole; l += 16) WEIGH(*(const v16 *)(row + l));
        if (whole < m) WEIGH(tail);
        total += check;
        SUM(total)
        SUM(weighted)
        float sum = 1.0f / total[0], sum_weighted = weighted[0] * sum;
        best[i] = top[0];
        mean[i] = top[0] + sum_weighted;
        if (spread) { /* the difference of two squares loses digits: give some back */
            SUM(squared)
            float variance = squared[0] * sum * 1.00002f - sum_weighted * sum_weighted;
            spread[i] = __builtin_sqrtf(variance < 0.0f ? 0.0f : variance);
        }
    }
}

API void polyrank_means(const float *products, int64_t stride, int64_t n, int64_t m, float *mean, float *best,
                        float *spread, int threads) {
    SHARE {
        int64_t i = PART(0), stop = PART(1);
        polyrank_means_of(products + i * stride, stride, stop - i, m, mean + i, best + i, spread ? spread + i : 0);
    }
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }
