#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""
Runs an installed xfstests on userblk-passthrough, and on a file system over our devices, and compares with native.

    tests/differential/xfstests.py --xfstests /usr/lib/xfstests [--systems fuse,fuse-passthrough] [generic/001 ...]

In the lab's guest also on a file system over the disk of each framework, as FRAMEWORKS names them.

A test runs natively too if a system fails it, or if it cannot run on a disk. What has been run stays in --record: the
next call goes on. A test that fails, and not natively, or cannot run on a disk where it runs natively, fails this
program, unless docs/fuse.md has a line for it under "xfstests". Nothing stays on the machine: mounts, and the users
that xfstests asks for, are in a mount namespace of this program's. Exit status: 0; 1: a test failed; 2: it cannot run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from fuse_mount import DISK_PROGRAM, MODES, PROGRAM, lacking_for_mode, launch, rings_enabled, start
from loops import attached, turn
from nbdkit_server import ROOT, checked, run
from userblk.harness.model.config import load_system

IN_LAB = "LAB_NVME" in os.environ
if IN_LAB:
    import guest

DOCUMENT = ROOT / "docs/fuse.md"
INSIDE = "USERBLK_XFSTESTS_NAMESPACE"
TEST_LIMIT_S = 600.0
# For each call of `check`, which starts 400 processes of its own, and at least 150 for each test.
BATCH = 10
POLL_S = 0.5
DISK_BYTES = 6 << 30
USERS = ("fsgqa", "fsgqa2", "123456-fsgqa")  # that xfstests asks for
FIRST_UID = 61000
# xfstests takes the name of a device out of what a test prints, wherever it stands there.
SOURCES = ("userblk-test", "userblk-scratch")
ALIGNED = 2048  # sectors

Environment = dict[str, str]
Record = dict[str, dict[str, str]]  # by system and test: passed, failed, not run
System = Callable[[Path, str], AbstractContextManager[Environment]]


def disk(directory: Path, name: str, size: int = DISK_BYTES) -> AbstractContextManager[str]:
    """A loop device on a new sparse file."""
    path = directory / f"{name}.disk"
    with path.open("wb") as file:
        file.truncate(size)
    return attached(path)


@contextmanager
def on_disks(directory: Path, kind_of_fs: str) -> Iterator[Environment]:
    """The native file system, on two loop devices."""
    with disk(directory, "test") as test, disk(directory, "scratch") as scratch:
        yield made(kind_of_fs, test, scratch)


def made(kind_of_fs: str, test: str, scratch: str) -> Environment:
    checked(["mkfs", "-t", kind_of_fs, *(["-q", "-F"] if kind_of_fs == "ext4" else ["-q", "-f"]), test])
    return {"FSTYP": kind_of_fs, "TEST_DEV": test, "SCRATCH_DEV": scratch}


@contextmanager
def on_fuse_disks(directory: Path, kind_of_fs: str) -> Iterator[Environment]:
    """The same on loop devices on the files of userblk-fuse-disk, whose passthrough has the disks."""
    with ExitStack() as stack:
        disks = []
        for name in ("test", "scratch"):
            below = stack.enter_context(disk(directory, name))
            file = directory / name
            file.touch()
            served = launch(DISK_PROGRAM, file, file, [str(file), "passthrough", f"file={below}"])
            stack.callback(served.unmount)
            disks.append(stack.enter_context(attached(file, "--direct-io=on")))
        yield made(kind_of_fs, *disks)


