#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Where the time of a CREATE through FUSE goes, by stages, on a file system that does nothing: by hand, as root.

One thread creates files on userblk-nullfs, in each mode of its session, while the kernel traces five moments of each
(an instance of tracefs of our own, so that nobody else's trace is touched). RFUSE's Figures 2 and 7 have such stages:

    request   the system call begins -> the request is sent: path, VFS, and the LOOKUP that comes first
    wake-up   -> the server has it
    server    -> it answers
    answer    -> the kernel has the answer
    return    -> the system call ends: the thread that waited is woken

Times are whole microseconds in the trace, whose mean over many files is finer; tracing makes every stage longer.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean, median

from checkout import CHECKOUT
from fuse_mount import rings_enabled
from paired import write_json
from waiting import wait_until

SCHEMA = 1
PROGRAM = CHECKOUT / os.environ.get("USERBLK_NULLFS", "build/host/fuse-nullfs/userblk-nullfs")
TRACING = Path("/sys/kernel/tracing")
PATIENCE_S = 20.0
CREATE = 35  # opcode
MODES = {
    "one thread": ("--nosplice", "--max-threads=1"),
    "threads": ("--nosplice",),
    "splice": (),
    "clone_fd": ("--nosplice", "--clone-fd"),
    "io_uring": ("--nosplice", "--io-uring"),
}
STAGES = ("request", "wake-up", "server", "answer", "return")
# By which system calls the server takes requests and gives answers.
TAKES = ("read", "splice", "io_uring_enter")
GIVES = ("writev", "write", "splice", "vmsplice", "io_uring_enter")
EVENTS = (
    "syscalls/sys_enter_openat",
    "syscalls/sys_exit_openat",
    "fuse/fuse_request_send",
    "fuse/fuse_request_end",
    *(f"syscalls/sys_exit_{name}" for name in TAKES),
    *(f"syscalls/sys_enter_{name}" for name in GIVES),
)
Event = tuple[int, float, str, str]  # thread, time (us), name, fields
LINE = re.compile(r"-(\d+)\s+\[\d+\]\s+\S+\s+(\d+\.\d+): (\w+)(?:: |\(| )(.*)")


class Refused(RuntimeError):
    """It cannot be measured here; one line."""


@contextmanager
def tracefs() -> Iterator[Path]:
    """A trace of our own."""
    mounted = (TRACING / "events").is_dir()
    if not mounted:
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(TRACING)], check=True)
    instance = TRACING / f"instances/userblk-{os.getpid()}"
    try:
        if not (TRACING / "events/fuse/fuse_request_send").is_dir():
            raise Refused("the kernel has no tracepoint fuse_request_send; use a newer one")
        instance.mkdir()
        yield instance
    finally:
        if instance.is_dir():
            instance.rmdir()
        if not mounted:
            subprocess.run(["umount", str(TRACING)], check=False)


@contextmanager
def nullfs(options: tuple[str, ...]) -> Iterator[tuple[int, Path]]:
    """Mounted, with the server's pid."""
    with tempfile.TemporaryDirectory(prefix="userblk-create-") as name:
        point = Path(name)
        argv = [str(PROGRAM), "-f", *options, name]
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:

            def log() -> str:
                server.kill()
                return server.communicate()[1].strip()

            what = f"{PROGRAM.name} {' '.join(options)} is mounted"
            wait_until(what, lambda: os.path.ismount(point), PATIENCE_S, process=server, log=log)
            assert server.stdout
            status = server.stdout.readline()
            if "=refused" in status:
                raise Refused(f"the kernel or libfuse refuses a part of it: {status.strip()}")
            yield server.pid, point
        finally:
            subprocess.run(["umount", name], stderr=subprocess.DEVNULL, check=False)
            server.terminate()
            server.wait(PATIENCE_S)


def create(point: Path, name: str, files: int) -> None:
    for number in range(files):
        os.close(os.open(point / f"{name}-{number}", os.O_CREAT | os.O_WRONLY, 0o644))


