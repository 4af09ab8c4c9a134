/* Loaded before all libraries into the processes of a run by tools/soak (LD_PRELOAD). It moves their wall clock by the
 * seconds that the file SOAK_CLOCK holds as a double, and sends their connections to the port SOAK_FROM to SOAK_TO.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *offset;
static int from_port, to_port;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SOAK_CLOCK"), *from = getenv("SOAK_FROM"), *to = getenv("SOAK_TO");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *there = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        offset = there == MAP_FAILED ? NULL : there;
        close(file);
    }
    from_port = from ? atoi(from) : 0;
    to_port = to ? atoi(to) : 0;
}

static long step(void) { return offset ? (long)*offset : 0; }

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, at);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += step();
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    static int (*real)(struct timeval *restrict, void *restrict);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(at, zone);
    if (code == 0) at->tv_sec += step();
    return code;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real) real = dlsym(RTLD_NEXT, "connect");
    struct sockaddr_in other;
    if (from_port && address->sa_family == AF_INET && length >= sizeof other) {
        memcpy(&other, address, sizeof other);
        if (ntohs(other.sin_port) == from_port) {
            other.sin_port = htons(to_port);
            return real(socket, (const struct sockaddr *)&other, sizeof other);
        }
    }
    return real(socket, address, length);
}
