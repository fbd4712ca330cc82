# SPDX-License-Identifier: BSD-3-Clause
"""A campaign in the lab's guest: its runner, and what it has written so far."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_LIMIT = 300.0  # s until fio runs
END_LIMIT = 600.0  # s for what is left of a campaign of two cells

Events = list[dict[str, Any]]


@contextmanager
def runner(directory: Path, module: str = "userblk.harness.running.runner") -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", module, str(directory / "plan.json")]
    with (directory / "runner.log").open("ab") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def events(directory: Path) -> Events:
    path = directory / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pids(name: str) -> list[int]:
    found = subprocess.run(["pgrep", "-x", name], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def summaries(directory: Path) -> list[dict[str, Any]]:
    return [event["summary"] for event in events(directory) if event["event"] == "entry-done"]
