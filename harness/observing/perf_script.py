# SPDX-License-Identifier: BSD-3-Clause
"""What `perf script` prints: samples with their stacks, and trace points with their fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SAMPLE_FIELDS = "comm,pid,tid,time,event,ip,sym,dso"
TRACE_FIELDS = "comm,pid,tid,time,event,trace"
UNKNOWN = "[unknown]"

# An event may be of one kind of CPU of several: cpu_core/cycles/P.
HEAD = re.compile(r"(\S.*?)\s+(-?\d+)/(-?\d+)\s+(\d+\.\d+):\s+(\d+\s+)?([a-z_][\w./=,:-]*):(\s.*|)$")
FRAME = re.compile(r"([0-9a-f]+) (.+?) \((.*)\)$")
KERNEL_ADDRESS = 1 << 63


@dataclass(frozen=True)
class Frame:
    """A function, and the file that it is in."""

    function: str
    file: str
    in_kernel: bool


@dataclass(frozen=True)
class Record:
    """
    One sample, or one trace point, with its fields as text. time: s of CLOCK_MONOTONIC. stack: innermost first. period:
    how much of its event a sample stands for, 1 where that was not asked for.
    """

    command: str
    pid: int
    tid: int
    time: float
    event: str
    stack: tuple[Frame, ...]
    text: str
    period: int = 1


def _frame(text: str) -> Frame | None:
    match = FRAME.match(text)
    if not match:
        return None
    address, function, file = match.groups()
    return Frame(function, file, int(address, 16) >= KERNEL_ADDRESS)


def records(lines: Iterable[str]) -> Iterator[Record]:
    """In the order of the text. A line that is neither a head nor a frame is passed over: perf's own remarks."""
    head: re.Match[str] | None = None
    stack: list[Frame] = []

    def made(match: re.Match[str]) -> Record:
        command, pid, tid, time, period, event, rest = match.groups()
        return Record(command, int(pid), int(tid), float(time), event, tuple(stack), rest.strip(), int(period or 1))

    for line in lines:
        text = line.strip()
        if match := HEAD.match(text):  # first: `dd` could be an address, and parentheses end trace points, too
            if head:
                yield made(head)
            head, stack = match, []
            if own := _frame(match[7].strip()):  # of a sample without callers, which stands in its line
                stack.append(own)
        elif head and (frame := _frame(text)):
            stack.append(frame)
    if head:
        yield made(head)
