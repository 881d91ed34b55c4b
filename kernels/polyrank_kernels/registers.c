/* The loops of registers.h, in each kind of registers that this compiler can make. */

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

/* ---- columns, 16 by 16 ---- */

static int64_t padded(int64_t q) { return (q + COLUMNS - 1) / COLUMNS * COLUMNS; }

int64_t polyrank_laid_size(int64_t q, int64_t d, int bytes) { return padded(q) * d * bytes; }

void polyrank_lay_floats_flat(const float *columns, int64_t q, int64_t d, float *out) {
    for (int64_t j = 0; j < padded(q); j++)
        for (int64_t l = 0; l < d; l++)
            out[(j / COLUMNS * d + l) * COLUMNS + j % COLUMNS] = j < q ? columns[j * d + l] : 0.0f;
}

void polyrank_lay_codes_flat(const int16_t *columns, int64_t q, int64_t d, int form, void *out) {
    int16_t *pairs = out;
    (void)form;
    for (int64_t j = 0; j < padded(q); j++)
        for (int64_t l = 0; l < d; l++)
            pairs[((j / COLUMNS * d + l) / 2 * COLUMNS + j % COLUMNS) * 2 + l % 2] = j < q ? columns[j * d + l] : 0;
}

/* ---- what this machine has ---- */

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
#endif
    default: return &all_plain;
    }
}
