# SPDX-License-Identifier: BSD-3-Clause
"""Block devices: their identities, the settings of their queues, and the calls that act on them."""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .teardown import read_setting

# linux/fs.h
BLKFLSBUF = 0x1261
BLKDISCARD = 0x1277

FILL_CHUNK = 4 << 20
DISCARD_CHUNK = 1 << 30
SAMPLES = 16
WINDOW = 1 << 20
WINDOWS = 256

DISKS = Path("/sys/block")
QUEUE_ATTRIBUTES = (
    "scheduler", "max_sectors_kb", "max_hw_sectors_kb", "max_segments", "nr_requests", "write_cache", "fua",
    "rq_affinity", "nomerges", "io_timeout", "logical_block_size", "physical_block_size", "minimum_io_size",
    "optimal_io_size", "rotational", "read_ahead_kb", "discard_max_bytes", "discard_granularity",
    "write_zeroes_max_bytes", "wbt_lat_usec", "iostats", "io_poll", "add_random", "dax",
)  # fmt: skip


@dataclass(frozen=True)
class BlockDevice:
    """name: the kernel's; disk: the whole disk that it is (a part of); serial: of the disk, "" if it tells none, or
    another one tells the same.

    wwid: of the disk or NVMe namespace, "" if it tells none. partuuid, start (bytes): of a partition. sequence: of the
    disk, which the kernel counts up with every disk and medium that comes; 0 if it does not. file: that a loop device
    lies on.
    """

    path: str
    name: str
    disk: str
    number: int
    size: int
    logical_block_size: int
    readonly: bool
    serial: str
    wwid: str = ""
    partuuid: str = ""
    start: int = 0
    sequence: int = 0
    file: str = ""

    @property
    def identity(self) -> str:
        """Whatever tells it from other devices, also after a restart: "wwid=eui.0025... size=500107862016"."""
        values: dict[str, str | int] = {
            "wwid": self.wwid,
            "serial": self.serial,
            "file": self.file,
            "partuuid": self.partuuid,
        }
        values |= {"start": self.start, "size": self.size}
        return ", ".join(f"{key}={value}" for key, value in values.items() if value)

    @property
    def seen(self) -> str:
        """
        When and where its identity holds: this start of this machine, if that is no more than sizes, which another
        disk may have as well. "": always.
        """
        return "" if self.wwid or self.serial or self.file or self.partuuid else this_start()

    @property
    def queue(self) -> Path:
        return Path("/sys/block", self.disk, "queue")


def this_start() -> str:
    """What tells this start of this machine from other ones, and from other machines."""
    found = _first_text(Path("/etc/machine-id")), _first_text(Path("/proc/sys/kernel/random/boot_id"))
    return hashlib.sha256(" ".join(found).encode()).hexdigest()[:16]  # machine-id(5): the id itself is not for others


def sysfs_of(number: int) -> Path:
    """/sys directory of a device number. Raises FileNotFoundError."""
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)


def number_of(sysfs: Path) -> int:
    major, minor = (sysfs / "dev").read_text().split(":")
    return os.makedev(int(major), int(minor))


def disk_of(sysfs: Path) -> Path:
    return sysfs.parent if (sysfs / "partition").exists() else sysfs


def serial_of(disk: Path) -> str:
    """What the disk itself calls its serial number."""
    page = disk / "device/vpd_pg80"
    try:
        if page.exists():
            return page.read_bytes()[4:].decode("ascii", "replace").strip(" \0")
        for name in ("device/serial", "serial"):
            if (disk / name).exists():
                return (disk / name).read_text(errors="replace").strip()
    except OSError:
        pass
    return ""


