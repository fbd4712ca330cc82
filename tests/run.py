#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""
Runs make targets in two streams, and tells at the end what failed and what was skipped.

    tests/run.py [--alone TARGET]... [--beside TARGET]... [--resume] TARGET...

Those of --alone run first, with nothing else beside them. Then the TARGETs run one after the other; beside them those
of --beside, in their order, of which the stream that ends first takes the next. What each printed stays in
build/test/TARGET.log; build/test/runs.json has the commit, the seconds and the exit status of each. With --resume those
that passed at this commit, with this tree, are not run again, unless they skipped what an installation or a variable
would let run. Exit status: 0, or 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "tests/support"))

from skips import mendable  # noqa: E402

LOGS = TOP / "build/test"
RUNS = LOGS / "runs.json"
FAILURE = re.compile(r"^(FAILED|ERROR|E  )|^\[  FAILED|Sanitizer|: error:|\*\*\* ")
MOST_LINES, MOST_COLUMNS = 60, 400
DIRTY, UNKNOWN, CHANGED = "-dirty", "git does not say", "changed meanwhile"  # instead of a commit, or after it


def tree() -> str:
    """The commit, if the files are as it has them; else what keeps a run from being one of a commit."""

    def git(*words: str) -> str:
        # Without a lock, which could stop a git of the tests.
        argv = ["git", "--no-optional-locks", *words]
        return subprocess.run(argv, cwd=TOP, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (DIRTY if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


class Runs:
    """The record of what was run; each end is written at once, so that an interrupted run can be resumed."""

    def __init__(self, commit: str) -> None:
        self.commit = commit
        self.lock = threading.Lock()
        self.done: dict[str, dict[str, Any]] = json.loads(RUNS.read_text()) if RUNS.exists() else {}

    def passed(self, target: str) -> bool:
        run = self.done.get(target, {})
        if run.get("commit") != self.commit or run.get("exit") != 0 or self.commit.endswith((DIRTY, UNKNOWN)):
            return False
        log = LOGS / f"{target}.log"
        return log.exists() and not mendable(log.read_text(errors="replace"))

    def end(self, target: str, commit: str, seconds: float, status: int) -> None:
        with self.lock:
            self.done[target] = {"commit": commit, "seconds": round(seconds), "exit": status}
            new = RUNS.with_suffix(".new")
            new.write_text(json.dumps(self.done, indent=1, sort_keys=True) + "\n")
            new.replace(RUNS)


def make(target: str, log: Path, show: bool) -> int:
    """Its exit status."""
    # It ends with us: what is resumed must not run twice.
    argv = ["setpriv", "--pdeathsig", "TERM", "--", "make", "--no-print-directory", target]
    with log.open("w") as file:
        process = subprocess.Popen(
            argv, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            file.flush()
            if show:
                print(line, end="", flush=True)
    return process.wait()


def run(target: str, runs: Runs, show: bool) -> None:
    """show: print what it prints while it runs, else when it has ended."""
    log = LOGS / f"{target}.log"
    began, before = time.monotonic(), tree()
    status = 1  # also if its output cannot be kept
    if show:
        print(f"\n======== {target} ========", flush=True)
    try:
        status = make(target, log, show)
    finally:
        seconds = time.monotonic() - began
        runs.end(target, before if tree() == before else CHANGED, seconds, status)
    reported = "" if show else f"\n======== {target}, beside the others ========\n{log.read_text()}"
    print(f"{reported}-------- {target}: {seconds:.0f} s", flush=True)


def summary(targets: list[str], runs: Runs) -> int:
    print("\n======== summary ========")
    for target in targets:
        one = runs.done[target]
        print(f"{target}: {'passed' if one['exit'] == 0 else 'FAILED'}, {one['seconds']} s")
    skips = 0
    for target in targets:
        for line in (LOGS / f"{target}.log").read_text(errors="replace").splitlines():
            if line.startswith("SKIPPED"):
                print(f"{target}: {line}")
                skips += 1
    if not skips:
        print("nothing was skipped")
    failed = [target for target in targets if runs.done[target]["exit"]]
    for target in failed:
        lines = (LOGS / f"{target}.log").read_text(errors="replace").splitlines()
        reported = [line for line in lines if FAILURE.search(line)][-MOST_LINES:] + ["..."] + lines[-30:]
        print(f"\n======== what failed in {target} ========")
        print("\n".join(line[:MOST_COLUMNS] for line in reported))
    if failed:
        print("\nFAILED:", *failed)
        for target in failed:  # once more at the very end, where those look who see no more than that
            for line in (LOGS / f"{target}.log").read_text(errors="replace").splitlines():
                if line.startswith(("FAILED tests/", "ERROR tests/")):
                    print(f"{target}: {line[:MOST_COLUMNS]}")
        return 1
    print("all passed")
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run make targets and report what failed and what was skipped.")
    parser.add_argument("--alone", metavar="TARGET", action="append", default=[], help="run it before the others")
    parser.add_argument("--beside", metavar="TARGET", action="append", default=[], help="run it beside the others")
    parser.add_argument("--resume", action="store_true", help="leave out what passed at this commit")
    parser.add_argument("targets", metavar="TARGET", nargs="+", help="of the Makefile")
    args = parser.parse_args(arguments)
    LOGS.mkdir(parents=True, exist_ok=True)
    runs = Runs(tree())
    asked = [*args.alone, *args.targets, *args.beside]
    left = [target for target in asked if not (args.resume and runs.passed(target))]
    if len(left) < len(asked):
        print("passed at this commit already:", *(target for target in asked if target not in left))
    beside = deque(target for target in args.beside if target in left)

    def run_beside(show: bool) -> None:
        while True:
            try:
                target = beside.popleft()
            except IndexError:
                return
            run(target, runs, show)

    for target in args.alone:
        if target in left:
            run(target, runs, show=True)
    thread = threading.Thread(target=run_beside, args=(False,))
    thread.start()
    for target in args.targets:
        if target in left:
            run(target, runs, show=True)
    run_beside(show=True)
    thread.join()
    return summary(asked, runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
