# SPDX-License-Identifier: BSD-3-Clause
"""make bench-gate closes on an extra copy, system call or thread switch a request, and on nothing where none is.

Each patch of gate/ puts one of these into nbdkit's adapter. GATE_RUNS: how many runs without a change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bench_gate import FAIL_OVER, GATE, ROOT, git, measure, tree_of

PATCHES = sorted((Path(__file__).resolve().parent / "gate").glob("*.patch"))
ASKED = ["--systems", "nbdkit-null", "--workloads", "rand-read-1th-4k,rand-read-16th-4k", "--reps", "3"]
RESULTS = GATE / "results/test"

pytestmark = [
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU; run: apt-get install qemu-system-x86"),
    pytest.mark.timeout(3600),  # two or three minutes on a machine that does nothing else
]


def campaign(tree: Path, seed: int) -> Path:
    return measure(tree, "", RESULTS, [*ASKED, "--seed", str(seed)])


@pytest.fixture(scope="module")
def base() -> Path:
    """The tree without a change."""
    return tree_of("HEAD")


@pytest.fixture(scope="module")
def first(base: Path) -> Path:
    """What all are compared with."""
    return campaign(base, 1)


def gate(first: Path, second: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "bin/userblk"), "compare", str(first), str(second), "--all"]
    return subprocess.run([*argv, "--fail-over", str(FAIL_OVER)], capture_output=True, text=True)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_what_costs_more_is_flagged(base: Path, first: Path, patch: Path) -> None:
    tree = tree_of("HEAD", "patched")
    git("-C", str(tree), "checkout", "--quiet", "--", ".")
    git("-C", str(tree), "apply", str(patch))
    done = gate(first, campaign(tree, 1))
    print(done.stdout)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "worse" in done.stdout.split("Gate: closed.")[1]


@pytest.mark.parametrize("run", range(int(os.environ.get("GATE_RUNS", "10"))))
def test_what_costs_the_same_is_not(base: Path, first: Path, run: int) -> None:
    """With other seeds, so that more differs than between two revisions in the gate, which have the same."""
    done = gate(first, campaign(base, 2 + run))
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
