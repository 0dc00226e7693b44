/* A library for LD_PRELOAD that stands between a process and its files, for tests of what happens when they fail.
 *
 * It counts the file calls of chosen kinds whose path holds a given string, and makes the n-th of them fail, or be cut
 * short, or kills the process there; and it can report every fsync, and every syncfs, so that a test can keep what a power
 * loss would leave. A test reaches it through ctypes in the process itself (tests/faults/shim.py): fault_arm, fault_hits,
 * fault_fired, fault_syncs_after, fault_on_sync, fault_on_syncfs. Linux with glibc only. Writes to mapped memory do not
 * pass here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, TRUNCATE = 16, UNLINK = 32, MMAP = 64, READ = 128, TIMES = 256 };
enum { FAIL = 0, SHORT = 1, SHORT_THEN_FAIL = 2, KILL_BEFORE = 3, KILL_AFTER = 4, KILL_HALFWAY = 5, FAIL_FROM_HERE_ON = 6 };
enum { PASS, REFUSE, CUT, KILL_WHEN_DONE };

static int armed_kinds;
static char pattern[PATH_MAX];
static long nth, hits, fired;
static int failure, mode;
static ino_t failed_inode;
static long syncs_after_failure;
static void (*sync_callback)(int fd);
static void (*syncfs_callback)(int fd);

void fault_arm(int kinds, const char *path_part, long n, int error, int how)
{
    armed_kinds = 0;
    snprintf(pattern, sizeof pattern, "%s", path_part);
    nth = n;
    failure = error;
    mode = how;
    hits = fired = syncs_after_failure = 0;
    failed_inode = 0;
    __atomic_store_n(&armed_kinds, kinds, __ATOMIC_SEQ_CST);
}

long fault_hits(void) { return hits; }
long fault_fired(void) { return fired; }
long fault_syncs_after(void) { return syncs_after_failure; }
void fault_on_sync(void (*callback)(int fd)) { sync_callback = callback; }
void fault_on_syncfs(void (*callback)(int fd)) { syncfs_callback = callback; }

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static void path_of(int fd, char *out)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n < 0 ? 0 : n] = 0;
}

static int due(int kind, const char *path)
{
    if (!(armed_kinds & kind) || !strstr(path, pattern))
        return PASS;
    long hit = __atomic_add_fetch(&hits, 1, __ATOMIC_SEQ_CST);
    int again = hit > nth && (mode == FAIL_FROM_HERE_ON || (mode == SHORT_THEN_FAIL && kind == WRITE));
    if (hit != nth && !again)
        return PASS;
    __atomic_add_fetch(&fired, 1, __ATOMIC_SEQ_CST);
    if (mode == KILL_BEFORE)
        die();
    if (mode == KILL_AFTER)
        return KILL_WHEN_DONE;
    if (kind == WRITE && !again && (mode == SHORT || mode == SHORT_THEN_FAIL || mode == KILL_HALFWAY))
        return CUT;
    if (mode == SHORT || mode == KILL_HALFWAY)
        return PASS;
    errno = failure;
    return REFUSE;
}

static int due_fd(int kind, int fd)
{
    if (!(armed_kinds & kind))
        return PASS;
    int saved = errno;
    char path[PATH_MAX];
    path_of(fd, path);
    errno = saved;
    return due(kind, path);
}

static int due_at(int kind, int directory, const char *name)
{
    if (!(armed_kinds & kind))
        return PASS;
    if (name[0] == '/' || directory == AT_FDCWD)
        return due(kind, name);
    char path[2 * PATH_MAX];
    path_of(directory, path);
    size_t used = strlen(path);
    snprintf(path + used, sizeof path - used, "/%s", name);
    return due(kind, path);
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) \
    real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define GUARDED(type, verdict, call) \
    do { \
        int verdict_ = (verdict); \
        if (verdict_ == REFUSE) \
            return (type)-1; \
        type result_ = (call); \
        if (verdict_ == KILL_WHEN_DONE) \
            die(); \
        return result_; \
    } while (0)

static size_t cut(int verdict, size_t count) { return verdict == CUT && count > 1 ? count / 2 : count; }

/* A cut write has written its half: die there when asked to. */
static ssize_t written(int verdict, ssize_t result)
{
    if (verdict == KILL_WHEN_DONE || (verdict == CUT && mode == KILL_HALFWAY))
        die();
    return result;
}

