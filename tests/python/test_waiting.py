# SPDX-License-Identifier: BSD-3-Clause
"""waiting.py: what the tests wait with."""

from __future__ import annotations

import subprocess

import pytest
from waiting import wait_until


def test_what_happens_is_waited_for() -> None:
    answers = iter([False, False, True])
    wait_until("the third answer", lambda: next(answers))


def test_what_does_not_happen_is_named() -> None:
    with pytest.raises(AssertionError, match="^not within 0 s: a miracle: what the log says$"):
        wait_until("a miracle", lambda: False, 0.1, log=lambda: "what the log says")


def test_a_process_that_ends_is_not_waited_for() -> None:
    with subprocess.Popen(["false"]) as process:
        with pytest.raises(AssertionError, match="^ended with 1 before: a miracle$"):
            wait_until("a miracle", lambda: False, process=process)
        wait_until("its end", lambda: process.poll() is not None, process=process)


def test_a_killed_process_is_named_by_its_signal() -> None:
    """test_crash.py tells a server that was killed while it started from one that refuses."""
    with subprocess.Popen(["sleep", "60"]) as process:
        process.kill()
        with pytest.raises(AssertionError, match="^killed by SIGKILL before: a miracle$"):
            wait_until("a miracle", lambda: False, process=process)
