/* The loops of registers.h for each instruction set that this compiler supports. */

#include "kernels.h"

#if !defined(VECTORS)
#define FORM(name) name##_plain
#define FOR
#define WIDTH 1
#define TALL 2
#include "registers.h"
#else
#define FORM(name) name##_plain
#define FOR
#define WIDTH 4
#if defined(ARM)
#define TALL 6
#else
#define TALL 2
#endif
#if defined(X86)
#define DOT(sums, y, x) ((whole)_mm_add_epi32((__m128i)(sums), _mm_madd_epi16((__m128i)(y), (__m128i)(x))))
#endif
#include "registers.h"
#endif

#if defined(X86)
#define FORM(name) name##_avx2
#define FOR __attribute__((target("avx2,fma")))
#define WIDTH 8
#define TALL 6
#define DOT(sums, y, x) ((whole)_mm256_add_epi32((__m256i)(sums), _mm256_madd_epi16((__m256i)(y), (__m256i)(x))))
#include "registers.h"

#define FORM(name) name##_avx_vnni
#define FOR __attribute__((target("avx2,fma,avxvnni")))
#define WIDTH 8
#define TALL 6
#define DOT(sums, y, x) ((whole)_mm256_dpwssd_avx_epi32((__m256i)(sums), (__m256i)(y), (__m256i)(x)))
#include "registers.h"

#define FORM(name) name##_avx512
#define FOR __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define WIDTH 16
#define TALL 12
#define DOT(sums, y, x) ((whole)_mm512_add_epi32((__m512i)(sums), _mm512_madd_epi16((__m512i)(y), (__m512i)(x))))
#include "registers.h"

#define FORM(name) name##_avx512_vnni
#define FOR __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define WIDTH 16
#define TALL 12
#define DOT(sums, y, x) ((whole)_mm512_dpwssd_epi32((__m512i)(sums), (__m512i)(y), (__m512i)(x)))
#include "registers.h"
#endif

/* ---- with ARM's dot product: four bytes of a row times those of four columns ----

   An int16 column is 256 high + low, both signed. Groups of 16 columns hold the four highs from l, then those from l + 4;
   the lows follow in the same order. */

#if defined(DOT_PRODUCTS)
#if defined(__ARM_FEATURE_DOTPROD)
#define FOR_DOT
#elif defined(__clang__)
#define FOR_DOT __attribute__((target("dotprod")))
#else
#define FOR_DOT __attribute__((target("arch=armv8.2-a+dotprod")))
#endif

#define MEET_FOUR(R, G)                                                                                            \
    UNROLL for (int c = 0; c < 4; c++) {                                                                           \
        int8x16_t four = vld1q_s8(x + 64 * G + 16 * c);                                                            \
        UNROLL for (int r = 0; r < R; r++) sums[r][c] = vdotq_laneq_s32(sums[r][c], four, y[r], G);                \
    }

#define MEET_BYTES(R)                                                                                              \
    for (; i + R <= stop; i += R) {                                                                                \
        const int8_t *x = tile;                                                                                    \
        int32x4_t sums[R][4];                                                                                      \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < 4; c++) sums[r][c] = vdupq_n_s32(0);                                        \
        for (int low = 0; low < 2; low++) {                                                                        \
            UNROLL for (int r = 0; r < R; r++)                                                                     \
                UNROLL for (int c = 0; c < 4; c++) sums[r][c] = vshlq_n_s32(sums[r][c], 8);                        \
            for (int64_t l = 0; l < d; l += 16, x += 16 * COLUMNS) {                                               \
                int8x16_t y[R];                                                                                    \
                UNROLL for (int r = 0; r < R; r++) y[r] = vld1q_s8(rows + (i + r) * d + l);                        \
                MEET_FOUR(R, 0)                                                                                    \
                MEET_FOUR(R, 1)                                                                                    \
                MEET_FOUR(R, 2)                                                                                    \
                MEET_FOUR(R, 3)                                                                                    \
            }                                                                                                      \
        }                                                                                                          \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < 4; c++) {                                                                   \
                float32x4_t scale = vmulq_n_f32(vld1q_f32(scales + 4 * c), row_scales[i + r]);                     \
                vst1q_f32(out + (i + r) * apart + j + 4 * c, vmulq_f32(vcvtq_f32_s32(sums[r][c]), scale));         \
            }                                                                                                      \
    }

