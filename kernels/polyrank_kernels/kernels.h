/* Shared definitions: threads, features of the compiler and the machine, and the loops for each instruction set. */

#ifndef POLYRANK_KERNELS_H
#define POLYRANK_KERNELS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if !defined(_OPENMP)
#define SHARE (void)threads;
#define PART(edge) ((edge) ? n : 0)
#else
#include <omp.h>
#ifdef _MSC_VER
#define SHARE __pragma(omp parallel num_threads(threads))
#else
#define SHARE _Pragma("omp parallel num_threads(threads)")
#endif
#define PART(edge) (n * (omp_get_thread_num() + (edge)) / omp_get_num_threads())
#endif

/* POLYRANK_PLAIN: compile without vector extensions and attributes, as compilers other than GCC and Clang do. */
#if defined(__GNUC__) && !defined(POLYRANK_PLAIN)
#define VECTORS 1
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define UNROLL
#define PREFETCH(address) ((void)(address))
#endif

#if defined(POLYRANK_EMULATED)
#include "emulated.h" /* tests/emulated: every instruction in plain C, on any machine */
#define X86 1
#define AMX 1
#elif defined(VECTORS) && defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define X86 1
#elif defined(VECTORS) && defined(__aarch64__)
#include <arm_neon.h>
#ifdef __linux__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#define ARM 1
#if !defined(__clang__) || defined(__ARM_FEATURE_DOTPROD) || __clang_major__ >= 16
#define DOT_PRODUCTS 1
#endif
#endif

#if defined(_WIN32)
#define API __declspec(dllexport)
#elif defined(__GNUC__)
#define API __attribute__((visibility("default")))
#else
#define API
#endif

/* The instructions that a loop uses; on ARM, PLAIN includes NEON. */
enum { PLAIN = 1, AVX2, AVX_VNNI, AVX512, AVX512_VNNI, AMX_TILES, ARM_DOT, N_FORMS };

/* 1 if this machine and this library support the form. */
API int polyrank_has(int form);

/* Rows are multiplied by 16 columns at a time. */
enum { COLUMNS = 16, WIDEST = 8192 };

/* Rows that are multiplied by all columns before the next rows, so that they stay in the L2 cache. */
enum { TOGETHER = 48 };

/* A subspace's part of the bounds. */
typedef struct {
    const float *centre, *weights;
    float radius, residual, slack, rounding, size;
} numbers;

/* A context's part of the bounds. A candidate's products may be off by lost * size + norm * alone; upper_bounds in
   polyrank.search.scoring explains the other fields. */
typedef struct {
    float size, alone, steepness, rounding, rounding_of_best;
} limits;

/* Single-threaded loops for one instruction set. `apart`: distance between two rows of products; for columns in tiles it
   is a multiple of COLUMNS, and the padding after the last column is written too. spread and lost may be null. */
typedef struct {
    void (*means)(const float *products, int64_t apart, int64_t n, int64_t m, float *mean, float *best, float *spread);
    void (*upper)(const float *mean, const float *best, const float *spread, const float *norms, const float *lost,
                  const limits *of, int64_t n, float *out);
    void (*coarse)(const float *products, int64_t apart, int64_t n, int64_t q, const float *norms, const float *lost,
                   const numbers *of, float *upper, float *errors);
    void (*floats)(const float *rows, const float *tiles, float *out, int64_t apart, int64_t n, int64_t q, int64_t d);
    void (*codes)(const int8_t *rows, const float *row_scales, const void *tiles, const float *column_scales, float *out,
                  int64_t apart, int64_t n, int64_t q, int64_t d, int16_t *wide);
} loops;

/* The loops of a form that the machine supports. */
const loops *polyrank_loops(int form);

/* Columns in the layout of these loops: fp32 for `floats`, int16 for `codes`. */
int64_t polyrank_laid_size(int64_t q, int64_t d, int bytes);
void polyrank_lay_floats_flat(const float *columns, int64_t q, int64_t d, float *out);
void polyrank_lay_codes_flat(const int16_t *columns, int64_t q, int64_t d, int form, void *out);

/* With AMX, in tiles.c. `there`: number of rows at `rows`; the first n are multiplied. */
int polyrank_longest_for_amx(void);
int64_t polyrank_amx_size(int64_t q, int64_t d, int bytes);
void polyrank_lay_codes_for_amx(const int16_t *columns, int64_t q, int64_t d, uint8_t *out);
void polyrank_lay_floats_for_amx(const float *columns, int64_t q, int64_t d, uint16_t *out);
void polyrank_products_by_amx(int kind, const void *rows, const float *row_scales, const void *tiles,
                              const float *column_scales, float *out, int64_t n, int64_t q, int64_t d, int64_t there);

#endif
