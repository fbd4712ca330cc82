# SPDX-License-Identifier: BSD-3-Clause
"""libiscsi's SCSI tests on our TCMU disks and on LIO's iblock: ours fail none that passes there."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from guest import RELEASE, Up, run
from userblk.harness.model.config import load_system

LIMIT = 1800.0  # s for a suite
LEAST = 93  # tests of libiscsi that a disk answers; the program skips those of commands that it does not have
# The program itself dies there on every disk of the loopback fabric: it takes the disk for one of iSCSI.
DIES = {"ReportLUNs.Simple"}
# What iblock has and tcmu-runner has not: DPO and FUA, the list of commands, VERIFY.
LACKS = re.compile(r".*\.(DpoFua|Dpo)|ReportSupportedOpcodes\..*|Verify1[06]\..*")
# The null device holds nothing that could be compared or found again.
NEEDS_DATA = {
    "CompareAndWrite.Simple",
    "CompareAndWrite.Miscompare",
    "WriteSame10.Check",
    "WriteSame16.Check",
    "WriteVerify10.Simple",
    "WriteVerify10.Flags",
    "WriteVerify16.Simple",
    "WriteVerify16.Flags",
}


def program(*words: str) -> str:
    """All output; more than a pipe would hold."""
    done = subprocess.run(
        ["iscsi-test-cu", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT, check=False,
    )  # fmt: skip
    return done.stdout.decode(errors="replace")


def outcomes(text: str) -> dict[str, str]:
    """passed, failed or skipped, by the test's name; without a test at which the program died."""
    found = {}
    for part in re.split(r"^  Test: ", text, flags=re.M)[1:]:
        name, _, rest = part.partition(" ...")
        if ended := re.search(r"^(passed|FAILED)$", rest, re.M):
            found[name] = "failed" if ended[1] == "FAILED" else "skipped" if "[SKIPPED]" in rest else "passed"
    return found


def results(up: Up, name: str) -> dict[str, str]:
    """What became of every test that the program has. One that it died at is run again alone, as are those after it."""
    families: dict[str, str] = {}
    suites: dict[str, list[str]] = {}
    for family, suite, test in re.findall(r"^(\w+)\.([^.\s]+)\.(.+)$", program("--list"), re.M):
        if families.setdefault(suite, family) == family:  # the first that has it
            suites.setdefault(suite, []).append(test)
    found = {}
    with up(load_system(name)) as running:
        (generic,) = Path("/sys/block", Path(running.used.path).name, "device/scsi_generic").iterdir()
        disk = f"/dev/{generic.name}"
        for suite, tests in suites.items():
            # May lose data, persistent reservations among what is tried.
            name_of = f"{families[suite]}.{suite}"
            of_suite = outcomes(program("-d", "-t", name_of, disk))
            for test in tests:
                if test not in of_suite:
                    of_suite |= outcomes(program("-d", "-t", f"{name_of}.{test}", disk))
                found[f"{suite}.{test}"] = of_suite.get(test, "died")
    counts = Counter(found.values())
    print(f"{name}: {dict(counts)}")
    assert {test for test, result in found.items() if result == "died"} <= DIES
    assert counts["passed"] + counts["failed"] >= LEAST
    return found


@pytest.fixture(scope="module")
def of_iblock() -> dict[str, str]:
    """Filled by the first test."""
    return {}


def without_zeroes() -> set[str]:
    """Where zeroes would have to be written, UNMAP leaves blocks as they are."""
    limit = Path("/sys/block", Path(os.environ["LAB_NVME"]).name, "queue/write_zeroes_max_bytes")
    return set() if int(limit.read_text()) else {"Unmap.Simple"}


@pytest.mark.long
@pytest.mark.skipif(RELEASE == "bullseye", reason="release: its tcmu-runner is older than what is listed here")
@pytest.mark.parametrize("name", ["tcmu", "tcmu-threads", "tcmu-null"])
def test_no_test_fails_that_iblock_passes(up: Up, of_iblock: dict[str, str], name: str) -> None:
    run(["modprobe", "sg"])
    run(["dmesg", "--console-level", "1"])  # the kernel has a line for every reservation, on a slow console
    Path("/etc/target/pr").mkdir(parents=True, exist_ok=True)
    of_iblock.update(of_iblock or results(up, "iblock"))
    ours = results(up, name)
    failed = {test for test, result in ours.items() if result == "failed" and of_iblock[test] != "failed"}
    assert failed <= (NEEDS_DATA if name == "tcmu-null" else without_zeroes())
    lacking = {test for test, result in ours.items() if result == "skipped" and of_iblock[test] == "passed"}
    assert {test for test in lacking if not LACKS.fullmatch(test)} == set()
