# SPDX-License-Identifier: BSD-3-Clause
"""What tests of the harness share; a file with a disk of another size has a fixture of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from flow_program import ROOT
from loops import loop
from runner_process import SIZE


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    """An empty loop device."""
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", SIZE) as path:
        yield path


@pytest.fixture(scope="session")
def flow_is_built() -> None:
    subprocess.run(["make", "-s", "flow"], cwd=ROOT, check=True)
