# SPDX-License-Identifier: BSD-3-Clause
"""Snapshots, clones, another size, and what nobody knows in gc/; crashes in the middle of them: test_crash.py."""

from __future__ import annotations

import copy
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from errno import EBUSY, EEXIST, EINVAL, EIO, ENOENT, ENOTEMPTY, EOPNOTSUPP, EROFS
from pathlib import Path
from typing import Any

import pytest
from device import ServeS3
from fault_proxy import FaultProxy, Rule, done_but_refused
from fault_proxy import refused as refused_by
from history import History
from nbdkit_server import NbdError, fio_random_verify
from servers import BUCKET
from stamps import BLOCK, numbers
from tool import Tool
from volume_driver import Ended, Refused, VolumeDriver
from volume_writer import BLOCKS, RUN, Writer, content, read
from waiting import wait_until

MIB = 1 << 20


def holds(data: bytes | bytearray, number: int, first: int = 0) -> bool:
    """Are all blocks of one write?"""
    return set(numbers(data, RUN, first)) == {number}


def refused(error: int, call: Callable[..., Any], *words: object) -> None:
    with pytest.raises(Refused) as caught:
        call(*words)
    assert caught.value.errno == error


def names(driver: VolumeDriver) -> list[str]:
    return [snapshot.name for snapshot in driver.snapshots()]


def test_snapshots_hold_what_was_there_while_writes_go_on(serve_s3: ServeS3) -> None:
    """Each holds all that had been acknowledged and nothing out of order, and stays as it is."""
    driver = serve_s3.drive("v", batch_size="1M", checkpoint="8", gc_delay="0")
    writer = Writer(driver, 1)
    past: dict[str, tuple[int, History]] = {}
    for name in ("one", "two", "three"):
        for _ in range(200):
            writer.step()
        sent = writer.history.submit_flush()
        order = driver.submit("create", name)
        while not order.done():
            writer.step()
        order.result()
        past[name] = (sent, copy.deepcopy(writer.history))
    found: dict[str, bytes] = {}
    for name, (sent, history) in past.items():
        found[name] = read(serve_s3, "v", snapshot=name)
        history.acknowledge_flush(sent)
        history.check(numbers(found[name], RUN, 0))
        for _ in range(100):
            writer.step()
    assert len(set(found.values())) == 3
    # Checkpoints and garbage collection leave alone what they need.
    for _ in range(1500):
        writer.step()
    writer.finish()
    driver("gc")
    assert names(driver) == ["one", "two", "three"]
    for name, data in found.items():
        assert read(serve_s3, "v", snapshot=name) == data, name
    driver.stop()
    for name, data in found.items():
        assert read(serve_s3, "v", snapshot=name) == data, name
    writer.history.check(numbers(read(serve_s3, "v"), RUN, 0))


def test_snapshot_is_read_only_and_leaves_the_writer_alone(serve_s3: ServeS3) -> None:
    driver = serve_s3.drive("v")
    driver.pwrite(content(1), 0)
    driver("create", "a")
    before = serve_s3.objects("v")
    server = serve_s3("v", snapshot="a")
    handle = server.connect()
    assert handle.is_read_only()
    with pytest.raises(NbdError):
        handle.pwrite(bytes(BLOCK), 0)
    assert holds(handle.pread(BLOCKS * BLOCK, 0), 1)
    reader = serve_s3.drive("v", snapshot="a")
    for words in (("create", "b"), ("delete", "a"), ("rollback", "a"), ("resize", 128 * MIB)):
        refused(EROFS, reader, *words)
    server.stop()
    reader.stop()
    assert serve_s3.objects("v") == before
    driver.pwrite(content(2), 0)
    driver("flush")


