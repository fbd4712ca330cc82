# SPDX-License-Identifier: BSD-3-Clause
"""Wait for something that happens by itself; stop a process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

LIMIT = 120.0  # s for what takes a second: the machine may be slow, or busy
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.05  # s


def wait_until(
    what: str,
    condition: Callable[[], object],
    seconds: float = LIMIT,
    *,
    process: subprocess.Popen[Any] | None = None,
    log: Callable[[], str] | None = None,
) -> None:
    """
    Returns when condition() is true. Raises AssertionError, which says what was waited for and shows log(), if that
    takes longer than so many seconds, or if the process ends before.
    """
    end, pause = time.monotonic() + seconds, FIRST_PAUSE
    while not condition():
        problem = ""
        if process is not None and (status := process.poll()) is not None and not condition():
            how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
            problem = f"{how} before: {what}"
        elif time.monotonic() > end:
            problem = f"not within {seconds:.0f} s: {what}"
        assert not problem, f"{problem}: {log()}" if log else problem
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def stop(pid: int) -> None:
    """
    Stops all threads of a process until SIGCONT. Returns when each stands still: kill() returns before, and a thread
    that runs meanwhile may still answer a request.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until("every thread stops", lambda: set(thread_states(pid)) == {"T"})


def thread_states(pid: int) -> list[str]:
    """The state of each thread of a process as in proc(5): R runs, S sleeps, T is stopped."""
    states = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            states.append(thread_state(int(thread.name)))
    return states


def thread_state(number: int) -> str:
    """That of one; a process's first thread has its number."""
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
