/* Loops with registers of WIDTH numbers. registers.c includes this file once for each instruction set, after it defines

   FORM(name)  the name of a function in this instruction set
   FOR         the attribute that enables the instructions
   WIDTH       32-bit numbers per register; 1 in plain C without vectors
   TALL        rows that are multiplied by 16 columns at a time: as many as fit their sums in registers
   DOT         (sums, y, x): add products of int16 pairs to sums; without it, the pairs are multiplied separately

   Columns are laid out in groups of 16, padded with zeros: number l of each column, then number l + 1; for int16, the pair
   from l, then the pair from l + 2. So each number, or pair, of a row is multiplied by 16 columns at once, and no sum runs
   across a register. */

#define real FORM(real)
#define whole FORM(whole)
#define ACROSS (COLUMNS / WIDTH)

#if WIDTH == 1
typedef float real;
typedef int32_t whole;
static real FORM(as_real)(whole bits) {
    real x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static whole FORM(as_whole)(real x) {
    whole bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
#define AS_REAL(x) FORM(as_real)(x)
#define AS_WHOLE(x) FORM(as_whole)(x)
#define TO_REAL(x) ((real)(x))
#define ZERO(type) ((type)0)
#define ALL(type, x) ((type)(x))
#define FIRST(x) (x)
#define LARGER(x, y) ((x) > (y) ? (x) : (y))
#define FOLD(OVER, x)
#else
typedef float real __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t whole __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#define AS_REAL(x) ((real)(x))
#define AS_WHOLE(x) ((whole)(x))
#define TO_REAL(x) __builtin_convertvector(x, real)
#define ZERO(type) ((type){0})
#define ALL(type, x) ((type){0} + (x))
#define FIRST(x) ((x)[0])
#define LARGER(x, y) AS_REAL((AS_WHOLE(x) & ((x) > (y))) | (AS_WHOLE(y) & ~((x) > (y))))

/* The numbers of x, rotated by n places. */
#if WIDTH == 4
#define PLACES(n) (n), (n) + 1, (n) + 2, (n) + 3
#elif WIDTH == 8
#define PLACES(n) (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7
#else
#define PLACES(n)                                                                                                  \
    (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7, (n) + 8, (n) + 9, (n) + 10, (n) + 11,      \
        (n) + 12, (n) + 13, (n) + 14, (n) + 15
#endif
#if defined(__clang__)
#define TURNED(x, n) __builtin_shufflevector(x, x, PLACES(n)) /* indices from WIDTH on refer to the second x */
#else
#define TURNED(x, n) __builtin_shuffle(x, x, (whole){PLACES(n)})
#endif

/* Combine the numbers of x into one, copied to all places. */
#define FOLD(OVER, x)                                                                                              \
    if (WIDTH > 8) (x) = OVER(x, TURNED(x, 8 % WIDTH));                                                            \
    if (WIDTH > 4) (x) = OVER(x, TURNED(x, 4 % WIDTH));                                                            \
    (x) = OVER(x, TURNED(x, 2));                                                                                   \
    (x) = OVER(x, TURNED(x, 1));
#endif
#define SUM(x, y) ((x) + (y))
#define AT(type, address) (*(const type *)(address))

/* ---- means of products[n, m]: max, sum_i softmax_i products_i, and the deviation ---- */

/* exp of x in [-80, 0]: 2^k e^r with |r| <= log(2) / 2 and a polynomial of degree 6; relative error below 3e-7. */
#define EXP(x, y)                                                                                                  \
    do {                                                                                                           \
        real k_ = (x) * 1.44269504f + 12582912.0f, r_, p_;                                                         \
        whole e_ = (AS_WHOLE(k_) - 0x4b400000 + 127) << 23;                                                        \
        k_ -= 12582912.0f;                                                                                         \
        r_ = ((x) - k_ * 0.693145752f) - k_ * 1.42860677e-6f;                                                      \
        p_ = r_ * 1.38888889e-3f + 8.33333333e-3f;                                                                 \
        p_ = p_ * r_ + 4.16666667e-2f;                                                                             \
        p_ = p_ * r_ + 1.66666667e-1f;                                                                             \
        p_ = p_ * r_ + 0.5f;                                                                                       \
        p_ = p_ * r_ + 1.0f;                                                                                       \
        p_ = p_ * r_ + 1.0f;                                                                                       \
        (y) = p_ * AS_REAL(e_);                                                                                    \
    } while (0)

/* Add a register of products to the sums. NaN stays NaN: the comparison skips it, but check keeps it. */
#define WEIGH(x)                                                                                                   \
    do {                                                                                                           \
        real below_ = (x) - top, z_ = LARGER(below_, low), weight_;                                                \
        check += below_ * 0.0f;                                                                                    \
        EXP(z_, weight_);                                                                                          \
        total += weight_;                                                                                          \
        weight_ *= z_;                                                                                             \
        weighted += weight_;                                                                                       \
        squared += weight_ * z_;                                                                                   \
    } while (0)

/* spread: an upper bound on the weighted deviation of the products; null: not computed. */
FOR static void FORM(means)(const float *products, int64_t apart, int64_t n, int64_t m, float *mean, float *best,
                            float *spread) {
    int64_t full = m / WIDTH * WIDTH;
    real lowest = ALL(real, -3.0e38f), low = ALL(real, -80.0f);
    for (int64_t i = 0; m == 1 && i < n; i++) {
        mean[i] = best[i] = products[i * apart];
        if (spread) spread[i] = products[i * apart] * 0.0f; /* NaN stays NaN */
    }
    for (int64_t i = 0; m > 1 && i < n; i++) {
        const float *row = products + i * apart;
        real top = lowest, tail = lowest; /* the tail's padding weighs exp(-80), which is negligible */
        real total = ZERO(real), weighted = ZERO(real), squared = ZERO(real), check = ZERO(real);
        float sum, sum_weighted;
        if (full < m) {
            memcpy(&tail, row + full, (size_t)(m - full) * sizeof(float));
            top = tail;
        }
        for (int64_t l = 0; l < full; l += WIDTH) {
            real x = AT(real, row + l);
            top = LARGER(x, top);
        }
        FOLD(LARGER, top)
        for (int64_t l = 0; l < full; l += WIDTH) WEIGH(AT(real, row + l));
        if (full < m) WEIGH(tail);
        total += check;
        FOLD(SUM, total)
        FOLD(SUM, weighted)
        sum = 1.0f / FIRST(total), sum_weighted = FIRST(weighted) * sum;
        best[i] = FIRST(top);
        mean[i] = FIRST(top) + sum_weighted;
        if (spread) { /* the difference of two squares loses digits: add a margin */
            float variance;
            FOLD(SUM, squared)
            variance = FIRST(squared) * sum * 1.00002f - sum_weighted * sum_weighted;
            spread[i] = sqrtf(variance < 0.0f ? 0.0f : variance);
        }
    }
}

/* ---- bounds ---- */

/* Upper bounds of scores, see upper_bounds in polyrank.search.scoring. NaN stays NaN. */
FOR static void FORM(upper)(const float *mean, const float *best, const float *spread, const float *norms,
                            const float *lost, const limits *of, int64_t n, float *out) {
    for (int64_t l = 0; l < n; l++) {
        float error = norms[l] * of->alone + (lost ? lost[l] * of->size : 0.0f) + 1e-30f, slope = of->steepness;
        float moved, most, size;
        if (spread) {
            float near_ = error < 4.0f ? error : 4.0f, x = near_ * 1.44269504f + 12582912.0f, power, local;
            int32_t bits;
            memcpy(&bits, &x, sizeof bits);
            bits = (bits - 0x4b400000 + 127) << 23;
            memcpy(&power, &bits, sizeof power);
            x -= 12582912.0f;
            x = near_ - x * 0.693147181f; /* exp(near) = 2^k e^x */
            power *= 1.0f + x * (1.0f + x * (0.5f + x * (0.166666667f + x * (0.0416666667f + x * 0.00833333333f))));
            local = 1.0f + power * 1.00001f * (spread[l] * 1.001f + near_);
            slope = error < 4.0f && local < slope ? local : slope;
        }
        moved = mean[l] + error * slope, most = best[l] + error;
        size = best[l] < 0.0f ? -best[l] : best[l];
        out[l] = (moved < most ? moved : most) + of->rounding + of->rounding_of_best * size + (mean[l] - best[l]) * 0.0f;
    }
}

/* Bounds of scores from products with a subspace's columns (Subspace.coarse_bounds). */
FOR static void FORM(coarse)(const float *products, int64_t apart, int64_t n, int64_t q, const float *norms,
                             const float *lost, const numbers *of, float *upper, float *errors) {
    for (int64_t i = 0; i < n; i++) {
        const float *row = products + i * apart;
        float inside = 0.0f, weighted = 0.0f, middle = 0.0f, norm = norms[i] + lost[i], rest;
        for (int64_t l = 0; l < q; l++) {
            float square = row[l] * row[l];
            inside += square;
            weighted += of->weights[l] * square;
            middle += of->centre[l] * row[l];
        }
        rest = norm * norm * of->slack - inside;
        rest = sqrtf(rest < 0.0f ? 0.0f : rest); /* NaN stays NaN */
        errors[i] = of->residual * rest + norm * of->rounding + lost[i] * of->size;
        upper[i] = errors[i] + middle + of->radius * sqrtf(weighted);
    }
}

/* ---- products with columns in groups of 16 ---- */

/* Products of R rows. For each 16 columns, which stay in the L1 cache, TOGETHER rows come from the L2 cache. */
#define MEET_FLOATS(R)                                                                                             \
    for (; i + R <= stop; i += R) {                                                                                \
        const float *row = rows + i * d, *x = tile;                                                                \
        real sums[R][ACROSS];                                                                                      \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < ACROSS; c++) sums[r][c] = ZERO(real);                                       \
        for (int64_t l = 0; l < d; l++, x += COLUMNS)                                                              \
            UNROLL for (int r = 0; r < R; r++)                                                                     \
                UNROLL for (int c = 0; c < ACROSS; c++) sums[r][c] += AT(real, x + c * WIDTH) * row[r * d + l];    \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < ACROSS; c++)                                                                \
                *(real *)(out + (i + r) * apart + j + c * WIDTH) = sums[r][c];                                     \
    }

FOR static void FORM(floats)(const float *rows, const float *tiles, float *out, int64_t apart, int64_t n, int64_t q,
                             int64_t d) {
    for (int64_t start = 0; start < n; start += TOGETHER) {
        const float *tile = tiles;
        int64_t stop = n - start < TOGETHER ? n : start + TOGETHER;
        for (int64_t j = 0; j < q; j += COLUMNS, tile += d * COLUMNS) {
            int64_t i = start;
            MEET_FLOATS(TALL)
            MEET_FLOATS(1)
        }
    }
}

#ifdef DOT
#define MEET_PAIRS(R)                                                                                              \
    UNROLL for (int r = 0; r < R; r++) {                                                                           \
        int32_t both;                                                                                              \
        memcpy(&both, row + r * d + l, sizeof both);                                                               \
        UNROLL for (int c = 0; c < ACROSS; c++)                                                                    \
            sums[r][c] = DOT(sums[r][c], ALL(whole, both), AT(whole, x + c * WIDTH));                              \
    }
#else
#define MEET_PAIRS(R)                                                                                              \
    UNROLL for (int c = 0; c < ACROSS; c++) {                                                                      \
        whole pair = AT(whole, x + c * WIDTH), second = pair >> 16, first = pair - second * 65536;                 \
        first = (first ^ 0x8000) - 0x8000;                                                                         \
        UNROLL for (int r = 0; r < R; r++) sums[r][c] += first * row[r * d + l] + second * row[r * d + l + 1];     \
    }
#endif

#define MEET_CODES(R)                                                                                              \
    for (; i + R <= stop; i += R) {                                                                                \
        const int16_t *row = wide + (i - start) * d;                                                               \
        const int32_t *x = tile;                                                                                   \
        whole sums[R][ACROSS];                                                                                     \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < ACROSS; c++) sums[r][c] = ZERO(whole);                                      \
        for (int64_t l = 0; l < d; l += 2, x += COLUMNS) {                                                         \
            MEET_PAIRS(R)                                                                                          \
        }                                                                                                          \
        UNROLL for (int r = 0; r < R; r++)                                                                         \
            UNROLL for (int c = 0; c < ACROSS; c++)                                                                \
                *(real *)(out + (i + r) * apart + j + c * WIDTH) =                                                 \
                    TO_REAL(sums[r][c]) * (AT(real, scales + c * WIDTH) * row_scales[i + r]);                      \
    }

