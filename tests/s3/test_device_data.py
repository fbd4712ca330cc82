# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device end to end over a real store: what is written is read, now and after it is opened again."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from device import ServeS3
from nbdkit_server import NbdError, checked, fio_random_verify, nbd

MIB = 1 << 20
# Parameters of each layout, and what a trim makes zeroes of whole ones only.
LAYOUTS = {
    "log": ({"batch_size": "1M"}, 4096),
    "direct": ({"layout": "direct", "chunk_size": "64k", "batch_size": "1M", "uploads": "2", "memory": "8M"}, 65536),
}
both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


@both_layouts
def test_new_volume_reads_as_zeroes(serve_s3: ServeS3, layout: str) -> None:
    server = serve_s3("new", size="64M", **LAYOUTS[layout][0])
    handle = server.connect()
    assert handle.get_size() == 64 * MIB
    assert not any(handle.pread(4 * MIB, 60 * MIB))
    assert handle.can_flush() and handle.can_fua() and handle.can_trim() and handle.can_zero()
    assert handle.can_multi_conn()
    server.stop()


@pytest.mark.parametrize(
    ("layout", "block_size", "crash", "features"),
    [
        *itertools.product(LAYOUTS, ("512", "4096"), (False, True), ("",)),
        ("log", "4096", False, "zstd"),
        ("log", "512", True, "aes"),
        ("log", "512", False, "zstd aes"),
        ("log", "4096", True, "zstd aes"),
    ],
)
def test_model(serve_s3: ServeS3, layout: str, block_size: str, crash: bool, features: str) -> None:
    """Random requests of any alignment against an array of bytes, through openings of the volume."""
    size = 8 * MIB
    settings, unit = LAYOUTS[layout]
    rng = random.Random(f"{block_size}{crash}{features}")
    model = bytearray(size)
    for _ in range(4):
        server = serve_s3("model", features=features, size=str(size), block_size=block_size, **settings)
        handle = server.connect()
        assert handle.pread(size, 0) == model
        for _ in range(150):
            length = min(1 + int(rng.expovariate(1 / 9000)), 400_000)
            offset = rng.randrange(size - length)
            if rng.random() < 0.3:
                offset, length = offset // 4096 * 4096, max(4096, length // 4096 * 4096)
            length = min(length, size - offset)
            what = rng.random()
            fua = nbd.CMD_FLAG_FUA if rng.random() < 0.05 else 0
            if what < 0.55:
                data = rng.randbytes(length) if rng.random() < 0.5 else rng.randbytes(1) * length
                handle.pwrite(data, offset, fua)
                model[offset : offset + length] = data
            elif what < 0.65:
                handle.zero(length, offset, fua)
                model[offset : offset + length] = bytes(length)
            elif what < 0.7:
                # What a trim leaves in the parts of units at its ends is the device's choice.
                first, end = -(-offset // unit) * unit, (offset + length) // unit * unit
                if first < end:
                    handle.trim(end - first, first, fua)
                    model[first:end] = bytes(end - first)
            elif what < 0.75:
                handle.flush()
            else:
                assert handle.pread(length, offset) == model[offset : offset + length]
        handle.flush()
        if crash:
            server.kill()
        else:
            server.stop()


def test_flush_is_durable_at_once(serve_s3: ServeS3) -> None:
    server = serve_s3("durable")
    handle = server.connect()
    handle.pwrite(b"a" * 4096, 0)
    handle.flush()
    handle.pwrite(b"b" * 4096, 4096, nbd.CMD_FLAG_FUA)
    handle.trim(4096, 0, nbd.CMD_FLAG_FUA)
    server.kill()
    handle = serve_s3("durable").connect()
    assert handle.pread(8192, 0) == bytes(4096) + b"b" * 4096


@both_layouts
def test_stop_keeps_what_was_not_flushed(serve_s3: ServeS3, layout: str) -> None:
    server = serve_s3("stopped", **LAYOUTS[layout][0])
    server.connect().pwrite(b"a" * 4096, 0)
    server.stop()
    assert serve_s3("stopped").connect().pread(4096, 0) == b"a" * 4096


def test_flush_of_nothing_stores_nothing(serve_s3: ServeS3) -> None:
    server = serve_s3("idle")
    handle = server.connect()
    handle.pwrite(b"a" * 4096, 0)
    handle.flush()
    before = serve_s3.objects("idle")
    for _ in range(20):
        handle.flush()
    assert serve_s3.objects("idle") == before
    server.stop()


def test_flushes_of_many_connections_share_objects(serve_s3: ServeS3) -> None:
    server = serve_s3("group")
    argv = ["fio", "--name=sync", "--ioengine=nbd", f"--uri={server.uri}", "--rw=randwrite", "--bs=4k"]
    argv += ["--numjobs=8", "--size=16M", "--io_size=256k", "--fsync=1", "--group_reporting"]
    checked(argv)
    assert len(serve_s3.objects("group", "log")) < 8 * 64, "each flush made an object of its own"
    server.stop()


@pytest.mark.parametrize("block_size", ["512", "4096"])
@both_layouts
def test_fio_verify(serve_s3: ServeS3, layout: str, block_size: str) -> None:
    server = serve_s3("fio", block_size=block_size, **LAYOUTS[layout][0])
    fio_random_verify(server.uri, "--size=24M", "--iodepth=32", f"--bsrange={block_size}-256k")
    server.stop()


def test_fio_verify_of_an_earlier_server(serve_s3: ServeS3) -> None:
    argv = ["fio", "--name=v", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--size=8M", "--iodepth=16"]
    argv += ["--verify=crc32c", "--verify_state_save=0", "--randseed=7"]
    server = serve_s3("earlier")
    checked([*argv, f"--uri={server.uri}", "--do_verify=0", "--end_fsync=1"])
    server.kill()
    checked([*argv, f"--uri={serve_s3('earlier').uri}", "--verify_only=1"])


@both_layouts
def test_nbdcopy_there_and_back(serve_s3: ServeS3, layout: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    body = bytearray(random.Random(3).randbytes(48 * MIB))
    body[5 * MIB : 21 * MIB] = bytes(16 * MIB)
    source.write_bytes(body)
    server = serve_s3("copy", size="48M", **LAYOUTS[layout][0])
    checked(["nbdcopy", "--flush", str(source), server.uri])
    checked(["nbdcopy", server.uri, str(target)])
    assert target.read_bytes() == body
    server.kill()
    checked(["nbdcopy", serve_s3("copy").uri, str(target)])
    assert target.read_bytes() == body


def test_mkfs_and_trim_of_16_tib(serve_s3: ServeS3) -> None:
    """A trim of all of it is a few records, not objects."""
    server = serve_s3("huge", size="16T")
    handle = server.connect()
    step = 1 << 31
    for offset in range(0, 16 << 40, step):
        handle.trim(step, offset)
    handle.pwrite(b"a" * 4096, (16 << 40) - 4096)
    handle.zero(1 << 31, 1 << 40)
    handle.flush()
    assert sum(serve_s3.objects("huge").values()) < 8 * MIB
    server.stop()
    handle = serve_s3("huge").connect()
    assert handle.pread(8192, (16 << 40) - 8192) == bytes(4096) + b"a" * 4096


def test_beyond_the_end(serve_s3: ServeS3) -> None:
    handle = serve_s3("end", size="1M").connect()
    with pytest.raises(NbdError, match="No space|Invalid"):
        handle.pwrite(bytes(4096), MIB)
    with pytest.raises(NbdError, match="Invalid"):
        handle.pread(4096, MIB)


@both_layouts
def test_readonly_serves_and_changes_nothing(serve_s3: ServeS3, layout: str) -> None:
    server = serve_s3("readonly", **LAYOUTS[layout][0])
    server.connect().pwrite(b"a" * 4096, 0)
    server.stop()
    before = serve_s3.objects("readonly")
    server = serve_s3("readonly", readonly="on")
    handle = server.connect()
    assert handle.is_read_only()
    assert handle.pread(4096, 0) == b"a" * 4096
    with pytest.raises(NbdError):
        handle.pwrite(b"b" * 4096, 0)
    server.stop()
    assert serve_s3.objects("readonly") == before
