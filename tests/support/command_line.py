# SPDX-License-Identifier: BSD-3-Clause
"""The command `userblk`, as a process of its own."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from userblk.harness import cli
from userblk.harness.machine import paths

assert paths.CHECKOUT is not None
USERBLK = str(paths.CHECKOUT / "bin/userblk")
LIMIT = 300.0  # s
LEFT_OUT = ("PYTHONPATH", "LAB_CLOCK")


def whole(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """The whole command: Python starts and reads bin/userblk. variables: of its environment."""
    env = {name: value for name, value in os.environ.items() if name not in LEFT_OUT} | variables
    argv = [sys.executable, USERBLK, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, cwd=cwd, env=env, check=False)


def userblk(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same in a process that has loaded its modules already, unless it must see other variables."""
    if variables:
        return whole(*arguments, cwd=cwd, **variables)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _carry_out(arguments, cwd, out.fileno(), err.fileno())
        end = time.monotonic() + LIMIT
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise subprocess.TimeoutExpired(["userblk", *arguments], LIMIT)
            time.sleep(0.005)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(["userblk", *arguments], os.waitstatus_to_exitcode(ended[1]), *texts)


def _carry_out(arguments: Sequence[str], cwd: Path | None, out: int, err: int) -> NoReturn:
    """In the child, which never comes back."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdin, sys.stdout, sys.stderr = (open(fd, "w" if fd else "r", closefd=False) for fd in range(3))
        for name in LEFT_OUT:
            os.environ.pop(name, None)
        logging.getLogger().handlers.clear()  # of pytest
        os.chdir(cwd or ".")
        sys.argv = [USERBLK, *arguments]
        code = cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
