/* The compiled loops in a process for another processor, under an emulator of it.

   This file is compiled twice. For this machine it is the library that polyrank_kernels loads; its functions send their
   arguments through a pipe. With POLYRANK_SERVER it is compiled for the other processor, together with the loops, as the
   program that calls them and sends back their results. POLYRANK_ELSEWHERE is the shell command that starts it.

   A message is the number of a function and its arguments: a number, or the bytes behind a pointer. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HAS, PRODUCTS, BOUNDS, MEANS, TILES_SIZE, LAY_CODES, LAY_FLOATS, BOUNDS_IN_TILES };
enum { NUMBER = -1, ABSENT = -2, MOST = 20, AROUND = 4096 };

typedef struct {
    int64_t value, size; /* size: number of bytes at the pointer, or NUMBER, or ABSENT */
    int64_t written;     /* whether the bytes are sent back */
} argument;

static void move_all(int file, void *memory, size_t size, int reading) {
    for (char *at = memory; size;) {
        ssize_t n = reading ? read(file, at, size) : write(file, at, size);
        if (n <= 0) _exit(reading && n == 0 ? 0 : 1);
        at += n, size -= (size_t)n;
    }
}

typedef struct {
    const float *centre, *weights;
    float rest[5];
} numbers;

#ifdef POLYRANK_SERVER

int polyrank_has(int form);
int polyrank_products(const void *, const void *, const void *, const void *, const void *, void *, int64_t, int64_t,
                      int64_t, int, int);
void polyrank_bounds(const void *, int64_t, int64_t, int64_t, const void *, const void *, const void *, void *, void *,
                     int, int);
void polyrank_means(const void *, int64_t, int64_t, int64_t, void *, void *, void *, int, int);
int64_t polyrank_tiles_size(int, int64_t, int64_t, int);
void polyrank_lay_codes(int, const void *, int64_t, int64_t, void *);
void polyrank_lay_floats(int, const void *, int64_t, int64_t, void *);
int polyrank_bounds_in_tiles(int, int, const void *, const void *, const void *, const void *, const void *, const void *,
                             int64_t, int64_t, int64_t, const void *, const void *, void *, int);

#define P(i) ((void *)a[i].value)
#define N(i) (a[i].value)
#define I(i) ((int)a[i].value)

static int64_t call(int64_t function, argument *a) {
    switch (function) {
    case HAS: return polyrank_has(I(0));
    case PRODUCTS:
        return polyrank_products(P(0), P(1), P(2), P(3), P(4), P(5), N(6), N(7), N(8), I(9), I(10));
    case BOUNDS: {
        numbers of = {P(6), P(7), {0}};
        memcpy(of.rest, P(8), sizeof of.rest);
        polyrank_bounds(P(0), N(1), N(2), N(3), P(4), P(5), &of, P(9), P(10), I(11), I(12));
        return 0;
    }
    case MEANS: polyrank_means(P(0), N(1), N(2), N(3), P(4), P(5), P(6), I(7), I(8)); return 0;
    case TILES_SIZE: return polyrank_tiles_size(I(0), N(1), N(2), I(3));
    case LAY_CODES: polyrank_lay_codes(I(0), P(1), N(2), N(3), P(4)); return 0;
    case LAY_FLOATS: polyrank_lay_floats(I(0), P(1), N(2), N(3), P(4)); return 0;
    case BOUNDS_IN_TILES:
        return polyrank_bounds_in_tiles(I(0), I(1), P(2), P(3), P(4), P(5), P(6), P(7), N(8), N(9), N(10), P(11), P(12),
                                        P(13), I(14));
    default: abort();
    }
}

int main(void) {
    for (;;) {
        int64_t head[2], result;
        argument a[MOST];
        char *blocks[MOST];
        move_all(0, head, sizeof head, 1);
        move_all(0, a, sizeof *a * (size_t)head[1], 1);
        for (int i = 0; i < head[1]; i++) {
            if (a[i].size == ABSENT) a[i].value = 0;
            if (a[i].size < 0) continue;
            blocks[i] = malloc((size_t)a[i].size + 2 * AROUND); /* with guards against writes outside it */
            memset(blocks[i], 0x5a, (size_t)a[i].size + 2 * AROUND);
            a[i].value = (int64_t)(blocks[i] + AROUND);
            move_all(0, blocks[i] + AROUND, (size_t)a[i].size, 1);
        }
        result = call(head[0], a);
        move_all(1, &result, sizeof result, 0);
        for (int i = 0; i < head[1]; i++) {
            if (a[i].size < 0) continue;
            for (int l = 0; l < AROUND; l++)
                if (blocks[i][l] != 0x5a || blocks[i][AROUND + a[i].size + l] != 0x5a) abort();
            if (a[i].written) move_all(1, blocks[i] + AROUND, (size_t)a[i].size, 0);
            free(blocks[i]);
        }
    }
}

#else

static int to[2], from[2];

