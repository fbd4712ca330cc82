/* SPDX-License-Identifier: BSD-3-Clause */
/* The calls that ld's --wrap sends to the simulation, and those of the C library behind them. */
#ifndef USERBLK_TESTS_SIMULATION_WRAP_H
#define USERBLK_TESTS_SIMULATION_WRAP_H

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_timedwait(
	pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_sem_init(sem_t *sem, int shared, unsigned value);
int __wrap_sem_destroy(sem_t *sem);
int __wrap_sem_post(sem_t *sem);
int __wrap_sem_wait(sem_t *sem);
int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *opaque);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *old);
int __wrap_sched_yield(void);
long __wrap_sysconf(int name);
long __real_sysconf(int name);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __real_clock_gettime(clockid_t clock, struct timespec *out);
time_t __wrap_time(time_t *out);
int __wrap_nanosleep(const struct timespec *length, struct timespec *left);
int __wrap_usleep(unsigned us);
ssize_t __wrap_getrandom(void *data, size_t length, unsigned flags);
int __wrap_RAND_bytes(unsigned char *data, int length);

int __wrap_open64(const char *path, int flags, ...);
int __real_open64(const char *path, int flags, ...);
int __wrap_stat64(const char *path, struct stat *st);
int __real_stat64(const char *path, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);
int __real_fstat64(int fd, struct stat *st);
int __wrap_fstatvfs64(int fd, struct statvfs *st);
int __real_fstatvfs64(int fd, struct statvfs *st);
int __wrap_flock(int fd, int operation);
int __real_flock(int fd, int operation);
ssize_t __wrap_read(int fd, void *data, size_t length);
ssize_t __real_read(int fd, void *data, size_t length);
ssize_t __wrap_pread64(int fd, void *data, size_t length, off_t at);
ssize_t __real_pread64(int fd, void *data, size_t length, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t length, off_t at);
ssize_t __real_pwrite64(int fd, const void *data, size_t length, off_t at);
ssize_t __wrap_preadv64(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __real_preadv64(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n, off_t at);
ssize_t __real_pwritev64(int fd, const struct iovec *iov, int n, off_t at);
int __wrap_ftruncate64(int fd, off_t length);
int __real_ftruncate64(int fd, off_t length);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t length);
int __real_fallocate64(int fd, int mode, off_t at, off_t length);
int __wrap_fdatasync(int fd);
int __real_fdatasync(int fd);
int __wrap_fsync(int fd);
int __real_fsync(int fd);
char *__wrap_realpath(const char *path, char *resolved);
char *__real_realpath(const char *path, char *resolved);
int __wrap_unlink(const char *path);
int __real_unlink(const char *path);
int __wrap_close(int fd);
int __real_close(int fd);

void *__wrap_malloc(size_t bytes);
void *__real_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void __wrap_free(void *p);
void __real_free(void *p);
size_t __wrap_malloc_usable_size(void *p);
size_t __real_malloc_usable_size(void *p);
void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__real_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *p, size_t bytes);
int __real_munmap(void *p, size_t bytes);
int __wrap_madvise(void *p, size_t bytes, int advice);
int __real_madvise(void *p, size_t bytes, int advice);

#endif
