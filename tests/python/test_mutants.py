# SPDX-License-Identifier: BSD-3-Clause
"""The defects of mutants can be put into the programs as they are now; whether they are found takes hours."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("patch", sorted(ROOT.glob("tests/*/mutants/*.patch")), ids=lambda patch: patch.stem)
def test_applies(patch: Path) -> None:
    argv = ["patch", "-p1", "--batch", "--fuzz=0", "--dry-run", "-i", str(patch)]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