#define VECTOR_MAX 1024

/* The first half of the bytes of a vector, in `out`; returns how many entries that takes. */
static int cut_vector(const struct iovec *in, int count, struct iovec *out)
{
    size_t total = 0, kept = 0;
    for (int i = 0; i < count; i++)
        total += in[i].iov_len;
    total = total > 1 ? total / 2 : total;
    int used = 0;
    while (used < count && used < VECTOR_MAX && kept < total) {
        out[used] = in[used];
        if (out[used].iov_len > total - kept)
            out[used].iov_len = total - kept;
        kept += out[used++].iov_len;
    }
    return used;
}

#define OPENS(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t permissions = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        GUARDED(int, due_at(OPEN, AT_FDCWD, path), real(path, flags, permissions)); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int directory, const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t permissions = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        GUARDED(int, due_at(OPEN, directory, path), real(directory, path, flags, permissions)); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags)
{
    REAL(__open_2);
    GUARDED(int, due_at(OPEN, AT_FDCWD, path), real(path, flags));
}

int __open64_2(const char *path, int flags);
int __open64_2(const char *path, int flags)
{
    REAL(__open64_2);
    GUARDED(int, due_at(OPEN, AT_FDCWD, path), real(path, flags));
}

ssize_t write(int fd, const void *data, size_t count)
{
    REAL(write);
    int verdict = due_fd(WRITE, fd);
    return verdict == REFUSE ? -1 : written(verdict, real(fd, data, cut(verdict, count)));
}

#define POSITIONED_WRITE(name, offset_type) \
    ssize_t name(int fd, const void *data, size_t count, offset_type at) \
    { \
        REAL(name); \
        int verdict = due_fd(WRITE, fd); \
        return verdict == REFUSE ? -1 : written(verdict, real(fd, data, cut(verdict, count), at)); \
    }
POSITIONED_WRITE(pwrite, off_t)
POSITIONED_WRITE(pwrite64, off64_t)

#define VECTOR_WRITE(name, parameters, rest) \
    ssize_t name parameters \
    { \
        REAL(name); \
        int verdict = due_fd(WRITE, fd); \
        if (verdict == REFUSE) \
            return -1; \
        struct iovec half[VECTOR_MAX]; \
        if (verdict == CUT) { \
            count = cut_vector(vector, count, half); \
            vector = half; \
        } \
        return written(verdict, real rest); \
    }
VECTOR_WRITE(writev, (int fd, const struct iovec *vector, int count), (fd, vector, count))
VECTOR_WRITE(pwritev, (int fd, const struct iovec *vector, int count, off_t at), (fd, vector, count, at))
VECTOR_WRITE(pwritev64, (int fd, const struct iovec *vector, int count, off64_t at), (fd, vector, count, at))
VECTOR_WRITE(pwritev2, (int fd, const struct iovec *vector, int count, off_t at, int flags), (fd, vector, count, at, flags))
VECTOR_WRITE(pwritev64v2, (int fd, const struct iovec *vector, int count, off64_t at, int flags),
             (fd, vector, count, at, flags))

ssize_t read(int fd, void *data, size_t count)
{
    REAL(read);
    GUARDED(ssize_t, due_fd(READ, fd), real(fd, data, count));
}

ssize_t pread(int fd, void *data, size_t count, off_t at)
{
    REAL(pread);
    GUARDED(ssize_t, due_fd(READ, fd), real(fd, data, count, at));
}

ssize_t pread64(int fd, void *data, size_t count, off64_t at)
{
    REAL(pread64);
    GUARDED(ssize_t, due_fd(READ, fd), real(fd, data, count, at));
}

