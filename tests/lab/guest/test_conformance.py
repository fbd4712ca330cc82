# SPDX-License-Identifier: BSD-3-Clause
"""libiscsi's SCSI tests on our TCMU disk and on LIO's iblock on the same device: ours fails none that passes there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from guest import RELEASE, Up, run
from userblk.harness.model.config import load_system

LIMIT = 1800.0  # s for one run
# Steps of tests that a run has begun. The program itself dies at REPORT LUNS, on every disk of the loopback fabric.
LEAST = 300


def failures(up: Up, name: str) -> set[str]:
    with up(load_system(name)) as running:
        (generic,) = Path("/sys/block", Path(running.used.path).name, "device/scsi_generic").iterdir()
        # May lose data, persistent reservations among what is tried, with all output; more than a pipe would hold.
        done = subprocess.run(
            ["iscsi-test-cu", "-d", "-n", "-V", f"/dev/{generic.name}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT, check=False,
        )  # fmt: skip
    text = done.stdout.decode(errors="replace")
    assert len(re.findall(r"^    Test ", text, re.M)) >= LEAST, text[-2000:]
    return {f"{suite}.{test}" for suite, test in re.findall(r"^Suite (\w+), Test (\w+) had failures", text, re.M)}


@pytest.mark.long
@pytest.mark.skipif(RELEASE == "bullseye", reason="release: its tcmu-runner is older than what is listed here")
@pytest.mark.parametrize("name", ["tcmu", "tcmu-threads"])
def test_no_test_fails_that_iblock_passes(up: Up, name: str) -> None:
    run(["modprobe", "sg"])
    run(["dmesg", "--console-level", "1"])  # the kernel has a line for every reservation, on a slow console
    Path("/etc/target/pr").mkdir(parents=True, exist_ok=True)
    ours, theirs = failures(up, name), failures(up, "iblock")
    assert ours <= theirs, ours - theirs
