# SPDX-License-Identifier: BSD-3-Clause
"""A server over a store that has no space left: what it refuses, what it does, and that it goes on afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device import ServeS3
from nbdkit_server import Handle, NbdError
from servers import BUCKET, Versitygw, started
from stamps import BLOCK, stamped
from tool import Tool
from waiting import wait_until

RUN = 23
MIB = 1 << 20
SIZE_MIB = 128
TIMEOUT_S = 60.0
# Three batches of 1 MiB, so that a volume of 33 MiB has a reserve (of 4).
SMALL = {"batch_size": "1M", "uploads": "1", "memory": "16M", "gc_delay": "0"}


@pytest.fixture
def small_store() -> Iterator[Versitygw]:
    if os.geteuid() != 0:
        pytest.skip("a store of a limited size needs root")
    with started(Versitygw, 64 * MIB) as store:
        assert isinstance(store, Versitygw)
        yield store


def content(place: int, number: int) -> bytes:
    """The MiB at that place as write number leaves it."""
    return b"".join(stamped(RUN, place * MIB // BLOCK + i, number) for i in range(MIB // BLOCK))


def error_of(call: Callable[..., object], *arguments: object) -> str:
    """The name of the error that a request is answered with; "": it was done."""
    try:
        call(*arguments)
    except NbdError as error:
        return str(error.errno)  # type: ignore[attr-defined]
    return ""


def check(handle: Handle, expected: dict[int, int]) -> None:
    """expected: number of the last write by place; 0: trimmed."""
    for place, number in expected.items():
        wanted = content(place, number) if number else bytes(MIB)
        assert bytes(handle.pread(MIB, place * MIB)) == wanted, f"MiB {place}"


def test_a_full_store_is_freed_and_the_server_goes_on(small_store: Versitygw, tmp_path: Path) -> None:
    serve = ServeS3(small_store, "full", tmp_path)
    tool = Tool(serve)
    control = str(tmp_path / "control")
    server = serve("v", control=control, size=f"{SIZE_MIB}M", **SMALL)
    try:
        handle = server.connect()
        written: dict[int, int] = {}
        for place in range(40):
            handle.pwrite(content(place, 1), place * MIB)
            written[place] = 1
        handle.flush()
        wait_until("there is a reserve", lambda: any(n > MIB for n in serve.objects("v", "probe/").values()), TIMEOUT_S)

        error = ""
        while not error:
            place = len(written)
            error = error_of(handle.pwrite, content(place, 2), place * MIB)
            if not error:
                written[place] = 2
        assert error == "ENOSPC"
        # What waits may have been stored where the reserve was; or not.
        assert error_of(handle.flush) in ("", "ENOSPC")
        assert tool("stats", control=control)["store_full"] == 1
        check(handle, written)
        assert server.output().count("trims and userblk-s3 gc free space") == 1

        handle.trim(24 * MIB, 8 * MIB)
        written |= dict.fromkeys(range(8, 32), 0)
        tool("gc", control=control)
        wait_until("a flush succeeds", lambda: not error_of(handle.flush), TIMEOUT_S)
        wait_until("the store has space", lambda: tool("stats", control=control)["store_full"] == 0, TIMEOUT_S)
        assert "there is space in the store again" in server.output()
        handle.pwrite(content(127, 3), 127 * MIB)
        handle.flush()
        written[127] = 3
        check(handle, written)
        server.kill()
        server = serve("v", **SMALL)
        check(server.connect(), written)
        server.stop()
        assert tool("check")["damages"] == []
    finally:
        server.kill()


def fill(store: Versitygw) -> None:
    """Somebody else's objects, until a page no longer fits."""
    s3 = store.client()
    number, size = 0, 8 * MIB
    while size > 4096:
        try:
            s3.put_object(Bucket=BUCKET, Key=f"other/{number}", Body=os.urandom(size))
            number += 1
        except s3.exceptions.ClientError:
            size //= 2


def test_a_server_starts_again_in_a_full_store(small_store: Versitygw, tmp_path: Path) -> None:
    serve = ServeS3(small_store, "full", tmp_path)
    tool = Tool(serve)
    control = str(tmp_path / "control")
    server = serve("v", size=f"{SIZE_MIB}M", **SMALL)
    try:
        handle = server.connect()
        for place in range(40):
            handle.pwrite(content(place, 1), place * MIB)
        handle.flush()
        wait_until("there is a reserve", lambda: any(n > MIB for n in serve.objects("v", "probe/").values()), TIMEOUT_S)
        fill(small_store)
        server.kill()

        server = serve("v", control=control, **SMALL)
        handle = server.connect()
        assert error_of(handle.pwrite, content(64, 2), 64 * MIB) == "ENOSPC"
        handle.trim(24 * MIB, 8 * MIB)
        handle.flush()
        tool("gc", control=control)
        wait_until("the store has space", lambda: tool("stats", control=control)["store_full"] == 0, TIMEOUT_S)
        handle.pwrite(content(64, 3), 64 * MIB)
        handle.flush()
        check(handle, dict.fromkeys(range(8), 1) | dict.fromkeys(range(8, 32), 0) | {32: 1, 39: 1, 64: 3})
        server.stop()
    finally:
        server.kill()


def test_what_waits_for_space_is_kept(small_store: Versitygw, tmp_path: Path) -> None:
    """Somebody else fills the store, and makes room again. The volume is too small to have a reserve."""
    serve = ServeS3(small_store, "full", tmp_path)
    server = serve("v", size=f"{SIZE_MIB}M", **SMALL)
    try:
        handle = server.connect()
        handle.pwrite(content(0, 1), 0)
        handle.flush()
        fill(small_store)
        handle.pwrite(content(1, 2), MIB)
        assert error_of(handle.flush) == "ENOSPC"
        assert error_of(handle.pwrite, content(2, 3), 2 * MIB) == "ENOSPC"
        assert error_of(handle.flush) == "ENOSPC"
        check(handle, {0: 1, 1: 2, 2: 0})

        small_store.remove("other/")
        wait_until("a flush succeeds", lambda: not error_of(handle.flush), TIMEOUT_S)
        wait_until("a write succeeds", lambda: not error_of(handle.pwrite, content(2, 3), 2 * MIB), TIMEOUT_S)
        handle.flush()
        server.kill()
        server = serve("v", **SMALL)
        check(server.connect(), {0: 1, 1: 2, 2: 3})
        server.stop()
    finally:
        server.kill()
