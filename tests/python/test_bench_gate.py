# SPDX-License-Identifier: BSD-3-Clause
"""make bench-gate, with a userblk that only says what it was asked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "bench/bench_gate.py"
FAKE = """#!/bin/sh
cd "$(dirname "$0")/.."
echo "$(cat version) LAB_EXTRA=$LAB_EXTRA $*" >>LOG
if [ "$1" = compare ]; then exit 3; fi
while [ "$1" != --results ]; do shift; done
mkdir "$2/campaign-$(ls "$2" | wc -l)"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of two commits, whose file version tells them apart."""
    root = tmp_path / "checkout"
    (root / "tests/bench").mkdir(parents=True)
    (root / "bin").mkdir()
    shutil.copy(SCRIPT, root / "tests/bench")
    (root / "bin/userblk").write_text(FAKE.replace("LOG", str(tmp_path / "log")))
    (root / "bin/userblk").chmod(0o755)
    (root / ".gitignore").write_text("/build/\n")
    git = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for version in ("old", "new"):
        (root / "version").write_text(version)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", version], check=True)
    return root


def gate(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(checkout / "tests/bench/bench_gate.py"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True)


def test_both_revisions_are_run_and_the_gate_s_exit_code_is_compare_s(checkout: Path) -> None:
    for _ in range(2):  # the second time the work tree is there
        done = gate(checkout, "--base", "HEAD~1", "--reps", "2", "--fail-over", "5")
        assert done.returncode == 3, done.stderr
        base, ours, compared = (checkout.parent / "log").read_text().splitlines()[-3:]
        assert base.startswith("old LAB_EXTRA= run --where lab --clock virtual") and "--reps 2 --seed 1" in base
        assert ours.startswith("new LAB_EXTRA= run") and base.split("--systems")[1] == ours.split("--systems")[1]
        assert compared.startswith("new LAB_EXTRA= compare --fail-over 5.0 ")
        assert "/base/campaign-" in compared.split()[-2] and "/ours/campaign-" in compared.split()[-1]


def test_two_versions_of_a_server_of_ones_own(checkout: Path) -> None:
    done = gate(checkout, "--systems", "mine", "--extra", "/srv/old", "/srv/new")
    assert done.returncode == 3, done.stderr
    first, second, _ = (checkout.parent / "log").read_text().splitlines()
    assert "LAB_EXTRA=/srv/old run" in first and "LAB_EXTRA=/srv/new run" in second and "--systems mine" in second


def test_of_several_versions_each_is_compared_with_the_one_before(checkout: Path) -> None:
    assert gate(checkout, "--extra", "/srv/11", "/srv/12", "/srv/13").returncode == 3
    lines = (checkout.parent / "log").read_text().splitlines()
    assert [line.split()[1] for line in lines[:3]] == [f"LAB_EXTRA=/srv/{version}" for version in (11, 12, 13)]
    pairs = [[path[-1] for path in line.split()[-2:]] for line in lines[3:]]
    assert pairs == [["0", "1"], ["1", "2"]]
    alone = gate(checkout, "--extra", "/srv/11")
    assert alone.returncode == 2 and "--extra /srv/11: is one version; name two or more" in alone.stderr


def test_what_is_no_revision_is_named(checkout: Path) -> None:
    done = gate(checkout, "--base", "nowhere")
    assert done.returncode == 2
    assert done.stderr == "BASE=nowhere: is no revision; name a commit, a branch or a tag\n"


def test_a_run_that_fails_is_compared_with_nothing(checkout: Path) -> None:
    (checkout / "bin/userblk").write_text("#!/bin/sh\nexit 3\n")
    done = gate(checkout, "--extra", "a", "b")
    assert done.returncode == 1 and "exit code 3, so nothing is compared" in done.stderr
