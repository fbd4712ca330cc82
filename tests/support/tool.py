# SPDX-License-Identifier: BSD-3-Clause
"""userblk-s3 as the tests run it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from device import ServeS3, parameters
from fault_proxy import FaultProxy
from nbdkit_server import ROOT

PROGRAM = ROOT / os.environ.get("USERBLK_S3_TOOL", "build/host/userblk-s3/userblk-s3")
TIMEOUT_S = 300.0


class Tool:
    """Called with the words of a command it runs it on a volume of a test's store."""

    def __init__(self, serve: ServeS3, volume: str = "v") -> None:
        self.serve = serve
        self.volume = volume

    def argv(self, *words: str, through: FaultProxy | None = None, **more: str) -> list[str]:
        """more: parameters, '_' for '-'; an empty one is left out."""
        store = self.serve.store
        url = through.url if through else store.url
        settings = {"prefix": self.serve.prefix}
        if not store.conditional_put:
            settings |= {"fencing": "none"}
        settings |= {name.replace("_", "-"): value for name, value in more.items()}
        credentials = Path(settings.pop("credentials", str(store.credentials)))
        volume = settings.pop("volume", self.volume)
        pairs = parameters(url, credentials, volume, **settings)
        return [str(PROGRAM), *words, *(pair for pair in pairs if not pair.endswith("="))]

    def run(self, *words: str, through: FaultProxy | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """It is not checked."""
        argv = self.argv(*words, through=through, **more)
        return subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    def __call__(self, *words: str, expect: int = 0, through: FaultProxy | None = None, **more: str) -> Any:
        """What it prints with --json."""
        result = self.run(*words, "--json", through=through, **more)
        assert result.returncode == expect, result
        return json.loads(result.stdout)

    def refused(self, *words: str, expect: int = 2, through: FaultProxy | None = None, **more: str) -> str:
        """The one line that it says of what it refuses."""
        return said(self.run(*words, through=through, **more), expect)


def said(result: subprocess.CompletedProcess[str], expect: int = 2) -> str:
    assert (result.returncode, result.stdout) == (expect, ""), result
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result
    prefix, _, text = lines[0].partition(": ")
    assert prefix == "userblk-s3"
    return text


def ask(control: Path, request: bytes) -> list[str]:
    """What the server answers to these bytes, after which nothing more is sent."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(str(control))
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while data := client.recv(65536):
            answer += data
    return answer.decode().splitlines()


def program(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs it with just these words."""
    return subprocess.run([str(PROGRAM), *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def config_file(path: Path, tool: Tool, **more: Any) -> Path:
    """Its parameters as a file, for the tool and a server alike."""
    path.write_text("\n".join(tool.argv(**more)[1:]) + "\n", encoding="utf-8")
    return path
