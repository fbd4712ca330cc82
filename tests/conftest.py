# SPDX-License-Identifier: BSD-3-Clause
"""With CI=true a skipped test is a failure, unless no installation could have prevented it.

Campaigns of tests run beside each other: what they measure does not matter. A pytest that is killed leaves no loop
device and no mount behind (support/after_kill.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from skips import UNMENDABLE

os.environ.setdefault("USERBLK_BESIDE", "1")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if os.environ.get("CI") != "true" or not report.skipped or not isinstance(report.longrepr, tuple):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not reason.startswith(UNMENDABLE):
        report.outcome = "failed"
        report.longrepr = f"CI=true, and this was skipped: {reason}"


@pytest.fixture(scope="session", autouse=True)
def cleaned_up_after_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A program that outlives this one, and cleans up if this one is killed."""
    if os.geteuid() != 0:
        yield  # without devices and mounts
        return
    program = str(Path(__file__).parent / "support/after_kill.py")
    argv = [sys.executable, program, str(tmp_path_factory.getbasetemp())]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        yield
        process.communicate(b"ended")