def is_there(path: str | Path) -> bool:
    """A block device that can be opened: the kernel shows a new disk in /sys and /dev first, and ENXIO until it is."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return Path(path).is_block_device()


def _first_text(*paths: Path) -> str:
    """The text of the first file that is there and holds something."""
    for path in paths:
        try:
            if text := path.read_text(errors="replace").strip():
                return text
        except OSError:
            continue
    return ""


def wwid_of(disk: Path) -> str:
    """The name that no other disk or NVMe namespace in the world has, as far as it has one."""
    return _first_text(disk / "wwid", disk / "nguid", disk / "eui", disk / "device/wwid")


def other_disks(name: str) -> Iterator[Path]:
    """/sys directories of the other disks; not those that the kernel hides, the paths of an NVMe disk with several."""
    for disk in DISKS.iterdir():
        if disk.name != name and _first_text(disk / "hidden") != "1":
            yield disk


def _own_serial(disk: Path) -> str:
    """Its serial number; "" if no wwid tells it from another disk that has the same one, and its size."""
    serial = serial_of(disk)
    if serial and not wwid_of(disk):
        size = _first_text(disk / "size")
        if any(serial_of(other) == serial and _first_text(other / "size") == size for other in other_disks(disk.name)):
            return ""
    return serial


def _partuuid(path: str) -> str:
    """A partition's entry in the table of its disk."""
    argv = ["blkid", "--probe", "--output", "value", "--match-tag", "PART_ENTRY_UUID", path]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def identify(path: str) -> BlockDevice:
    """Raises OSError; ENOTBLK if it is something else."""
    status = Path(path).stat()
    if not stat.S_ISBLK(status.st_mode):
        raise OSError(errno.ENOTBLK, os.strerror(errno.ENOTBLK), path)
    sysfs = sysfs_of(status.st_rdev)
    disk = disk_of(sysfs)
    part = sysfs != disk
    return BlockDevice(
        path=path,
        name=sysfs.name,
        disk=disk.name,
        number=status.st_rdev,
        size=int((sysfs / "size").read_text()) * 512,
        logical_block_size=int((disk / "queue/logical_block_size").read_text()),
        readonly=(sysfs / "ro").read_text().strip() != "0",
        serial=_own_serial(disk),
        wwid=wwid_of(disk),
        partuuid=_partuuid(path) if part else "",
        start=int((sysfs / "start").read_text()) * 512 if part else 0,
        sequence=int(_first_text(disk / "diskseq") or 0),
        file=_first_text(disk / "loop/backing_file"),
    )


def queue_attributes(device: BlockDevice) -> dict[str, object]:
    """Everything that the queue says about itself, and how many hardware queues there are."""
    values: dict[str, object] = {}
    for name in QUEUE_ATTRIBUTES:
        try:
            text = read_setting(device.queue / name)
        except OSError:
            continue  # not in this kernel, or not for this device
        values[name] = int(text) if text.lstrip("-").isdigit() else text
    mq = device.queue.parent / "mq"
    if mq.is_dir():
        values["hardware_queues"] = sum(entry.is_dir() for entry in mq.iterdir())
    timeout = device.queue.parent / "device/timeout"
    if timeout.exists():
        values["scsi_timeout_s"] = int(timeout.read_text())
    return values


@contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def discard(path: str, length: int) -> bool:
    """Discard [0, length). False if the device cannot."""
    with opened(path, os.O_WRONLY) as fd:
        for offset in range(0, length, DISCARD_CHUNK):
            try:
                fcntl.ioctl(fd, BLKDISCARD, struct.pack("QQ", offset, min(DISCARD_CHUNK, length - offset)))
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY) and offset == 0:
                    return False
                raise
    return True


def zero_fill(path: str, length: int) -> None:
    """Write zeroes over [0, length), past the page cache: real writes, so that reads find allocated blocks."""
    with mmap.mmap(-1, FILL_CHUNK) as zeroes, opened(path, os.O_WRONLY | os.O_DIRECT) as fd:
        offset = 0
        while offset < length:
            with memoryview(zeroes) as whole, whole[: length - offset] as part:
                offset += os.pwrite(fd, part, offset)
        os.fsync(fd)


def zero_samples(path: str, length: int, seed: int) -> int:
    """How many of SAMPLES blocks of 4 KiB, read past the page cache, are all zeroes."""
    rng = random.Random(seed)
    count = 0
    with mmap.mmap(-1, 4096) as buffer, opened(path, os.O_RDONLY | os.O_DIRECT) as fd:
        for _ in range(SAMPLES):
            offset = rng.randrange(length // 4096) * 4096
            if os.preadv(fd, [buffer], offset) != 4096:
                raise OSError(errno.EIO, f"{path}: short read at {offset}")
            count += buffer[:] == bytes(4096)
    return count


def flush_cache(path: str) -> None:
    """Write back and drop the device's pages."""
    with opened(path, os.O_RDONLY) as fd:
        os.fsync(fd)
        fcntl.ioctl(fd, BLKFLSBUF, 0)


def forget_errors(path: str) -> None:
    """Take the error of an earlier disk of this name, which older kernels report to the next who syncs."""
    with opened(path, os.O_RDONLY) as fd, suppress(OSError):
        os.fsync(fd)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def cached_share(path: str, length: int) -> float:
    """Share of [0, length) that is in the page cache, 0 to 1, from up to WINDOWS evenly spread windows of 1 MiB."""
    pages = WINDOW // mmap.PAGESIZE
    residency = array.array("B", bytes(pages))
    address, _ = residency.buffer_info()
    count = max(1, min(WINDOWS, length // WINDOW))
    step = length // count // WINDOW * WINDOW
    resident = 0
    with opened(path, os.O_RDONLY) as fd:
        base = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise _last_error()
        try:
            for window in range(count):
                if _libc.mincore(base + window * step, WINDOW, address):
                    raise _last_error()
                resident += pages - residency.tobytes().count(0)
        finally:
            _libc.munmap(base, length)
    return resident / (count * pages)
