# SPDX-License-Identifier: BSD-3-Clause
"""An engine in C as a user calls it: what it prints, and the results that it writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from loops import LIMIT


def run_program(program: Path, *words: object, wrapper: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    argv = [*wrapper, str(program), *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False)


def results_of(program: Path, directory: Path, *words: object) -> dict[str, Any]:
    """What --json has after a run without an error, by way of a file in directory."""
    out = directory / "results.json"
    done = run_program(program, f"--json={out}", *words)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(out.read_text())
    return found
