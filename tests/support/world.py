# SPDX-License-Identifier: BSD-3-Clause
"""
A directory, and what a process has open in it: what a sequence of calls acts on. A failing sequence
is printed as a program that begins with this file, so that it imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import resource
import stat
import struct
from collections import Counter
from typing import Any, NamedTuple

Call = tuple[Any, ...]  # the name of a method of World, and what it is given
USER, GROUP = 1000, 2000
CAPABILITY = "security.capability"
SECTOR = 512  # bytes that direct I/O is aligned to
RENAME_FLAGS = {"noreplace": 1, "exchange": 2, "whiteout": 4}
FALLOCATE_MODES = {"": 0, "keep-size": 1, "punch": 3, "zero": 16, "zero-keep-size": 17}
# The kernel refuses these for FUSE, and ext4 only the last one.
FALLOCATE_REFUSED = {"collapse": 8, "insert": 32, "unshare": 64}

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, APPEND_FL = 0x80086601, 0x40086602, 0x20
INODE_FLAGS = {"sync": 8, "no dump": 0x40, "no atime": 0x80}  # of chattr(1), without effect on what is compared
MS_SYNC, MAP_FAILED = 4, ctypes.c_void_p(-1).value

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_OFFSET = ctypes.POINTER(ctypes.c_int64)
libc.splice.argtypes = [ctypes.c_int, _OFFSET, ctypes.c_int, _OFFSET, ctypes.c_size_t, ctypes.c_uint]
libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
libc.linkat.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
# Locks of an open file, or of the process, which any close of the file by it releases.
GET_LOCK = {"open file": 36, "process": fcntl.F_GETLK}
SET_LOCK = {"open file": 37, "process": fcntl.F_SETLK}
LOCK_KINDS = {"read": fcntl.F_RDLCK, "write": fcntl.F_WRLCK, "none": fcntl.F_UNLCK}
_FLOCK = struct.Struct("hhqqi4x")


def runs(data: bytes) -> str:
    """Short for the data of these calls: the bytes, and how often each repeats."""
    return " ".join(f"{chr(byte) if byte else 0}*{len(list(group))}" for byte, group in itertools.groupby(data))


def _memory(content: bytes) -> mmap.mmap:
    """Page-aligned, as direct I/O wants it."""
    memory = mmap.mmap(-1, len(content))
    memory.write(content)
    return memory


def _checked(result: int) -> int:
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


class Mapped(NamedTuple):
    descriptor: int
    memory: mmap.mmap
    shared: bool


class World:
    """Calls of one process by relative names below root. Slots hold open files and mappings."""

    def __init__(self, root: str, native: bool) -> None:
        self.root = root
        self.native = native
        self.files: dict[int, int] = {}
        self.maps: dict[int, Mapped] = {}
        self.used: set[int] = set()  # descriptors
        self.stored = Counter[int]()  # how often by mappings, by the numbers of inodes
        self.kept = False  # an attribute got the value that it may have had
        self.uid = 0
        self.groups: list[int] = []
        self.umask_bits = 0o022
        self.most = resource.RLIM_INFINITY  # bytes of a file

    def do(self, call: Call) -> Any:
        """What the call answers: a value, or the name of its error."""
        self.used.clear()
        self.kept = False
        os.chdir(self.root)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        mask = os.umask(self.umask_bits)
        try:
            os.setgroups(self.groups)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.most, limits[1]))
            if self.uid:
                os.setegid(self.uid)
                os.seteuid(self.uid)
            try:
                return getattr(self, call[0])(*call[1:])
            finally:
                os.seteuid(0)
                os.setegid(0)
                os.setgroups([])
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
                os.umask(mask)
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))
        except KeyError:
            return "nothing in this slot"

    def leave(self) -> None:
        """Uses nothing below root any more."""
        for slot in list(self.maps):
            self.unmap(slot)
        for slot in list(self.files):
            self.close(slot)
        os.chdir("/")

    def used_slots(self) -> list[str]:
        """Where the files lie in /proc that the last call used by a slot, of those that are still open."""
        still = self.used & {*self.files.values(), *[mapping.descriptor for mapping in self.maps.values()]}
        return [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in sorted(still)]

    def _file(self, slot: int) -> int:
        descriptor = self.files[slot]
        self.used.add(descriptor)
        return descriptor

    # ---- whose calls

    def user(self, uid: int, *groups: int) -> None:
        self.uid = uid
        self.groups = list(groups)

    def umask(self, bits: int) -> None:
        self.umask_bits = bits

    def limit(self, size: int) -> None:
        """RLIMIT_FSIZE; Python ignores its signal."""
        self.most = size

    # ---- open files

    def open(self, slot: int, name: str, flags: int, mode: int) -> None:
        descriptor = os.open(name, flags, mode)
        if slot in self.files:
            os.close(self.files[slot])
        self.files[slot] = descriptor
        self.used.add(descriptor)

    def close(self, slot: int) -> None:
        os.close(self.files.pop(slot))

    def set_flags(self, slot: int, flags: int) -> None:
        """All that can be set, but O_DIRECT stays."""
        fcntl.fcntl(self._file(slot), fcntl.F_SETFL, flags | self.get_flags(slot) & os.O_DIRECT)

    def set_cached(self, slot: int) -> None:
        fcntl.fcntl(self._file(slot), fcntl.F_SETFL, self.get_flags(slot) & ~os.O_DIRECT)

    def get_flags(self, slot: int) -> int:
        return fcntl.fcntl(self._file(slot), fcntl.F_GETFL)

    def _sync_for_direct(self, slot: int, size: int, offset: int) -> None:
        """
        Before a direct read that is not aligned: the source refuses it (EINVAL), but not beyond its end, which with
        write-back is not that of the mount yet. The mount has zeroes there.
        """
        if self.get_flags(slot) & os.O_DIRECT and (size % SECTOR or offset % SECTOR):
            os.fdatasync(self._file(slot))

    def read(self, slot: int, size: int) -> str:
        if stat.S_ISREG(os.fstat(self._file(slot)).st_mode):
            self._sync_for_direct(slot, size, os.lseek(self._file(slot), 0, os.SEEK_CUR))
        with _memory(bytes(size)) as memory:
            return runs(memory[: os.readv(self._file(slot), [memory])])

    def write(self, slot: int, byte: str, size: int) -> int:
        self._refuse_part(slot, size)
        with _memory(byte.encode() * size) as memory:
            return os.writev(self._file(slot), [memory])

    def write_while_it_may_only_grow(self, slot: int, byte: str, size: int) -> int:
        """By the open file of before, while there is one that was opened under chattr(1) +a."""
        file = self._file(slot)
        if CAPABILITY in os.listxattr(file):
            raise OSError(errno.EPERM, "the kernel asks to take it away as a program would, which such a file refuses")
        flags = int.from_bytes(fcntl.ioctl(file, FS_IOC_GETFLAGS, bytes(8))[:4], "little")
        fcntl.ioctl(file, FS_IOC_SETFLAGS, (flags | APPEND_FL).to_bytes(8, "little"))
        try:
            late = os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_APPEND)
            try:
                written = self.write(slot, byte, size)
                os.fsync(file)
                return written
            finally:
                os.close(late)
        finally:
            fcntl.ioctl(file, FS_IOC_SETFLAGS, flags.to_bytes(8, "little"))

    def pread(self, slot: int, size: int, offset: int) -> str:
        self._sync_for_direct(slot, size, offset)
        with _memory(bytes(size)) as memory:
            return runs(memory[: os.preadv(self._file(slot), [memory], offset)])

    def pwrite(self, slot: int, byte: str, size: int, offset: int, flags: int = 0) -> int:
        self._refuse_part(slot, size)
        with _memory(byte.encode() * size) as memory:
            return os.pwritev(self._file(slot), [memory], offset, flags)

    def _refuse_for_pipe(self, target: int, source: int) -> None:
        if os.path.sameopenfile(self._file(target), self._file(source)):
            raise OSError(errno.EINVAL, "what it reads of what it writes is not defined")
        self._refuse_direct(target, source)
        self._refuse_limited(target)

    def sendfile(self, target: int, source: int, offset: int, size: int) -> int:
        self._refuse_for_pipe(target, source)
        return os.sendfile(self._file(target), self._file(source), offset, size)

    def splice(self, target: int, to_offset: int, source: int, from_offset: int, size: int) -> int:
        self._refuse_for_pipe(target, source)
        out, into = os.pipe2(os.O_NONBLOCK)
        try:
            moved = _checked(libc.splice(self._file(source), ctypes.c_int64(from_offset), into, None, size, 0))
            to = ctypes.c_int64(to_offset)
            return _checked(libc.splice(out, None, self._file(target), to, moved, 0)) if moved else 0
        finally:
            os.close(out)
            os.close(into)

    def lseek(self, slot: int, offset: int, whence: int) -> int:
        if stat.S_ISDIR(os.fstat(self._file(slot)).st_mode):
            raise OSError(errno.EISDIR, "positions in directories mean what each file system wants")
        return os.lseek(self._file(slot), offset, whence)

    def seek(self, slot: int, offset: int, whence: int) -> bool:
        """
        Whether what SEEK_DATA passes over, and where SEEK_HOLE ends, holds zeroes only. Where they end is a matter of
        caches: of blocks that are only allocated, ext4 takes those for data that it has in memory.
        """
        file, before = self._file(slot), self.lseek(slot, 0, os.SEEK_CUR)
        os.fsync(file)
        size = os.fstat(file).st_size
        if offset >= size:
            raise OSError(errno.ENXIO, "beyond the end, where the mount may say that it does not know")
        try:
            found = self.lseek(slot, offset, whence)
        except OSError as error:
            if error.errno == errno.EINVAL:  # the mount: the kernel may hold data
                return True
            if error.errno != errno.ENXIO:
                raise
            found = size
        finally:
            self.lseek(slot, before, os.SEEK_SET)
        flags = self.get_flags(slot)
        if flags & os.O_ACCMODE not in (os.O_RDONLY, os.O_RDWR) or flags & os.O_DIRECT:
            return True  # it cannot be read here, or not all of it
        begin, end = (offset, found) if whence == os.SEEK_DATA else (found, min(found + 1, size))
        return not any(os.pread(file, max(end - begin, 0), begin))

    def ftruncate(self, slot: int, size: int) -> None:
        os.ftruncate(self._file(slot), size)

    def fallocate(self, slot: int, mode: str, offset: int, size: int) -> None:
        if self.most != resource.RLIM_INFINITY:
            raise OSError(errno.EFBIG, "one that fails takes set-id bits away, or does not")
        _checked(libc.fallocate(self._file(slot), FALLOCATE_MODES[mode], offset, size))

    def fallocate_refused(self, slot: int, mode: str, offset: int, size: int) -> None:
        """What the kernel checks before it asks the file system is the same, and so is a refusal."""
        asked = FALLOCATE_REFUSED["unshare" if self.native else mode]
        _checked(libc.fallocate(self._file(slot), asked, offset, size))

    def _refuse_direct(self, *slots: int) -> None:
        if any(self.get_flags(slot) & os.O_DIRECT for slot in slots):
            raise OSError(errno.EINVAL, "which copies have to be aligned is a matter of the file system")

    def _refuse_limited(self, slot: int) -> None:
        """With kernel passthrough, the kernel takes the capability of the file away before it looks at the limit."""
        if self.most != resource.RLIM_INFINITY and CAPABILITY in os.listxattr(self._file(slot)):
            raise OSError(errno.EFBIG, "one that fails takes it away, or does not")

    def _refuse_part(self, slot: int, size: int) -> None:
        self._refuse_limited(slot)
        if self.get_flags(slot) & os.O_DIRECT and size > SECTOR and size % SECTOR:
            raise OSError(errno.EINVAL, "ext4 has written each extent but the last, or not, as they happen to lie")

    def copy_file_range(self, source: int, from_offset: int, target: int, to_offset: int, size: int) -> int:
        self._refuse_direct(source, target)
        return os.copy_file_range(self._file(source), self._file(target), size, from_offset, to_offset)

    def fsync(self, slot: int) -> None:
        os.fsync(self._file(slot))

    def fdatasync(self, slot: int) -> None:
        os.fdatasync(self._file(slot))

    def drop_cached(self, slot: int) -> None:
        """What the kernel has of the file in its cache, and need not write."""
        os.posix_fadvise(self._file(slot), 0, 0, os.POSIX_FADV_DONTNEED)

    def flock(self, slot: int, kind: int) -> None:
        fcntl.flock(self._file(slot), kind | fcntl.LOCK_NB)

    def lock(self, slot: int, kind: str, offset: int, size: int, of: str) -> None:
        self._fcntl_lock(slot, SET_LOCK[of], kind, offset, size)

    def get_lock(self, slot: int, kind: str, offset: int, size: int, of: str) -> tuple[Any, ...]:
        *found, pid = self._fcntl_lock(slot, GET_LOCK[of], kind, offset, size)
        return (*found, "another process" if pid > 0 else pid)

    def _fcntl_lock(self, slot: int, command: int, kind: str, offset: int, size: int) -> tuple[Any, ...]:
        asked = _FLOCK.pack(LOCK_KINDS[kind], os.SEEK_SET, offset, size, 0)
        return _FLOCK.unpack(fcntl.fcntl(self._file(slot), command, asked))

    def fchmod(self, slot: int, mode: int) -> None:
        os.fchmod(self._file(slot), mode)

    def fchown(self, slot: int, uid: int, gid: int) -> None:
        os.fchown(self._file(slot), uid, gid)

    def futime(self, slot: int, atime: int, mtime: int) -> tuple[int, int]:
        os.utime(self._file(slot), ns=(atime, mtime))
        st = os.fstat(self._file(slot))
        return st.st_atime_ns, st.st_mtime_ns

    def set_inode_flag(self, slot: int, flag: str, value: bool) -> int:
        """Those of INODE_FLAGS that it then has."""
        flags = int.from_bytes(fcntl.ioctl(self._file(slot), FS_IOC_GETFLAGS, bytes(8))[:4], "little")
        flags = flags | INODE_FLAGS[flag] if value else flags & ~INODE_FLAGS[flag]
        fcntl.ioctl(self._file(slot), FS_IOC_SETFLAGS, flags.to_bytes(8, "little"))
        flags = int.from_bytes(fcntl.ioctl(self._file(slot), FS_IOC_GETFLAGS, bytes(8))[:4], "little")
        return flags & sum(INODE_FLAGS.values())

    def reopen(self, slot: int, of: int, flags: int) -> None:
        """Also of a file without a name."""
        self.open(slot, f"/proc/self/fd/{self._file(of)}", flags, 0)

    def tmpfile(self, slot: int, directory: str, flags: int, mode: int) -> None:
        self.open(slot, directory, flags | os.O_TMPFILE, mode)

    def link_open(self, slot: int, name: str) -> None:
        source = f"/proc/self/fd/{self._file(slot)}".encode()
        _checked(libc.linkat(AT_FDCWD, source, AT_FDCWD, name.encode(), AT_SYMLINK_FOLLOW))

    # ---- mappings

    def map(self, slot: int, file: int, size: int, writable: bool, shared: bool) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        if os.fstat(self._file(file)).st_size < size:
            raise OSError(errno.EINVAL, "Python maps no more than there is")
        mapped = mmap.mmap(self._file(file), size, mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE, access)
        if slot in self.maps:
            self.unmap(slot)
        self.maps[slot] = Mapped(os.dup(self._file(file)), mapped, shared)

    def unmap(self, slot: int) -> None:
        mapping = self.maps.pop(slot)
        mapping.memory.close()
        os.close(mapping.descriptor)

    def _mapped(self, slot: int, size: int, offset: int) -> tuple[Mapped, int]:
        """The mapping, and where the access ends: beyond the file there is a signal."""
        mapping = self.maps[slot]
        self.used.add(mapping.descriptor)
        return mapping, min(offset + size, os.fstat(mapping.descriptor).st_size, len(mapping.memory))

    def load(self, slot: int, size: int, offset: int) -> str:
        mapping, end = self._mapped(slot, size, offset)
        return runs(mapping.memory[offset:end])

    def store(self, slot: int, byte: str, size: int, offset: int) -> int:
        mapping, end = self._mapped(slot, size, offset)
        if end > offset:
            try:
                mapping.memory[offset:end] = byte.encode() * (end - offset)
            except TypeError as error:
                raise OSError(errno.EACCES, "mapped for reading") from error
            if mapping.shared:
                self.stored[os.fstat(mapping.descriptor).st_ino] += 1
        return max(end - offset, 0)

    def msync(self, slot: int) -> None:
        self.maps[slot].memory.flush()

    def store_alone(self, slot: int, byte: str) -> bool:
        """Closes the file, and tells whether a store to a mapping of it changes its time of modification."""
        watched = os.open(f"/proc/self/fd/{self._file(slot)}", os.O_PATH)
        path = f"/proc/self/fd/{watched}"
        try:
            if os.stat(path).st_size == 0:
                raise OSError(errno.EINVAL, "beyond the file there is a signal")
            address = libc.mmap(None, 1, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, self._file(slot), 0)
            if address == MAP_FAILED:
                raise OSError(ctypes.get_errno(), "")
            self.close(slot)
            try:
                os.utime(path, ns=(1, 1))
                ctypes.memset(address, ord(byte), 1)
                _checked(libc.msync(address, 1, MS_SYNC))
                return os.stat(path).st_mtime_ns > 1
            finally:
                libc.munmap(address, 1)
        finally:
            os.close(watched)

    # ---- names

    def truncate(self, name: str, size: int) -> None:
        if os.stat(name).st_size == size:
            raise OSError(errno.EINVAL, "with write-back the kernel keeps the time of a file whose size stays")
        os.truncate(name, size)

    def mkdir(self, name: str, mode: int) -> None:
        os.mkdir(name, mode)

    def rmdir(self, name: str) -> None:
        os.rmdir(name)

    def unlink(self, name: str) -> None:
        os.unlink(name)

    def link(self, name: str, new: str) -> None:
        os.link(name, new, follow_symlinks=False)

    def symlink(self, target: str, name: str) -> None:
        os.symlink(target, name)

    def readlink(self, name: str) -> str:
        return os.readlink(name)

    def mkfifo(self, name: str, mode: int) -> None:
        os.mkfifo(name, mode)

    def mknod(self, name: str, kind: int, mode: int) -> None:
        """A device is /dev/null."""
        os.mknod(name, kind | mode, os.makedev(1, 3) if stat.S_ISCHR(kind) else 0)

    def rename(self, name: str, new: str) -> None:
        os.rename(name, new)

    def renameat2(self, name: str, new: str, kind: str) -> None:
        _checked(libc.renameat2(AT_FDCWD, name.encode(), AT_FDCWD, new.encode(), RENAME_FLAGS[kind]))

    def listdir(self, name: str) -> list[str]:
        return sorted(os.listdir(name))

    def access(self, name: str, mode: int) -> bool:
        return os.access(name, mode, effective_ids=True)

    # ---- attributes

    def chmod(self, name: str, mode: int) -> None:
        os.chmod(name, mode)

    def chown(self, name: str, uid: int, gid: int) -> None:
        os.chown(name, uid, gid, follow_symlinks=False)

    def utime(self, name: str, atime: int, mtime: int) -> tuple[int, int]:
        os.utime(name, ns=(atime, mtime))
        st = os.stat(name)
        return st.st_atime_ns, st.st_mtime_ns

    def touch(self, name: str) -> None:
        os.utime(name)

    def setxattr(self, name: str | int, attribute: str, value: bytes, flags: int) -> None:
        try:
            self.kept = os.getxattr(name, attribute) == value
        except PermissionError:
            self.kept = True
        except OSError:
            pass
        os.setxattr(name, attribute, value, flags)

    def fsetxattr(self, slot: int, attribute: str, value: bytes, flags: int) -> None:
        self.setxattr(self._file(slot), attribute, value, flags)

    def getxattr(self, name: str, attribute: str) -> bytes:
        return os.getxattr(name, attribute)

    def fgetxattr(self, slot: int, attribute: str) -> bytes:
        return os.getxattr(self._file(slot), attribute)

    def listxattr(self, name: str) -> list[str]:
        return sorted(os.listxattr(name))

    def flistxattr(self, slot: int) -> list[str]:
        return sorted(os.listxattr(self._file(slot)))

    def removexattr(self, name: str, attribute: str) -> None:
        os.removexattr(name, attribute)

    def fremovexattr(self, slot: int, attribute: str) -> None:
        os.removexattr(self._file(slot), attribute)
