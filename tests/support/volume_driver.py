# SPDX-License-Identifier: BSD-3-Clause
"""tests/s3/volume_driver.c from Python: a volume of the S3 device with snapshots, clones and another size."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from servers import ROOT

DRIVER = os.environ.get("USERBLK_S3_VOLUME_DRIVER", "build/host/tests/s3/volume_driver")
TIMEOUT_S = 300.0


class Ended(Exception):
    """The process ended before it answered."""


class Refused(OSError):
    """A command's error."""


@dataclass(frozen=True)
class Snapshot:
    name: str
    seq: int
    time: int
    blocks: int
    children: int


class VolumeDriver:
    """An open volume. Commands may be in flight together; those that fail raise Refused, or Ended."""

    def __init__(self, directory: Path, parameters: Sequence[str], failpoint: str | None = None) -> None:
        """Raises AssertionError with the error message if it cannot be opened, Ended if it was killed."""
        self.log = directory / "driver.log"
        self._pending: dict[int, Future[bytes]] = {0: Future()}
        self._lock = threading.Lock()
        self._last = 0
        env = dict(os.environ)
        if failpoint:
            env["USERBLK_S3_FAILPOINT"] = failpoint
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(ROOT / DRIVER), *parameters], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env
            )
        opened = self._pending[0]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            opened.result(TIMEOUT_S)
        except Ended:
            if self.process.wait(TIMEOUT_S) < 0:
                raise
            raise AssertionError(f"cannot be opened: {self.output()}") from None

    def _read(self) -> None:
        out = self.process.stdout
        assert out
        with out:
            while line := out.readline():
                tag, result, length = map(int, line.split())
                data = out.read(length)
                with self._lock:
                    future = self._pending.pop(tag)
                if result:
                    future.set_exception(Refused(-result, os.strerror(-result)))
                else:
                    future.set_result(data)
        with self._lock:
            left, self._pending = list(self._pending.values()), {}
            self._last = -1
        for future in left:
            future.set_exception(Ended(self.output()))

    def submit(self, *words: object, data: bytes = b"") -> Future[bytes]:
        """Starts a command."""
        future: Future[bytes] = Future()
        assert self.process.stdin
        with self._lock:
            if self._last < 0:
                future.set_exception(Ended(self.output()))
                return future
            self._last += 1
            self._pending[self._last] = future
            with suppress(BrokenPipeError):  # then its end is reported
                self.process.stdin.write(" ".join(map(str, (self._last, *words))).encode() + b"\n" + data)
                self.process.stdin.flush()
        return future

    def __call__(self, *words: object, data: bytes = b"") -> bytes:
        return self.submit(*words, data=data).result(TIMEOUT_S)

    def pwrite(self, data: bytes, offset: int) -> None:
        self("write", offset, len(data), data=data)

    def pread(self, length: int, offset: int) -> bytes:
        return self("read", offset, length)

    def size(self) -> int:
        return int(self("size"))

    def session(self) -> int:
        return int(self("session"))

    def snapshots(self) -> list[Snapshot]:
        rows = (line.split() for line in self("list").decode().splitlines())
        return [Snapshot(name, *map(int, numbers)) for name, *numbers in rows]

    def counters(self) -> dict[str, int]:
        return {name: int(value) for name, value in (line.split() for line in self("counters").decode().splitlines())}

    def output(self) -> str:
        """Its messages to the user."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self, expect: int | None = 0) -> int:
        """Closes the volume; fails unless this is its exit status (None: any), which is returned."""
        if self.process.stdin and not self.process.stdin.closed:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        status = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert "Sanitizer" not in self.output(), self.output()
        assert expect in (status, None), f"exit status {status} instead of {expect}: {self.output()}"
        return status

    def kill(self) -> None:
        self.process.kill()
        self.stop(None)