/* wide: memory for TOGETHER rows in int16. */
FOR static void FORM(codes)(const int8_t *rows, const float *row_scales, const void *tiles, const float *column_scales,
                            float *out, int64_t apart, int64_t n, int64_t q, int64_t d, int16_t *wide) {
    for (int64_t start = 0; start < n; start += TOGETHER) {
        const int32_t *tile = tiles;
        int64_t stop = n - start < TOGETHER ? n : start + TOGETHER;
        for (int64_t l = 0; l < (stop - start) * d; l++) wide[l] = rows[start * d + l];
        for (int64_t j = 0; j < q; j += COLUMNS, tile += d / 2 * COLUMNS) {
            float scales[COLUMNS] = {0};
            int64_t i = start;
            memcpy(scales, column_scales + j, (size_t)(q - j < COLUMNS ? q - j : COLUMNS) * sizeof(float));
            MEET_CODES(TALL)
            MEET_CODES(1)
        }
    }
}

static const loops FORM(all) = {FORM(means), FORM(upper), FORM(coarse), FORM(floats), FORM(codes)};

#undef real
#undef whole
#undef ACROSS
#undef AS_REAL
#undef AS_WHOLE
#undef TO_REAL
#undef ZERO
#undef ALL
#undef FIRST
#undef LARGER
#undef FOLD
#undef PLACES
#undef TURNED
#undef SUM
#undef AT
#undef EXP
#undef WEIGH
#undef MEET_FLOATS
#undef MEET_PAIRS
#undef MEET_CODES
#undef FORM
#undef FOR
#undef WIDTH
#undef TALL
#undef DOT
