/* Products with AMX, whose instructions multiply two tiles of 1 KB: int8 rows by int16 columns, exactly; bf16 rows by bf16
   columns; and fp32 rows by fp32 columns, each number split into two bf16 numbers.

   A tile holds 16 rows of 64 bytes. Rows need no special layout; columns are laid out in tiles first, 16 per tile, padded
   with zeros. An int16 column is 256 high + low, with signed high and unsigned low, and needs two products. For fp32,
   y = y' + y" and x = x' + x" in bf16 need three: y' x', y" x', y' x", because y" x" and the rounding of both are at most
   2^-15 of y x. */

#include "kernels.h"

#if !defined(AMX) && defined(X86) && defined(__linux__) && ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { TILE = 1024, BYTES = 64, NUMBERS = 32, PANEL = 32, LONGEST = 2048 };

/* ---- columns in tiles: per 16 columns and 64 bytes of a row, the larger part, then the smaller ---- */

/* Bytes that q columns of d numbers need; `bytes`: of a number. */
int64_t polyrank_amx_size(int64_t q, int64_t d, int bytes) {
    return (q + 2 * COLUMNS - 1) / COLUMNS / 2 * 2 * ((d * bytes + BYTES - 1) / BYTES) * 2 * TILE;
}

void polyrank_lay_codes_for_amx(const int16_t *columns, int64_t q, int64_t d, uint8_t *out) {
    for (int64_t j = 0; j < (q + 2 * COLUMNS - 1) / COLUMNS / 2 * 2 * COLUMNS; j++)
        for (int64_t l = 0; l < (d + BYTES - 1) / BYTES * BYTES; l++) {
            int16_t value = j < q && l < d ? columns[j * d + l] : 0;
            uint8_t *to = out + (j / COLUMNS * ((d + BYTES - 1) / BYTES) + l / BYTES) * 2 * TILE;
            to += l % BYTES / 4 * 64 + j % COLUMNS * 4 + l % 4;
            to[0] = (uint8_t)(value >> 8);
            to[TILE] = (uint8_t)value;
        }
}

/* Round to the nearest bf16, ties to even. */
static uint16_t half_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void polyrank_lay_floats_for_amx(const float *columns, int64_t q, int64_t d, uint16_t *out) {
    for (int64_t j = 0; j < (q + 2 * COLUMNS - 1) / COLUMNS / 2 * 2 * COLUMNS; j++)
        for (int64_t l = 0; l < (d + NUMBERS - 1) / NUMBERS * NUMBERS; l++) {
            float value = j < q && l < d ? columns[j * d + l] : 0.0f, larger;
            uint16_t half = half_of(value);
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&larger, &bits, sizeof larger);
            uint16_t *to = out + (j / COLUMNS * ((d + NUMBERS - 1) / NUMBERS) + l / NUMBERS) * TILE;
            to += l % NUMBERS / 2 * 32 + j % COLUMNS * 2 + l % 2;
            to[0] = half;
            to[TILE / 2] = half_of(value - larger);
        }
}

#ifdef AMX
/* ---- whether this machine has AMX and lets this process use it ---- */

static int ask_for_tiles(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (!(d >> 22 & 1) || !(d >> 24 & 1) || !(d >> 25 & 1)) return 0; /* bf16, tiles, int8 */
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) return 0; /* AVX-512 for bf16 */
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18L /* tile data */) == 0;
}

static int has_tiles(void) {
    static int answer = -1;
    if (answer < 0) answer = ask_for_tiles();
    return answer;
}

typedef struct {
    uint8_t palette, start, unused[14];
    uint16_t width[16];
    uint8_t height[16];
} tile_shapes;

#define USING_TILES(SHAPES)                                                                                        \
    tile_shapes SHAPES __attribute__((aligned(64))) = {.palette = 1};                                              \
    for (int t_ = 0; t_ < 8; t_++) SHAPES.width[t_] = BYTES, SHAPES.height[t_] = 16;                               \
    _tile_loadconfig(&SHAPES);

#define ZERO_SUMS                                                                                                  \
    _tile_zero(0);                                                                                                 \
    _tile_zero(1);                                                                                                 \
    _tile_zero(2);                                                                                                 \
    _tile_zero(3);

#define FOR_TILES "amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512bf16"

/* ---- int8 rows, int16 columns: 32 rows times 16 columns in four tiles, two for each part ----

   Here and below, `there` is the number of rows at `rows`; the first n are multiplied. */

/* Sums of PANEL rows and up to 16 columns, scaled and written while the next sums are computed. */
typedef struct {
    int32_t high[PANEL][16], low[PANEL][16] __attribute__((aligned(64)));
    const float *row_scales, *column_scales;
    float *out;
    int64_t count;
    __mmask16 mask;
} waiting;

