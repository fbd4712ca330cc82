# SPDX-License-Identifier: BSD-3-Clause
"""Runs a command, and writes when it began and ended, synced: timed.py RESULTS DIRECTORY... -- COMMAND...

A program of its own, so that what is measured is not how often the runner looks. Standard library only. It syncs the
file systems of the directories in this order: one in user space first, because its pages go to the one below, which the
kernel does not sync with it.
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
    results, *others = arguments
    cut = others.index("--")
    directories, argv = others[:cut], others[cut + 1 :]
    child: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: object) -> None:
        if child:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    fds = [os.open(directory, os.O_RDONLY) for directory in directories]
    begin = time.monotonic()
    child = subprocess.Popen(argv)
    code = child.wait()
    if code < 0:
        print(f"{argv[0]}: ended by signal {-code}", file=sys.stderr)
    libc = ctypes.CDLL(None, use_errno=True)
    for fd, directory in zip(fds, directories, strict=True):
        if libc.syncfs(fd):
            print(f"{directory}: cannot be synced: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
            code = code or 1
    found = {"program": argv[0], "begin": begin, "end": time.monotonic(), "code": code}
    with open(f"{results}.partial", "w") as file:
        json.dump(found, file)
    os.rename(f"{results}.partial", results)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
