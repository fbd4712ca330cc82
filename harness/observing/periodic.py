# SPDX-License-Identifier: BSD-3-Clause
"""What is looked at again and again beside a run, in a thread of its own."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Self


class Periodic(ABC):
    """Calls look() at the beginning of a with block, at intervals, and at the end."""

    def __init__(self, interval: float) -> None:
        """interval: s."""
        self.interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def look(self) -> None:
        """Never in two threads at once."""

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.look()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            due += self.interval
            if due < (now := time.monotonic()):
                due = now + self.interval  # what a slow look has missed is not made up for, which would take more time
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            self.look()
