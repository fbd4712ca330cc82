# SPDX-License-Identifier: BSD-3-Clause
"""Wait for something that happens by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT = 120.0  # s for what takes a second: the machine may be slow, or busy
PAUSE = 0.05  # s


def wait_until(what: str, condition: Callable[[], object], seconds: float = LIMIT) -> None:
    """Returns when condition() is true; what: text for the AssertionError if it is not within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(PAUSE)
