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
from functools import partial
from pathlib import Path

from mutants import CHECKOUT, TREE, MutantError, Verdict, build, copy_tree, try_all

HERE = Path(__file__).resolve().parent
PROGRAM = "build/sim/tests/simulation/s3_simulation"
UNPATCHED = CHECKOUT / "build" / "mutants" / "unpatched"
GOALS = ("TARGET=sim", "s3-simulation")


def fails_unpatched(seed: int) -> bool:
    """A schedule that fails without the mutant, too, tells nothing of it."""
    argv = [str(UNPATCHED), "--seed", str(seed), "--no-shrink"]
    return subprocess.run(argv, cwd=TREE, stdout=subprocess.DEVNULL, check=False).returncode != 0


def simulate(seed: int, seconds: float, _: Path) -> Verdict:
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
        verdict.tried += int(counted[-1])
        verdict.seconds = time.monotonic() - began
        if not fails:
            break
        if "took too long" not in fails[2] and not fails_unpatched(int(fails[1])):
            said = fails[3] if fails[3].startswith(fails[2]) else fails[2]
            return Verdict(True, verdict.tried, verdict.seconds, f"seed {fails[1]}: {said[:150]}")
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
    copy_tree("backends/**/*.[ch]", "tests/simulation/*.[ch]")
    build(*GOALS)
    shutil.copy2(TREE / PROGRAM, UNPATCHED)
    patches = [HERE / f"{name}.patch" for name in args.mutants or known]
    return try_all(patches, GOALS, partial(simulate, args.seed, args.seconds), "schedules")


if __name__ == "__main__":
    sys.exit(main())