__attribute__((target(FOR_TILES), always_inline)) static inline void write_sums(const waiting *of, int64_t q, int64_t r,
                                                                                int64_t stop) {
    __m512 scales = _mm512_maskz_loadu_ps(of->mask, of->column_scales);
    for (; r < stop && r < of->count; r++) {
        __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(_mm512_loadu_si512(of->high[r]), 8), _mm512_loadu_si512(of->low[r]));
        __m512 scale = _mm512_mul_ps(_mm512_set1_ps(of->row_scales[r]), scales);
        _mm512_mask_storeu_ps(of->out + r * q, of->mask, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale));
    }
}

__attribute__((target(FOR_TILES))) static void products_of_codes(const int8_t *rows, const float *row_scales,
                                                                 const uint8_t *tiles, const float *column_scales,
                                                                 float *out, int64_t n, int64_t q, int64_t d, int64_t there) {
    static __thread int8_t last[PANEL * LONGEST] __attribute__((aligned(64)));
    waiting sums[2] __attribute__((aligned(64)));
    int64_t width = d / BYTES, each = (PANEL - 1 + width) / width, n_blocks = 0;
    USING_TILES(shapes)
    for (int64_t i = 0; i < n; i += PANEL) {
        int64_t count = n - i < PANEL ? n - i : PANEL;
        const int8_t *row = count < PANEL ? memcpy(last, rows + i * d, (size_t)(count * d)) : rows + i * d;
        const uint8_t *tile = tiles;
        for (int64_t j = 0; j < q; j += COLUMNS, n_blocks++) {
            waiting *now = &sums[n_blocks & 1], *before = n_blocks ? &sums[~n_blocks & 1] : 0;
            ZERO_SUMS
            for (int64_t l = 0; l < width; l++, tile += 2 * TILE) {
                if (!j && i + 2 * PANEL <= there) /* prefetch the next rows */
                    for (int r = 0; r < PANEL; r++)
                        _mm_prefetch((const char *)(row + PANEL * d + (l * PANEL + r) * BYTES), _MM_HINT_T0);
                _tile_loadd(4, row + l * BYTES, d);
                _tile_loadd(5, row + l * BYTES + 16 * d, d);
                _tile_loadd(6, tile, 64);
                _tile_loadd(7, tile + TILE, 64);
                _tile_dpbssd(0, 4, 6);
                _tile_dpbssd(1, 5, 6);
                _tile_dpbsud(2, 4, 7);
                _tile_dpbsud(3, 5, 7);
                if (before) write_sums(before, q, l * each, (l + 1) * each);
            }
            _tile_stored(0, now->high[0], 64);
            _tile_stored(1, now->high[16], 64);
            _tile_stored(2, now->low[0], 64);
            _tile_stored(3, now->low[16], 64);
            now->row_scales = row_scales + i;
            now->column_scales = column_scales + j;
            now->out = out + i * q + j;
            now->count = count;
            now->mask = (__mmask16)(q - j < COLUMNS ? (1 << (q - j)) - 1 : 0xffff);
        }
    }
    if (n_blocks) write_sums(&sums[~n_blocks & 1], q, 0, PANEL);
    _tile_release();
}

/* ---- bf16 rows, or fp32 rows as two of them: 32 rows times 32 columns in four tiles ---- */

#define MEET(ROWS, COLUMN)                                                                                         \
    _tile_loadd(4, ROWS + l * NUMBERS, step * 2);                                                                  \
    _tile_loadd(5, ROWS + l * NUMBERS + 16 * step, step * 2);                                                      \
    _tile_loadd(6, COLUMN, 64);                                                                                    \
    _tile_loadd(7, COLUMN + width * TILE, 64);                                                                     \
    _tile_dpbf16ps(0, 4, 6);                                                                                       \
    _tile_dpbf16ps(1, 4, 7);                                                                                       \
    _tile_dpbf16ps(2, 5, 6);                                                                                       \
    _tile_dpbf16ps(3, 5, 7);

/* Products of PANEL rows that are `step` numbers apart; the first `count` are written. smaller: null for bf16 rows. after:
   the next rows, to prefetch, or null. */