def write_script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def through_fuse(mode: str) -> System:
    """userblk-passthrough in a mode of fuse_mount.MODES, over a native file system."""

    @contextmanager
    def up(directory: Path, kind_of_fs: str) -> Iterator[Environment]:
        if lacking := lacking_for_mode(mode):
            raise SystemExit(f"xfstests.py: {lacking}")
        with ExitStack() as stack:
            stack.enter_context(rings_enabled())
            device = stack.enter_context(disk(directory, "below", 2 * DISK_BYTES))
            below, bin_directory = directory / "below", directory / "bin"
            for made_now in (below, bin_directory):
                made_now.mkdir()
            made(kind_of_fs, device, device)
            checked(["mount", device, str(below)])
            stack.callback(run, ["umount", "--lazy", str(below)])
            for name in (*SOURCES, "probe"):
                (below / name).mkdir(mode=0o755)
            probe = directory / "probe"
            probe.mkdir()
            start(below / "probe", probe, *MODES[mode]).unmount()  # or it was not granted
            # mount.fuse finds the program by its name there. What it prints when it is ready would be among a test's
            # output; and xfstests takes a file system for FUSE only if its type has no name of a program.
            checked(["mount", "--bind", str(bin_directory), "/usr/local/sbin"])
            stack.callback(run, ["umount", "/usr/local/sbin"])
            serve = f'exec {PROGRAM} {" ".join(MODES[mode])} -o fsname="$name" {below}/"$name" "$@" >/dev/null'
            write_script(bin_directory / PROGRAM.name, f"name=$1\nshift\n{serve}")
            write_script(bin_directory / "df", f'{shutil.which("df")} "$@" | sed s/fuse.{PROGRAM.name}/fuse/')
            yield {
                "FSTYP": "fuse",
                "FUSE_SUBTYP": f".{PROGRAM.name}",
                "TEST_DEV": SOURCES[0],
                "SCRATCH_DEV": SOURCES[1],
                "PATH": f"/usr/local/sbin:{os.environ['PATH']}",
                "MOUNT_OPTIONS": "-oallow_other,dev,suid",
                "TEST_FS_MOUNT_OPTS": "-oallow_other,dev,suid",
            }

    return up


@contextmanager
def halves(disk: str, kind_of_fs: str) -> Iterator[Environment]:
    """On the two halves of a disk of the lab's."""
    sectors = int(Path("/sys/block", Path(disk).name, "size").read_text()) // 2 // ALIGNED * ALIGNED
    names = "xfstests-test", "xfstests-scratch"
    with ExitStack() as stack:
        for half, name in enumerate(names):
            stack.enter_context(guest.mapped(name, f"0 {sectors} linear {disk} {half * sectors}"))
        yield made(kind_of_fs, *(f"/dev/mapper/{name}" for name in names))


@contextmanager
def on_lab_disk(directory: Path, kind_of_fs: str) -> Iterator[Environment]:
    with halves(guest.NVME, kind_of_fs) as environment:
        yield environment


def over_framework(name: str) -> System:
    """The same, which a system of configs/systems/ serves."""

    @contextmanager
    def up(directory: Path, kind_of_fs: str) -> Iterator[Environment]:
        with (
            guest.served(load_system(name), guest.NVME, directory / "served") as running,
            halves(running.used.path, kind_of_fs) as environment,
        ):
            yield environment

    return up


NATIVE = "native"
FRAMEWORKS = ("nbdkit", "buse", "tcmu", "tcmu-threads", "ublk-workers", "ublk-uring")
SYSTEMS: dict[str, System] = {
    NATIVE: on_lab_disk if IN_LAB else on_disks,
    **({name: over_framework(name) for name in FRAMEWORKS} if IN_LAB else {}),
    "fuse-disk": on_fuse_disks,
    "fuse": through_fuse("default"),
    **{f"fuse-{mode}": through_fuse(mode) for mode in MODES if mode != "default"},
}


