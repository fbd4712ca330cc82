# SPDX-License-Identifier: BSD-3-Clause
"""What a directory looks like to who makes no calls in it: attributes, contents, and how times go on."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Mapping
from typing import Any

from world import AT_FDCWD, libc, runs

LATEST_NS = 1 << 60  # of a time that is set: in 2006
SMALL = 64 * 1024  # bytes of a file that is read after each call that uses it
AT_SYMLINK_NOFOLLOW = 0x100
BASIC_AND_BIRTH = 0xFFF
HAS_BIRTH = 0x800
# The kernel sets these itself: AUTOMOUNT, MOUNT_ROOT, DAX.
KERNELS_ATTRIBUTES = 0x1000 | 0x2000 | 0x200000
_STATX = struct.Struct("=IIQIIIH2xQQQQ qI4x qI4x qI4x qI4x")

libc.statx.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]


def statx(path: str, follow: bool) -> tuple[int, int, int]:
    """Its mask, attributes, and time of birth (0: there is none)."""
    buffer = ctypes.create_string_buffer(256)
    flags = 0 if follow else AT_SYMLINK_NOFOLLOW
    if libc.statx(AT_FDCWD, path.encode(), flags, BASIC_AND_BIRTH, buffer) == -1:
        raise OSError(ctypes.get_errno(), path)
    mask, _, attributes, *rest = _STATX.unpack_from(buffer)
    seconds, nanoseconds = rest[-6:-4]
    return mask, attributes, (seconds * 10**9 + nanoseconds) * bool(mask & HAS_BIRTH)


def names_below(root: str, directory: str = "") -> list[str]:
    names = []
    for name in sorted(os.listdir(f"{root}/{directory}")):
        path = f"{directory}{name}"
        names.append(path)
        if stat.S_ISDIR(os.lstat(f"{root}/{path}").st_mode):
            names += names_below(root, f"{path}/")
    return names


def content(path: str, mode: int) -> str | None:
    if stat.S_ISREG(mode):
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOATIME)) as file:
            return runs(file.read())
    return os.readlink(path) if stat.S_ISLNK(mode) else None


def extended_attributes(path: str, follow: bool) -> list[tuple[str, bytes]]:
    names = sorted(os.listxattr(path, follow_symlinks=follow))
    return [(name, os.getxattr(path, name, follow_symlinks=follow)) for name in names]


def tree(root: str) -> dict[str, Any]:
    """All contents and extended attributes."""
    found = {}
    for name in names_below(root):
        path = f"{root}/{name}"
        found[name] = (content(path, os.lstat(path).st_mode), extended_attributes(path, follow=False))
    return found


def attributes(st: os.stat_result, times: bool) -> tuple[Any, ...]:
    """Those that are the same everywhere: directories have no defined size, and inodes no defined number."""
    size = None if stat.S_ISDIR(st.st_mode) else st.st_size
    # As it was set, or that of a change since the beginning.
    modified = st.st_mtime_ns if times and st.st_mtime_ns < LATEST_NS else None
    return stat.filemode(st.st_mode), st.st_uid, st.st_gid, st.st_nlink, size, modified


def order(before: int, now: int) -> str:
    return "later" if now > before else "earlier" if now < before else "same"


class Births:
    """The times of birth of the files, where statx(2) has them: none is early, and none changes."""

    def __init__(self, begun: int, shown: bool) -> None:
        self.begun = begun
        self.shown = shown
        self.known: dict[int, int] = {}

    def forget_but(self, inodes: Mapping[int, Any]) -> None:
        self.known = {inode: birth for inode, birth in self.known.items() if inode in inodes}

    def judge(self, inode: int, birth: int) -> str:
        if birth < self.begun:
            return "before the beginning" if birth else "none"
        return f"{order(self.known.setdefault(inode, birth), birth)} as before"


def look(path: str, follow: bool, births: Births, native: bool) -> tuple[Any, ...]:
    """Content and extended attributes of a small file, and what only statx(2) tells."""
    st = os.stat(path, follow_symlinks=follow)
    mask, flags, birth = statx(path, follow)
    held = content(path, st.st_mode) if st.st_size <= SMALL else errno.errorcode[errno.EFBIG]
    shown = flags & KERNELS_ATTRIBUTES if native else flags
    more = (hex(mask), births.judge(st.st_ino, birth)) if births.shown else (hex(mask & ~HAS_BIRTH),)
    return held, extended_attributes(path, follow), hex(shown), more