def trace(instance: Path, server: int, point: Path, files: int) -> list[Event]:
    """What happens while so many files are made."""
    threads = [int(path.name) for path in Path(f"/proc/{server}/task").iterdir()]
    (instance / "options/event-fork").write_text("1")
    (instance / "trace_clock").write_text("mono")
    (instance / "buffer_size_kb").write_text("16384")
    (instance / "set_event_pid").write_text(" ".join(map(str, [os.getpid(), *threads])))
    for event in EVENTS:
        (instance / "events" / event / "enable").write_text("1")
    create(point, "traced", files)
    (instance / "events/enable").write_text("0")
    return parsed((instance / "trace").read_text())


def parsed(text: str) -> list[Event]:
    """The events of the kernel's trace."""
    found = []
    for match in map(LINE.search, text.splitlines()):
        if match:
            thread, when, event, fields = match.groups()
            found.append((int(thread), float(when) * 1e6, event, fields))
    return found


def stages(events: list[Event], own: int) -> list[tuple[float, ...]]:
    """How long each stage took, in us, for each file whose moments are all there."""
    found = []
    begin = sent = taken = given = answered = 0.0
    request, server = "", 0
    for thread, when, event, fields in events:
        if thread == own and event == "sys_openat" and "->" not in fields:
            begin, request = when, ""
            sent = taken = given = answered = 0.0
        elif event == "fuse_request_send" and thread == own and f"opcode {CREATE} " in fields:
            sent, request = when, fields.split("req ")[1].split()[0]
        elif request and not answered and thread != own and event.startswith("sys_"):
            name = event.removeprefix("sys_")
            if "->" in fields and name in TAKES and not taken:
                taken, server = when, thread
            elif "->" not in fields and name in GIVES and taken and thread == server and not given:
                given = when
        elif event == "fuse_request_end" and request and fields.split("req ")[1].split()[0] == request:
            answered = when
        elif thread == own and event == "sys_openat" and "->" in fields and request:
            moments = (begin, sent, taken, given, answered, when)
            if all(moments) and list(moments) == sorted(moments):
                found.append(tuple(b - a for a, b in zip(moments, moments[1:], strict=False)))
            request = ""
    return found


def measured(mode: str, files: int) -> dict[str, object]:
    rings = rings_enabled() if "--io-uring" in MODES[mode] else nullcontext()
    with rings, tracefs() as instance, nullfs(MODES[mode]) as (server, point):
        create(point, "before", files // 4)
        begin = time.monotonic()
        create(point, "plain", files)
        plain = (time.monotonic() - begin) * 1e6 / files
        found = stages(trace(instance, server, point, files), os.getpid())
    if len(found) < files / 2:
        raise Refused(f"{mode}: only {len(found)} of {files} files have all moments in the trace")
    by_stage = dict(zip(STAGES, zip(*found, strict=True), strict=True))
    totals = [sum(one) for one in found]
    return {
        "mode": mode,
        "files": len(found),
        "untraced_us": round(plain, 2),
        "total_us": round(fmean(totals), 2),
        "mean_us": {name: round(fmean(values), 2) for name, values in by_stage.items()},
        "median_us": {name: round(median(values), 2) for name, values in by_stage.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=4000, metavar="N", help="files of each mode (default: 4000)")
    names = ", ".join(MODES)
    parser.add_argument("--modes", default=",".join(MODES), metavar="LIST", help=f"of {names} (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    modes = args.modes.split(",")
    if unknown := [mode for mode in modes if mode not in MODES]:
        parser.error(f"--modes {unknown[0]}: unknown; use {names}")
    if args.files < 100:
        parser.error(f"--files {args.files}: too few; use 100 or more")
    rows = []
    print(f"{'mode':12} {'untraced':>9} {'traced':>8}  " + " ".join(f"{name:>8}" for name in STAGES) + "   (us, means)")
    for mode in modes:
        try:
            row = measured(mode, args.files)
        except (Refused, AssertionError, OSError, subprocess.SubprocessError) as error:
            print(f"{mode:12} left out: {error}")
            continue
        means = row["mean_us"]
        assert isinstance(means, dict)
        print(
            f"{mode:12} {row['untraced_us']:>9} {row['total_us']:>8}  "
            + " ".join(f"{value:>8.1f}" for value in means.values()),
            flush=True,
        )
        rows.append(row)
    if args.json:
        write_json(args.json, {"schema": SCHEMA, "kernel": os.uname().release, "modes": rows})
    return 0 if rows else 2


if __name__ == "__main__":
    sys.exit(main())
