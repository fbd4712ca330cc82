# SPDX-License-Identifier: BSD-3-Clause
"""The ext4 that a workload runs on, and the memory that it may use."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..observing.environment import meminfo
from .blockdev import BlockDevice
from .interrupt import held
from .mounts import lines_of, mounts_of
from .safety import refuse_another
from .subprocesses import Recorder
from .teardown import PATIENCE, RUN, Teardown, TeardownError, lasting, undo

# Lazy initialisation would go on during the run; the discard is the harness's own business.
MKFS_OPTIONS = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
INODE_BYTES, BYTES_PER_INODE, LARGEST_JOURNAL = 256, 16384, 1 << 30  # what mkfs.ext4 chooses
MKFS_LIMIT = 600.0  # s
UNMOUNT_LIMIT = 600.0  # s: what is dirty is written back


class FileSystemError(Exception):
    """The file system or the memory limit cannot be set up; one line."""


# ---- mounts -------------------------------------------------------------------


def mounted_type(path: Path) -> str:
    """Type of the file system that is mounted there, "" if none is. Works for one whose daemon is gone, too."""
    return next((mount.kind for mount in reversed(list(mounts_of())) if mount.point == str(path)), "")


@lasting
def remove_directory(path: str) -> None:
    """An empty one: what is still mounted there must not be emptied."""
    if os.path.lexists(path):
        os.rmdir(path)


@undo
def unmount(path: str) -> None:
    """However long what is dirty takes; retried while a process that was just ended still holds it."""
    end = time.monotonic() + PATIENCE
    while mounted_type(Path(path)):
        done = subprocess.run(["umount", path], capture_output=True, text=True, timeout=UNMOUNT_LIMIT, check=False)
        if done.returncode and time.monotonic() > end:
            raise TeardownError(done.stderr.strip() or "umount failed")
        if done.returncode:
            time.sleep(0.1)


def mount_points(teardown: Teardown) -> tuple[Path, Path]:
    """Two new directories until teardown: for the ext4, and for a file system over it."""
    RUN.mkdir(mode=0o755, exist_ok=True)
    base = teardown.new_directory("m-", RUN, "remove_directory")
    points = base / "ext4", base / "over"
    for point in points:
        teardown.push("remove_directory", path=str(point))
        point.mkdir()
    return points


def new_ext4_bytes(size: int, bytes_per_inode: int = 0) -> int:
    """What make_ext4() writes at most: all inodes, a journal of a 32nd, less than a 1024th of bitmaps and the like."""
    inodes = size // (bytes_per_inode or BYTES_PER_INODE)
    return inodes * INODE_BYTES + min(size // 32, LARGEST_JOURNAL) + size // 1024


def make_ext4(
    device: BlockDevice, size: int, recorder: Recorder, bytes_per_inode: int = 0, options: Sequence[str] = ()
) -> dict[str, object]:
    """A new ext4 on the first size bytes of a device that may be overwritten. mkfs refuses one that is in use.

    bytes_per_inode: so that there are more inodes than usual. Raises Refused if another device has its name.
    """
    many = ["-i", str(bytes_per_inode)] if bytes_per_inode else []
    refuse_another(device)
    argv = ["mkfs.ext4", "-q", *many, *options, "-E", MKFS_OPTIONS, device.path, f"{size >> 10}k"]
    recorder.run(argv, timeout=MKFS_LIMIT)
    return {"mkfs": " ".join(argv[:-2]), "file_system_bytes": size}


def mount_ext4(device: BlockDevice, point: Path, recorder: Recorder, options: Sequence[str] = ()) -> None:
    """Mount it, and see that it is what is mounted there. The caller has noted how to undo it."""
    given = ["-o", ",".join(options)] if options else []
    recorder.run(["mount", "-t", "ext4", *given, device.path, str(point)], timeout=PATIENCE)
    if mounted_type(point) != "ext4" or point.stat().st_dev != device.number:
        raise FileSystemError(f"{point}: is not the ext4 of {device.path}")


def ext4_errors(device: BlockDevice) -> int:
    """How many errors the mounted ext4 has found; 0 where the kernel does not tell."""
    try:
        return int(Path("/sys/fs/ext4", device.name, "errors_count").read_text())
    except OSError:
        return 0


_libc = ctypes.CDLL(None, use_errno=True)


def sync_file_system(fd: int) -> None:
    """Write the file system of an open file back. Raises OSError, also for an earlier failure to do so."""
    if _libc.syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# ---- memory -------------------------------------------------------------------


@undo
def remove_cgroup(path: str) -> None:
    """Remove a cgroup whose processes have ended; the kernel lets go of it a little later."""
    end = time.monotonic() + PATIENCE
    while os.path.isdir(path):
        try:
            os.rmdir(path)
        except OSError as error:
            if time.monotonic() > end:
                raise TeardownError(f"{error.strerror}") from None
            time.sleep(0.05)


JOIN = 'echo $$ >"$0" && exec "$@"'


@dataclass(frozen=True)
class Memory:
    """The memory of a run's processes: of a control group, or of the machine if cgroup is None."""

    cgroup: Path | None
    limit: int

    @property
    def joined(self) -> tuple[str, ...]:
        """Words before a command that runs in it: what the command starts, however soon, is then in it as well."""
        return ("sh", "-c", JOIN, str(self.cgroup / "cgroup.procs")) if self.cgroup else ()

    def add(self, pid: int) -> None:
        """A process that is of others to start; what it started before stays outside."""
        if self.cgroup:
            with suppress(ProcessLookupError):  # it has ended
                (self.cgroup / "cgroup.procs").write_text(str(pid))

    def _figure(self, *names: str) -> int | None:
        for name in names:
            path = self.cgroup / name if self.cgroup else Path()
            if path.is_file():
                return int(path.read_text())
        return None

    def settings(self) -> dict[str, object]:
        if not self.cgroup:
            return {"memory_limit": "machine", "memory_bytes": self.limit}
        peak = self._figure("memory.peak", "memory.max_usage_in_bytes")
        return {"memory_limit": "cgroup", "memory_bytes": self.limit, "memory_peak_bytes": peak}

    def problems(self) -> list[str]:
        """Was a process killed because the memory was used up?"""
        if not self.cgroup:
            return []
        for name in ("memory.events", "memory.oom_control"):
            path = self.cgroup / name
            lines = path.read_text().splitlines() if path.is_file() else []
            if any(line.split()[0] == "oom_kill" and int(line.split()[1]) for line in lines):
                return [f"the kernel killed a process: {self.limit} bytes of memory were not enough"]
        return []


