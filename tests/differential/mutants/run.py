# SPDX-License-Identifier: BSD-3-Clause
"""Does the differential search find defects of userblk-passthrough? Each patch beside this file puts one in.

make test-differential-mutants [SECONDS=60]: a copy of the tree gets one patch after the other, is built with libfuse
3.18 and searched, in the mode that the patch names, until a sequence differs that does not without it. Exit code 1 if
one was not found.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from mutants import CHECKOUT, TREE, MutantError, Verdict, copy_tree, try_all

HERE = Path(__file__).resolve().parent
PROGRAM = "build/libfuse-3.18/fuse-passthrough/userblk-passthrough"
TEST = "tests/differential/test_differential_fuse.py::test_same_as_native"


def lend_library() -> tuple[str, ...]:
    """What to tell make(1) so that the copy uses the libfuse of this tree."""
    (version,) = CHECKOUT.glob("build/libfuse-3.18/*/VERSION")
    library = version.parent.relative_to(CHECKOUT)
    (TREE / library).parent.mkdir(parents=True, exist_ok=True)
    if not (TREE / library).exists():
        (TREE / library).symlink_to(CHECKOUT / library)
    return ("-o", str(library / version.name), "libfuse-3.18")


def differs(program: Path, mode: str, seconds: float, seed: int) -> Verdict:
    """What the search finds from the sequence of that seed on."""
    more = {"USERBLK_FUSE": str(program), "DIFFERENTIAL_SECONDS": str(seconds), "DIFFERENTIAL_SEED": str(seed)}
    argv = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", f"{TEST}[{mode}]"]
    began = time.monotonic()
    done = subprocess.run(argv, cwd=CHECKOUT, env=os.environ | more, capture_output=True, text=True, check=False)
    spent = time.monotonic() - began
    found = re.search(r"^DIFFERENTIAL_SEED=(\d+).*?(?=^program: )", done.stdout, re.MULTILINE | re.DOTALL)
    none = re.search(r"^\S+: (\d+) sequences", done.stdout, re.MULTILINE)
    if found and done.returncode == 1:
        return Verdict(True, int(found[1]) - seed + 1, spent, found[0])
    if none and done.returncode == 0:
        return Verdict(False, int(none[1]), spent)
    raise MutantError(f"the search ends with {done.returncode}: {done.stdout.strip()[-200:]}")


def search(seconds: float, seed: int, patch: Path) -> Verdict:
    (mode,) = re.findall(r"^Mode: (.*)", patch.read_text(), re.MULTILINE)
    verdict = differs(TREE / PROGRAM, mode, seconds, seed)
    if verdict.found and differs(CHECKOUT / PROGRAM, mode, 0.01, seed + verdict.tried - 1).found:
        return Verdict(False, verdict.tried, verdict.seconds, "differs without it, too: " + verdict.how)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=int, default=60, help="that each is searched for (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first sequence (default: %(default)s)")
    args = parser.parse_args()
    copy_tree("fuse-*/*.[ch]")
    return try_all(sorted(HERE.glob("*.patch")), lend_library(), partial(search, args.seconds, args.seed), "sequences")


if __name__ == "__main__":
    sys.exit(main())
