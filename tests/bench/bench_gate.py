# SPDX-License-Identifier: BSD-3-Clause
"""Is this checkout slower than another revision, or one version of a server slower than the one before it?

    make bench-gate BASE=REVISION                                            (this checkout against the revision)
    python3 tests/bench/bench_gate.py --systems NAME --extra OLD NEW...      (docs/regressions.md)

Measures a few cells of each in the lab's virtual time and compares them. A revision is built and measured in a work
tree of its own, with its own harness and models. Exit code 3: a cell is missing, or significantly worse by more than
--fail-over; 0: none is; 1: a campaign did not complete, and nothing was compared; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GATE = ROOT / "build/gate"
# The null device hides nothing: what differs is the framework's and the adapter's own time.
SYSTEMS = "nbdkit-null,tcmu-null"
WORKLOADS = "rand-read-1th-4k,rand-read-16th-4k"
FAIL_OVER = 0.25  # %: a system call is half a percent of a request to a null device, other seeds a fifth


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, text=True, stdout=subprocess.PIPE).stdout


def tree_of(revision: str, name: str = "") -> Path:
    """A work tree of the revision below build/gate, which shares the lab's root file system with this one.

    name: of the tree; without one its commit's.
    """
    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()
    except subprocess.CalledProcessError:
        print(f"BASE={revision}: is no revision; name a commit, a branch or a tag", file=sys.stderr)
        sys.exit(2)
    tree = GATE / (name or commit[:12])
    if name and tree.exists():
        git("-C", str(tree), "checkout", "--quiet", "--force", "--detach", commit)
    if not tree.exists():
        git("worktree", "prune")
        git("worktree", "add", "--quiet", "--force", "--detach", str(tree), commit)
    (tree / "build").mkdir(exist_ok=True)
    (ROOT / "build/lab").mkdir(parents=True, exist_ok=True)
    lab = tree / "build/lab"
    if not lab.is_symlink():
        lab.symlink_to(ROOT / "build/lab")
    return tree


def measure(tree: Path, extra: str, results: Path, arguments: list[str]) -> Path:
    """A campaign of the tree's programs; the path of its results. extra: LAB_EXTRA, "" for none."""
    results.mkdir(parents=True, exist_ok=True)
    before = set(results.iterdir())
    argv = [str(tree / "bin/userblk"), "run", "--where", "lab", "--clock", "virtual", "--results", str(results)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which names this checkout's
    env |= {"LAB_EXTRA": extra} if extra else {}
    done = subprocess.run([*argv, *arguments], cwd=tree, env=env, stdout=sys.stderr)
    if done.returncode:
        print(f"{tree}: userblk run ended with exit code {done.returncode}, so nothing is compared", file=sys.stderr)
        sys.exit(1)
    (new,) = set(results.iterdir()) - before
    return new


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    base = parser.add_mutually_exclusive_group(required=True)
    base.add_argument("--base", metavar="REVISION", help="this checkout is compared with it")
    base.add_argument(
        "--extra", nargs="+", metavar="DIR", help="two or more directories, each as LAB_EXTRA takes, oldest first"
    )
    parser.add_argument("--systems", default=SYSTEMS, metavar="LIST", help="default: %(default)s")
    parser.add_argument(
        "--workloads", default=WORKLOADS, metavar="LIST", help="of suite bdus-block (default: %(default)s)"
    )
    parser.add_argument("--reps", type=int, default=3, metavar="N", help="runs of each cell (default: %(default)s)")
    parser.add_argument(
        "--fail-over", type=float, default=FAIL_OVER, metavar="PERCENT", help="see above (default: %(default)g)"
    )
    args = parser.parse_args()
    if args.extra and len(args.extra) < 2:
        parser.error(f"--extra {args.extra[0]}: is one version; name two or more")
    asked = ["--systems", args.systems, "--workloads", args.workloads, "--reps", str(args.reps), "--seed", "1"]
    if args.base:
        trees = {"base": tree_of(args.base), "ours": ROOT}
        found = [measure(tree, "", GATE / "results" / name, asked) for name, tree in trees.items()]
    else:
        found = [measure(ROOT, str(Path(one).resolve()), GATE / "results/versions", asked) for one in args.extra]
    compare = [str(ROOT / "bin/userblk"), "compare", "--fail-over", str(args.fail_over)]
    return max(subprocess.run([*compare, str(first), str(second)]).returncode for first, second in pairwise(found))


if __name__ == "__main__":
    sys.exit(main())
