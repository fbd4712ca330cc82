# SPDX-License-Identifier: BSD-3-Clause
"""tests/lab/user_mode_linux.py: what it refuses. `make test-xfstests-lab LINUX=DIR` runs it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

from nbdkit_server import ROOT

PROGRAM = ROOT / "tests/lab/user_mode_linux.py"


def run(linux: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(PROGRAM), f"--linux={linux}", "--", "true"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_a_directory_without_linux(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2
    assert f"--linux={tmp_path}: no source of Linux; unpack" in done.stderr.splitlines()[-1]
    assert done.stdout == ""


def test_a_linux_that_lacks_what_is_needed(tmp_path: Path) -> None:
    names = runpy.run_path(str(PROGRAM))
    lacking_settings = names["lacking_settings"]
    config = tmp_path / ".config"
    settings = names["FRAGMENT"].read_text()
    config.write_text(settings)
    assert lacking_settings(config) == []
    config.write_text(settings.replace("CONFIG_BLK_DEV_UBLK=y", "# CONFIG_BLK_DEV_UBLK is not set"))
    assert lacking_settings(config) == ["CONFIG_BLK_DEV_UBLK=y"]