static void start(void) {
    if (to[1]) return;
    if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) abort();
    if (!fork()) {
        dup2(to[0], 0), dup2(from[1], 1);
        execl("/bin/sh", "sh", "-c", getenv("POLYRANK_ELSEWHERE"), (char *)0);
        _exit(1);
    }
    close(to[0]), close(from[1]);
}

static int64_t ask(int64_t function, argument *a, int64_t n) {
    int64_t head[2] = {function, n}, result;
    start();
    move_all(to[1], head, sizeof head, 0);
    move_all(to[1], a, sizeof *a * (size_t)n, 0);
    for (int i = 0; i < n; i++)
        if (a[i].size >= 0) move_all(to[1], (void *)a[i].value, (size_t)a[i].size, 0);
    move_all(from[0], &result, sizeof result, 1);
    for (int i = 0; i < n; i++)
        if (a[i].size >= 0 && a[i].written) move_all(from[0], (void *)a[i].value, (size_t)a[i].size, 1);
    return result;
}

#define API __attribute__((visibility("default")))
#define N(x) {(int64_t)(x), NUMBER, 0}
#define P(x, bytes) {(int64_t)(x), (x) ? (int64_t)(bytes) : ABSENT, 0}
#define OUT(x, bytes) {(int64_t)(x), (x) ? (int64_t)(bytes) : ABSENT, 1}
#define ASK(function, ...)                                                                                         \
    argument a[] = {__VA_ARGS__};                                                                                  \
    int64_t result = ask(function, a, sizeof a / sizeof *a);                                                       \
    (void)result

API int polyrank_has(int form) {
    ASK(HAS, N(form));
    return (int)result;
}
API int polyrank_products(const void *rows, const void *columns, const void *tiles, const void *row_scales,
                          const void *column_scales, void *out, int64_t n, int64_t q, int64_t d, int form, int threads) {
    const void *none = 0; /* tiles are for AMX */
    (void)tiles;
    ASK(PRODUCTS, P(rows, n * d), P(columns, 2 * q * d), P(none, 0), P(row_scales, 4 * n), P(column_scales, 4 * q),
        OUT(out, 4 * n * q), N(n), N(q), N(d), N(form), N(threads));
    return (int)result;
}
API void polyrank_bounds(const void *products, int64_t apart, int64_t n, int64_t q, const void *norms, const void *lost,
                         const numbers *of, void *upper, void *errors, int form, int threads) {
    ASK(BOUNDS, P(products, n ? 4 * ((n - 1) * apart + q) : 0), N(apart), N(n), N(q), P(norms, 4 * n), P(lost, 4 * n),
        P(of->centre, 4 * q), P(of->weights, 4 * q), P(of->rest, sizeof of->rest), OUT(upper, 4 * n), OUT(errors, 4 * n),
        N(form), N(threads));
}
API void polyrank_means(const void *products, int64_t apart, int64_t n, int64_t m, void *mean, void *best, void *spread,
                        int form, int threads) {
    ASK(MEANS, P(products, n ? 4 * ((n - 1) * apart + m) : 0), N(apart), N(n), N(m), OUT(mean, 4 * n), OUT(best, 4 * n),
        OUT(spread, 4 * n), N(form), N(threads));
}
API int64_t polyrank_tiles_size(int form, int64_t q, int64_t d, int bytes) {
    ASK(TILES_SIZE, N(form), N(q), N(d), N(bytes));
    return result;
}
API void polyrank_lay_codes(int form, const void *columns, int64_t q, int64_t d, void *out) {
    int64_t size = polyrank_tiles_size(form, q, d, 1);
    ASK(LAY_CODES, N(form), P(columns, 2 * q * d), N(q), N(d), OUT(out, size));
}
API void polyrank_lay_floats(int form, const void *columns, int64_t q, int64_t d, void *out) {
    int64_t size = polyrank_tiles_size(form, q, d, 2);
    ASK(LAY_FLOATS, N(form), P(columns, 4 * q * d), N(q), N(d), OUT(out, size));
}
API int polyrank_bounds_in_tiles(int form, int kind, const void *rows, const void *row_scales, const void *tiles,
                                 const void *column_scales, const int64_t *edges, const void *of, int64_t n_contexts,
                                 int64_t n, int64_t d, const void *norms, const void *lost, void *out, int threads) {
    int64_t q = edges[n_contexts], size = polyrank_tiles_size(form, q, d, kind == 8 ? 1 : 2);
    ASK(BOUNDS_IN_TILES, N(form), N(kind), P(rows, n * d * (kind / 8)), P(row_scales, 4 * n), P(tiles, size),
        P(column_scales, 4 * q), P(edges, 8 * (n_contexts + 1)), P(of, 20 * n_contexts), N(n_contexts), N(n), N(d),
        P(norms, 4 * n), P(lost, 4 * n), OUT(out, 4 * n * n_contexts), N(threads));
    return (int)result;
}
#endif
