/* A disk that fails on demand: preloaded into a process, it counts the calls that change files below one folder, kills
 * the process or fails a call at a chosen one, and can log every change with its data for a replay of power loss.
 *
 *   gcc -shared -fPIC -O1 -o faults.so faults.c -ldl
 *
 * SQLite's -shm file is left alone: it is shared memory, made again from the log after a crash.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COUNT, KILL, TEAR, FAIL, SHORT, FULL, LOSE };  /* effect at the chosen call; LOSE: at the chosen sync */
enum { WRITE = 1, SYNC, TRUNCATE, RENAME, EXCHANGE, UNLINK, RMDIR, MKDIR, CREATE, NOTE, LOST };  /* kinds of changes */

static char root[4096];
static int mode, error_code, journal = -1;
static long chosen, counted, synced;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void faults_arm(const char *folder, int what, long at, int code, int descriptor) {
    snprintf(root, sizeof root, "%s/", folder);
    mode = what, chosen = at, error_code = code, journal = descriptor, counted = synced = 0;
}
void faults_disarm(void) { root[0] = 0; }
long faults_count(void) { return counted; }

static void put(const void *data, size_t size) {
    for (const char *at = data; size > 0;) {
        ssize_t n = REAL(write)(journal, at, size);
        if (n <= 0) _exit(99);
        at += n, size -= n;
    }
}
static void record(int kind, const char *path, const char *other, int64_t offset, const void *data, size_t size) {
    if (journal < 0) return;
    int64_t head[5] = {kind, (int64_t)strlen(path), (int64_t)strlen(other), offset, (int64_t)size};
    put(head, sizeof head), put(path, head[1]), put(other, head[2]), put(data, size);
}
void faults_note(const char *text) {
    pthread_mutex_lock(&lock);
    record(NOTE, text, "", 0, NULL, 0);
    pthread_mutex_unlock(&lock);
}

static int inside(const char *path) {
    size_t n = strlen(path);
    if (!root[0] || (strncmp(path, root, strlen(root)) && !(n + 1 == strlen(root) && !strncmp(path, root, n)))) return 0;
    return n < 4 || strcmp(path + n - 4, "-shm");
}
static int place(int fd, char *path) {
    if (!root[0]) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 4095);
    path[n < 0 ? 0 : n] = 0;
    return inside(path);
}
static int place_at(int folder, const char *name, char *path) {
    if (!root[0]) return 0;
    if (name[0] == '/') {
        snprintf(path, 4096, "%s", name);
    } else {
        char start[4096];
        if (folder == AT_FDCWD) {
            if (!getcwd(start, sizeof start)) return 0;
        } else {
            place(folder, start);
        }
        snprintf(path, 4096, "%.2000s/%.2000s", start, name);
    }
    return inside(path);
}

/* Returns the action at this call: 0 continue, 1 fail with errno set, 2 do half of it; does not return after a kill. */
static int decide(int grows) {
    long now = ++counted;
    if (mode == FULL && now >= chosen && grows) return errno = ENOSPC, 1;
    if (mode == LOSE || now != chosen) return 0;
    if (mode == KILL) raise(SIGKILL);
    if (mode == FAIL) return errno = error_code, 1;
    return mode == TEAR || mode == SHORT ? 2 : 0;
}
static void torn(void) { if (mode == TEAR) raise(SIGKILL); }

static ssize_t change(int fd, const void *data, size_t size, off64_t offset, int positioned) {
    char path[4096];
    ssize_t done = -1;
    __typeof__(&write) plain = REAL(write);
    __typeof__(&pwrite64) at = REAL(pwrite64);
    if (!place(fd, path)) return positioned ? at(fd, data, size, offset) : plain(fd, data, size);
    pthread_mutex_lock(&lock);
    int what = decide(1);
    if (what != 1) {
        if (!positioned) offset = lseek64(fd, 0, SEEK_CUR);
        size_t part = what == 2 && size > 1 ? size / 2 : size;
        done = positioned ? at(fd, data, part, offset) : plain(fd, data, part);
        if (done > 0) record(WRITE, path, "", offset, data, done);
        if (what == 2) torn();
    }
    int code = errno;
    pthread_mutex_unlock(&lock);
    return errno = code, done;
}
ssize_t write(int fd, const void *data, size_t size) { return change(fd, data, size, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return change(fd, data, size, offset, 1); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return change(fd, data, size, offset, 1); }
ssize_t sendfile(int out, int in, off_t *offset, size_t size) { return errno = EINVAL, -1; }  /* copies go by write */
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) { return errno = EINVAL, -1; }

