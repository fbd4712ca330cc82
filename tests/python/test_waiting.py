# SPDX-License-Identifier: BSD-3-Clause
"""waiting.py: what the tests wait with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from waiting import stop, thread_states, wait_until


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


BUSY = """
import threading, zlib
data = bytes(1 << 22)
def run():
    while True:
        zlib.crc32(data)  # without the interpreter's lock
for _ in range(16):
    threading.Thread(target=run).start()
print(flush=True)
"""


def test_every_thread_of_a_stopped_process_stands_still() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            for _ in range(20):
                stop(process.pid)
                assert thread_states(process.pid) == ["T"] * 17
                os.kill(process.pid, signal.SIGCONT)
        finally:
            process.kill()
