# SPDX-License-Identifier: BSD-3-Clause
"""The same calls on an ext4 and through userblk-passthrough over another directory of it: they answer the same."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fuse_mount import LIBFUSE, MODES, Mount, ext4, lacking_for_fuse, lacking_for_mode, rings_enabled, start
from nbdkit_server import checked
from processes import MountKind, Processes
from sequences import Difference, draw, program, replay
from shrinking import shrink
from world import Call

SECONDS = float(os.environ.get("DIFFERENTIAL_SECONDS", "7"))  # of each mode
pytestmark = pytest.mark.timeout(SECONDS + 900)
SEED = int(os.environ.get("DIFFERENTIAL_SEED", str(time.time_ns())))
LENGTH = 120  # calls of a sequence
SHRINK_SECONDS = 60.0
AGAIN = 10  # replays of the fewest calls: what depends on time need not differ each time
LEFT_OUT = () if LIBFUSE >= (3, 17) else ("tmpfile",)
# The kernel's own file stays as it was opened.
LEFT_OUT_OF_PASSTHROUGH = ("set_cached",)
ENTRIES = 10_000
CHANGES = 10  # between two names that are read

libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    reason = lacking_for_fuse()
    if reason:
        pytest.skip(reason)
    groups, mask = os.getgroups(), os.umask(0o022)
    os.setgroups([])
    with rings_enabled(), ext4() as point:
        yield point
    os.setgroups(groups)
    os.umask(mask)


class Pair:
    """Two directories that differ in how they are reached."""

    def __init__(self, disk: Path, mode: str) -> None:
        self.top = disk / mode
        self.options = MODES[mode]
        self.count = 0
        for name in ("native", "source", "mount"):
            (self.top / name).mkdir(parents=True)
        self.mount: Mount | None = None
        kind = MountKind(self.begin().status["writeback"] == "on", LIBFUSE >= (3, 18))
        self.worlds = Processes(True, kind), Processes(False, kind, self.remount)

    def begin(self) -> Mount:
        self.mount = start(self.top / "source", self.top / "mount", *self.options)
        return self.mount

    def end(self) -> None:
        for world in self.worlds:
            world.end()
        self.unmount()

    def unmount(self) -> None:
        if self.mount:
            mount, self.mount = self.mount, None
            try:
                mount.unmount()
            finally:
                mount.kill()

    def remount(self) -> None:
        self.unmount()
        self.begin()

    def modes(self) -> int:
        """Which bits of a mode are kept by the same rules as native."""
        if "--passthrough" in self.options:
            return 0o1777  # the kernel writes without the right to keep set-id bits, for any writer
        assert self.mount
        # Without the flags the kernel itself clears the bits, and leaves set-group-ID without execution alone.
        return 0o7777 if self.mount.status["killpriv-v2"] == "on" else 0o5777

    def settle(self) -> Path:
        descriptor = os.open(self.top / "mount", os.O_RDONLY)
        try:
            assert libc.syncfs(descriptor) == 0
        finally:
            os.close(descriptor)
        return self.top / "source" / str(self.count)

    def replay(self, calls: Sequence[Call]) -> Difference | None:
        """In new directories, so that nothing of before is known of them."""
        self.count += 1
        roots = [self.top / kind / str(self.count) for kind in ("native", "mount")]
        for root in roots:
            root.mkdir()
            root.chmod(0o777)
        for world, root in zip(self.worlds, roots, strict=True):
            world.begin(str(root))
        try:
            return replay(calls, *self.worlds, self.settle)
        finally:
            for root in roots:
                shutil.rmtree(root)  # the disk has room for two thousand of them


def report(pair: Pair, calls: Sequence[Call], seed: int, seen: Difference, directory: Path) -> str:
    """Shrinks what fails, and says where it lies as a program. seen: the difference after all calls."""
    deadline = time.monotonic() + SHRINK_SECONDS

    def fails(fewer: Sequence[Call]) -> bool:
        nonlocal seen
        difference = pair.replay(fewer) if time.monotonic() < deadline else None
        seen = difference or seen
        return difference is not None

    fewest = shrink(calls, fails)
    again = sum(pair.replay(fewest) is not None for _ in range(AGAIN))
    path = directory / "differs.py"
    path.write_text(program(fewest, pair.options))
    lines = "\n".join(f"    {call!r}" for call in fewest)
    where = "seen in the source only" if seen.at == len(fewest) else f"at call {seen.at + 1}"
    return (
        f"DIFFERENTIAL_SEED={seed}, {len(fewest)} calls, {where}, {again} times of {AGAIN} when done again:\n{lines}\n"
        f"native: {seen.native!r}\nmount:  {seen.other!r}\nprogram: {path}"
    )


MODES_HERE = [mode for mode in MODES if lacking_for_mode(mode) is None]


@pytest.mark.parametrize("mode", MODES_HERE)
def test_same_as_native(mode: str, disk: Path, tmp_path: Path) -> None:
    pair = Pair(disk, mode)
    left_out = LEFT_OUT + (LEFT_OUT_OF_PASSTHROUGH if "passthrough" in mode else ())
    deadline = time.monotonic() + SECONDS
    seed = SEED
    try:
        while time.monotonic() < deadline:
            calls = draw(seed, LENGTH, pair.modes(), left_out)
            if seen := pair.replay(calls):
                pytest.fail(report(pair, calls, seed, seen, tmp_path), pytrace=False)
            seed += 1
        print(f"{mode}: {seed - SEED} sequences of {LENGTH} calls from seed {SEED}")
    finally:
        pair.end()


def test_the_program_of_a_sequence_makes_its_calls(disk: Path, tmp_path: Path) -> None:
    calls, directory = draw(SEED, LENGTH), disk / "program"
    (tmp_path / "differs.py").write_text(program(calls, ()))
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    printed = checked([sys.executable, str(tmp_path / "differs.py"), str(directory), "native"])
    assert [call for call in calls if repr(call) not in printed] == []


@pytest.fixture(scope="module")
def crowd(disk: Path) -> Path:
    """A directory of many names."""
    top = disk / "crowd"
    top.mkdir()
    for number in range(ENTRIES):
        os.close(os.open(top / f"{number}", os.O_WRONLY | os.O_CREAT))
    return top


def change(rng: random.Random, directory: Path, names: list[str], made: int) -> set[str]:
    """Makes, removes or renames a file; the names that it touched."""
    at = rng.randrange(len(names))
    name, new = names[at], f"made-{made}-{'x' * rng.randrange(40)}"
    kind = rng.choice(["make", "remove", "rename"])
    if kind == "make":
        os.close(os.open(directory / new, os.O_WRONLY | os.O_CREAT))
        names.append(new)
        return {new}
    if kind == "remove":
        names[at] = names[-1]
        names.pop()
        (directory / name).unlink()
        return {name}
    names[at] = new
    (directory / name).rename(directory / new)
    return {name, new}


@pytest.mark.parametrize("mode", MODES_HERE)
def test_many_names_are_read_while_they_change(mode: str, disk: Path, crowd: Path) -> None:
    """Those that stay come once each, and none that was not there; what ext4 itself does is not asked."""
    rng, point = random.Random(f"{SEED} {mode}"), disk / f"crowd-{mode}"
    point.mkdir()
    mount = start(crowd, point, *MODES[mode])
    try:
        for _ in range(2):  # the second time from the cache, where there is one
            names = os.listdir(crowd)
            before, touched, read = set(names), set[str](), Counter[str]()
            with os.scandir(point) as entries:
                for number, entry in enumerate(entries):
                    read[entry.name] += 1
                    if number % CHANGES == 0:
                        touched |= change(rng, point, names, rng.randrange(1 << 60))
            stayed = before - touched
            assert {name: read[name] for name in stayed if read[name] != 1} == {}, f"DIFFERENTIAL_SEED={SEED}"
            assert read.keys() <= before | touched, f"DIFFERENTIAL_SEED={SEED}"
            assert sorted(os.listdir(point)) == sorted(names) == sorted(os.listdir(crowd)), f"DIFFERENTIAL_SEED={SEED}"
        mount.unmount()
    finally:
        mount.kill()
