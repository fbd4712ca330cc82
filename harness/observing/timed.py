# SPDX-License-Identifier: BSD-3-Clause
"""Runs a command, and writes when it began and ended, synced: timed.py RESULTS DIRECTORY COMMAND...

A program of its own, so that what is measured is not how often the runner looks. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    results, directory, *argv = arguments
    child: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: object) -> None:
        if child:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    fd = os.open(directory, os.O_RDONLY)
    begin = time.monotonic()
    child = subprocess.Popen(argv)
    code = child.wait()
    if ctypes.CDLL(None).syncfs(fd):
        code = code or 1
    found = {"program": argv[0], "begin": begin, "end": time.monotonic(), "code": code}
    with open(f"{results}.partial", "w") as file:
        json.dump(found, file)
    os.rename(f"{results}.partial", results)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
