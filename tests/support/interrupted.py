# SPDX-License-Identifier: BSD-3-Clause
"""Interrupts of this process, as the runner takes them, at chosen moments."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
from userblk.harness.machine import interrupt
from userblk.harness.machine.subprocesses import Process, Recorder


@contextmanager
def interrupts() -> Iterator[None]:
    """Signals raise Interrupted inside the block."""
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        interrupt.install()
        yield
    finally:
        interrupt.install()  # nothing was raised in what follows
        for number, handler in old.items():
            signal.signal(number, handler)


def interrupt_then(error: Exception) -> NoReturn:
    """What is run gets SIGINT, and then cannot be ended."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        raise error


def spawn_and_interrupt(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """SIGINT comes right when a command of this name has been started."""
    real = Recorder.spawn

    def spawn(recorder: Recorder, argv: Sequence[str], **options: Any) -> Process:
        process = real(recorder, argv, **options)
        if argv[0] == name:
            os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(Recorder, "spawn", spawn)
