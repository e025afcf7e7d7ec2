// Preloaded into a process: the n-th open, write, fsync or rename below a folder fails, and the clock may jump.
// Built and driven by file_faults.py.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, FSYNC, RENAME };
static int armed_kind, armed_error;
static long armed_number, counted, clock_offset;
static char armed_folder[4096];

void faults_arm(int kind, long number, int error, const char *folder) {
    snprintf(armed_folder, sizeof armed_folder, "%s", folder);
    armed_error = error;
    armed_number = number;
    counted = 0;
    armed_kind = kind;
}

long faults_counted(void) { return counted; }
void faults_clock(long seconds) { clock_offset = seconds; } // every other fifth of a second, the time is so far off

static int fails(int kind, const char *path) {
    size_t length = strlen(armed_folder);
    if (kind != armed_kind || path == NULL || strncmp(path, armed_folder, length) != 0) return 0;
    if (__sync_add_and_fetch(&counted, 1) != armed_number) return 0;
    errno = armed_error;
    return 1;
}

static int fails_at(int kind, int handle) {
    if (kind != armed_kind) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(kind, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }
#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        MODE(flags) \
        return fails(OPEN, path) ? -1 : REAL(name)(path, flags, mode); \
    }
#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        MODE(flags) \
        return fails(OPEN, path) ? -1 : REAL(name)(folder, path, flags, mode); \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

FILE *fopen(const char *path, const char *how) { return fails(OPEN, path) ? NULL : REAL(fopen)(path, how); }
FILE *fopen64(const char *path, const char *how) { return fails(OPEN, path) ? NULL : REAL(fopen64)(path, how); }

ssize_t write(int handle, const void *from, size_t count) {
    return fails_at(WRITE, handle) ? -1 : REAL(write)(handle, from, count);
}
ssize_t writev(int handle, const struct iovec *from, int count) {
    return fails_at(WRITE, handle) ? -1 : REAL(writev)(handle, from, count);
}
ssize_t pwrite(int handle, const void *from, size_t count, off_t at) {
    return fails_at(WRITE, handle) ? -1 : REAL(pwrite)(handle, from, count, at);
}
ssize_t pwrite64(int handle, const void *from, size_t count, off64_t at) {
    return fails_at(WRITE, handle) ? -1 : REAL(pwrite64)(handle, from, count, at);
}
int ftruncate64(int handle, off64_t length) {
    return fails_at(WRITE, handle) ? -1 : REAL(ftruncate64)(handle, length);
}

int fsync(int handle) { return fails_at(FSYNC, handle) ? -1 : REAL(fsync)(handle); }
int fdatasync(int handle) { return fails_at(FSYNC, handle) ? -1 : REAL(fdatasync)(handle); }

int rename(const char *from, const char *to) { return fails(RENAME, to) ? -1 : REAL(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to) {
    return fails(RENAME, to) ? -1 : REAL(renameat)(a, from, b, to);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (clock == CLOCK_REALTIME && now->tv_nsec / 200000000 % 2) now->tv_sec += clock_offset;
    return result;
}
time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
