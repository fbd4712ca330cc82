# SPDX-License-Identifier: BSD-3-Clause
"""What the S3 device does behind the scenes: checkpoints, garbage collection, what a restart costs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from device import ServeS3
from fault_proxy import FaultProxy, Rule, delayed, passed_on, refused
from nbdkit_server import Handle, Nbdkit
from servers import BUCKET
from tool import Tool
from waiting import wait_until

BLOCK = 4096
BLOCKS = 1024
# Log objects between two checkpoints, as in keeper.c; recovery may read twice as many headers.
PATIENCE_S = 300.0
INTERVAL = 512


def stamp(number: int) -> bytes:
    return number.to_bytes(8, "little") * (BLOCK // 8)


class Model:
    """Blocks, each flushed by itself: the pattern that makes most objects."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.blocks: dict[int, int] = {}

    def write(self, handle: Handle, times: int) -> None:
        for _ in range(times):
            block, number = self.rng.randrange(BLOCKS), self.rng.getrandbits(60)
            handle.pwrite(stamp(number), block * BLOCK)
            handle.flush()
            self.blocks[block] = number

    def check(self, handle: Handle) -> None:
        for block in range(BLOCKS):
            number = self.blocks.get(block)
            wanted = bytes(BLOCK) if number is None else stamp(number)
            assert handle.pread(BLOCK, block * BLOCK) == wanted, f"block {block}"


def replayed(server: Nbdkit) -> int:
    server.stop()
    return server.counters()["replayed"]


def delete(serve: ServeS3, volume: str, key: str) -> None:
    serve.store.client().delete_object(Bucket=BUCKET, Key=f"{serve.prefix}/{volume}/{key}")


def overwrite(serve: ServeS3, volume: str, key: str, change: Callable[[bytes], bytes]) -> None:
    client, name = serve.store.client(), f"{serve.prefix}/{volume}/{key}"
    data = client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
    client.put_object(Bucket=BUCKET, Key=name, Body=change(data))


def roots(serve: ServeS3, volume: str) -> list[str]:
    """Keys of the checkpoints' roots, oldest first."""
    return sorted(key for key in serve.objects(volume, "ckpt/") if key.endswith("/root"))


def flipped(data: bytes) -> bytes:
    return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


def test_restart_reads_a_bounded_number_of_headers(serve_s3: ServeS3) -> None:
    """However long the log is, and although the server was killed."""
    model = Model(1)
    server = serve_s3("v", gc_delay="0")
    model.write(server.connect(), 3 * INTERVAL)
    server.kill()
    server = serve_s3("v")
    model.check(server.connect())
    assert replayed(server) <= 2 * INTERVAL
    # After an orderly end there are few, although nothing was written.
    for _ in range(2):
        assert replayed(serve_s3("v")) <= 70


def test_small_objects_are_collected(serve_s3: ServeS3, tmp_path: Path) -> None:
    """A block per object, thousands of them: what stays is bounded, and right, also after kill -9."""
    model = Model(2)
    control = str(tmp_path / "control")
    server = serve_s3("v", gc_delay="0", control=control)
    handle = server.connect()
    for _ in range(3):
        model.write(handle, 700)
    # What died since the newest but one root has to stay: recovery may need it.
    wait_until("log objects are deleted", lambda: len(serve_s3.objects("v", "log/")) < 3 * INTERVAL, PATIENCE_S)
    model.check(handle)
    # Asked to, it leaves little more than what is alive: of more than 2100 objects of two blocks.
    Tool(serve_s3)("gc", control=control)
    objects = serve_s3.objects("v")
    assert len(objects) < 40 and sum(objects.values()) < 1.25 * len(model.blocks) * BLOCK, objects
    server.kill()
    server = serve_s3("v", gc_delay="0")
    model.check(server.connect())
    server.stop()


def test_nothing_is_deleted_before_a_checkpoint(serve_s3: ServeS3) -> None:
    """
    An object whose blocks have all been overwritten is still needed: recovery goes through its
    header, and its killers may be lost. (Defects 4, 10 and 11.)
    """
    server = serve_s3("v", gc_delay="0")
    handle = server.connect()
    for number in range(1, 40):
        handle.pwrite(stamp(number), 0)
        handle.flush()
    time.sleep(3)  # some rounds of garbage collection
    assert len(serve_s3.objects("v", "log/")) == 40
    server.kill()
    # The last three are lost: the state is that before them.
    for key in sorted(serve_s3.objects("v", "log/"), key=lambda k: k[-16:])[-3:]:
        delete(serve_s3, "v", key)
    assert serve_s3("v").connect().pread(BLOCK, 0) == stamp(36)