def test_names(serve_s3: ServeS3) -> None:
    driver = serve_s3.drive("v")
    driver("create", "a.b-1")
    refused(EEXIST, driver, "create", "a.b-1")
    for name in ("A", "a/b", ".a", "a" * 64):
        refused(EINVAL, driver, "create", name)
    for order in ("delete", "rollback"):
        refused(ENOENT, driver, order, "b")
    refused(ENOENT, driver, "clone", "b", serve_s3.prefix, "c")
    driver("create", "b" * 63)
    assert names(driver) == ["a.b-1", "b" * 63]
    lines = driver.output().splitlines()
    assert all(re.match("snapshot=.*: ", line) for line in lines) and len(lines) == 8
    driver.stop()
    with pytest.raises(
        AssertionError, match=rf"snapshot=c: volume v has no such snapshot; there are a.b-1, {'b' * 63}"
    ):
        serve_s3("v", snapshot="c")
    driver = serve_s3.drive("v")
    for name in names(driver):
        driver("delete", name)
    assert names(driver) == [] and not serve_s3.objects("v", "snap/")
    with pytest.raises(AssertionError, match="snapshot=c: volume v has no such snapshot; it has no snapshot at all"):
        serve_s3("v", snapshot="c")


def test_layout_direct_has_none(serve_s3: ServeS3) -> None:
    driver = serve_s3.drive("v", layout="direct")
    for words in (("create", "a"), ("delete", "a"), ("rollback", "a"), ("resize", 128 * MIB), ("gc",)):
        refused(EOPNOTSUPP, driver, *words)
    assert names(driver) == []
    driver.stop()
    with pytest.raises(AssertionError, match="snapshot=a: volume v has layout=direct"):
        serve_s3("v", snapshot="a")