__attribute__((target(FOR_TILES))) static void products_of_panel(const uint16_t *larger, const uint16_t *smaller,
                                                                 int64_t step, const char *after, const uint16_t *tile,
                                                                 float *out, int64_t count, int64_t q, int64_t width) {
    float sums[PANEL][2 * COLUMNS] __attribute__((aligned(64)));
    for (int64_t j = 0; j < q; j += 2 * COLUMNS, tile += width * TILE) {
        int whole = count == PANEL && q - j >= 2 * COLUMNS;
        float *to = whole ? out + j : sums[0];
        int64_t apart = whole ? q : 2 * COLUMNS;
        ZERO_SUMS
        for (int64_t l = 0; l < width; l++, tile += TILE) {
            if (!j && after)
                for (int r = 0; r < PANEL; r++) _mm_prefetch(after + (l * PANEL + r) * BYTES, _MM_HINT_T1);
            MEET(larger, tile)
            if (!smaller) continue;
            MEET(smaller, tile)
            MEET(larger, tile + TILE / 2)
        }
        _tile_stored(0, to, apart * 4);
        _tile_stored(1, to + COLUMNS, apart * 4);
        _tile_stored(2, to + 16 * apart, apart * 4);
        _tile_stored(3, to + 16 * apart + COLUMNS, apart * 4);
        for (int64_t r = 0; !whole && r < count; r++)
            memcpy(out + r * q + j, sums[r], (size_t)(q - j < 2 * COLUMNS ? q - j : 2 * COLUMNS) * sizeof(float));
    }
}

__attribute__((target(FOR_TILES))) static void products_of_halves(const uint16_t *rows, const uint16_t *tiles, float *out,
                                                                  int64_t n, int64_t q, int64_t d, int64_t there) {
    static __thread uint16_t last[PANEL * LONGEST] __attribute__((aligned(64)));
    USING_TILES(shapes)
    for (int64_t i = 0; i < n; i += PANEL) {
        int64_t count = n - i < PANEL ? n - i : PANEL;
        const uint16_t *row = count < PANEL ? memcpy(last, rows + i * d, (size_t)(count * d) * 2) : rows + i * d;
        const char *after = i + 2 * PANEL <= there ? (const char *)(row + PANEL * d) : 0;
        products_of_panel(row, 0, d, after, tiles, out + i * q, count, q, d / NUMBERS);
    }
    _tile_release();
}

/* Split rows [count, d] into two bf16 arrays [PANEL, width * 32], the larger and the smaller part, padded with zeros. */
__attribute__((target(FOR_TILES))) static void split(const float *rows, int64_t count, int64_t d, int64_t width,
                                                     uint16_t *larger, uint16_t *smaller) {
    for (int64_t r = 0; r < count; r++)
        for (int64_t l = 0; l < width * NUMBERS; l += NUMBERS) {
            int64_t left = d - l;
            __mmask16 first = (__mmask16)(left >= 16 ? 0xffff : (1 << left) - 1);
            __mmask16 second = (__mmask16)(left >= 32 ? 0xffff : (1 << (left > 16 ? left - 16 : 0)) - 1);
            __m512 x = _mm512_maskz_loadu_ps(first, rows + r * d + l), y = _mm512_maskz_loadu_ps(second, rows + r * d + l + 16);
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(y, x);
            __m512 x_larger = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(both)), 16);
            __m512 y_larger = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1)), 16);
            __m512i rest = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(y, y_larger), _mm512_sub_ps(x, x_larger));
            _mm512_storeu_si512(larger + r * width * NUMBERS + l, both);
            _mm512_storeu_si512(smaller + r * width * NUMBERS + l, rest);
        }
}

__attribute__((target(FOR_TILES))) static void products_of_floats(const float *rows, const uint16_t *tiles, float *out,
                                                                  int64_t n, int64_t q, int64_t d) {
    static __thread uint16_t larger[PANEL * LONGEST] __attribute__((aligned(64)));
    static __thread uint16_t smaller[PANEL * LONGEST] __attribute__((aligned(64)));
    int64_t width = (d + NUMBERS - 1) / NUMBERS;
    USING_TILES(shapes)
    for (int64_t i = 0; i < n; i += PANEL) {
        int64_t count = n - i < PANEL ? n - i : PANEL;
        split(rows + i * d, count, d, width, larger, smaller);
        products_of_panel(larger, smaller, width * NUMBERS, 0, tiles, out + i * q, count, q, width);
    }
    _tile_release();
}
#endif

/* Maximum length of rows for AMX; 0 without AMX. */
int polyrank_longest_for_amx(void) {
#ifdef AMX
    return has_tiles() ? LONGEST : 0;
#else
    return 0;
#endif
}

/* One thread's out[n, q]. kind: bits of a row's numbers; d is a multiple of 64 for 8 bits, of 32 for 16 bits. */
void polyrank_products_by_amx(int kind, const void *rows, const float *row_scales, const void *tiles,
                              const float *column_scales, float *out, int64_t n, int64_t q, int64_t d, int64_t there) {
#ifdef AMX
    if (kind == 8)
        products_of_codes(rows, row_scales, tiles, column_scales, out, n, q, d, there);
    else if (kind == 16)
        products_of_halves(rows, tiles, out, n, q, d, there);
    else
        products_of_floats(rows, tiles, out, n, q, d);
#else
    (void)kind, (void)rows, (void)row_scales, (void)tiles, (void)column_scales, (void)out;
    (void)n, (void)q, (void)d, (void)there;
#endif
}
