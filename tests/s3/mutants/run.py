# SPDX-License-Identifier: BSD-3-Clause
"""Does the simulation find defects? Each patch beside this file puts one into the S3 device.

make simulate-s3-mutants [MUTANTS="gc-upload-ignored ..."] [SECONDS=600]: a copy of the tree gets one patch after the
other, is built and simulated until a schedule fails that does not fail without it. Exit code 1 if one was not found.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
TREE = CHECKOUT / "build" / "mutants" / "tree"
PROGRAM = "build/sim/tests/simulation/s3_simulation"
UNPATCHED = CHECKOUT / "build" / "mutants" / "unpatched"
BUILD_LIMIT = 900  # s


class MutantError(Exception):
    """A mutant that cannot be tried; one line."""


def copy_tree() -> None:
    """The tracked files as they are here. What was built from the last copy stays, and times of equal files with it."""
    TREE.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True).stdout
    names = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    for name in sorted(names):
        source, target = CHECKOUT / name, TREE / name
        if not source.is_file() or source.is_symlink():
            continue
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    for path in [*TREE.glob("backends/**/*.[ch]"), *TREE.glob("tests/simulation/*.[ch]")]:
        if str(path.relative_to(TREE)) not in names:
            path.unlink()


def build() -> None:
    """Raises MutantError."""
    argv = ["make", "-s", "-C", str(TREE), f"-j{os.cpu_count() or 1}", "TARGET=sim", "s3-simulation"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_LIMIT, check=False)
    if done.returncode:
        why = next((line for line in done.stderr.splitlines() if "error:" in line), done.stderr[-200:])
        raise MutantError(f"does not build: {why}")


def apply(patch: Path, *options: str) -> None:
    """Raises MutantError if it does not apply as a whole."""
    argv = ["patch", "-p1", "--batch", "--fuzz=0", "--no-backup-if-mismatch", *options, "-i", str(patch)]
    done = subprocess.run([*argv, "--dry-run"], cwd=TREE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MutantError("no longer applies to this tree; make it again")
    subprocess.run(argv, cwd=TREE, capture_output=True, check=True)


@dataclass
class Verdict:
    """What the simulation says of a mutant."""

    found: bool
    schedules: int = 0
    seconds: float = 0.0
    how: str = ""


def fails_unpatched(seed: int) -> bool:
    """A schedule that fails without the mutant, too, tells nothing of it."""
    argv = [str(UNPATCHED), "--seed", str(seed), "--no-shrink"]
    return subprocess.run(argv, cwd=TREE, stdout=subprocess.DEVNULL, check=False).returncode != 0


def simulate(seed: int, seconds: float) -> Verdict:
    """Searches until a schedule fails. One that only took too long is no finding: the machine may be loaded."""
    began = time.monotonic()
    verdict = Verdict(False)
    while (left := began + seconds - time.monotonic()) > 0:
        argv = [str(TREE / PROGRAM), "--seed", str(seed), "--seconds", str(math.ceil(left))]
        argv += ["--no-shrink", "--jobs", str(os.cpu_count() or 1)]
        done = subprocess.run(argv, cwd=TREE, capture_output=True, text=True, errors="replace", check=False)
        counted = re.findall(r"^(\d+) schedules, ", done.stdout, re.MULTILINE)
        fails = re.search(r"^seed (\d+) fails: (.*)\n(.*)", done.stdout, re.MULTILINE)
        if not counted or (done.returncode != 0) != (fails is not None):
            raise MutantError(f"{PROGRAM} ends with {done.returncode}: {done.stderr.strip()[-200:]}")
        verdict.schedules += int(counted[-1])
        verdict.seconds = time.monotonic() - began
        if not fails:
            break
        if "took too long" not in fails[2] and not fails_unpatched(int(fails[1])):
            said = fails[3] if fails[3].startswith(fails[2]) else fails[2]
            return Verdict(True, verdict.schedules, verdict.seconds, f"seed {fails[1]}: {said[:150]}")
        seed = int(fails[1]) + 1
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__.splitlines()[0] if __doc__ else "")
    known = sorted(path.stem for path in HERE.glob("*.patch"))
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help="patches here, without .patch (default: all)")
    parser.add_argument("--seconds", type=int, default=600, help="that each is searched for (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the first schedule (default: %(default)s)")
    args = parser.parse_args()
    for name in args.mutants:
        if name not in known:
            parser.error(f"MUTANT={name}: unknown; known are {', '.join(known)}")
    missed = []
    copy_tree()
    build()
    shutil.copy2(TREE / PROGRAM, UNPATCHED)
    for name in args.mutants or known:
        patch = HERE / f"{name}.patch"
        try:
            apply(patch)
            try:
                build()
                verdict = simulate(args.seed, args.seconds)
            finally:
                apply(patch, "--reverse")
        except MutantError as error:
            verdict = Verdict(False, how=str(error))
        what = "found" if verdict.found else "NOT FOUND"
        spent = f"{verdict.schedules:5} schedules, {verdict.seconds:3.0f} s"
        print(f"{name:34} {what} after {spent}  {verdict.how}", flush=True)
        if not verdict.found:
            missed.append(name)
    total = len(args.mutants or known)
    print(f"{total - len(missed)} of {total} mutants found" + (f"; not: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
