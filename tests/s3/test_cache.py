# SPDX-License-Identifier: BSD-3-Clause
"""What the S3 device reads ahead and caches, in memory and in a file: seen by what the store is asked for."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from device import ServeS3
from fault_proxy import FaultProxy
from nbdkit_server import Handle, NbdError, Nbdkit, checked, fio_random_verify
from servers import BUCKET
from stamps import BLOCK, stamped
from tool import Tool
from waiting import wait_until

KIB = 1 << 10
MIB = 1 << 20
RUN = 3
# As little memory as can be, so that the cache in it is small: about 3 MiB.
LITTLE = {"memory": "8M", "batch_size": "1M", "uploads": "1"}


def content(first: int, count: int, number: int = 1) -> bytes:
    return b"".join(stamped(RUN, block, number) for block in range(first, first + count))


def write(handle: Handle, size: int, number: int = 1, step: int = MIB) -> None:
    for offset in range(0, size, step):
        handle.pwrite(content(offset // BLOCK, step // BLOCK, number), offset)
    handle.flush()


def read(handle: Handle, size: int, number: int = 1, step: int = 128 * KIB) -> None:
    """One request after the other, and what comes has to be right."""
    for offset in range(0, size, step):
        assert handle.pread(step, offset) == content(offset // BLOCK, step // BLOCK, number), f"at {offset}"


@dataclass
class Asked:
    """What the store was asked for meanwhile."""

    gets: int = 0
    objects: int = 0


@contextmanager
def watched(proxy: FaultProxy) -> Iterator[Asked]:
    asked = Asked()
    before = len(proxy.passed)
    yield asked
    keys = [p.key for p in proxy.passed[before:] if p.method == "GET" and re.search("/(log|gc)/", p.key)]
    asked.gets, asked.objects = len(keys), len(set(keys))


def written_before(serve_s3: ServeS3, size: int, **more: str) -> None:
    """A volume with data that no server has in memory."""
    server = serve_s3("v", **more)
    write(server.connect(), size)
    server.stop()


# ---- without memory ----------------------------------------------------------------


def test_what_memory_cannot_hold_is_got_in_one_piece(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    size = 8 * MIB
    written_before(serve_s3, size, **LITTLE)
    server = serve_s3("v", through=proxy, **LITTLE)
    handle = server.connect()
    with watched(proxy) as asked:
        read(handle, size, step=size)
    assert asked.objects == size // MIB
    # The header of each object, perhaps what there was room for, and the rest.
    assert asked.gets <= 3 * asked.objects
    server.stop()


# ---- read-ahead -------------------------------------------------------------------


@pytest.mark.parametrize(("step", "features"), [(4 * KIB, ""), (128 * KIB, ""), (128 * KIB, "zstd aes")])
def test_sequence_is_read_ahead_in_whole_objects(
    serve_s3: ServeS3, proxy: FaultProxy, step: int, features: str
) -> None:
    size = 32 * MIB
    written_before(serve_s3, size, features=features)
    server = serve_s3("v", through=proxy, features=features)
    handle = server.connect()
    with watched(proxy) as asked:
        read(handle, size, step=step)
    assert asked.objects >= size // (4 * MIB)
    # Header and data at once, but for the first one, of which 64 KiB must be read before it is a stream.
    assert asked.gets <= asked.objects + 64 * KIB // step + 10
    with watched(proxy) as asked:
        read(handle, size, step=step)
    assert asked.gets == 0
    server.stop()
    counters = server.counters()
    assert counters["read_ahead_used_bytes"] > size * 3 / 4
    assert counters["read_ahead_wasted_bytes"] == 0
    assert counters["cache_hit_bytes"] > size * 7 / 4


@pytest.mark.parametrize("features", ["", "zstd", "aes"])
def test_object_whose_end_is_gone(serve_s3: ServeS3, features: str) -> None:
    """What is left of it is served: not all that one request asks for has to be there."""
    written_before(serve_s3, 12 * MIB, features=features)
    victim = sorted(serve_s3.objects("v", "log/"), key=lambda key: key[-16:])[2]
    client, name = serve_s3.store.client(), f"{serve_s3.prefix}/v/{victim}"
    stored = client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
    client.put_object(Bucket=BUCKET, Key=name, Body=stored[: len(stored) // 2])
    server = serve_s3("v", features=features)
    handle = server.connect()
    bad = []
    for first in range(0, 12 * MIB // BLOCK, 16):
        try:
            assert handle.pread(16 * BLOCK, first * BLOCK) == content(first, 16)
        except NbdError:
            bad.append(first)
    assert 0 < len(bad) <= 4 * MIB / BLOCK / 16 * 3 / 4
    assert max(bad) - min(bad) == (len(bad) - 1) * 16  # one range
    server.stop()


def test_random_reads_get_nothing_else(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    size, reads = 32 * MIB, 300
    written_before(serve_s3, size)
    server = serve_s3("v", through=proxy)
    handle = server.connect()
    blocks = random.Random(1).sample(range(size // BLOCK), reads)
    with watched(proxy) as asked:
        for block in blocks:
            assert handle.pread(BLOCK, block * BLOCK) == content(block, 1)
    assert reads <= asked.gets <= reads + asked.objects
    server.stop()
    counters = server.counters()
    assert counters["cache_miss_bytes"] == counters["cache_bytes"] == reads * BLOCK
    assert counters["read_ahead_used_bytes"] == counters["read_ahead_wasted_bytes"] == 0


@pytest.mark.parametrize("how", ["backward", "strided"])
def test_other_orders_do_no_harm(serve_s3: ServeS3, proxy: FaultProxy, how: str) -> None:
    size, step = 16 * MIB, 64 * KIB
    written_before(serve_s3, size)
    server = serve_s3("v", through=proxy)
    handle = server.connect()
    offsets = range(size - step, -1, -step) if how == "backward" else range(0, size, 4 * step)
    with watched(proxy) as asked:
        for offset in offsets:
            assert handle.pread(step, offset) == content(offset // BLOCK, step // BLOCK)
    assert asked.gets <= len(offsets) + asked.objects
    server.stop()
    assert server.counters()["cache_bytes"] <= len(offsets) * step


def test_streams_side_by_side(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    size, streams, step = 64 * MIB, 8, 64 * KIB
    written_before(serve_s3, size)
    server = serve_s3("v", through=proxy)
    handle = server.connect()
    part = size // streams
    with watched(proxy) as asked:
        for at in range(0, part, step):
            for first in range(0, size, part):
                assert handle.pread(step, first + at) == content((first + at) // BLOCK, step // BLOCK)
    assert asked.gets < size // step // 4
    server.stop()
    assert server.counters()["read_ahead_used_bytes"] > size / 2


def test_blocks_written_in_any_order_are_got_together(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """Each of 1024 blocks is a run of its own; an object holds all of them."""
    blocks = list(range(1024))
    random.Random(2).shuffle(blocks)
    server = serve_s3("v")
    handle = server.connect()
    for block in blocks:
        handle.pwrite(content(block, 1), block * BLOCK)
    handle.flush()
    server.stop()
    server = serve_s3("v", through=proxy)
    with watched(proxy) as asked:
        read(server.connect(), 1024 * BLOCK)
    assert asked.gets < 300


def test_one_request_over_many_near_runs(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """Every second block was written later: two objects, in each of which the blocks are neighbours."""
    server = serve_s3("v")
    handle = server.connect()
    write(handle, MIB)
    for block in range(0, 256, 2):
        handle.pwrite(content(block, 1, 2), block * BLOCK)
    handle.flush()
    server.stop()
    server = serve_s3("v", through=proxy)
    handle = server.connect()
    with watched(proxy) as asked:
        data = handle.pread(MIB, 0)
    assert data == b"".join(content(block, 1, 2 - block % 2) for block in range(256))
    assert asked.gets <= 6  # two of data, one of each header, and what a small part more may cost
    assert asked.objects == 2


def test_what_was_written_is_not_got(serve_s3: ServeS3, proxy: FaultProxy, tmp_path: Path) -> None:
    control = str(tmp_path / "control")
    server = serve_s3("v", through=proxy, control=control)
    handle = server.connect()
    write(handle, 4 * MIB)
    # It is taken over just after the flush is answered.
    tool = Tool(serve_s3)
    wait_until("all is in the cache", lambda: tool("stats", control=control)["cache_bytes"] >= 4 * MIB)
    with watched(proxy) as asked:
        read(handle, 4 * MIB)
    assert asked.gets == 0


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("block_size", ["512", "4096"])
def test_much_at_once_in_little_memory(serve_s3: ServeS3, tmp_path: Path, block_size: str, disk: bool) -> None:
    more = {"cache_file": str(tmp_path / "cache"), "cache_size": "16M"} if disk else {}
    server = serve_s3("v", block_size=block_size, **LITTLE, **more)
    fio_random_verify(server.uri, "--size=24M", "--iodepth=32", f"--bsrange={block_size}-256k")
    argv = ["fio", "--name=v", "--ioengine=nbd", f"--uri={server.uri}", "--rw=read", "--bs=64k", "--numjobs=4"]
    checked([*argv, "--size=6M", "--offset_increment=6M", "--iodepth=8", "--loops=3"])
    server.stop()
    assert server.counters()["cache_bytes"] <= 4 * MIB


def test_another_writer_ends_answers_from_the_cache(serve_s3: ServeS3) -> None:
    server = serve_s3("v")
    handle = server.connect()
    write(handle, MIB)
    read(handle, MIB)
    other = serve_s3("v").connect()
    other.pwrite(content(0, 1, 2), 0)
    other.flush()
    handle.pwrite(content(100, 1, 3), 100 * BLOCK)
    with pytest.raises(NbdError):
        handle.flush()
    with pytest.raises(NbdError, match="Input/output"):
        handle.pread(BLOCK, 0)


# ---- the cache file ------------------------------------------------------------------


@dataclass
class Cached:
    """A volume of some MiB, and a server over it with a cache file that has all of it."""

    serve: ServeS3
    proxy: FaultProxy
    path: Path
    size: int = 8 * MIB

    def start(self) -> Nbdkit:
        return self.serve("v", through=self.proxy, cache_file=str(self.path), cache_size="32M")

    def index(self) -> bytes:
        """The entries of lines that there may be."""
        with self.path.open("rb") as file:
            file.seek(4096)
            return file.read(128 * self.size // (32 * KIB))

    def lines(self) -> int:
        """How many lines have all of their pages, as the file says."""
        index = self.index()
        return sum(index[at + 14 : at + 16] == b"\xff\xff" for at in range(0, len(index), 128))

    def fill(self) -> Nbdkit:
        server = self.start()
        read(server.connect(), self.size)
        wait_until("all lines are in the file", lambda: self.lines() >= self.size // (64 * KIB))
        return server


@pytest.fixture
def cached(serve_s3: ServeS3, proxy: FaultProxy, tmp_path: Path) -> Cached:
    made = Cached(serve_s3, proxy, tmp_path / "cache")
    written_before(serve_s3, made.size)
    return made


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_cache_file_survives(cached: Cached, crash: bool) -> None:
    server = cached.fill()
    if crash:
        server.kill()
    else:
        server.stop()
        assert server.counters()["cache_file_written_bytes"] == cached.size
    for _ in range(2):
        server = cached.start()
        handle = server.connect()
        with watched(cached.proxy) as asked:
            read(handle, cached.size)
        assert asked.gets == 0
        server.stop()
        counters = server.counters()
        assert counters["cache_file_kept"] >= cached.size // (64 * KIB)
        assert counters["cache_file_read_bytes"] >= cached.size
        assert counters["cache_file_damaged"] == 0


def test_damage_in_the_cache_file_is_found(cached: Cached) -> None:
    cached.fill().stop()
    data = bytearray(cached.path.read_bytes())
    for block in range(0, cached.size // BLOCK, 100):
        at = data.find(content(block, 1))
        assert at > 0
        data[at + 1234] ^= 1
    cached.path.write_bytes(data)
    server = cached.start()
    handle = server.connect()
    with watched(cached.proxy) as asked:
        read(handle, cached.size)
    assert 0 < asked.gets < 200
    server.stop()
    assert server.counters()["cache_file_damaged"] == len(range(0, cached.size // BLOCK, 100))


@pytest.mark.parametrize("how", ["wiped", "gone", "torn", "shifted"])
def test_spoilt_cache_file(cached: Cached, how: str) -> None:
    cached.fill().kill()
    data = cached.path.read_bytes()
    if how == "gone":
        cached.path.unlink()
    elif how == "wiped":
        cached.path.write_bytes(b"")
    elif how == "torn":
        cached.path.write_bytes(data[: len(data) // 8])
    else:
        cached.path.write_bytes(data[: 2 * MIB] + data[2 * MIB + BLOCK :] + bytes(BLOCK))
    server = cached.start()
    read(server.connect(), cached.size)
    server.stop()
    server = cached.start()
    read(server.connect(), cached.size)
    server.kill()


def test_numbers_that_are_used_again(serve_s3: ServeS3, tmp_path: Path) -> None:
    """The store loses the end of the log, whose objects are in the cache file; others take their numbers."""
    more = {"cache_file": str(tmp_path / "cache"), "cache_size": "64M", **LITTLE}
    size = 16 * MIB
    server = serve_s3("v", **more)
    handle = server.connect()
    write(handle, size, 1)
    write(handle, size, 2)
    read(handle, size, 2)  # more than is in memory
    read(handle, size, 2)
    server.kill()
    log = sorted(serve_s3.objects("v", "log/"), key=lambda key: key[-16:])
    assert len(log) > 30
    for key in log[-9:]:
        serve_s3.store.client().delete_object(Bucket=BUCKET, Key=f"{serve_s3.prefix}/v/{key}")
    server = serve_s3("v", **more)
    handle = server.connect()
    found = [1 if handle.pread(BLOCK, at) == content(at // BLOCK, 1) else 2 for at in range(0, size, BLOCK)]
    assert found == sorted(found, reverse=True) and 1 in found and 2 in found
    for at, number in zip(range(0, size, BLOCK), found, strict=True):
        assert handle.pread(BLOCK, at) == content(at // BLOCK, 1, number)
    # The same amount of other data in the same numbers.
    write(handle, size, 3)
    for _ in range(2):
        read(handle, size, 3)
    server.stop()
    assert server.counters()["cache_file_kept"] > 0
    read(serve_s3("v", **more).connect(), size, 3)


def test_another_writer_in_between(cached: Cached) -> None:
    """What the file has is of no use then, and is not used."""
    cached.fill().stop()
    server = cached.serve("v")
    write(server.connect(), MIB, 2)
    server.stop()
    server = cached.start()
    handle = server.connect()
    read(handle, MIB, 2)
    assert handle.pread(BLOCK, 2 * MIB) == content(2 * MIB // BLOCK, 1)
    server.stop()
    assert server.counters()["cache_file_kept"] == 0


def test_readonly_servers_use_it_too(cached: Cached) -> None:
    cached.fill().stop()
    for _ in range(2):
        server = cached.serve("v", through=cached.proxy, cache_file=str(cached.path), cache_size="32M", readonly="on")
        handle = server.connect()
        with watched(cached.proxy) as asked:
            read(handle, cached.size)
        assert asked.gets == 0
        server.stop()


def test_cache_file_that_is_refused(serve_s3: ServeS3, tmp_path: Path) -> None:
    """One line, and nothing has changed, neither there nor in the store."""
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"precious")
    refused = {
        "holds something else": {"cache_file": str(foreign)},
        "neither a regular file nor a block device": {"cache_file": str(tmp_path)},
        "cache-size=": {"cache_size": "64M"},
        "lower cache-size=": {"cache_file": str(tmp_path / "huge"), "cache_size": "64T"},
        "cache-file=": {"cache_file": "/nonexistent/cache"},
        "layout=direct": {"cache_file": str(tmp_path / "new"), "layout": "direct"},
    }
    for says, more in refused.items():
        with pytest.raises(AssertionError, match=says) as error:
            serve_s3("v", **more)
        lines = [line for line in str(error.value).splitlines() if "nbdkit" in line]
        assert len(lines) == 1, lines
    assert foreign.read_bytes() == b"precious"
    assert not (tmp_path / "huge").exists()
    assert not serve_s3.objects("v")
    # A volume that is not there leaves no file behind.
    with pytest.raises(AssertionError, match="volume=none"):
        serve_s3("none", create="off", cache_file=str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_two_volumes_on_one_file_are_refused(serve_s3: ServeS3, tmp_path: Path) -> None:
    more = {"cache_file": str(tmp_path / "cache"), "cache_size": "16M"}
    server = serve_s3("first", **more)
    with pytest.raises(AssertionError, match="in use by another server"):
        serve_s3("second", **more)
    assert not serve_s3.objects("second")
    server.stop()
    # Afterwards it is the other one's.
    server = serve_s3("second", **more)
    write(server.connect(), MIB)
    server.stop()
    assert serve_s3("first", **more).connect().pread(BLOCK, 0) == bytes(BLOCK)
