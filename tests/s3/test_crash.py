# SPDX-License-Identifier: BSD-3-Clause
"""The crash checker over the S3 device: 200 crashes here, 10,000 in `make test-crash`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from crash import main

POINTS = int(os.environ.get("USERBLK_CRASH_POINTS", "200"))


def test_crashes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status = main(["--points", str(POINTS), "--jobs", "2", "--keep", str(tmp_path)])
    text = capfd.readouterr().out
    print(text)
    assert status == 0, text
