# SPDX-License-Identifier: BSD-3-Clause
"""What a server process costs, counted by the kernel: figures that other load on the machine hardly touches.

Context switches of all its threads come from taskstats in one message, which costs nothing worth a word. Syscalls (the
kernel's tracepoint) and instructions (the CPU's counter) come from perf events; while these are open every syscall of
the machine is slower, so they are counted in runs of their own, of which no timing is used.

Standard library only. A kernel without one of them has no figure for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .netlink import Family, attribute, attributes

NAMES = ("switches", "syscalls", "instructions")
Counts = tuple[float, ...]  # in the order of NAMES; NaN: unknown

# ---- taskstats: linux/taskstats.h -------------------------------------------------------------

_GET, _ATTR_TGID, _TYPE_STATS, _AGGR_TGID = 1, 2, 3, 5
_SWITCHES = 272  # offset of nvcsw, nivcsw in struct taskstats, whose beginning never changes
_PATIENCE = 1.0  # s


class Taskstats(Family):
    """Context switches of processes."""

    def __init__(self) -> None:
        """Raises OSError where the kernel has no taskstats, or does not let us."""
        super().__init__("TASKSTATS", _PATIENCE)

    def switches(self, pid: int) -> float:
        """Voluntary and other ones of all threads that the process has or had. Raises OSError if it is gone."""
        answer = self.ask(_GET, attribute(_ATTR_TGID, struct.pack("=I", pid)))
        stats = attributes(answer.get(_AGGR_TGID, b"")).get(_TYPE_STATS)
        if stats is None:
            raise OSError("no answer from taskstats")
        return float(sum(struct.unpack_from("=QQ", stats, _SWITCHES)))


# ---- perf events: linux/perf_event.h ----------------------------------------------------------

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _TRACEPOINT = 0, 2
_INSTRUCTIONS = 1
_INHERIT = 1 << 1
_CLOEXEC = 8
_TRACING = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")

_libc = ctypes.CDLL(None, use_errno=True)


def _tracepoint() -> int:
    """Its number. Raises OSError, also where tracefs is not mounted."""
    for directory in _TRACING:
        with contextlib.suppress(OSError):
            return int(Path(directory, "events/raw_syscalls/sys_enter/id").read_text())
    raise OSError("no tracepoint of syscalls")


def _open(kind: int, config: int, tid: int) -> int:
    """A counter of one thread and of those that it will start. Raises OSError."""
    size = 64  # PERF_ATTR_SIZE_VER0, which every kernel knows
    attributes = struct.pack("IIQQQQQ", kind, size, config, 0, 0, 0, _INHERIT).ljust(size, b"\0")
    number = _SYSCALL.get(os.uname().machine)
    if number is None:
        raise OSError("no number of perf_event_open for this machine")
    fd: int = _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(attributes),
        ctypes.c_int(tid),
        ctypes.c_int(-1),
        ctypes.c_int(-1),
        ctypes.c_ulong(_CLOEXEC),
    )
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return fd


class Events:
    """Syscalls and instructions of a process from now on, its threads to come included."""

    def __init__(self, pid: int) -> None:
        self._fds: dict[str, list[int]] = {}
        for name, kind, config in (("syscalls", _TRACEPOINT, _tracepoint), ("instructions", _HARDWARE, None)):
            fds: list[int] = []
            try:
                number = config() if config else _INSTRUCTIONS
                for task in Path(f"/proc/{pid}/task").iterdir():
                    fds.append(_open(kind, number, int(task.name)))
            except OSError:
                for fd in fds:
                    os.close(fd)
                continue
            self._fds[name] = fds

    def read(self, name: str) -> float:
        """NaN if the kernel or the CPU does not count it."""
        if name not in self._fds:
            return math.nan
        return float(sum(struct.unpack("Q", os.read(fd, 8))[0] for fd in self._fds[name]))

    def close(self) -> None:
        for fds in self._fds.values():
            for fd in fds:
                os.close(fd)


class Counters:
    """All counters of a process. events: also those that slow every syscall down."""

    def __init__(self, pid: int, events: bool) -> None:
        self._pid = pid
        self._stats: Taskstats | None = None
        with contextlib.suppress(OSError):
            self._stats = Taskstats()
        self._events = Events(pid) if events else None

    def read(self) -> Counts:
        switches = math.nan
        if self._stats:
            with contextlib.suppress(OSError):
                switches = self._stats.switches(self._pid)
        if not self._events:
            return switches, math.nan, math.nan
        return switches, self._events.read("syscalls"), self._events.read("instructions")

    def close(self) -> None:
        if self._stats:
            self._stats.close()
        if self._events:
            self._events.close()


@contextmanager
def counting(pid: int | None, events: bool) -> Iterator[Counters | None]:
    """The counters of a process for the length of the block; None without one."""
    counters = Counters(pid, events) if pid else None
    try:
        yield counters
    finally:
        if counters:
            counters.close()
