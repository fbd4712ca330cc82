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
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("switches", "syscalls", "instructions")
Counts = tuple[float, ...]  # in the order of NAMES; NaN: unknown

# ---- taskstats: linux/netlink.h, linux/genetlink.h, linux/taskstats.h ------------------------

_NETLINK_GENERIC = 16
_CTRL, _CTRL_GETFAMILY, _CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
_NLMSG_ERROR, _NLM_F_REQUEST = 2, 1
_GET, _ATTR_TGID, _TYPE_STATS, _AGGR_TGID = 1, 2, 3, 5
_SWITCHES = 272  # offset of nvcsw, nivcsw in struct taskstats, whose beginning never changes
_PATIENCE = 1.0  # s


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        if length < 4:
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]


class Taskstats:
    """Context switches of processes. Raises OSError where the kernel has no taskstats, or does not let us."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC)
        try:
            self._socket.settimeout(_PATIENCE)
            self._socket.bind((0, 0))
            answer = dict(self._ask(_CTRL, _CTRL_GETFAMILY, _CTRL_ATTR_FAMILY_NAME, b"TASKSTATS\0"))
            (self._family,) = struct.unpack_from("H", answer[_CTRL_ATTR_FAMILY_ID])
        except BaseException as error:
            self._socket.close()
            if isinstance(error, KeyError | struct.error):
                raise OSError("the kernel has no taskstats") from None
            raise

    def _ask(self, family: int, command: int, kind: int, value: bytes) -> Iterator[tuple[int, bytes]]:
        attribute = struct.pack("HH", 4 + len(value), kind) + value.ljust((len(value) + 3) & ~3, b"\0")
        body = struct.pack("BBH", command, 1, 0) + attribute
        self._socket.send(struct.pack("IHHII", 16 + len(body), family, _NLM_F_REQUEST, 0, 0) + body)
        answer = self._socket.recv(16384)
        _, kind, _, _, _ = struct.unpack_from("IHHII", answer)
        if kind == _NLMSG_ERROR:
            (code,) = struct.unpack_from("i", answer, 16)
            raise OSError(-code, os.strerror(-code))
        return _attributes(answer[20:])

    def switches(self, pid: int) -> float:
        """Voluntary and other ones of all threads that the process has or had. Raises OSError if it is gone."""
        for kind, value in self._ask(self._family, _GET, _ATTR_TGID, struct.pack("I", pid)):
            if kind == _AGGR_TGID:
                for inner, stats in _attributes(value):
                    if inner == _TYPE_STATS:
                        return float(sum(struct.unpack_from("QQ", stats, _SWITCHES)))
        raise OSError("no answer from taskstats")

    def close(self) -> None:
        self._socket.close()


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
