/* A disk that fails: from the n-th change of a file below a folder on, every change gives an error.
   Preloaded into a process, which calls failing_arm. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char place[PATH_MAX];
static long first, seen;
static int code, removals, armed;

/* number: of the first change that fails, 0 for none. also_removals: whether removing fails, too. */
void failing_arm(const char *folder, long number, int error, int also_removals) {
    strncpy(place, folder, sizeof place - 1);
    first = number, code = error, removals = also_removals, seen = 0, armed = 1;
}

long failing_disarm(void) {
    armed = 0;
    return seen;
}

static int below(const char *path) { return path[0] != '/' || strncmp(path, place, strlen(place)) == 0; }

static int is_watched(int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return path[0] == '/' && below(path);
}

static int fails(int is_removal) {
    long number = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (!first || number < first || (is_removal && !removals)) return 0;
    errno = code;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define BY_PATH(name, path, removal, parameters, arguments) \
    int name parameters { \
        if (armed && below(path) && fails(removal)) return -1; \
        return REAL(name) arguments; \
    }
#define BY_FILE(type, name, file, parameters, arguments) \
    type name parameters { \
        if (armed && is_watched(file) && fails(0)) return -1; \
        return REAL(name) arguments; \
    }
#define CHANGES (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC)
#define OPEN(name, parameters, ...) \
    int name parameters { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        if (armed && (flags & CHANGES) && below(path) && fails(0)) return -1; \
        return REAL(name)(__VA_ARGS__, flags, mode); \
    }

OPEN(open, (const char *path, int flags, ...), path)
OPEN(open64, (const char *path, int flags, ...), path)
OPEN(openat, (int folder, const char *path, int flags, ...), folder, path)
OPEN(openat64, (int folder, const char *path, int flags, ...), folder, path)
BY_PATH(mkdir, path, 0, (const char *path, mode_t mode), (path, mode))
BY_PATH(rename, from, 0, (const char *from, const char *to), (from, to))
BY_PATH(renameat2, from, 0, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
BY_PATH(link, to, 0, (const char *from, const char *to), (from, to))
BY_PATH(symlink, to, 0, (const char *from, const char *to), (from, to))
BY_PATH(unlink, path, 1, (const char *path), (path))
BY_PATH(unlinkat, path, 1, (int folder, const char *path, int flags), (folder, path, flags))
BY_PATH(rmdir, path, 1, (const char *path), (path))
BY_FILE(ssize_t, write, file, (int file, const void *data, size_t size), (file, data, size))
BY_FILE(ssize_t, writev, file, (int file, const struct iovec *data, int count), (file, data, count))
BY_FILE(ssize_t, pwrite, file, (int file, const void *data, size_t size, off_t at), (file, data, size, at))
BY_FILE(ssize_t, pwrite64, file, (int file, const void *data, size_t size, off64_t at), (file, data, size, at))
BY_FILE(ssize_t, sendfile, file, (int file, int from, off_t *at, size_t size), (file, from, at, size))
BY_FILE(ssize_t, sendfile64, file, (int file, int from, off64_t *at, size_t size), (file, from, at, size))
BY_FILE(int, ftruncate, file, (int file, off_t size), (file, size))
BY_FILE(int, ftruncate64, file, (int file, off64_t size), (file, size))
BY_FILE(int, fsync, file, (int file), (file))
BY_FILE(int, fdatasync, file, (int file), (file))
