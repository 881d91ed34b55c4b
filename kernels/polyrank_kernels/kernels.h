/* What both files share: threads, and what this compiler can make. */

#ifndef POLYRANK_KERNELS_H
#define POLYRANK_KERNELS_H

#include <stdint.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#define SHARE _Pragma("omp parallel num_threads(threads)")
#define PART(edge) (n * (omp_get_thread_num() + (edge)) / omp_get_num_threads())
#else
#define SHARE
#define PART(edge) ((edge) ? n : 0)
#endif

#if defined(POLYRANK_EMULATED)
#include "emulated.h" /* tests/emulated: every instruction in plain C, on any machine */
#define X86 1
#define AMX 1
#define CLONES
#elif defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#define CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define CLONES
#endif

#define API __attribute__((visibility("default")))

int polyrank_longest_for_tiles(void);
void polyrank_codes_by_tiles(const int8_t *rows, const float *row_scales, const uint8_t *tiles,
                             const float *column_scales, float *out, int64_t n, int64_t q, int64_t d);
void polyrank_means_of(const float *products, int64_t stride, int64_t n, int64_t m, float *mean, float *best,
                       float *spread);

#endif
