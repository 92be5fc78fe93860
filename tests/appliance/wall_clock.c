/* Loaded into a program (LD_PRELOAD), moves its wall clock by the seconds in the file WALL_CLOCK, read at every look at
   the clock. The clock of the machine belongs to other programs as well, and a time namespace does not cover it. Waiting
   is as ever: libfaketime, which does the same, stretches the waits of threads. No time server has set the clock,
   whatever the kernel says of the machine's: a clock that one has set is believed. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

static long offset_s(void) {
    char text[32] = {0};
    int file = open(getenv("WALL_CLOCK"), O_RDONLY | O_CLOEXEC);
    if (file < 0 || read(file, text, sizeof text - 1) < 0) abort();
    close(file);
    return atol(text);
}

int clock_gettime(clockid_t id, struct timespec *found) {
    long failed = syscall(SYS_clock_gettime, id, found);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) found->tv_sec += offset_s();
    return (int)failed;
}

int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}

int adjtimex(struct timex *state) {
    (void)state;
    return TIME_ERROR;
}
