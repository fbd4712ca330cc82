# SPDX-License-Identifier: BSD-3-Clause
"""What goes in comes out: data calls of the plugins through libnbd, fio and nbdcopy."""

from __future__ import annotations

import os
import random
import re
import threading
from pathlib import Path

import pytest
from nbdkit_server import MIB, SIZE, Handle, NbdError, Serve, checked, fio_random_verify, nbd

KIB = 1024
BOTH_MODES = pytest.mark.parametrize("direct", ["on", "off"])


def data(length: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(length)


def errno_of(caught: pytest.ExceptionInfo[Exception]) -> str:
    """The name of the error that the server answered with."""
    return str(getattr(caught.value, "errno", None))


@BOTH_MODES
@pytest.mark.parametrize("block", ["4k", "128k"])
def test_fio_random_write_and_verify(serve: Serve, disk: Path, direct: str, block: str) -> None:
    server = serve("passthrough", f"file={disk}", f"direct={direct}")
    # numjobs: a connection each, in ranges of their own.
    options = (f"--bs={block}", "--iodepth=16", "--numjobs=4")
    fio_random_verify(server.uri, *options, f"--size={SIZE // 4}", f"--offset_increment={SIZE // 4}")
    # Read back without the server: the data are in the file.
    assert disk.stat().st_size == SIZE
    assert disk.read_bytes().count(b"\0" * 4096) < 16


@BOTH_MODES
def test_unaligned_requests_match_a_model(serve: Serve, disk: Path, direct: str) -> None:
    server = serve("passthrough", str(disk), f"direct={direct}")
    handle = server.connect()
    model = bytearray(SIZE)
    rng = random.Random(7)
    lengths = [1, 7, 511, 512, 513, 4095, 4096, 4097, 65537]
    for step in range(400):
        length = rng.choice([*lengths, rng.randrange(1, 200000)])
        offset = rng.randrange(0, SIZE - length + 1)
        action = rng.randrange(4)
        if action == 0:
            assert handle.pread(length, offset) == model[offset : offset + length], step
        elif action == 1:
            handle.zero(length, offset)
            model[offset : offset + length] = bytes(length)
        else:
            written = rng.randbytes(length)
            handle.pwrite(written, offset)
            model[offset : offset + length] = written
    handle.flush()
    server.stop()
    assert disk.read_bytes() == model


@BOTH_MODES
def test_unaligned_writes_into_one_block_do_not_lose_each_other(serve: Serve, disk: Path, direct: str) -> None:
    server = serve("passthrough", str(disk), f"direct={direct}")
    writers, rounds, piece = 8, 60, 100
    failures: list[BaseException] = []

    def write(index: int, handle: Handle) -> None:
        try:
            for turn in range(rounds):
                handle.pwrite(bytes([index + 1]) * piece, turn * writers * piece + index * piece)
        except BaseException as error:  # handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=write, args=(i, server.connect())) for i in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    server.stop()
    expected = b"".join(bytes([i + 1]) * piece for i in range(writers)) * rounds
    assert disk.read_bytes()[: len(expected)] == expected


def test_bounced_requests_are_counted(serve: Serve, disk: Path) -> None:
    direct = serve("passthrough", str(disk), "direct=on")
    handle = direct.connect()
    for _ in range(5):
        handle.pread(4096, 0)
    direct.stop()
    # nbdkit's buffers are not aligned as O_DIRECT demands.
    assert direct.counters()["bounced_requests"] == 5
    buffered = serve("passthrough", str(disk), "direct=off")
    buffered.connect().pread(4096, 0)
    buffered.stop()
    assert "counters:" not in buffered.output()


@pytest.mark.parametrize("direct", ["on", "off"])
def test_nbdcopy_both_ways(serve: Serve, disk: Path, tmp_path: Path, direct: str) -> None:
    server = serve("passthrough", str(disk), f"direct={direct}")
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(data(3 * MIB, 1) + bytes(MIB) + data(SIZE - 4 * MIB, 2))
    checked(["nbdcopy", str(source), server.uri])
    checked(["nbdcopy", server.uri, str(back)])
    assert back.read_bytes() == source.read_bytes()
    server.stop()
    assert disk.read_bytes() == source.read_bytes()


def test_negotiation(serve: Serve, disk: Path) -> None:
    handle = serve("passthrough", str(disk)).connect()
    assert handle.get_size() == SIZE
    assert not handle.is_read_only()
    for answer in ("can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"):
        assert getattr(handle, answer)(), answer
    assert handle.can_fast_zero()
    assert not handle.can_cache()
    assert handle.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    preferred = handle.get_block_size(nbd.SIZE_PREFERRED)
    assert preferred >= 512 and preferred & (preferred - 1) == 0
    assert handle.get_block_size(nbd.SIZE_MAXIMUM) == 0xFFFFFFFF


def test_minimum_block_size_is_the_device_s(serve: Serve, disk: Path) -> None:
    def minimum(plugin: str, *parameters: str) -> int:
        return serve(plugin, *parameters).connect().get_block_size(nbd.SIZE_MINIMUM)

    assert minimum("passthrough", str(disk), "direct=off", "readonly=on") == 1
    assert minimum("passthrough", str(disk), "direct=on") in (512, 4096)
    assert minimum("null", "1M") == 512
    assert minimum("null", "1M", "block-size=4096") == 4096


def test_null_negotiation_and_data(serve: Serve) -> None:
    handle = serve("null", "1T").connect()
    assert handle.get_size() == 1 << 40
    for answer in ("can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"):
        assert getattr(handle, answer)(), answer
    assert handle.can_fast_zero()
    handle.pwrite(b"x" * 4096, 4096, nbd.CMD_FLAG_FUA)
    handle.flush()
    handle.trim(MIB, 0)
    handle.zero(MIB, 0, nbd.CMD_FLAG_FAST_ZERO)
    assert handle.pread(8192, (1 << 40) - 8192) == bytes(8192)
    assert handle.pread(4096, 4096) == bytes(4096)


def test_second_connection_sees_flushed_data(serve: Serve, disk: Path) -> None:
    server = serve("passthrough", str(disk))
    first, second = server.connect(), server.connect()
    for number in range(20):
        written = data(5000, number)
        first.pwrite(written, 3 + 5000 * number)
        first.flush()
        assert second.pread(5000, 3 + 5000 * number) == written
    first.pwrite(b"f" * 512, 0, nbd.CMD_FLAG_FUA)
    assert second.pread(512, 0) == b"f" * 512


def extents_of(handle: Handle, length: int, offset: int = 0, flags: int = 0) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []

    def add(_context: str, _offset: int, entries: list[int], _error: object) -> int:
        found.extend(zip(entries[0::2], entries[1::2], strict=True))
        return 0

    handle.block_status(length, offset, add, flags)
    return found


HOLE = 3  # NBD_STATE_HOLE | NBD_STATE_ZERO


@BOTH_MODES
def test_extents(serve: Serve, disk: Path, direct: str) -> None:
    handle = serve("passthrough", str(disk), f"direct={direct}").connect()
    handle.pwrite(data(MIB, 3), MIB)
    handle.pwrite(data(MIB, 4), 4 * MIB)
    expected = [(MIB, HOLE), (MIB, 0), (2 * MIB, HOLE), (MIB, 0), (3 * MIB, HOLE)]
    assert extents_of(handle, SIZE) == expected
    assert extents_of(handle, SIZE, flags=nbd.CMD_FLAG_REQ_ONE) == [(MIB, HOLE)]
    # One that begins and ends inside extents is cut to the request, as REQ_ONE demands.
    inside = extents_of(handle, 512 * KIB, MIB + 256 * KIB, nbd.CMD_FLAG_REQ_ONE)
    assert inside == [(512 * KIB, 0)]


@BOTH_MODES
def test_trim_gives_the_space_back(serve: Serve, disk: Path, direct: str) -> None:
    handle = serve("passthrough", str(disk), f"direct={direct}").connect()
    handle.pwrite(b"t" * (2 * MIB), 0)
    handle.flush()
    before = disk.stat().st_blocks
    handle.trim(MIB, 0)
    assert handle.pread(MIB, 0) == bytes(MIB)
    assert handle.pread(MIB, MIB) == b"t" * MIB
    assert disk.stat().st_blocks <= before - MIB // 512
    # Parts of blocks may stay, data outside the range must.
    handle.trim(1000, MIB + 100)
    assert handle.pread(100, MIB) == b"t" * 100
    assert handle.pread(4096, MIB + 1100) == b"t" * 4096


@BOTH_MODES
def test_zero_keeps_or_frees_the_space_as_asked(serve: Serve, disk: Path, direct: str) -> None:
    handle = serve("passthrough", str(disk), f"direct={direct}").connect()
    handle.pwrite(b"z" * (2 * MIB), 0, nbd.CMD_FLAG_FUA)
    before = disk.stat().st_blocks
    handle.zero(MIB, 0, nbd.CMD_FLAG_NO_HOLE)
    assert handle.pread(MIB, 0) == bytes(MIB)
    assert disk.stat().st_blocks >= before
    handle.zero(MIB, MIB)
    assert handle.pread(MIB, MIB) == bytes(MIB)
    assert disk.stat().st_blocks <= before - MIB // 512
    assert extents_of(handle, MIB, MIB)[0][1] == HOLE


def test_fast_zero(serve: Serve, disk: Path) -> None:
    handle = serve("passthrough", str(disk)).connect()
    handle.pwrite(b"z" * MIB, 0)
    handle.zero(MIB, 0, nbd.CMD_FLAG_FAST_ZERO)
    assert handle.pread(MIB, 0) == bytes(MIB)


def test_zero_on_a_file_system_that_cannot_zero_in_place(serve: Serve, small_filesystem: Path) -> None:
    """tmpfs can only punch holes. No error is reported."""
    path = small_filesystem / "disk"
    path.write_bytes(b"z" * 65536)
    server = serve("passthrough", str(path), "direct=off")
    handle = server.connect()
    handle.zero(65536 - 1000, 0, nbd.CMD_FLAG_NO_HOLE)
    assert handle.pread(65536, 0) == bytes(65536 - 1000) + b"z" * 1000
    server.stop()
    assert "error" not in server.output()


@pytest.mark.usefixtures("exits_after_strerror")
@BOTH_MODES
def test_no_space_left(serve: Serve, small_filesystem: Path, direct: str) -> None:
    path = small_filesystem / "disk"
    with path.open("wb") as file:
        file.truncate(4 * MIB)
    server = serve("passthrough", str(path), f"direct={direct}")
    handle = server.connect()
    with pytest.raises(NbdError) as error:
        handle.pwrite(data(2 * MIB, 5), 0)
    assert errno_of(error) == "ENOSPC"
    # The server lives on, and what is there can be read.
    assert handle.pread(512, 3 * MIB) == bytes(512)
    server.stop()
    message = f"write of {2 * MIB} bytes at 0: No space left on device"
    assert re.fullmatch(
        rf"nbdkit: userblk-passthrough\.\d+: error: {message}",
        server.output().splitlines()[0],
    )


@pytest.mark.usefixtures("exits_after_strerror")
@BOTH_MODES
def test_limit_of_file_sizes(serve: Serve, disk: Path, direct: str) -> None:
    """An error as on a full disk, and not the end of the server."""
    server = serve("passthrough", str(disk), f"direct={direct}", wrapper=("prlimit", f"--fsize={MIB}"))
    handle = server.connect()
    with pytest.raises(NbdError) as error:
        handle.pwrite(data(4096, 5), 2 * MIB)
    assert errno_of(error) == "ENOSPC"
    handle.pwrite(data(4096, 6), 0)
    assert handle.pread(4096, 0) == data(4096, 6)


def test_beyond_the_end(serve: Serve, disk: Path) -> None:
    handle = serve("passthrough", str(disk)).connect()
    with pytest.raises(NbdError) as error:
        handle.pread(512, SIZE)
    assert errno_of(error) == "EINVAL"
    with pytest.raises(NbdError) as error:
        handle.pwrite(b"e" * 513, SIZE - 512)
    assert errno_of(error) == "ENOSPC"
    assert disk.stat().st_size == SIZE
    assert handle.pread(512, SIZE - 512) == bytes(512)


@pytest.mark.parametrize(("parameters", "options"), [(("readonly=on",), ()), ((), ("-r",))], ids=["readonly=on", "-r"])
def test_readonly(serve: Serve, disk: Path, parameters: tuple[str, ...], options: tuple[str, ...]) -> None:
    disk.write_bytes(data(SIZE, 6))
    handle = serve("passthrough", str(disk), *parameters, options=options).connect()
    assert handle.is_read_only()
    assert handle.pread(1000, 1000) == data(SIZE, 6)[1000:2000]
    for change, arguments in (("pwrite", (b"w", 0)), ("trim", (4096, 0)), ("zero", (4096, 0))):
        with pytest.raises(NbdError) as error:
            getattr(handle, change)(*arguments)
        assert errno_of(error) == "EPERM"
    assert disk.read_bytes() == data(SIZE, 6)


@pytest.mark.usefixtures("exits_after_strerror")
def test_a_file_that_shrinks_is_an_error_not_zeroes(serve: Serve, disk: Path) -> None:
    server = serve("passthrough", str(disk), "direct=off")
    handle = server.connect()
    os.truncate(disk, MIB)
    with pytest.raises(NbdError) as error:
        handle.pread(4096, 2 * MIB)
    assert errno_of(error) == "EIO"
    assert handle.pread(4096, 0) == bytes(4096)


def test_size_is_that_of_the_start(serve: Serve, disk: Path) -> None:
    """Nothing resizes under nbdkit: a file that grows is served as it was."""
    server = serve("passthrough", str(disk))
    os.truncate(disk, 2 * SIZE)
    assert server.connect().get_size() == SIZE


def test_size_creates_a_file(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "new"
    handle = serve("passthrough", str(path), "size=3M").connect()
    assert handle.get_size() == 3 * MIB == path.stat().st_size