def enter_namespace() -> None:
    """Goes on in a mount namespace with the users of xfstests; all else is as before."""
    if os.environ.get(INSIDE) != "1":
        argv = ["unshare", "--mount", "--propagation", "slave", sys.executable, *sys.argv]
        os.execvpe(argv[0], argv, os.environ | {INSIDE: "1"})
    with tempfile.TemporaryDirectory() as directory:
        for file, line in (("passwd", "{0}:*:{1}:{1}::/tmp:/bin/bash\n"), ("group", "{0}:x:{1}:\n")):
            known = Path("/etc", file).read_text()
            lines = [line.format(name, FIRST_UID + at) for at, name in enumerate(USERS) if f"\n{name}:" not in known]
            copy = Path(directory, file)
            copy.write_text(known + "".join(lines))
            copy.chmod(0o644)
            checked(["mount", "--bind", str(copy), f"/etc/{file}"])
        if not Path("/run/udev/control").exists():
            # Without a udevd, dmsetup names no disk, and `udevadm wait`, which xfstests calls for each, never ends.
            os.environ["DM_DISABLE_UDEV"] = "1"
            if udevadm := shutil.which("udevadm"):
                nothing = Path(directory, "udevadm")
                write_script(nothing, "exit 0")
                checked(["mount", "--bind", str(nothing), udevadm])


def tests_of(xfstests: Path, group: str) -> list[str]:
    """The generic tests of a group, from the lists that were made when it was built."""
    listing = xfstests / "tests/generic/group.list"
    found = (line.split() for line in listing.read_text().splitlines() if line[:1].isdigit())
    return [f"generic/{words[0]}" for words in found if group in words[1:]]


