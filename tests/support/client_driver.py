# SPDX-License-Identifier: BSD-3-Clause
"""The S3 client as a program (tests/s3/client_driver.c), and what its tests store and look at."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from servers import BUCKET, ROOT, S3Client

DRIVER = os.environ.get("USERBLK_S3_DRIVER", str(ROOT / "build/host/tests/s3/client_driver"))
MIB = 1 << 20
BODY = random.Random(4).randbytes(3 * MIB + 5)


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


class Driver:
    """A client_driver; lines are what it tells its user."""

    def __init__(self, directory: Path, *parameters: str, env: dict[str, str] | None = None) -> None:
        self._log = (directory / f"driver-{random.getrandbits(32):08x}").open("w+b")
        self.process = subprocess.Popen(
            [DRIVER, *parameters],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def __call__(self, *words: object) -> dict[str, Any]:
        """Runs a command and returns its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"no answer: {self.reported}"
        answer: dict[str, Any] = json.loads(line)
        assert answer.get("called", 1) == 1
        return answer

    @property
    def reported(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def end(self) -> int:
        """Closes the client. The sanitizers' verdict is in the status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(300)
        assert status in (0, 2), self.reported
        return status

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None and self.process.stdout is not None:
            self.process.stdin.close()
            self.process.stdout.close()
        self._log.close()


Connect = Callable[..., Driver]


def put(s3: S3Client, key: str, body: bytes = BODY) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=body)


def get(s3: S3Client, key: str) -> bytes:
    return bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