def test_garbage_before_the_first_full_root(serve_s3: ServeS3) -> None:
    """Recovery from roots that build upon nothing goes through objects that have long been deleted."""
    server = serve_s3("v", size="1T", gc_delay="0", checkpoint="4")
    handle = server.connect()
    # Far from each other: the map is too large for a full root.
    for number in range(600):
        handle.pwrite(stamp(number), (number % 100) << 33)
        handle.flush()
    wait_until("log objects are deleted", lambda: len(log_objects(serve_s3, "v")) < 300, PATIENCE_S)
    for crashed in (True, False):
        for number in range(500, 600):
            assert handle.pread(BLOCK, (number % 100) << 33) == stamp(number), f"block {number % 100}"
        if crashed:
            server.kill()
            server = serve_s3("v", gc_delay="0", checkpoint="4")
            handle = server.connect()
    server.stop()
    assert {key.rpartition("/")[2] for key in serve_s3.objects("v", "ckpt/")} == {"root", "summary"}


@pytest.mark.parametrize("how", ["flipped", "cut short", "gone", "without its summary"])
def test_damaged_checkpoint(serve_s3: ServeS3, how: str) -> None:
    """The one before it, and the log, give the same state."""
    model = Model(3)
    for _ in range(2):
        server = serve_s3("v", gc_delay="0")
        model.write(server.connect(), 20)
        server.stop()
    newest = roots(serve_s3, "v")[-1]
    assert len(roots(serve_s3, "v")) == 2
    if how == "gone":
        delete(serve_s3, "v", newest)
    elif how == "without its summary":
        summary = newest.removesuffix("root") + "summary"
        assert summary in serve_s3.objects("v", "ckpt/")
        delete(serve_s3, "v", summary)
    else:
        overwrite(serve_s3, "v", newest, flipped if how == "flipped" else lambda data: data[:-1])
    model.check(serve_s3("v").connect())


def test_log_that_ends_before_the_checkpoint_is_refused(serve_s3: ServeS3) -> None:
    """Objects that only older roots need are deleted; without a root, such a gap is no end of the log."""
    model = Model(6)
    for _ in range(2):
        server = serve_s3("v", gc_delay="0")
        model.write(server.connect(), 5)
        server.stop()
    for key in roots(serve_s3, "v"):
        overwrite(serve_s3, "v", key, flipped)
    delete(serve_s3, "v", min(serve_s3.objects("v", "log/"), key=lambda k: k[-16:]))
    before = serve_s3.objects("v")
    with pytest.raises(AssertionError, match=roots(serve_s3, "v")[-1]):
        serve_s3("v")
    assert serve_s3.objects("v") == before


@pytest.mark.parametrize("how", ["flipped", "cut short", "foreign"])
def test_damaged_log_is_refused(serve_s3: ServeS3, how: str) -> None:
    """It may hold what was flushed: one clear line, and nothing is changed."""
    server = serve_s3("v")
    Model(4).write(server.connect(), 10)
    server.kill()
    log = sorted(serve_s3.objects("v", "log/"), key=lambda k: k[-16:])
    change: dict[str, Callable[[bytes], bytes]] = {
        "flipped": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        "cut short": lambda data: data[:-1],
        "foreign": lambda data: b"hello",
    }
    overwrite(serve_s3, "v", log[5], change[how])
    before = serve_s3.objects("v")
    with pytest.raises(AssertionError, match=log[5]):
        serve_s3("v")
    assert serve_s3.objects("v") == before


def log_objects(serve: ServeS3, volume: str) -> list[str]:
    """Keys of the log's objects, oldest first."""
    return sorted(serve.objects(volume, "log/"), key=lambda key: key[-16:])


def wait_for_objects(serve: ServeS3, volume: str, count: int) -> None:
    wait_until(f"there are {count} log objects", lambda: len(log_objects(serve, volume)) >= count, PATIENCE_S)


def test_object_that_had_been_stored_is_missed(serve_s3: ServeS3) -> None:
    """A store that loses an object ends in an error and not in the loss of what was flushed after it."""
    server = serve_s3("v")
    handle = server.connect()
    for number in range(1, 21):
        handle.pwrite(stamp(number), number * BLOCK)
        handle.flush()
    server.kill()
    gone = log_objects(serve_s3, "v")[10]  # the first is the fence: block 10
    delete(serve_s3, "v", gone)
    before = serve_s3.objects("v")
    with pytest.raises(AssertionError, match=f"{gone} is missing, although .*readonly=on"):
        serve_s3("v")
    server = serve_s3("v", readonly="on")
    handle = server.connect()
    for number in range(1, 21):
        wanted = stamp(number) if number < 10 else bytes(BLOCK)
        assert handle.pread(BLOCK, number * BLOCK) == wanted, f"block {number}"
    assert f"{gone} is missing, although" in server.output()
    server.stop()
    assert serve_s3.objects("v") == before
    # The way out that the message names.
    for key in log_objects(serve_s3, "v")[10:]:
        delete(serve_s3, "v", key)
    handle = serve_s3("v").connect()
    assert handle.pread(2 * BLOCK, 9 * BLOCK) == stamp(9) + bytes(BLOCK)