def test_what_is_known_of_a_snapshot(serve_s3: ServeS3) -> None:
    driver = serve_s3.drive("v")
    driver.pwrite(content(1), 0)
    driver("create", "a")
    driver("resize", 128 * MIB)
    driver("create", "b")
    a, b = driver.snapshots()
    assert 0 < a.seq < b.seq and a.children == b.children == 0
    assert (a.blocks, b.blocks) == (64 * MIB // BLOCK, 128 * MIB // BLOCK)
    assert abs(a.time - time.time()) < 600
    driver.kill()
    assert serve_s3.drive("v").snapshots() == [a, b]


def test_delete_frees_what_only_the_snapshot_held(serve_s3: ServeS3) -> None:
    driver = serve_s3.drive("v", gc_delay="0", batch_size="1M")
    driver.pwrite(content(1), 0)
    driver("create", "a")
    driver.pwrite(content(2), 0)
    driver("create", "b")
    driver.pwrite(content(3), 0)
    driver("gc")
    counters = driver.counters()
    assert counters["held_bytes"] == 2 * BLOCKS * BLOCK
    assert counters["stored_bytes"] > 3 * BLOCKS * BLOCK
    driver("delete", "a")
    driver("gc")
    counters = driver.counters()
    assert counters["held_bytes"] == BLOCKS * BLOCK
    assert 2 * BLOCKS * BLOCK < counters["stored_bytes"] < 2.5 * BLOCKS * BLOCK
    assert holds(read(serve_s3, "v", snapshot="b"), 2)
    driver("delete", "b")
    driver("gc")
    counters = driver.counters()
    assert counters["held_bytes"] == 0 and counters["stored_bytes"] < 1.5 * BLOCKS * BLOCK
    data = sum(size for key, size in serve_s3.objects("v").items() if key.startswith(("log/", "gc/")))
    assert data < 1.5 * BLOCKS * BLOCK
    assert holds(driver.pread(BLOCKS * BLOCK, 0), 3)
    driver.kill()
    assert holds(read(serve_s3, "v"), 3)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_rollback(serve_s3: ServeS3, crash: bool) -> None:
    driver = serve_s3.drive("v", gc_delay="0", batch_size="1M", checkpoint="4")
    driver.pwrite(content(1), 0)
    driver("create", "a")
    driver.pwrite(content(2, 1000), 0)
    driver("create", "b")
    driver.pwrite(content(3, 500), 0)
    driver("trim", 1500 * BLOCK, 100 * BLOCK)
    refused(EBUSY, driver, "rollback", "a")
    driver("rollback", "b")

    def check(data: bytes) -> None:
        assert numbers(data, RUN, 0) == [2] * 1000 + [1] * (BLOCKS - 1000)

    check(driver.pread(BLOCKS * BLOCK, 0))
    driver.pwrite(content(4, 10), 0)
    driver("delete", "b")
    driver("rollback", "a")
    assert holds(driver.pread(BLOCKS * BLOCK, 0), 1)
    driver.pwrite(content(5, 10), 0)
    driver("flush")
    driver("gc")
    if crash:
        driver.kill()
    else:
        driver.stop()
    wanted = [5] * 10 + [1] * (BLOCKS - 10)
    assert numbers(read(serve_s3, "v"), RUN, 0) == wanted
    assert holds(read(serve_s3, "v", snapshot="a"), 1)
    driver = serve_s3.drive("v", gc_delay="0")
    driver("delete", "a")
    driver("gc")
    assert numbers(driver.pread(BLOCKS * BLOCK, 0), RUN, 0) == wanted
    assert driver.counters()["stored_bytes"] < 1.5 * BLOCKS * BLOCK


def test_rollback_brings_the_snapshots_size_back(serve_s3: ServeS3) -> None:
    driver = serve_s3.drive("v")
    driver.pwrite(content(1, 16), 63 * MIB)
    driver("create", "a")
    driver("trim", 32 * MIB, 32 * MIB)
    driver("resize", 32 * MIB)
    driver("rollback", "a")
    assert driver.size() == 64 * MIB
    assert driver.pread(16 * BLOCK, 63 * MIB) == content(1, 16)
    driver("resize", 128 * MIB)
    driver.pwrite(content(2, 16), 127 * MIB)
    driver("rollback", "a")
    assert driver.size() == 128 * MIB
    assert not any(driver.pread(16 * BLOCK, 127 * MIB))


def test_clones(serve_s3: ServeS3) -> None:
    """Clones change independently; the parent keeps the data that they need, and lists them."""
    parent = serve_s3.drive("v", gc_delay="0", batch_size="1M")
    parent.pwrite(content(1), 0)
    parent("create", "a")
    elsewhere = f"{serve_s3.prefix}-b"
    parent("clone", "a", serve_s3.prefix, "c")
    parent("clone", "a", elsewhere, "d")
    serve_s3.cloned("c")
    serve_s3.cloned("d")
    refused(EEXIST, parent, "clone", "a", serve_s3.prefix, "c")
    refused(EINVAL, parent, "clone", "a", serve_s3.prefix, "C")
    assert parent.snapshots()[0].children == 2
    child = serve_s3.drive("c", gc_delay="0", batch_size="1M")
    assert child.pread(BLOCKS * BLOCK, 0) == content(1)
    child.pwrite(content(2, 100), 0)
    child("flush")
    parent.pwrite(content(3), 0)
    refused(EBUSY, parent, "delete", "a")
    assert "has 2 clones, such as" in parent.output()
    parent("gc")
    wanted = [2] * 100 + [1] * (BLOCKS - 100)
    assert numbers(child.pread(BLOCKS * BLOCK, 0), RUN, 0) == wanted
    # A clone of the clone; and each is opened again from its own root.
    child("create", "a")
    child("clone", "a", elsewhere, "e")
    serve_s3.cloned("e")
    child.pwrite(content(4, 50), 0)
    child("gc")
    child.kill()
    assert numbers(read(serve_s3, "c"), RUN, 0) == [4] * 50 + wanted[50:]
    grandchild = serve_s3.drive("e", prefix=elsewhere, gc_delay="0")
    assert numbers(grandchild.pread(BLOCKS * BLOCK, 0), RUN, 0) == wanted
    grandchild.pwrite(content(5, 1, 1000), 1000 * BLOCK)
    grandchild.stop()
    assert numbers(read(serve_s3, "e", prefix=elsewhere), RUN, 0) == [*wanted[:1000], 5, *wanted[1001:]]
    assert holds(read(serve_s3, "d", prefix=elsewhere), 1)
    assert holds(parent.pread(BLOCKS * BLOCK, 0), 3)
    # Nothing of an ancestor's is ever the clone's to delete.
    overwriting = serve_s3.drive("d", prefix=elsewhere, gc_delay="0")
    overwriting.pwrite(content(6), 0)
    overwriting("gc")
    overwriting.stop()
    assert holds(read(serve_s3, "v", snapshot="a"), 1)
    assert holds(read(serve_s3, "d", prefix=elsewhere), 6)


def test_snapshot_is_free_when_its_clones_are_gone(serve_s3: ServeS3) -> None:
    parent = serve_s3.drive("v")
    parent.pwrite(content(1), 0)
    parent("create", "a")
    # Another process may clone it meanwhile.
    reader = serve_s3.drive("v", readonly="on")
    reader("clone", "a", serve_s3.prefix, "c")
    serve_s3.cloned("c")
    child = serve_s3.drive("c")
    refused(EBUSY, parent, "delete", "a")
    child.kill()
    (marker,) = serve_s3.objects("v", "snap/a/child/")
    client = serve_s3.store.client()
    for key in (*(f"c/{key}" for key in serve_s3.objects("c")), f"v/{marker}"):
        client.delete_object(Bucket=BUCKET, Key=f"{serve_s3.prefix}/{key}")
    parent("delete", "a")
    assert not serve_s3.objects("v", "snap/")
    refused(ENOENT, reader, "clone", "a", serve_s3.prefix, "d")
    assert not serve_s3.objects("d") and not serve_s3.objects("v", "snap/")


def test_snapshot_that_is_being_deleted_is_not_cloned(serve_s3: ServeS3) -> None:
    parent = serve_s3.drive("v")
    parent("create", "a")
    reader = serve_s3.drive("v", readonly="on")
    parent.stop()
    with pytest.raises(Ended):
        serve_s3.drive("v", failpoint="snap-mark-after")("delete", "a")
    refused(EBUSY, reader, "clone", "a", serve_s3.prefix, "c")
    assert not serve_s3.objects("c")
    # It had not begun; the mark goes with the next root.
    driver = serve_s3.drive("v")
    assert names(driver) == ["a"]
    refused(EBUSY, reader, "clone", "a", serve_s3.prefix, "c")
    driver.stop()
    reader("clone", "a", serve_s3.prefix, "c")


def test_clone_without_its_snapshot_is_refused(serve_s3: ServeS3) -> None:
    parent = serve_s3.drive("v")
    parent("create", "a")
    parent("clone", "a", serve_s3.prefix, "c")
    serve_s3.cloned("c")
    parent.stop()
    (root,) = serve_s3.objects("v", "snap/a/root-")
    serve_s3.store.client().delete_object(Bucket=BUCKET, Key=f"{serve_s3.prefix}/v/{root}")
    before = serve_s3.objects("c")
    with pytest.raises(AssertionError, match=f"clone of snapshot a of {serve_s3.prefix}/v"):
        serve_s3("c")
    assert serve_s3.objects("c") == before


def test_snapshot_outlives_the_root_that_knew_it(serve_s3: ServeS3) -> None:
    """The volume then opens from an older root, and takes the snapshot on its way through the log."""
    driver = serve_s3.drive("v", gc_delay="0")
    for number in range(20, 30):
        driver.pwrite(content(number, 10), 0)
        driver("flush")
    # What goes after the older root gives its places in the table to what comes, but not when that is replayed.
    driver("gc")
    driver.pwrite(content(2, 10), 0)
    driver("create", "a")
    driver.pwrite(content(3, 10), 0)
    driver("flush")
    driver.kill()
    newest = max(key for key in serve_s3.objects("v", "ckpt/") if key.endswith("/root"))
    serve_s3.store.client().put_object(Bucket=BUCKET, Key=f"{serve_s3.prefix}/v/{newest}", Body=b"damaged")
    driver = serve_s3.drive("v", gc_delay="0")
    assert names(driver) == ["a"]
    driver.pwrite(content(4, 10), 0)
    driver("gc")
    assert read(serve_s3, "v", 10, snapshot="a") == content(2, 10)
    driver("rollback", "a")
    assert driver.pread(10 * BLOCK, 0) == content(2, 10)
    driver.kill()
    assert read(serve_s3, "v", 10) == content(2, 10)


@pytest.mark.fencing
def test_fenced_writer_takes_no_snapshot(serve_s3: ServeS3) -> None:
    first = serve_s3.drive("v")
    first.pwrite(content(1, 10), 0)
    first("create", "a")
    second = serve_s3.drive("v")
    for words in (("create", "b"), ("delete", "a"), ("resize", 128 * MIB)):
        refused(EIO, first, *words)
    assert names(second) == ["a"] and second.size() == 64 * MIB
    second.kill()
    third = serve_s3.drive("v")
    assert names(third) == ["a"] and third.size() == 64 * MIB


def test_resize(serve_s3: ServeS3) -> None:
    driver = serve_s3.drive("v")
    driver.pwrite(content(1, 16), 63 * MIB)
    driver("flush")
    for size in (0, 4096, 64 * MIB + 512, 1 << 51):
        refused(EINVAL, driver, "resize", size)
    driver("resize", 100 * MIB)
    assert driver.size() == 100 * MIB and "resized to 104857600" in driver.output()
    assert not any(driver.pread(MIB, 99 * MIB))
    driver.pwrite(content(2, 16), 99 * MIB)
    driver.kill()  # the super object tells it
    server = serve_s3("v")
    handle = server.connect()
    assert handle.get_size() == 100 * MIB
    server.stop()
    driver = serve_s3.drive("v")
    driver.pwrite(content(2, 16), 99 * MIB)
    refused(ENOTEMPTY, driver, "resize", 64 * MIB)
    assert "trim it first" in driver.output() and driver.size() == 100 * MIB
    driver("trim", 64 * MIB, 36 * MIB)
    driver("resize", 64 * MIB)
    assert driver.size() == 64 * MIB
    with pytest.raises(Refused):
        driver.pwrite(bytes(BLOCK), 64 * MIB)
    driver("resize", 100 * MIB)
    assert not any(driver.pread(36 * MIB, 64 * MIB))
    driver.stop()
    driver = serve_s3.drive("v")
    assert driver.size() == 100 * MIB and driver.pread(16 * BLOCK, 63 * MIB) == content(1, 16)


def test_gc_on_demand(serve_s3: ServeS3) -> None:
    """Half of many small objects is garbage: afterwards there are few, and hardly any garbage."""
    driver = serve_s3.drive("v", gc_delay="0")
    rng = random.Random(3)
    wanted = [0] * 256
    for number in range(1, 61):
        block = rng.randrange(256)
        driver.pwrite(content(number, 1, block), block * BLOCK)
        driver("flush")
        wanted[block] = number
    done, total, calls = map(int, driver("gc").split())
    assert 0 < total and done == total and calls > 1
    data = [key for key in serve_s3.objects("v") if key.startswith(("log/", "gc/"))]
    assert len(data) < 10
    assert numbers(driver.pread(256 * BLOCK, 0), RUN, 0) == wanted
    assert driver("gc").split()[0] == b"0"  # nothing is left to do
    driver.kill()
    assert numbers(read(serve_s3, "v", 256), RUN, 0) == wanted


def test_orphans_in_gc_are_swept(serve_s3: ServeS3) -> None:
    """What nobody knows goes, if it is ours: not what another volume's number or another content says.

    Without conditional PUT its number may be given again before it is looked for: then it is replaced.
    """
    for name in ("v", "other"):
        driver = serve_s3.drive(name, gc_delay="0", failpoint="relocate-put-after")
        for number in range(1, 4):
            driver.pwrite(content(number, 10, number), number * BLOCK)
            driver("flush")
        with pytest.raises(Ended):
            driver("gc")
    (orphan,) = serve_s3.objects("v", "gc/")
    (others,) = serve_s3.objects("other", "gc/")
    client = serve_s3.store.client()
    body = client.get_object(Bucket=BUCKET, Key=f"{serve_s3.prefix}/other/{others}")["Body"].read()

    def etags() -> list[str]:
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{serve_s3.prefix}/v/{orphan}")
        return [item["ETag"] for item in listed.get("Contents", [])]

    before = etags()
    foreign = {"gc/07/0000000000000007": body, "gc/08/0000000000000008": b"hello"}
    for key, data in foreign.items():
        client.put_object(Bucket=BUCKET, Key=f"{serve_s3.prefix}/v/{key}", Body=data)
    driver = serve_s3.drive("v", gc_delay="0")
    driver.pwrite(content(9, 1), 0)
    wait_until("the orphan is deleted", lambda: etags() != before)
    assert set(foreign) <= set(serve_s3.objects("v", "gc/"))
    if serve_s3.store.conditional_put:
        assert not etags()
        assert driver.counters()["orphans"] == 1
    driver("gc")
    driver.kill()
    assert numbers(read(serve_s3, "v", 13), RUN, 0) == [9, 1, 2, *([3] * 10)]


def test_lost_replies(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """Each object is stored, and then the store says that it is not: once, and nobody notices."""
    driver = serve_s3.drive("v", through=proxy)
    driver.pwrite(content(1, 10), 0)
    puts = [r"/snap/a/root-[^/]*$", r"/ckpt/[^/]*/root$", r"/snap/a/child/", r"/v/super$", r"/c/super$"]
    rules = [proxy.add(Rule(done_but_refused(500, "InternalError"), method="PUT", key=key, times=1)) for key in puts]
    driver("create", "a")
    driver("resize", 100 * MIB)
    driver("clone", "a", serve_s3.prefix, "c")
    serve_s3.cloned("c")
    assert [rule.taken for rule in rules] == [1] * len(rules)
    assert [(s.name, s.children) for s in driver.snapshots()] == [("a", 1)]
    assert driver.size() == 100 * MIB
    driver.stop()
    assert serve_s3.drive("v").size() == 100 * MIB
    assert read(serve_s3, "c", 10) == read(serve_s3, "v", 10, snapshot="a") == content(1, 10)


@pytest.mark.parametrize("key", [r"/snap/a/root-[^/]*$", r"/ckpt/[^/]*/root$"], ids=["its own root", "the volume's"])
def test_snapshot_while_the_store_refuses(serve_s3: ServeS3, proxy: FaultProxy, key: str) -> None:
    """Without its own root there is none, and it may be taken again; without the volume's it is there."""
    driver = serve_s3.drive("v", through=proxy, retry_deadline="5", gc_delay="0")
    driver.pwrite(content(1, 10), 0)
    rule = proxy.add(Rule(refused_by(500, "InternalError"), method="PUT", key=key))
    if "snap" in key:
        refused(EIO, driver, "create", "a")
        assert names(driver) == []
        rule.times = 0
        driver("create", "a")
    else:
        driver("create", "a")
        rule.times = 0
    driver.pwrite(content(2, 10), 0)
    driver("gc")
    driver.pwrite(content(3, 10), 0)
    driver("flush")
    driver.kill()
    assert names(serve_s3.drive("v")) == ["a"]
    assert read(serve_s3, "v", 10, snapshot="a") == content(1, 10)
    assert read(serve_s3, "v", 10) == content(3, 10)


def test_orders_through_the_tool_while_a_server_writes(serve_s3: ServeS3, tmp_path: Path) -> None:
    """fio verifies what it writes through nbdkit, which is asked for it all at its control socket."""
    tool, control = Tool(serve_s3), str(tmp_path / "control")
    server = serve_s3("v", control=control, batch_size="1M", checkpoint="8", gc_delay="0")
    handle = server.connect()
    handle.pwrite(content(1, 256), 32 * MIB)
    with ThreadPoolExecutor(1) as pool:
        fio = pool.submit(fio_random_verify, server.uri, "--size=16M", "--iodepth=16", "--bs=4k", "--loops=2")
        for name in ("a", "b", "c"):
            tool("snapshot", "create", name, control=control)
        tool("snapshot", "delete", "b", control=control)
        assert [s["name"] for s in tool("snapshot", "list", control=control)["snapshots"]] == ["a", "c"]
        tool("clone", "a", "w", control=control)
        serve_s3.cloned("w")
        tool("resize", control=control, size="96M")
        tool("gc", control=control)
        fio.result()
    assert "has 1 clone, such as" in tool.refused("snapshot", "delete", "a", control=control)
    assert "is being served" in tool.refused("snapshot", "rollback", "c", control=control)
    # Connected clients keep the old size.
    assert handle.get_size() == 64 * MIB and server.connect().get_size() == 96 * MIB
    handle.pwrite(content(2, 256), 32 * MIB)
    handle.flush()
    served: list[tuple[str, dict[str, str]]] = [("v", {"snapshot": "a"}), ("v", {"snapshot": "c"}), ("w", {})]
    for volume, more in served:
        reader = serve_s3(volume, None, (), **more)
        assert reader.connect().pread(MIB, 32 * MIB) == content(1, 256)
        reader.stop()
