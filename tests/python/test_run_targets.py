# SPDX-License-Identifier: BSD-3-Clause
"""tests/run.py: what it runs, records, leaves out and tells."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from userblk.harness.machine import paths
from waiting import wait_until

MAKEFILE = """
passes:
\t@echo ran >> passes.ran; echo 'SKIPPED [1] x.py:1: kernel: none'
fails:
\t@echo 'E   what went wrong'; echo 'FAILED tests/x.py::test_y - it'; test -e repaired
waits:
\t@for i in $$(seq 100); do test -e passes.ran && exit 0; sleep 0.1; done; exit 1
hangs:
\t@echo $$$$ > pid.ran; test -e repaired || exec sleep 600
"""


@pytest.fixture
def top(tmp_path: Path) -> Path:
    assert paths.CHECKOUT is not None
    (tmp_path / "tests/support").mkdir(parents=True)
    for name in ("tests/run.py", "tests/support/skips.py"):
        shutil.copy(paths.CHECKOUT / name, tmp_path / name)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / ".gitignore").write_text("build\n*.ran\nrepaired\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def commit(top: Path) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qam", "x"], cwd=top, check=True)


def run(top: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "tests/run.py", *words], cwd=top, capture_output=True, text=True)


@pytest.mark.parametrize("words", [("fails", "passes"), ("--beside", "fails", "passes"), ("--beside=passes", "fails")])
def test_a_failure_ends_nothing_and_is_told(top: Path, words: tuple[str, ...]) -> None:
    result = run(top, *words)
    assert result.returncode == 1
    assert result.stdout.endswith("FAILED: fails\nfails: FAILED tests/x.py::test_y - it\n")
    assert "E   what went wrong" in result.stdout.partition("what failed in fails")[2]
    assert "passes: SKIPPED [1] x.py:1: kernel: none" in result.stdout
    assert (top / "passes.ran").exists()
    record = json.loads((top / "build/test/runs.json").read_text())
    assert record["passes"]["exit"] == 0 and record["fails"]["exit"] == 2


def test_the_stream_that_ends_first_takes_the_next(top: Path) -> None:
    (top / "repaired").touch()
    result = run(top, "--beside", "waits", "--beside", "passes", "fails")
    assert result.returncode == 0, result.stdout
    assert (top / "passes.ran").read_text() == "ran\n"


def test_a_run_that_broke_has_not_passed(top: Path) -> None:
    """Whatever an earlier one did: the file of its output cannot grow any more."""
    (top / "Makefile").write_text(MAKEFILE + "bad:\n\t@seq 3000\n")
    (top / "build/test").mkdir(parents=True)
    (top / "build/test/bad.log").touch()
    (top / "build/test/runs.json").write_text('{"bad": {"commit": "old", "exit": 0, "seconds": 1}}')
    argv = ["prlimit", "--fsize=10000", sys.executable, "tests/run.py", "--beside", "bad", "passes"]
    result = subprocess.run(argv, cwd=top, capture_output=True, text=True)
    assert result.returncode == 1 and "File too large" in result.stderr
    assert result.stdout.endswith("FAILED: bad\n") and "passes: passed" in result.stdout
    assert json.loads((top / "build/test/runs.json").read_text())["bad"]["exit"] == 1


def test_one_that_runs_alone_has_ended_before_the_others(top: Path) -> None:
    (top / "Makefile").write_text(MAKEFILE + "alone:\n\t@sleep 0.5; ls *.ran > alone.log 2> build/none || true\n")
    result = run(top, "--alone", "alone", "--beside", "passes", "waits")
    assert result.returncode == 0, result.stdout
    assert (top / "alone.log").read_text() == "" and (top / "passes.ran").exists()


def test_resumed_runs_leave_out_what_passed(top: Path) -> None:
    run(top, "passes", "fails")
    (top / "repaired").touch()
    result = run(top, "--resume", "passes", "fails")
    assert result.returncode == 0 and "all passed" in result.stdout
    assert (top / "passes.ran").read_text() == "ran\n"
    run(top, "passes")
    assert (top / "passes.ran").read_text() == "ran\nran\n"


@pytest.mark.parametrize(
    ("skip", "again"),
    [
        ("x.py:1: fio is not installed", True),
        ("xfstests: XFSTESTS= does not say where it is installed", True),
        ("left out: the S3 device, which needs libcurl4-openssl-dev", True),
        ("tests/x.py: installation: userblk-openloop is not built", True),
        ("x.py:1: kernel: no Btrfs", False),
        ("kernel: no ramfs can be mounted", False),
        ("x.py:1: release: it has no systemd", False),
    ],
)
def test_what_an_installation_lets_run_is_run_again(top: Path, skip: str, again: bool) -> None:
    """And what the kernel or the release lacks is not: such a target would never have passed."""
    (top / "Makefile").write_text(f"skips:\n\t@echo ran >> skips.ran; echo 'SKIPPED [2] {skip}'\n")
    commit(top)
    run(top, "skips")
    run(top, "--resume", "skips")
    assert (top / "skips.ran").read_text() == "ran\n" * (2 if again else 1)


def test_a_killed_run_is_resumed(top: Path) -> None:
    """kill -9 in the middle of a target: it ends, too, and only what had passed is left out afterwards."""
    killed = subprocess.Popen([sys.executable, "tests/run.py", "passes", "hangs", "waits"], cwd=top)
    wait_until("the second target runs", lambda: (top / "pid.ran").exists() and (top / "pid.ran").read_text() != "")
    target = Path("/proc", (top / "pid.ran").read_text().strip())
    killed.kill()
    killed.wait()
    wait_until("the second target has ended", lambda: not target.exists(), 10)
    before = json.loads((top / "build/test/runs.json").read_text())
    assert set(before) == {"passes"}
    (top / "repaired").touch()
    result = run(top, "--resume", "passes", "hangs", "waits")
    assert result.returncode == 0 and "passed at this commit already: passes\n" in result.stdout
    assert (top / "passes.ran").read_text() == "ran\n"
    record = json.loads((top / "build/test/runs.json").read_text())
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=top, capture_output=True, text=True, check=True)
    assert {one["commit"] for one in record.values()} == {head.stdout.strip()}
    assert record["passes"] == before["passes"]
    assert all(one["exit"] == 0 and isinstance(one["seconds"], int) for one in record.values()) and len(record) == 3


def test_another_tree_has_passed_nothing(top: Path) -> None:
    run(top, "passes")
    (top / "Makefile").write_text(MAKEFILE + "# changed\n")
    run(top, "--resume", "passes")
    assert (top / "passes.ran").read_text() == "ran\nran\n"


def test_a_tree_that_changes_meanwhile_has_passed_nothing(top: Path) -> None:
    """The first runs with sources that the second does not have."""
    change = "git -c user.name=t -c user.email=t@t commit -q --allow-empty -m y"
    (top / "Makefile").write_text(MAKEFILE + f"commits:\n\t@test -e repaired || {change}\n")
    commit(top)
    run(top, "commits", "passes")
    (top / "repaired").touch()
    result = run(top, "--resume", "commits", "passes")
    assert "passed at this commit already: passes\n" in result.stdout and "======== commits ========" in result.stdout
    assert (top / "passes.ran").read_text() == "ran\n"


@pytest.mark.parametrize("lost", [".git/HEAD", ".git/index"])
def test_what_git_does_not_know_has_passed_nothing(top: Path, lost: str) -> None:
    (top / lost).write_text("damaged")
    for _ in range(2):
        assert run(top, "--resume", "passes").returncode == 0
    assert (top / "passes.ran").read_text() == "ran\nran\n"


def test_the_checkers_of_style_fail_where_git_refuses(tmp_path: Path) -> None:
    """As in a checkout of another user: they have looked at nothing. A missing program is no such failure."""
    assert paths.CHECKOUT is not None
    (tmp_path / "bin").mkdir()
    programs = [tmp_path / "bin" / name for name in ("git", "shellcheck", "mandoc", "clang-format")]
    for program in programs:
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    for does, code in (("exit 128", 2), ("printf 'Makefile\\0'", 0)):
        programs[0].write_text(f"#!/bin/sh\n{does}\n")
        for target in ("spdx-check", "format-check", "shell-check", "man-check"):
            argv = ["make", f"VENV={tmp_path}", target]
            done = subprocess.run(argv, cwd=paths.CHECKOUT, env=environment, capture_output=True, text=True)
            assert done.returncode == code, (target, does, done.stderr)


def named_by_make() -> list[str]:
    """What the commands of `make test` and `make test-long` give to pytest: files and folders, patterns expanded."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}

    def make(*words: str) -> str:
        argv = ["make", "--no-print-directory", *words]
        done = subprocess.run(argv, cwd=paths.CHECKOUT, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.replace("\\\n", " ")

    targets = make("--eval=named: ; @echo $(TESTS) $(LONG_TESTS)", "named").split()
    # Not the simulation's, which make begins even with --dry-run: its recipe has $(MAKE).
    commands = make("--dry-run", *(target for target in targets if target.startswith("test-")))
    named = []
    for command in commands.splitlines():
        words = command.partition(" # ")[0].partition(" pytest ")[2].split()
        if "-k" not in words:  # which leaves tests out
            named += [word for word in words if word.startswith("tests/")]
    return named


def run_nowhere(files: list[Path], named: list[str], units: set[str]) -> list[Path]:
    """Those of the test files, as paths in the checkout, that neither make nor meson runs."""
    there = {file for file in files if any(file.is_relative_to(name) for name in named)}
    return [file for file in files if (file.stem not in units if file.suffix == ".c" else file not in there)]


@pytest.fixture(scope="module")
def units() -> set[str]:
    """The tests that meson has."""
    if left_out := (paths.HOST_BUILD / "left-out").read_text().strip():
        pytest.skip(f"installation: {left_out}")
    argv = ["meson", "introspect", "--tests", str(paths.HOST_BUILD)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return {test["name"] for test in json.loads(done.stdout)}


@pytest.fixture(scope="module")
def named() -> list[str]:
    return named_by_make()


def test_every_test_file_runs_somewhere(named: list[str], units: set[str]) -> None:
    """C files by their name, Python files by the tests in them."""
    assert paths.CHECKOUT is not None
    tests = paths.CHECKOUT / "tests"
    files = [*tests.rglob("test_*.c")]
    files += [file for file in tests.rglob("*.py") if re.search(r"^\s*def test_", file.read_text(), re.M)]
    assert len(files) > 100
    assert run_nowhere([file.relative_to(paths.CHECKOUT) for file in files], named, units) == []


def test_a_file_that_runs_nowhere_is_found(named: list[str], units: set[str]) -> None:
    """In each folder whose files the targets name one by one; the others run as a whole."""
    single = ["bench", "component", "differential", "fuzz", "lab", "lab/gate", "simulation", "support", "unit"]
    whole = ["campaigns", "lab/guest", "packages", "python", "s3"]
    files = [Path("tests", folder, f"test_x{end}") for folder in single for end in (".py", ".c")]
    files += [Path("tests/test_x.py"), *(Path("tests", folder, "test_x.c") for folder in whole)]
    assert run_nowhere([*files, *(Path("tests", folder, "test_x.py") for folder in whole)], named, units) == files


def test_tests_import_no_tests() -> None:
    """What they share is in tests/support."""
    assert paths.CHECKOUT is not None
    files = list((paths.CHECKOUT / "tests").rglob("*.py"))
    assert len(files) > 100
    assert [
        (str(file), line)
        for file in files
        for line in file.read_text().splitlines()
        if re.match(r"(from|import) (conftest|test_)", line)
    ] == []
