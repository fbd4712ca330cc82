# SPDX-License-Identifier: BSD-3-Clause
"""The tutorial's lessons that run in the lab, their commands as they stand there, in a clone. tests/s3 has another."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from documents import lesson

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT = 3 * 3600  # s: a busy machine, and the lab is built again

pytestmark = [
    pytest.mark.timeout(LIMIT),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU; run: apt-get install qemu-system-x86"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader is: the second lesson goes on in the clone that the first has made."""
    return tmp_path_factory.mktemp("tutorial")


def type_in(commands: list[str], directory: Path) -> str:
    newest = '"$(ls -dt results/*/ | head -n 1)"'
    lines = [line.replace("REPOSITORY", str(CHECKOUT)).replace("results/CAMPAIGN", newest) for line in commands]
    script = "\n".join(["set -eux", *lines])
    done = subprocess.run(["bash", "-c", script], cwd=directory, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_your_first_table(directory: Path) -> None:
    commands = lesson("Your first table")
    assert commands[0].startswith("git clone ") and len(commands) == 5
    printed = type_in(commands, directory)
    assert printed.count("rand-write-1th-4k") >= 4  # of two devices, printed at the end and by `userblk table`
    (page,) = (directory / "userblk/results").glob("*/report/report.html")
    assert "rand-write-1th-4k" in page.read_text()


def test_your_own_server_as_a_row(directory: Path) -> None:
    commands = [line for line in lesson("Your own server as a row") if line.startswith(("bin/", "make "))]
    assert len(commands) == 2
    printed = type_in(commands, directory / "userblk")
    assert printed.count("qemu-nbd") >= 2  # in the list of systems, and in the table
