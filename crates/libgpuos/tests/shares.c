/* A file system whose files share bytes, to be loaded before libgpuos: what is shared is copied here. Without SHARES in the environment none does. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int share(int to, const struct file_clone_range *range)
{
    static char piece[1 << 16];
    struct stat from;
    __u64 at, end = range->src_offset + range->src_length;
    if (getenv("SHARES") == NULL) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if (fstat((int)range->src_fd, &from) != 0)
        return -1;
    if (range->src_length == 0)
        end = (__u64)from.st_size;
    /* As file systems do: whole blocks, but for the end of the file. */
    if (range->src_offset % 4096 != 0 || end > (__u64)from.st_size || (end % 4096 != 0 && end != (__u64)from.st_size)) {
        errno = EINVAL;
        return -1;
    }
    for (at = range->src_offset; at < end;) {
        size_t most = end - at < sizeof piece ? (size_t)(end - at) : sizeof piece;
        ssize_t got = pread((int)range->src_fd, piece, most, (off_t)at);
        if (got <= 0 || pwrite(to, piece, (size_t)got, (off_t)(at - range->src_offset + range->dest_offset)) != got)
            return -1;
        at += (__u64)got;
    }
    return 0;
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    void *argument;
    va_start(rest, request);
    argument = va_arg(rest, void *);
    va_end(rest);
    if (request == FICLONERANGE)
        return share(fd, argument);
    return (int)syscall(SYS_ioctl, fd, request, argument);
}
