# SPDX-License-Identifier: BSD-3-Clause
"""Are defects found? A copy of the tree gets one patch after the other, is built, and searched."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
TREE = CHECKOUT / "build" / "mutants" / "tree"
BUILD_LIMIT = 900  # s


class MutantError(Exception):
    """A mutant that cannot be tried; one line."""


def copy_tree(*sources: str) -> None:
    """
    The tracked files as they are here. What was built from the last copy stays, and times of equal files with it.
    sources: patterns of files of which no others may be there.
    """
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
    for path in [path for pattern in sources for path in TREE.glob(pattern)]:
        if str(path.relative_to(TREE)) not in names:
            path.unlink()


def build(*goals: str) -> None:
    """make(1) in the copy. Raises MutantError."""
    argv = ["make", "-s", "-C", str(TREE), f"-j{os.cpu_count() or 1}", *goals]
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
    """What a search says of a mutant."""

    found: bool
    tried: int = 0
    seconds: float = 0.0
    how: str = ""


def try_all(patches: Sequence[Path], goals: Sequence[str], search: Callable[[Path], Verdict], unit: str) -> int:
    """Prints what becomes of each. The exit code: 1 if one was not found. unit: of what a search tries."""
    missed = []
    for patch in patches:
        try:
            apply(patch)
            try:
                build(*goals)
                verdict = search(patch)
            finally:
                apply(patch, "--reverse")
        except MutantError as error:
            verdict = Verdict(False, how=str(error))
        what = "found" if verdict.found else "NOT FOUND"
        spent = f"{verdict.tried:5} {unit}, {verdict.seconds:3.0f} s"
        print(f"{patch.stem:34} {what} after {spent}  {verdict.how}", flush=True)
        if not verdict.found:
            missed.append(patch.stem)
    total = len(patches)
    print(f"{total - len(missed)} of {total} mutants found" + (f"; not: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0
