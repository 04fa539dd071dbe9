/* Preloaded into a server under test: its wall clock is off by as many microseconds as the file MOVED_CLOCK says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *moved_us;

__attribute__((constructor)) static void look_up(void) {
    const char *path = getenv("MOVED_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) moved_us = found;
    close(file);
}

static int64_t now_us(int64_t true_us) { return true_us + (moved_us ? *moved_us : 0); }

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(tv, tz);
    if (!failed && tv) {
        int64_t us = now_us((int64_t)tv->tv_sec * 1000000 + tv->tv_usec);
        tv->tv_sec = us / 1000000;
        tv->tv_usec = us % 1000000;
    }
    return failed;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, ts);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t us = now_us((int64_t)ts->tv_sec * 1000000 + ts->tv_nsec / 1000);
        ts->tv_sec = us / 1000000;
        ts->tv_nsec = us % 1000000 * 1000 + ts->tv_nsec % 1000;
    }
    return failed;
}

time_t time(time_t *out) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out) *out = ts.tv_sec;
    return ts.tv_sec;
}