def test_object_that_was_never_stored_ends_the_log(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """
    What comes after a gap never comes back, also when the log has grown past it again. (Defects 12
    and 4.)
    """
    server = serve_s3("v", through=proxy)
    handle = server.connect()
    for number in range(1, 10):
        handle.pwrite(stamp(number), number * BLOCK)
        handle.flush()
    # The first object is the fence: this is block 10.
    never = proxy.add(Rule(refused(503, "SlowDown"), method="PUT", key=f"/log/0b/{11:016x}"))
    for number in range(10, 21):
        handle.pwrite(stamp(number), number * BLOCK)
        handle.aio_flush()
        if number == 10:
            wait_until("block 10 is uploaded", lambda: never.taken > 0, PATIENCE_S)
        else:
            wait_for_objects(serve_s3, "v", number)
    server.kill()
    proxy.clear()
    for attempt in range(2):
        server = serve_s3("v")
        handle = server.connect()
        for number in range(1, 21):
            wanted = stamp(number) if number < 10 else bytes(BLOCK)
            assert handle.pread(BLOCK, number * BLOCK) == wanted, f"block {number}, opened {attempt + 1} times"
        server.kill()
    server = serve_s3("v")
    handle = server.connect()
    for number in range(1, 6):
        handle.pwrite(stamp(100 + number), number * BLOCK)
        handle.flush()
    server.kill()
    handle = serve_s3("v").connect()
    for number in range(1, 21):
        wanted = stamp(100 + number) if number < 6 else stamp(number) if number < 10 else bytes(BLOCK)
        assert handle.pread(BLOCK, number * BLOCK) == wanted, f"block {number}"


@pytest.mark.parametrize("features", ["zstd", "zstd aes"])
def test_garbage_of_a_transformed_volume(serve_s3: ServeS3, features: str) -> None:
    """Parts of units of many objects are put together again."""
    model = Model(8)
    server = serve_s3("v", features=features, gc_delay="0", checkpoint="64")
    handle = server.connect()
    for _ in range(2):
        model.write(handle, 150)
        wait_until("something is compacted", lambda: bool(serve_s3.objects("v", "gc/")), PATIENCE_S)
    model.write(handle, 50)
    model.check(handle)
    server.kill()
    server = serve_s3("v", features=features)
    model.check(server.connect())
    server.stop()
    assert "is damaged" not in server.output()


def test_what_changes_nothing_costs_nothing(serve_s3: ServeS3) -> None:
    """Flushes of nothing, and trims of what is empty, make no object."""
    server = serve_s3("v", size="16T")
    handle = server.connect()
    for at in range(0, 16 << 40, 1 << 40):
        handle.trim((4 << 30) - BLOCK, at)
        handle.zero((4 << 30) - BLOCK, at)
        handle.flush()
    assert len(serve_s3.objects("v", "log/")) == 1  # the fence
    handle.pwrite(stamp(1), 5 << 40)
    for at in range(0, 16 << 40, 4 << 30):
        handle.trim((4 << 30) - BLOCK, at)
    handle.flush()
    assert handle.pread(BLOCK, 5 << 40) == bytes(BLOCK)
    assert len(serve_s3.objects("v", "log/")) <= 3


def test_own_object_with_a_long_header_is_no_other_writer(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """Stored but not yet answered it stands where another writer's fence would."""
    server = serve_s3("v", through=proxy, gc_delay="0", batch_size="4M", timeout="300")
    handle = server.connect()
    handle.pwrite(b"".join(stamp(1) for _ in range(BLOCKS)), 0)
    handle.flush()
    released = threading.Event()
    held = proxy.add(Rule(delayed(after=lambda: float(not released.wait(100))), method="PUT", key="/log/", times=1))
    looked = proxy.add(Rule(passed_on, method="GET", key=f"/log/.*{3:016x}$"))
    # A whole batch of as many records; and then compaction of what is stored becomes worth while.
    for block in range(BLOCKS, 3 * BLOCKS, 2):
        handle.pwrite(stamp(2), block * BLOCK)
    wait_until("the batch is uploaded", lambda: held.taken == 1, PATIENCE_S)
    for _ in range(2):
        for block in range(BLOCKS - 64):
            handle.pwrite(stamp(2), block * BLOCK)
    wait_until("the volume looks for another writer", lambda: looked.taken >= 2, PATIENCE_S)
    released.set()
    handle.flush()
    handle.pwrite(stamp(3), 0)
    handle.flush()
    assert handle.pread(BLOCK, 0) == stamp(3)
    server.stop()
    assert "another writer" not in server.output()
