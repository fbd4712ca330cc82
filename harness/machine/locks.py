# SPDX-License-Identifier: BSD-3-Clause
"""Locks that every program on this kernel sees, also those in containers with a /run and a /dev of their own.

They are locks of files in the kernel's devtmpfs, of which there is only one, whatever is mounted at /dev: each program
mounts it for itself, at no path. A program that may not do that (in a container without CAP_SYS_ADMIN, where hardly
any device can be used either) has its locks below /run/userblk, which other containers do not see.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .teardown import RUN

FSOPEN, FSCONFIG, FSMOUNT = 430, 431, 432  # system calls, on all architectures
CLOEXEC, CONFIG_CREATE = 1, 6  # linux/mount.h
DIRECTORY = ".userblk"  # in /dev where that is the kernel's

_libc = ctypes.CDLL(None, use_errno=True)


class Held(Exception):
    """The lock is somebody else's: what they wrote into it."""


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _devtmpfs() -> int:
    """Descriptor of the top of the kernel's devtmpfs. Raises OSError."""
    context = _call(FSOPEN, b"devtmpfs", CLOEXEC)
    try:
        _call(FSCONFIG, context, CONFIG_CREATE, None, None, 0)
        return _call(FSMOUNT, context, CLOEXEC, 0)
    finally:
        os.close(context)


def _open(name: str) -> int:
    """The file of a lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        top = _devtmpfs()
    except OSError:
        RUN.mkdir(parents=True, exist_ok=True)
        return os.open(RUN / name, flags, 0o644)
    try:
        with suppress(FileExistsError):
            os.mkdir(DIRECTORY, dir_fd=top)
        return os.open(f"{DIRECTORY}/{name}", flags, 0o644, dir_fd=top)
    finally:
        os.close(top)


@contextmanager
def locked(name: str, content: str) -> Iterator[None]:
    """Hold the lock of that name, which ends with this process, however that ends. Raises Held."""
    fd = _open(name)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(os.read(fd, 4096).decode(errors="replace").strip() or "pid unknown") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{content}\n".encode(errors="replace"), 0)
        yield
    finally:
        os.close(fd)
