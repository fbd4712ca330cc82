# SPDX-License-Identifier: BSD-3-Clause
"""SIGINT and SIGTERM as an exception that cannot fall between a step and the note of how to undo it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """The user (or the machine) asked the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _State:
    depth = 0
    pending = 0
    raised = 0  # the signal that Interrupted was raised for


def _handle(number: int, frame: FrameType | None) -> None:
    if _State.raised:
        return  # once is enough: what follows is teardown
    if _State.depth:
        _State.pending = number
    else:
        _State.raised = number
        raise Interrupted(number)


def install() -> None:
    """From now on the first SIGINT, SIGTERM or SIGHUP raises Interrupted in the main thread; later ones do nothing.

    A SIGHUP that is ignored (nohup) stays ignored. A SIGCHLD does not: children would leave no status, which Python
    takes for success.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _State.depth = _State.pending = _State.raised = 0
    handle_signals(_handle)


def handle_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """What asks a program to end; a SIGHUP that is ignored stays so."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Hold Interrupted back until the block is left. For short steps and for teardown."""
    _State.depth += 1
    try:
        yield
    finally:
        _State.depth -= 1
        if not _State.depth and _State.pending and not _State.raised:
            _State.raised = _State.pending
            raise Interrupted(_State.pending)


@contextmanager
def outranks() -> Iterator[None]:
    """Interrupted, once it was raised, is how the block ends: also where an error of the cleanup took its place, which
    becomes its cause. A caller that went on after that error would hear no further signal.
    """
    _once_more(None)
    try:
        yield
    except Exception as error:
        _once_more(error)
        raise
    _once_more(None)


def _once_more(cause: Exception | None) -> None:
    if _State.raised:
        raise Interrupted(_State.raised) from cause
