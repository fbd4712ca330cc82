# SPDX-License-Identifier: BSD-3-Clause
"""perf beside a run: a command like all others, which ends with its runner."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..machine.interrupt import held
from ..machine.subprocesses import CommandError, Process, Recorder, end_in_words, last_line
from ..machine.teardown import group_lives, holds_within
from ..observing import perf

START_LIMIT = 60.0  # s
TIMED_OUT = 124  # how timeout(1) says so


@contextmanager
def recording(recorder: Recorder, output: Path, seconds: float, limit: float, remedy: str) -> Iterator[str]:
    """
    What is sampled, of all CPUs, until the block's end, and never longer than limit s: also if nobody is left to end
    perf. remedy: what installs it. Raises PerfError.
    """
    sampled = perf.event()
    if not shutil.which("perf"):
        raise perf.PerfError(f"perf is not installed; run: {remedy}")
    process: Process | None = None
    try:
        with held():
            # Not perf's own way, a command that it waits for: its head is then there before it records.
            bound = ("timeout", "--signal=INT", f"{limit:.0f}")
            process = recorder.spawn(perf.argv(output, seconds, sampled), first=bound)
        end = time.monotonic() + START_LIMIT
        while not (output.exists() and output.stat().st_size):  # its head, which follows once all events are open
            if process.poll() is not None or time.monotonic() > end:
                raise perf.PerfError(f"perf does not record {sampled}: {last_line(process.errors)}")
            time.sleep(0.01)
        yield sampled
    finally:
        if process:
            _end(process)
    code = process.poll()
    assert code is not None
    if code not in (0, -signal.SIGINT, TIMED_OUT):
        raise perf.PerfError(f"perf record: {end_in_words(code)}: {last_line(process.errors)}")


def _end(process: Process) -> None:
    """
    SIGINT to the process group: not each timeout(1) passes it on, that of uutils does not. perf then writes what it
    has. Raises CommandError.
    """

    def over() -> bool:
        return process.poll() is not None and not group_lives(process.pid)

    with held():
        for number, patience in ((signal.SIGINT, perf.END_LIMIT), (signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0)):
            if over():  # also before the first: its number may be that of other processes by then
                return
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            holds_within(patience, over)
        if not over():
            raise CommandError(f"perf (pid {process.pid}) does not end, even by SIGKILL")