#define GUARDED(inside_, grows, call, log)           \
    if (!(inside_)) return (call);                   \
    pthread_mutex_lock(&lock);                       \
    int result = -1, what = decide(grows);           \
    if (what != 1) {                                 \
        result = (call);                             \
        if (result >= 0) { log; }                    \
        if (what == 2) torn();                       \
    }                                                \
    int code = errno;                                \
    pthread_mutex_unlock(&lock);                     \
    return errno = code, result;

/* A failed sync may have lost its data: the next one has nothing to write and succeeds. */
static int lost(const char *path) {
    if (mode != LOSE || ++synced != chosen) return 0;
    record(LOST, path, "", 0, NULL, 0);
    return errno = EIO, 1;
}
int fsync(int fd) {
    char path[4096];
    GUARDED(place(fd, path), 0, lost(path) ? -1 : REAL(fsync)(fd), record(SYNC, path, "", 0, NULL, 0))
}
int fdatasync(int fd) {
    char path[4096];
    GUARDED(place(fd, path), 0, lost(path) ? -1 : REAL(fdatasync)(fd), record(SYNC, path, "", 0, NULL, 0))
}
int ftruncate64(int fd, off64_t size) {
    char path[4096];
    GUARDED(place(fd, path), 0, REAL(ftruncate64)(fd, size), record(TRUNCATE, path, "", size, NULL, 0))
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int moved(int from, const char *old, int to, const char *new, unsigned flags) {
    char path[4096], other[4096];
    int here = place_at(from, old, path) | place_at(to, new, other);
    GUARDED(here, 0, REAL(renameat2)(from, old, to, new, flags),
            record(flags & RENAME_EXCHANGE ? EXCHANGE : RENAME, path, other, 0, NULL, 0))
}
int rename(const char *old, const char *new) { return moved(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return moved(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return moved(from, old, to, new, flags);
}
int unlinkat(int folder, const char *name, int flags) {
    char path[4096];
    GUARDED(place_at(folder, name, path), 0, REAL(unlinkat)(folder, name, flags),
            record(flags & AT_REMOVEDIR ? RMDIR : UNLINK, path, "", 0, NULL, 0))
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int mkdirat(int folder, const char *name, mode_t bits) {
    char path[4096];
    GUARDED(place_at(folder, name, path), 1, REAL(mkdirat)(folder, name, bits),
            record(MKDIR, path, "", 0, NULL, 0))
}
int mkdir(const char *name, mode_t bits) { return mkdirat(AT_FDCWD, name, bits); }

/* An open counts if it creates or empties a file. */
static int opened(int folder, const char *name, int flags, mode_t bits) {
    char path[4096];
    struct stat64 status;
    __typeof__(&openat64) call = REAL(openat64);
    int here = (flags & (O_CREAT | O_TRUNC)) && place_at(folder, name, path);
    int there = here && !stat64(path, &status);
    GUARDED(here && (!there || (flags & O_TRUNC)), 1, call(folder, name, flags, bits),
            if (!there) record(CREATE, path, "", 0, NULL, 0); else record(TRUNCATE, path, "", 0, NULL, 0))
}
static mode_t bits_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; }
#define OPEN(name, folder, ...)                                  \
    int name(__VA_ARGS__, const char *file, int flags, ...) {    \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode_t bits = bits_of(flags, rest);                      \
        va_end(rest);                                            \
        return opened(folder, file, flags, bits);                \
    }
OPEN(openat, folder, int folder)
OPEN(openat64, folder, int folder)
#define OPEN_HERE(name)                                          \
    int name(const char *file, int flags, ...) {                 \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode_t bits = bits_of(flags, rest);                      \
        va_end(rest);                                            \
        return opened(AT_FDCWD, file, flags, bits);              \
    }
OPEN_HERE(open)
OPEN_HERE(open64)
