# SPDX-License-Identifier: BSD-3-Clause
"""tests/rooms.py: includes go in one direction, and the drawing in the documents is that of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from userblk.harness.machine import paths

assert paths.CHECKOUT is not None
ROOMS = paths.CHECKOUT / "tests/rooms.py"
PAGE = "# Rooms\n\n<!-- drawn by tests/rooms.py -->\n<!-- end of the drawing -->\n"


def rooms(top: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOMS, *words, top], capture_output=True, text=True)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name, text in {
        "backends/backend.h": "",
        "backends/device.h": "",
        "backends/s3/base/bytes.h": '#include "backends/backend.h"\n',
        "backends/s3/client/client.c": '#include "backends/s3/base/bytes.h"\n#include "backends/backend.h"\n',
        "plugins/nbdkit.c": '#include "backends/backend.h"\n#include <stdio.h>\n',
        "harness/cli/run.py": "from ..running.runner import Runner\nfrom userblk.analysis import table\nimport os\n",
        "harness/running/runner.py": "from ..systems import native\n",
        "harness/systems/native.py": "",
        "analysis/table.py": "",
        "docs/architecture.md": PAGE,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_drawing_is_that_of_the_code(top: Path) -> None:
    assert "run tests/rooms.py --write" in rooms(top).stderr
    assert rooms(top, "--write").returncode == 0
    assert rooms(top).returncode == 0
    drawn = (top / "docs/architecture.md").read_text()
    assert "backends_s3_client --> backends_s3_base" in drawn
    assert "backends_s3_client --> backends\n" not in drawn  # a longer way stands for it
    assert "harness_cli --> harness_running" in drawn and "harness_running --> harness_systems" in drawn
    (top / "analysis/table.py").write_text("from userblk.harness.running.runner import Runner\n")
    assert rooms(top).returncode == 1


@pytest.mark.parametrize(
    ("name", "included"),
    [
        ("backends/s3/base/bytes.h", "backends/s3/client/client.h"),
        ("plugins/nbdkit.c", "backends/device.h"),
        ("plugins/nbdkit.c", "backends/s3/base/bytes.h"),
        ("fuse-session/session.c", "fuse-nullfs/nullfs.h"),
        ("workers/workers.c", "ublk/queue.h"),
        ("fuse-nullfs/files.c", "fuse-passthrough/inodes.h"),
    ],
)
def test_an_include_that_goes_up_is_told(top: Path, name: str, included: str) -> None:
    rooms(top, "--write")
    (top / name).parent.mkdir(exist_ok=True)
    (top / name).write_text(f'#include "{included}"\n')
    result = rooms(top)
    assert result.returncode == 1 and f"{name}:1: includes {included}" in result.stderr


def test_an_import_that_goes_up_is_told(top: Path) -> None:
    (top / "harness/systems/native.py").write_text("from ..running.runner import Runner\n")
    rooms(top, "--write")
    result = rooms(top)
    assert result.returncode == 1 and "harness/systems imports from harness/running" in result.stderr


def test_a_folder_that_is_not_declared(top: Path) -> None:
    (top / "attic").mkdir()
    (top / "attic/old.c").touch()
    assert rooms(top).returncode == 2
