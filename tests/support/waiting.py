# SPDX-License-Identifier: BSD-3-Clause
"""Wait for something that happens by itself."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
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
