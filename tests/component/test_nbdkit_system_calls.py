# SPDX-License-Identifier: BSD-3-Clause
"""What strace sees: flush and FUA reach the file before the reply; no call is superfluous."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from nbdkit_server import MIB, SIZE, Handle, Serve, nbd

CALLS = "lseek,pwrite64,pwritev,pwritev2,fdatasync,fsync,fallocate,sendto,sendmsg,write"
Action = Callable[[Handle], object]


def traced(serve: Serve, disk: Path, direct: str, action: Action) -> list[str]:
    """The calls on the file, and "reply" for a message to the client, during action, in order."""
    trace = disk.parent / "strace"
    server = serve(
        "passthrough",
        str(disk),
        f"direct={direct}",
        # One thread serves the connection, so that the trace is a sequence.
        options=("-t", "1"),
        wrapper=("strace", "-f", "-y", "-s", "16", "-e", f"trace={CALLS}", "-o", str(trace)),
    )
    handle = server.connect()
    handle.pread(512, 0)  # all replies of the negotiation come before this one's
    action(handle)
    server.stop()
    calls: list[str] = []
    for line in trace.read_text(encoding="utf-8").splitlines():
        match = re.match(r"\d+\s+(\w+)\(\d+<([^>]*)>(.*)", line)
        if match is None:
            continue
        name, target, rest = match.groups()
        if target == str(disk):
            assert "unfinished" not in rest, line
            calls.append(name + ("+dsync" if "RWF_DSYNC" in rest else ""))
        elif target.startswith(("UNIX", "socket")):
            calls.append("reply")
    # What was tried on the file when it was opened comes before the negotiation.
    return calls[calls.index("reply") :]


def collapse(calls: list[str]) -> str:
    """Runs of the same call as one, since a reply may take several messages."""
    return " ".join(call for i, call in enumerate(calls) if i == 0 or calls[i - 1] != call)


BOTH_MODES = pytest.mark.parametrize("direct", ["on", "off"])
WRITE = r"pwrite(64|v|v2)"


@BOTH_MODES
def test_flush_reaches_the_file_before_its_reply(serve: Serve, disk: Path, direct: str) -> None:
    def action(handle: Handle) -> None:
        handle.pwrite(b"a" * 4096, 0)
        handle.flush()

    calls = collapse(traced(serve, disk, direct, action))
    assert re.fullmatch(rf"reply {WRITE} reply fdatasync reply", calls), calls


@BOTH_MODES
def test_fua_write_is_durable_before_its_reply(serve: Serve, disk: Path, direct: str) -> None:
    def action(handle: Handle) -> None:
        handle.pwrite(b"a" * 4096, 0)
        handle.pwrite(b"b" * 4096, 4096, nbd.CMD_FLAG_FUA)
        handle.pwrite(b"b" * 4096, 4096, nbd.CMD_FLAG_FUA)

    # With anything in the page cache, RWF_DSYNC could get the error of another write, or lose its own.
    first = f"{WRITE} fdatasync"
    then = r"pwritev2\+dsync" if direct == "on" else first
    calls = collapse(traced(serve, disk, direct, action))
    assert re.fullmatch(f"reply {WRITE} reply {first} reply {then} reply", calls), calls


@BOTH_MODES
def test_unaligned_fua_write_is_durable_before_its_reply(serve: Serve, disk: Path, direct: str) -> None:
    calls = collapse(traced(serve, disk, direct, lambda h: h.pwrite(b"b" * 5000, 77, nbd.CMD_FLAG_FUA)))
    synced = rf"(pwritev2\+dsync|{WRITE} fdatasync)"
    assert re.fullmatch(rf"reply {synced} reply", calls), calls


@BOTH_MODES
@pytest.mark.parametrize("command", ["trim", "zero"])
def test_fua_trim_and_zero_are_durable_before_their_reply(serve: Serve, disk: Path, direct: str, command: str) -> None:
    def action(handle: Handle) -> None:
        getattr(handle, command)(MIB, 0, nbd.CMD_FLAG_FUA)

    calls = collapse(traced(serve, disk, direct, action))
    assert re.fullmatch(r"reply fallocate fdatasync reply", calls), calls


def test_large_fua_write_is_durable_as_a_whole(serve: Serve, disk: Path) -> None:
    """One that is bounced in chunks is synced in every chunk, or once at the end."""
    calls = collapse(traced(serve, disk, "on", lambda h: h.pwrite(b"b" * (3 * MIB), 0, nbd.CMD_FLAG_FUA)))
    assert re.fullmatch(rf"reply (pwritev2\+dsync|{WRITE} fdatasync) reply", calls), calls


def test_only_the_extent_that_is_asked_for_is_looked_for(serve: Serve, disk: Path) -> None:
    with disk.open("r+b") as file:
        for offset in range(0, SIZE, MIB):
            file.seek(offset)
            file.write(b"d" * 65536)

    def ask(handle: Handle, flags: int) -> None:
        handle.block_status(SIZE, 0, lambda *_: 0, flags)

    one = traced(serve, disk, "on", lambda handle: ask(handle, nbd.CMD_FLAG_REQ_ONE))
    every = traced(serve, disk, "on", lambda handle: ask(handle, 0))
    assert 1 <= one.count("lseek") <= 2
    assert every.count("lseek") >= SIZE // MIB