FOR_DOT static void codes_dot(const int8_t *rows, const float *row_scales, const void *tiles, const float *column_scales,
                              float *out, int64_t apart, int64_t n, int64_t q, int64_t d, int16_t *wide) {
    (void)wide;
    for (int64_t start = 0; start < n; start += TOGETHER) {
        const int8_t *tile = tiles;
        int64_t stop = n - start < TOGETHER ? n : start + TOGETHER;
        for (int64_t j = 0; j < q; j += COLUMNS, tile += 2 * d * COLUMNS) {
            float scales[COLUMNS] = {0};
            int64_t i = start;
            memcpy(scales, column_scales + j, (size_t)(q - j < COLUMNS ? q - j : COLUMNS) * sizeof(float));
            MEET_BYTES(4)
            MEET_BYTES(1)
        }
    }
}

static const loops all_dot = {means_plain, upper_plain, coarse_plain, floats_plain, codes_dot};

static int has_dot(void) {
#if defined(__ARM_FEATURE_DOTPROD)
    return 1;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return 0;
#endif
}
#endif

/* ---- columns in groups of 16 ---- */

static int64_t padded(int64_t q) { return (q + COLUMNS - 1) / COLUMNS * COLUMNS; }

int64_t polyrank_laid_size(int64_t q, int64_t d, int bytes) { return padded(q) * d * bytes; }

void polyrank_lay_floats_flat(const float *columns, int64_t q, int64_t d, float *out) {
    for (int64_t j = 0; j < padded(q); j++)
        for (int64_t l = 0; l < d; l++)
            out[(j / COLUMNS * d + l) * COLUMNS + j % COLUMNS] = j < q ? columns[j * d + l] : 0.0f;
}

void polyrank_lay_codes_flat(const int16_t *columns, int64_t q, int64_t d, int form, void *out) {
    int16_t *pairs = out;
    int8_t *bytes = out;
    for (int64_t j = 0; j < padded(q); j++)
        for (int64_t l = 0; l < d; l++) {
            int16_t value = j < q ? columns[j * d + l] : 0;
            int8_t low = (int8_t)value, *to = bytes + (j / COLUMNS * 2 * d + l / 4 * 4) * COLUMNS + j % COLUMNS * 4 + l % 4;
            if (form == ARM_DOT)
                to[0] = (int8_t)((value - low) / 256), to[d * COLUMNS] = low;
            else
                pairs[((j / COLUMNS * d + l) / 2 * COLUMNS + j % COLUMNS) * 2 + l % 2] = value;
        }
}

/* ---- features of this machine ---- */

API int polyrank_has(int form) {
    switch (form) {
    case PLAIN: return 1;
#if defined(X86)
    case AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case AVX512: return __builtin_cpu_supports("avx512bw") != 0;
    case AVX512_VNNI: return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
    case AVX_VNNI: {
        unsigned a, b, c, d;
        return polyrank_has(AVX2) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
    }
    case AMX_TILES: return polyrank_longest_for_amx() > 0;
#elif defined(DOT_PRODUCTS)
    case ARM_DOT: return has_dot();
#endif
    default: return 0;
    }
}

const loops *polyrank_loops(int form) {
    switch (form) {
#if defined(X86)
    case AVX2: return &all_avx2;
    case AVX_VNNI: return &all_avx_vnni;
    case AVX512: return &all_avx512;
    case AVX512_VNNI:
    case AMX_TILES: return &all_avx512_vnni;
#elif defined(DOT_PRODUCTS)
    case ARM_DOT: return &all_dot;
#endif
    default: return &all_plain;
    }
}
