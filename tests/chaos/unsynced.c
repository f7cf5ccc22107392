/* LD_PRELOAD library: keeps what a disk would still have after a power cut.

   Nothing is written differently. When a process synchronizes a file in the folder DISK, the file's content of that
   moment is copied to the folder SYNCED, under the number of its inode; a hard link keeps the inode from being given
   to another file. The disk itself is not waited for. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_on_disk(int file) {
    const char *disk = getenv("POWER_DISK");
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    size_t prefix = disk ? strlen(disk) : 0;
    return prefix && length > (ssize_t)prefix && !memcmp(path, disk, prefix) && path[prefix] == '/';
}

static int give_up(const char *step) {
    fprintf(stderr, "unsynced.c: %s: %s\n", step, strerror(errno));
    abort();
}

/* Copy the file by blocks that differ; a second process waits, so that an older content never replaces a newer one. */
static int keep(int file) {
    static char now[1 << 16], then[1 << 16];
    struct stat status;
    char path[PATH_MAX], own[64];
    const char *synced = getenv("POWER_SYNCED");
    if (fstat(file, &status)) return -1;
    if (!S_ISREG(status.st_mode) || !is_on_disk(file)) return 0;
    snprintf(own, sizeof own, "/proc/self/fd/%d", file);
    snprintf(path, sizeof path, "%s/%lu.link", synced, (unsigned long)status.st_ino);
    if (linkat(AT_FDCWD, own, AT_FDCWD, path, AT_SYMLINK_FOLLOW) && errno != EEXIST) give_up(path);
    snprintf(path, sizeof path, "%s/%lu", synced, (unsigned long)status.st_ino);
    int copy = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), source = open(own, O_RDONLY | O_CLOEXEC);
    if (copy < 0 || source < 0 || flock(copy, LOCK_EX) || fstat(source, &status)) give_up(path);
    for (off_t at = 0; at < status.st_size; at += sizeof now) {
        ssize_t length = pread(source, now, sizeof now, at), known = pread(copy, then, sizeof then, at);
        if (length < 0 || known < 0) give_up(path);
        if ((length != known || memcmp(now, then, length)) && pwrite(copy, now, length, at) != length) give_up(path);
    }
    if (ftruncate(copy, status.st_size)) give_up(path);
    close(source);
    close(copy);
    return 0;
}

static int synchronize(int file) {
    static __thread int is_inside;
    static int lock;
    if (is_inside) return 0;
    is_inside = 1;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) usleep(100);
    int result = keep(file);
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    is_inside = 0;
    return result;
}

int fsync(int file) { return synchronize(file); }
int fdatasync(int file) { return synchronize(file); }
