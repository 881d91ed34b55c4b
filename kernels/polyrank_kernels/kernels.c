/* Two loops that torch has no fast form of: products of int8 rows with int16 columns, and softmax-weighted means.

   Called through ctypes on plain pointers. Each has forms for AVX-512 and AVX2 where the compiler can make them and
   the machine has them, and a plain one; all give the same products, since those are sums of integers. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#define CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define CLONES
#endif

#define API __attribute__((visibility("default")))

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
#define TILE512(R, C)                                                                                              \
    for (; j + C <= q; j += C) {                                                                                   \
        __m512i sums[R][C];                                                                                        \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < C; c++) sums[r][c] = _mm512_setzero_si512();                                \
        for (int64_t l = 0; l < d; l += 32) {                                                                      \
            __m512i y[R];                                                                                          \
            UNROLL for (int r = 0; r < R; r++) y[r] = _mm512_load_si512((const void *)(wide[r] + l));              \
            UNROLL for (int c = 0; c < C; c++) {                                                                   \
                __m512i x = _mm512_loadu_si512((const void *)(columns + (j + c) * d + l));                         \
                UNROLL for (int r = 0; r < R; r++)                                                                 \
                    sums[r][c] = _mm512_add_epi32(sums[r][c], _mm512_madd_epi16(y[r], x));                         \
            }                                                                                                      \
        }                                                                                                          \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < C; c++)                                                                     \
                out[(i + r) * q + j + c] =                                                                         \
                    (float)_mm512_reduce_add_epi32(sums[r][c]) * (row_scales[i + r] * column_scales[j + c]);       \
    }

__attribute__((target("avx512f,avx512bw"))) static void products_avx512(
    const int8_t *rows, const int16_t *columns, const float *row_scales, const float *column_scales, float *out,
    int64_t n, int64_t q, int64_t d) {
    static __thread int16_t wide[4][WIDEST] __attribute__((aligned(64)));
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int r = 0; r < 4; r++) {
            const int8_t *row = rows + (i + r) * d;
            for (int64_t l = 0; l < d; l += 32) {
                _mm_prefetch((const char *)(row + 4 * d + l), _MM_HINT_T0);
                _mm512_store_si512((void *)(wide[r] + l),
                                   _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(row + l))));
            }
        }
        int64_t j = 0;
        TILE512(4, 6)
        TILE512(4, 2)
        TILE512(4, 1)
    }
    products_plain(rows + i * d, columns, row_scales + i, column_scales, out + i * q, n - i, q, d);
}

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

/* form: 0 the best that the machine has, 1 plain, 2 AVX2, 3 AVX-512. d is a multiple of 32 (pad with zeros).
   Returns the form used, or -1 if it cannot. */
API int polyrank_products(const int8_t *rows, const int16_t *columns, const float *row_scales,
                          const float *column_scales, float *out, int64_t n, int64_t q, int64_t d, int form) {
    if (d % 32 || d > WIDEST) return -1;
#ifdef X86
    int has512 = __builtin_cpu_supports("avx512bw"), has256 = __builtin_cpu_supports("avx2");
    if ((form == 0 || form == 3) && has512) {
        products_avx512(rows, columns, row_scales, column_scales, out, n, q, d);
        return 3;
    }
    if ((form == 0 || form == 2) && has256) {
        products_avx2(rows, columns, row_scales, column_scales, out, n, q, d);
        return 2;
    }
#endif
    if (form > 1) return -1;
    products_plain(rows, columns, row_scales, column_scales, out, n, q, d);
    return 1;
}

/* ---- means: of products[n, m] with rows `stride` apart: max, and sum_i softmax_i products_i ---- */

typedef float v16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t i16 __attribute__((vector_size(64)));

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

CLONES API void polyrank_means(const float *products, int64_t stride, int64_t n, int64_t m, float *mean, float *best) {
    v16 lowest = {0};
    lowest -= 3.0e38f;
    for (int64_t i = 0; i < n; i++) {
        const float *row = products + i * stride;
        v16 top, tail;
        int64_t whole = m / 16 * 16;
        tail = lowest; /* what only fills up the last vector weighs exp(-80): nothing */
        memcpy(&tail, row + whole, (size_t)(m - whole) * sizeof(float));
        top = tail;
        for (int64_t l = 0; l < whole; l += 16) {
            v16 x = *(const v16 *)(row + l);
            top = MAX16(x, top);
        }
        float most = top[0];
        for (int l = 1; l < 16; l++) most = top[l] > most ? top[l] : most;
        v16 total = {0}, weighted = {0}, low = {0}, check = {0}, weight;
        low -= 80.0f;
        for (int64_t l = 0; l < m; l += 16) {
            v16 x = (l < whole ? *(const v16 *)(row + l) : tail) - most;
            v16 z = MAX16(x, low);
            check += x * 0.0f; /* what is not a number stays so: the comparisons pass it over */
            EXP16(z, weight);
            total += weight;
            weighted += weight * z;
        }
        float sum = 0.0f, sum_weighted = 0.0f;
        for (int l = 0; l < 16; l++) {
            sum += total[l];
            sum_weighted += weighted[l];
        }
        best[i] = most;
        for (int l = 0; l < 16; l++) sum += check[l];
        mean[i] = most + sum_weighted / sum;
    }
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }
