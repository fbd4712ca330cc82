# SPDX-License-Identifier: BSD-3-Clause
"""Which devices may be overwritten. Asked before anything else, and again right before every destructive act.

Never, whatever is confirmed: a device that is mounted, swap, held by another, open in another program, exported by
the kernel, in use by another campaign, below the root file system, read-only. And no device at all unless its serial
is repeated. Every refusal is one line: "DEVICE: reason; remedy".
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import math
import os
import re
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..observing.hardware import controllers
from . import blockdev
from .blockdev import BlockDevice, disk_of, identify, number_of, opened, other_disks, serial_of, sysfs_of, wwid_of
from .locks import Held, locked
from .mounts import lines_of, mounts_of, unescape

MACHINE = "campaign"  # the name of a lock
BESIDE = "USERBLK_BESIDE"
WIPEFS_PATIENCE = 30.0  # s
OPEN_PATIENCE = 3.0  # s that udev and the like may look at a device
LOOP_GET_STATUS64 = 0x4C05  # linux/loop.h
CONFIGFS = Path("/sys/kernel/config")
BTRFS = Path("/sys/fs/btrfs")
EXPORTS = {  # of the kernel, which opens a device without being a program: the file that names it, and by what
    "nvmet/subsystems/*/namespaces/*/device_path": "NVMe target",
    "nvmet/subsystems/*/passthru/device_path": "NVMe target",
    "target/core/*/*/udev_path": "SCSI target",
    "target/core/*/*/info": "SCSI target",
    "usb_gadget/*/functions/mass_storage.*/lun.*/file": "USB gadget",
}
NAMED = re.compile(r"(?:UDEV PATH|File): *(/\S+)")  # in info of iblock and fileio
OWN = "userblk"  # in the name of what a system of ours exports
# Beside what is called so.
MEMBERS = ("bcache", "btrfs", "ceph_bluestore", "drbd", "DM_snapshot_cow", "jbd", "xfs_external_log")
UNKNOWN = "something that wipefs does not know"
AT_FDCWD, AT_STATX_DONT_SYNC, STATX_TYPE = -100, 0x4000, 1  # linux/stat.h

RING = "anon_inode:[io_uring]"
REGISTERED = re.compile(r"^ *\d+: (/\S+)$", re.MULTILINE)  # in fdinfo of a ring

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """A device that may not be used; one line."""


class Node(NamedTuple):
    """A device file by what it leads to: a block device, or what sends commands to one past it."""

    block: bool
    number: int


def _children(sysfs: Path) -> list[Path]:
    """A disk's partitions."""
    return [entry for entry in sysfs.iterdir() if (entry / "partition").exists()]


def _below(sysfs: Path) -> Iterator[Path]:
    """A device and everything that it lies on: slaves, a loop device's backing device, recursively."""
    yield sysfs
    for slave in (sysfs / "slaves").glob("*") if (sysfs / "slaves").is_dir() else ():
        yield from _below(slave.resolve())
    if (sysfs / "loop/backing_file").exists() and (number := _loop_backing(sysfs.name)):
        yield from _below(sysfs_of(number))


def _block_number(path: str) -> int | None:
    """The device number of a path that is a block device."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_rdev if stat.S_ISBLK(status.st_mode) else None


def mounts() -> dict[int, set[str]]:
    """Device number -> where it is mounted, over all mount namespaces that can be seen."""
    found: dict[int, set[str]] = {}
    seen: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            namespace = (entry / "ns/mnt").stat().st_ino
            if namespace in seen:
                continue
            listed = list(mounts_of(entry.name))
        except OSError:
            continue  # it has just ended, or is a kernel thread
        seen.add(namespace)
        for mount in listed:
            source = _block_number(mount.source)
            for number in {mount.number, mount.number if source is None else source}:
                found.setdefault(number, set()).add(mount.point)
    return found


def _swaps() -> set[int]:
    lines = lines_of(Path("/proc/swaps"))[1:]
    numbers = (_block_number(unescape(line.split()[0])) for line in lines)
    return {number for number in numbers if number is not None}


class _Backing(NamedTuple):
    """What a loop device lies on, as the kernel has it: bytes from offset on of a file; limit 0: to its end.

    block: the number of the block device that the file is, in the kernel's form; 0: the file is not a device.
    """

    device: int
    inode: int
    block: int
    offset: int
    limit: int

    def overlaps(self, other: _Backing) -> bool:
        """Do both have bytes of one file?"""
        ends = [one.offset + one.limit if one.limit else math.inf for one in (self, other)]
        return self[:2] == other[:2] and self.offset < ends[1] and other.offset < ends[0]


def _backing_of(name: str) -> _Backing | None:
    """None: it lies on nothing, or cannot be opened here."""
    try:
        with opened(f"/dev/{name}", os.O_RDONLY) as fd:
            return _Backing(*struct.unpack_from("5Q", fcntl.ioctl(fd, LOOP_GET_STATUS64, bytes(512))))
    except OSError:
        return None


def _loop_backing(name: str) -> int | None:
    """Number of the block device that a loop device lies on: the kernel's, since its path may be another
    namespace's, or gone."""
    if not (backing := _backing_of(name)):
        try:
            return _block_number(lines_of(Path("/sys/block", name, "loop/backing_file"))[0])
        except OSError:
            return None  # detached since
    found = backing.block
    return os.makedev(found >> 8 & 0xFFF, found & 0xFF | found >> 12 & 0xFFF00) if found else None


def _on_the_same_file(name: str) -> list[str]:
    """The other loop devices with bytes that a loop device has."""
    if not name.startswith("loop") or not (own := _backing_of(name)):
        return []
    others = (path.parts[3] for path in blockdev.DISKS.glob("loop*/loop/backing_file") if path.parts[3] != name)
    return sorted(other for other in others if (found := _backing_of(other)) and found.overlaps(own))


def _loops() -> Iterator[tuple[str, int]]:
    """Loop devices that lie on a block device: name, number of that device."""
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        number = _loop_backing(backing.parts[3])
        if number is not None:
            yield backing.parts[3], number


def _exported(text: str) -> Iterator[int]:
    """Numbers of the disks that a file of EXPORTS names."""
    for path in (text.strip(), *NAMED.findall(text)):
        if (number := _block_number(path)) is not None:
            yield number
        elif path.startswith("/dev/nvme"):  # a controller, of which all namespaces are passed on
            yield from (number_of(disk) for disk in blockdev.DISKS.glob(f"{Path(path).name}n*"))


def _exports() -> Iterator[tuple[Path, str, int]]:
    """Block devices that the kernel serves to other machines: the file that says so, by what, number."""
    for pattern, what in EXPORTS.items():
        for file in CONFIGFS.glob(pattern):
            try:
                text = file.read_text(errors="replace")
            except OSError:
                continue  # removed since
            for number in _exported(text):
                yield file, what, number


def _open_node(link: str) -> Node | None:
    """The device that a link below /proc leads to. It does not wait for servers of file systems."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statx(AT_FDCWD, os.fsencode(link), AT_STATX_DONT_SYNC, STATX_TYPE, buffer):
        return None
    (mode,) = struct.unpack_from("H", buffer, 28)
    major, minor = struct.unpack_from("II", buffer, 128)
    return Node(stat.S_ISBLK(mode), os.makedev(major, minor)) if stat.S_ISBLK(mode) or stat.S_ISCHR(mode) else None


def _files_of(process: str) -> Iterator[str]:
    """Paths of what a process has open, has mapped for writing back, or has registered with a ring. Raises OSError."""
    for fd in os.listdir(f"{process}/fd"):
        yield f"{process}/fd/{fd}"
        with suppress(OSError):
            if os.readlink(f"{process}/fd/{fd}") == RING:  # files that it has registered there it may have closed
                lines = Path(process, "fdinfo", fd).read_text(errors="replace")
                yield from (f"{process}/root{path}" for path in REGISTERED.findall(lines))
    for line in Path(process, "maps").read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1].endswith("s") and fields[5].startswith("/"):
            yield f"{process}/map_files/{fields[0]}"


def _parents() -> dict[int, int]:
    """pid -> pid of the parent, of all processes."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found[int(entry.name)] = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
    return found


def _descends(pid: int, ancestors: Collection[int], parents: Mapping[int, int]) -> bool:
    while pid > 1:
        if pid in ancestors:
            return True
        pid = parents.get(pid, 0)
    return False


def openers(nodes: Collection[Node]) -> list[tuple[int, str, Node]]:
    """Who has one of the devices open, mapped or registered, in all namespaces below this one: pid, program, device."""
    found = []
    for pid in sorted(_parents()):
        process = f"/proc/{pid}"
        try:
            held = {n for link in _files_of(process) if (n := _open_node(link)) is not None and n in nodes}
            name = Path(process, "comm").read_text(errors="replace").rstrip("\n") if held else ""
        except OSError:
            continue  # it has just ended
        name = "".join(c if c.isprintable() else "?" for c in name)
        found += [(pid, name, node) for node in sorted(held)]
    return found


def _past(disk: Path) -> list[Path]:
    """/sys directories of the character devices that send a disk commands past its block device: SCSI's, NVMe's."""
    generic = Path("/sys/class/nvme-generic", disk.name.replace("nvme", "ng", 1))
    paths = [*disk.glob("device/scsi_generic/*"), *disk.glob("device/bsg/*"), generic, *controllers(disk)]
    return [path for path in paths if (path / "dev").exists()]


def _refuse_open(device: BlockDevice, server: int | None) -> None:
    """server: None: the device is not ours yet; else it, this process and their children may have it open."""
    own = sysfs_of(device.number)
    names = {Node(True, number_of(sysfs)): sysfs.name for sysfs in (disk_of(own), own, *_children(own))}
    names |= {Node(False, number_of(sysfs)): sysfs.name for sysfs in _past(disk_of(own))}
    end = time.monotonic() + OPEN_PATIENCE
    while True:
        found = [one for one in openers(names) if one[0] != os.getpid()]
        if found and server is not None:
            parents, ours = _parents(), {os.getpid()} | ({server} if server else set())
            found = [one for one in found if not _descends(one[0], ours, parents)]
        if not found:
            return
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    pid, program, node = found[0]
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    raise Refused(
        f"{device.path}: {names[node]} is open in {program} (pid {pid}){others}; stop it, or name another device"
    )


@dataclass(frozen=True)
class Signature:
    """What a device, or a partition of it, holds by its own account. where: the kernel's name."""

    where: str
    kind: str
    label: str
    usage: str

    @property
    def member(self) -> bool:
        """Whether it is part of what may not be in use now: a volume group, an array, a pool, a cipher."""
        return self.kind.endswith("_member") or self.usage in ("raid", "crypto") or self.kind in MEMBERS


def signatures(device: BlockDevice) -> list[Signature]:
    """The signatures on the device and its partitions. One that cannot be identified is UNKNOWN."""
    own = sysfs_of(device.number)
    found = []
    for name in (own.name, *sorted(child.name for child in _children(own))):
        path = device.path if name == own.name else f"/dev/{name}"
        argv = ["wipefs", "--no-act", "--json", "--output", "TYPE,LABEL,USAGE", path]
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # a label may be any bytes
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                timeout=WIPEFS_PATIENCE,
                check=True,
            )
            for one in json.loads(done.stdout or '{"signatures": []}')["signatures"]:
                found.append(Signature(name, one["type"], one.get("label") or "", one.get("usage") or ""))
        except (OSError, subprocess.SubprocessError, ValueError, KeyError):
            found.append(Signature(name, UNKNOWN, "", ""))
    return list(dict.fromkeys(found))


def contents(device: BlockDevice) -> str:
    """The signatures for people: "gpt, sdb1: ext4 data"; "" if there are none."""
    return ", ".join(
        f"{'' if one.where == device.name else one.where + ': '}{one.kind} {one.label}".strip()
        for one in signatures(device)
    )


def confirmation(device: BlockDevice) -> tuple[str, str]:
    """What the user has to repeat, and what that is: the serial, unless another disk here has the same."""
    if not device.serial:
        return str(device.size), "size in bytes"
    if device.wwid and any(serial_of(other) == device.serial for other in other_disks(device.disk)):
        return "".join(device.wwid.split()), "wwid (another disk has its serial)"
    return device.serial, "serial"


def first_confirmation(device: BlockDevice) -> tuple[str, str]:
    """The same of a device that no campaign has used yet: where a size is all there is, what it holds, too."""
    answer, what = confirmation(device)
    kinds = list(dict.fromkeys(one.kind.replace(" ", "-") for one in signatures(device)))
    if device.serial or not kinds:
        return answer, what
    return ",".join([answer, *kinds]), f"{what} and what it holds"


def _refuse_used(device: BlockDevice, over: str) -> None:
    """over: the name of a disk that may lie on it, since a system of ours has made it."""
    path = device.path
    own = sysfs_of(device.number)
    family = [own, *_children(own)]
    related = family if own.name == device.disk else [*family, disk_of(own)]
    numbers = {number_of(sysfs): sysfs.name for sysfs in family}

    mounted = mounts()
    for number, name in numbers.items():
        if number in mounted:
            where = ", ".join(sorted(mounted[number]))
            raise Refused(f"{path}: {name} is mounted at {where}; unmount it, or name another device")
    swaps = _swaps()
    for number, name in numbers.items():
        if number in swaps:
            raise Refused(f"{path}: {name} is swap; turn it off with swapoff, or name another device")
    for sysfs in related:
        holders = sorted(p.name for p in (sysfs / "holders").glob("*") if p.name != over)
        if holders:
            raise Refused(
                f"{path}: {sysfs.name} is held by {', '.join(holders)} (LVM, RAID or device mapper);"
                " dissolve that, or name another device"
            )
    for name, number in _loops():
        if name != over and number in {number_of(sysfs) for sysfs in related}:
            raise Refused(f"{path}: loop device {name} lies on it; detach that with losetup -d, or name another device")
    for name in _on_the_same_file(device.disk):
        raise Refused(
            f"{path}: loop device {name} lies on the same file ({device.file}), and may be in use; detach that with"
            " losetup -d, or name another device"
        )
    for file, what, number in _exports():
        if not (over and OWN in str(file)) and number in {number_of(sysfs) for sysfs in related}:
            raise Refused(f"{path}: the kernel's {what} exports it; remove it there, or name another device")
    for number, where_mounted in mounted.items():
        try:
            below = {number_of(sysfs): sysfs.name for sysfs in _below(sysfs_of(number))}
        except OSError:
            continue  # no block device
        if shared := below.keys() & numbers.keys():
            what = "the root file system" if "/" in where_mounted else f"the file system at {min(where_mounted)}"
            raise Refused(f"{path}: {below[shared.pop()]} is below {what}; name another device")
    for disk in other_disks(device.disk):
        if device.wwid and disk.name != over and wwid_of(disk) == device.wwid:
            raise Refused(
                f"{path}: {disk.name} is the same disk by another path (wwid {device.wwid}), and may be in use by that;"
                f" remove it with: echo 1 >/sys/block/{disk.name}/device/delete, or name another device"
            )
    for link in BTRFS.glob("*/devices/*"):
        with suppress(FileNotFoundError):  # the disk was pulled out
            if number_of(link.resolve()) in numbers:
                raise Refused(f"{path}: {link.name} belongs to a mounted btrfs; unmount it, or name another device")


def _refuse_member(device: BlockDevice) -> None:
    """
    Refuse a part of something that is not in use now: no process holds it, but it holds somebody's data. Also what it
    cannot be told of.
    """
    for one in signatures(device):
        where, path = ("", device.path) if one.where == device.name else (f" in {one.where}", f"/dev/{one.where}")
        if one.kind == UNKNOWN:
            raise Refused(
                f"{device.path}: what it holds{where} cannot be seen, since wipefs is not in PATH, fails or takes more"
                f" than {WIPEFS_PATIENCE:.0f} s; install util-linux, find out with wipefs"
                f" {path}, or name another device"
            )
        if one.member:
            raise Refused(
                f"{device.path}: it holds {one.kind}{where}, a part of a volume group, array, pool or encrypted disk;"
                f" find out whose, and wipe it with wipefs -a {path}, or name another"
                " device"
            )


def _refuse_unconfirmed(device: BlockDevice, confirm: str, first: bool) -> None:
    answer, what = first_confirmation(device) if first else confirmation(device)
    if confirm == answer:
        return
    held = contents(device)
    holds = f"it holds {held}" if held else "no signature was found on it"
    said = f"{confirm} is not its {what}" if confirm else "not confirmed"
    raise Refused(
        f"{device.path}: {said}; {holds}, {device.size} bytes, all of which may be overwritten:"
        f" if this is the one, confirm it with its {what}, {answer}"
    )


def check(path: str, confirm: str, *, server: int | None = None, first: bool = False, over: str = "") -> BlockDevice:
    """The device, if it may be overwritten. Raises Refused.

    confirm: what confirmation() says, or first_confirmation() where it is asked for the first time. server: of this
    campaign, which has it open, exclusively perhaps, so that cannot be tried; 0: this process or a child has; None:
    nothing of ours. first: no campaign has used it yet. over: the name of the disk that the campaign's system has made
    of it; the kernel may hold the device for that one.
    """
    try:
        device = identify(path)
    except FileNotFoundError:
        raise Refused(f"{path}: does not exist; name a block device") from None
    except OSError as error:
        reason = "not a block device" if error.errno == errno.ENOTBLK else error.strerror
        raise Refused(f"{path}: {reason}; name a block device") from None
    if device.size == 0:
        raise Refused(f"{path}: has no medium (0 bytes); name another device")
    if device.readonly:
        raise Refused(f"{path}: is read-only; make it writable with blockdev --setrw, or name another device")
    _refuse_used(device, over)
    if server is None:
        try:
            with opened(path, os.O_RDWR | os.O_EXCL):
                pass
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise Refused(f"{path}: cannot be opened: {error.strerror}; run as root") from None
            _refuse_open(device, server)  # which names the program
            raise Refused(f"{path}: is in use by another program; find it with fuser -v {path}, and stop it") from None
    _refuse_open(device, server)
    if server is None:  # campaigns leave no such thing: it is not ours, or not any more
        _refuse_member(device)
    _refuse_unconfirmed(device, confirm, first)
    return device


def recheck(device: BlockDevice, confirm: str, server: int | None, over: str = "") -> None:
    """Right before a destructive act: is it still the same, and still free? server, over: as for check()."""
    if check(device.path, confirm, server=server, over=over) != device:
        raise _another(device)


def _another(device: BlockDevice) -> Refused:
    return Refused(f"{device.path}: is not the device that it was when the campaign began; start a new one")


def refuse_another(device: BlockDevice) -> None:
    """Has another one come to have the name of a device that was checked a while ago? Raises Refused."""
    now = identify(device.path)
    if (now.number, now.sequence, now.identity) != (device.number, device.sequence, device.identity):
        raise _another(device)


def refuse_twice(first: BlockDevice, second: BlockDevice) -> None:
    """Refuse two devices that are one, or a disk and a partition of it."""
    if first.disk == second.disk and (first.number == second.number or first.disk in (first.name, second.name)):
        part = "" if first.number == second.number else f", together with {second.path}, which lies on the same disk"
        raise Refused(f"{first.path}: named for two devices{part}; name two different ones")


@contextmanager
def _kept_from_others(name: str, content: str, refusal: Callable[[str], str]) -> Iterator[None]:
    """Hold a lock of the machine. Raises Refused: refusal(who has it)."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(name, content))
        except Held as who:
            raise Refused(refusal(str(who))) from None
        yield


@contextmanager
def claimed(device: BlockDevice) -> Iterator[None]:
    """Keep other campaigns off the device's disk. Raises Refused."""
    with _kept_from_others(
        f"disk-{device.disk}",
        f"pid {os.getpid()}",
        lambda who: f"{device.path}: disk {device.disk} is in use by another campaign ({who}); wait for its end",
    ):
        yield


@contextmanager
def alone(campaign: Path) -> Iterator[None]:
    """Keep other campaigns off this machine, whose CPUs, dirty limits and tcmu-runner all have in common.

    Raises Refused. Tests, which do not look at what they measure, run beside others by BESIDE in their environment.
    """
    if os.environ.get(BESIDE):
        yield
        return
    with _kept_from_others(
        MACHINE,
        f"pid {os.getpid()}, {campaign}",
        lambda who: f"{campaign}: another campaign ({who}) measures on this machine; wait for its end, then resume",
    ):
        yield