# In version 2 and in version 1: the files with a group's limit and use, and lines of memory.stat: cached files.
LIMITS = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


def _own_groups() -> Iterator[Path]:
    """The memory control groups of this process, its own and those above, as a container shows them. Raises OSError."""
    points = {}
    for mount in mounts_of():
        if mount.kind == "cgroup2" or (mount.kind == "cgroup" and "memory" in mount.options):
            points[mount.kind] = Path(mount.point)
    for line in filter(None, lines_of(Path("/proc/self/cgroup"))):
        _, controllers, path = line.split(":", 2)
        point = points.get("cgroup" if controllers else "cgroup2")
        if point and (not controllers or "memory" in controllers.split(",")):
            own = point / path.lstrip("/")
            yield from (one for one in (own, *own.parents) if one.is_relative_to(point))


def _left(group: Path) -> int | None:
    """Bytes that a group may still take, what is cached of files included; None: it has no limit."""
    for limit, used, cached in LIMITS:
        if (group / limit).exists() and (most := (group / limit).read_text().strip()) != "max":
            pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
            can_go = sum(int(value) for name, value in pairs if name in cached)
            return int(most) - int((group / used).read_text()) + can_go
    return None


def left_by_groups() -> int | None:
    """Bytes of memory that control groups leave to this process and what it starts; None: no limit is known."""
    with suppress(OSError):  # a kernel without control groups
        return min((left for group in _own_groups() if (left := _left(group)) is not None), default=None)
    return None


@undo
def disable_controller(control: str) -> None:
    with suppress(OSError):  # others have come to use it
        Path(control).write_text("-memory")


def _controller() -> tuple[Path, int]:
    """Where memory control groups are made, and of which version. Raises OSError, FileSystemError."""
    unified: list[Path] = []
    for mount in mounts_of():
        if mount.kind == "cgroup" and "memory" in mount.options:
            return Path(mount.point), 1
        if mount.kind == "cgroup2":
            unified.append(Path(mount.point))
    for point in unified:
        if "memory" in (point / "cgroup.controllers").read_text().split():
            return point, 2
    raise FileSystemError("memory: this machine has no memory control group, version 1 or 2, to limit it with")


def _enable_controller(point: Path, teardown: Teardown) -> None:
    control = point / "cgroup.subtree_control"
    if "memory" not in control.read_text().split():
        teardown.push("disable_controller", control=str(control))
        control.write_text("+memory")


def with_own_dirty_limit(limit: int, emulated: bool) -> int:
    """limit if the memory of limit_memory() has dirty limits of its own, else 0. Raises OSError, FileSystemError."""
    return limit if limit and not emulated and _controller()[1] == 2 else 0


def limit_memory(limit: int, emulated: bool, teardown: Teardown) -> Memory:
    """A control group of limit bytes until teardown; the lab's guest has just that much. Raises FileSystemError."""
    if emulated:
        return Memory(None, meminfo()["MemTotal"])
    try:
        point, version = _controller()
        if version == 2:
            _enable_controller(point, teardown)
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        cgroup = point / f"userblk-{os.getpid()}"
        with held():
            cgroup.mkdir()
            teardown.push("remove_cgroup", path=str(cgroup))
        (cgroup / name).write_text(str(limit))
        found = int((cgroup / name).read_text())
    except OSError as error:
        raise FileSystemError(f"memory: cannot be limited to {limit} bytes by a control group: {error}") from None
    if found != limit:
        raise FileSystemError(f"memory: the limit became {found} bytes instead of {limit}")
    return Memory(cgroup, limit)