def descendants(pid: int) -> list[int]:
    """Those of a process, and itself: a test has a session of its own."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found


def outcome(output: str) -> str:
    """What a test did, from what `check` prints of it after its name: passed, failed, or "not run: why"."""
    if why := re.search(r"\[not run\] ?(.*)", output):
        return f"not run: {why[1]}"
    return "passed" if re.fullmatch(r"(\s+\d+s \.\.\.)?\s+\d+s", output.partition("\n")[0]) else "failed"


def started(output: str) -> list[tuple[str, str]]:
    """The tests that `check` has started, and what it printed of each after its name."""
    found = re.split(r"^(generic/\d+)(?= )", output.partition("\nRan: ")[0], flags=re.M)
    return list(zip(found[1::2], found[2::2], strict=True))


def check(xfstests: Path, tests: Sequence[str], environment: Environment, results: Path) -> Iterator[tuple[str, str]]:
    """
    Each test, and what it does, as soon as the next one starts, by one call of `check`.

    These are fewer than the tests if one does not end in time, which has failed, or if `check` ends; but at least one.
    """
    path = results / f"{tests[0].replace('/', '-')}.txt"
    with path.open("w") as file:  # a pipe would stay open as long as one of its processes
        process = subprocess.Popen(
            ["./check", *tests],
            cwd=xfstests,
            env=os.environ | environment | {"RESULT_BASE": str(results), "HOST_OPTIONS": "/dev/null"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        told, deadline, late = 0, time.monotonic() + TEST_LIMIT_S, False
        try:
            while process.poll() is None and not late:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=POLL_S)
                for test, printed in started(path.read_text(errors="replace"))[told:-1]:
                    told, deadline = told + 1, time.monotonic() + TEST_LIMIT_S
                    yield test, outcome(printed)
                late = time.monotonic() > deadline and process.poll() is None
        finally:  # they would keep the disks
            for pid in descendants(process.pid) if process.poll() is None else []:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
    found = started(path.read_text(errors="replace"))[told:]
    yield from ((test, outcome(printed)) for test, printed in (found[:-1] if late else found))
    if late:
        with path.open("a") as file:
            file.write(f"\nended after {TEST_LIMIT_S:g} s\n")
    if late or told + len(found) == 0:
        yield found[-1][0] if found else tests[0], "failed"


def run_on(
    xfstests: Path, kind_of_fs: str, place: Path, record: Record, path: Path, system: str, tests: Sequence[str]
) -> None:
    """What each test does on a system, in record and at once in path."""
    done = record.setdefault(system, {})
    if not tests:
        return
    results = place / kind_of_fs / system
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ub-", dir="/var/tmp") as made_now, ExitStack() as stack:
        directory = Path(made_now)
        directory.chmod(0o755)
        environment = stack.enter_context(SYSTEMS[system](directory, kind_of_fs))
        for name in ("TEST_DIR", "SCRATCH_MNT"):
            environment[name] = str(directory / name.lower())
            Path(environment[name]).mkdir()
            stack.callback(run, ["umount", "--quiet", "--lazy", environment[name]])
        for test in tests:
            done.pop(test, None)
        while remaining := [test for test in tests if test not in done]:
            with turn():  # some set dirty limits
                for test, what in check(xfstests, remaining[:BATCH], environment, results):
                    done[test] = what
                    print(f"{system}: {test}: {what}", flush=True)
                    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def explained() -> dict[str, str]:
    """By test, the systems for which docs/fuse.md tells why it fails."""
    _, _, section = DOCUMENT.read_text().partition("\n## xfstests\n")
    return dict(re.findall(r"^\| (generic/\d+) \| ([^|]+?) \|", section.partition("\n## ")[0], re.M))


def must_be_native(system: str, found: str) -> bool:
    """Whether native must do the same: what fails, and on a disk also what cannot run."""
    return found == "failed" or (found != "passed" and system in (*FRAMEWORKS, "fuse-disk"))


def verdict(record: Record, systems: Sequence[str]) -> int:
    """Prints what came of it; the exit status."""
    known, status = explained(), 0
    for system in (NATIVE, *systems):
        counts = Counter(value.partition(":")[0] for value in record.get(system, {}).values())
        line = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
        print(f"{system}: {line or 'nothing was run'}")
    for system in systems:
        for test, found in sorted(record[system].items()):
            natively = record[NATIVE].get(test, "has no result").partition(":")[0]
            if must_be_native(system, found) and natively != found.partition(":")[0]:
                reported = system in re.split(r",\s*", known.get(test, ""))
                ours = "fails" if found == "failed" else "does not run"
                theirs = "and not natively" if natively in ("passed", "failed") else f"which natively {natively}"
                print(f"{system}: {test} {ours}, {theirs}" + (": see docs/fuse.md" if reported else ""))
                status = status if reported else 1
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0].strip())
    parser.add_argument("--xfstests", type=Path, required=True, help="where it is installed: the directory of check")
    parser.add_argument("--group", default="quick", help="of the generic tests (default: %(default)s)")
    parser.add_argument("--systems", default="fuse", help=f"of {', '.join(SYSTEMS)} (default: %(default)s)")
    parser.add_argument("--fs", choices=("ext4", "xfs"), default="ext4", help="below or above (default: %(default)s)")
    parser.add_argument("--record", type=Path, default=ROOT / "build/xfstests", help="default: build/xfstests")
    parser.add_argument("--again", action="store_true", help="what was run is run once more")
    parser.add_argument("tests", nargs="*", metavar="TEST", help="default: all of the group")
    args = parser.parse_args(arguments)
    systems = args.systems.split(",")
    if unknown := [name for name in systems if name not in SYSTEMS or name == NATIVE]:
        parser.error(f"--systems={args.systems}: {unknown[0]} is none of {', '.join(SYSTEMS)}")
    if not (args.xfstests / "tests/generic/group.list").exists():
        parser.error(f"--xfstests={args.xfstests}: no xfstests is installed there; Debian has no package of it")
    if os.geteuid() != 0:
        parser.error("needs root")
    enter_namespace()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    tests = args.tests or tests_of(args.xfstests, args.group)
    path = args.record / f"{args.fs}.json"
    args.record.mkdir(parents=True, exist_ok=True)
    record: Record = json.loads(path.read_text()) if path.exists() else {}
    run_tests = partial(run_on, args.xfstests, args.fs, args.record, record, path)
    for system in systems:
        run_tests(system, [test for test in tests if args.again or test not in record.setdefault(system, {})])
    asked = {test for system in systems for test, found in record[system].items() if must_be_native(system, found)}
    run_tests(NATIVE, sorted(test for test in asked if args.again or test not in record.setdefault(NATIVE, {})))
    return verdict(record, systems)


if __name__ == "__main__":
    sys.exit(main())