static int note_sync(int fd, int verdict, int (*sync)(int), void (*callback)(int fd))
{
    struct stat facts;
    int known = fstat(fd, &facts) == 0;
    if (known && failed_inode && facts.st_ino == failed_inode)
        __atomic_add_fetch(&syncs_after_failure, 1, __ATOMIC_SEQ_CST);
    if (verdict == REFUSE) {
        if (known)
            failed_inode = facts.st_ino;
        errno = failure;
        return -1;
    }
    int result = sync(fd);
    if (verdict == KILL_WHEN_DONE)
        die();
    if (result == 0 && callback)
        callback(fd);
    return result;
}

int fsync(int fd)
{
    REAL(fsync);
    return note_sync(fd, due_fd(SYNC, fd), real, sync_callback);
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    return note_sync(fd, due_fd(SYNC, fd), real, sync_callback);
}

int syncfs(int fd)
{
    REAL(syncfs);
    return note_sync(fd, due_fd(SYNC, fd), real, syncfs_callback);
}

int ftruncate(int fd, off_t size)
{
    REAL(ftruncate);
    GUARDED(int, due_fd(TRUNCATE, fd), real(fd, size));
}

int ftruncate64(int fd, off64_t size)
{
    REAL(ftruncate64);
    GUARDED(int, due_fd(TRUNCATE, fd), real(fd, size));
}

int fallocate(int fd, int how, off_t at, off_t size)
{
    REAL(fallocate);
    GUARDED(int, due_fd(TRUNCATE, fd), real(fd, how, at, size));
}

int fallocate64(int fd, int how, off64_t at, off64_t size)
{
    REAL(fallocate64);
    GUARDED(int, due_fd(TRUNCATE, fd), real(fd, how, at, size));
}

/* These two return the error number instead of setting errno. */
int posix_fallocate(int fd, off_t at, off_t size)
{
    REAL(posix_fallocate);
    return due_fd(TRUNCATE, fd) == REFUSE ? failure : real(fd, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size)
{
    REAL(posix_fallocate64);
    return due_fd(TRUNCATE, fd) == REFUSE ? failure : real(fd, at, size);
}

int rename(const char *from, const char *to)
{
    REAL(rename);
    GUARDED(int, due_at(RENAME, AT_FDCWD, to), real(from, to));
}

int renameat(int from_directory, const char *from, int to_directory, const char *to)
{
    REAL(renameat);
    GUARDED(int, due_at(RENAME, to_directory, to), real(from_directory, from, to_directory, to));
}

/* Another name of a file is counted as a rename. */
int link(const char *from, const char *to)
{
    REAL(link);
    GUARDED(int, due_at(RENAME, AT_FDCWD, to), real(from, to));
}

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags)
{
    REAL(linkat);
    GUARDED(int, due_at(RENAME, to_directory, to), real(from_directory, from, to_directory, to, flags));
}

int utimensat(int directory, const char *path, const struct timespec times[2], int flags)
{
    REAL(utimensat);
    GUARDED(int, due_at(TIMES, directory, path), real(directory, path, times, flags));
}

int unlink(const char *path)
{
    REAL(unlink);
    GUARDED(int, due_at(UNLINK, AT_FDCWD, path), real(path));
}

int unlinkat(int directory, const char *path, int flags)
{
    REAL(unlinkat);
    GUARDED(int, due_at(UNLINK, directory, path), real(directory, path, flags));
}

void *mmap(void *where, size_t length, int protection, int flags, int fd, off_t at)
{
    REAL(mmap);
    GUARDED(void *, fd < 0 ? PASS : due_fd(MMAP, fd), real(where, length, protection, flags, fd, at));
}

void *mmap64(void *where, size_t length, int protection, int flags, int fd, off64_t at)
{
    REAL(mmap64);
    GUARDED(void *, fd < 0 ? PASS : due_fd(MMAP, fd), real(where, length, protection, flags, fd, at));
}
