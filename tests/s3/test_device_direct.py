# SPDX-License-Identifier: BSD-3-Clause
"""layout=direct over a real store: its objects, what a flush promises, two writers, faults, wrong input."""

from __future__ import annotations

import random

import pytest
from device import ServeS3, parameters
from fault_proxy import (
    Action,
    FaultProxy,
    Rule,
    done_but_refused,
    done_but_reset,
    refused,
    reset_in_reply,
    reset_in_request,
)
from nbdkit_server import NbdError, fio_random_verify, nbd, run_nbdkit
from servers import BUCKET, Store

MIB = 1 << 20
DIRECT = {"layout": "direct", "chunk_size": "1M", "batch_size": "1M", "uploads": "2", "memory": "8M"}


def test_an_object_is_a_chunk(serve_s3: ServeS3) -> None:
    server = serve_s3("chunks", size="10M", **DIRECT)
    handle = server.connect()
    handle.pwrite(b"a" * 4096, 3 * MIB)
    handle.flush()
    assert serve_s3.objects("chunks", "chunk/") == {"chunk/03/0000000000000003": MIB}
    handle.pwrite(b"b" * MIB, 4 * MIB, nbd.CMD_FLAG_FUA)
    handle.trim(MIB, 3 * MIB)
    assert serve_s3.objects("chunks", "chunk/") == {"chunk/04/0000000000000004": MIB}
    server.stop()
    assert server.counters()["chunks"] == 1


def test_what_was_flushed_survives_a_kill(serve_s3: ServeS3) -> None:
    """Chunks that were being stored again meanwhile are as flushed, or newer."""
    rng = random.Random(3)
    server = serve_s3("killed", size="32M", **DIRECT)
    for generation in range(4):
        handle = server.connect()
        flushed = {}
        for block in rng.sample(range(32 * 256), 300):
            flushed[block] = bytes([generation * 2 + 1]) * 4096
            handle.pwrite(flushed[block], block * 4096)
        handle.flush()
        newer = bytes([generation * 2 + 2]) * 4096
        for block in list(flushed)[::3]:
            handle.pwrite(newer, block * 4096)
        server.kill()
        server = serve_s3("killed", **DIRECT)
        handle = server.connect()
        for block, data in flushed.items():
            assert handle.pread(4096, block * 4096) in (data, newer)


def test_a_second_writer_stops_the_first(serve_s3: ServeS3) -> None:
    first = serve_s3("two", **DIRECT)
    old = first.connect()
    old.pwrite(b"a" * 4096, 0)
    old.flush()
    second = serve_s3("two", **DIRECT)
    new = second.connect()
    assert new.pread(4096, 0) == b"a" * 4096
    old.pwrite(b"b" * 4096, 5 * MIB)
    with pytest.raises(NbdError):
        old.flush()
    with pytest.raises(NbdError):
        old.pread(4096, 0)
    new.pwrite(b"c" * 4096, 4096, nbd.CMD_FLAG_FUA)
    second.stop()
    assert "another writer" in first.output()


def test_a_writer_that_was_taken_over_ends(serve_s3: ServeS3) -> None:
    """It does not store what it has in memory over what the other one has flushed since."""
    first = serve_s3("two", **DIRECT)
    old = first.connect()
    old.pwrite(b"a" * 4096, 0, nbd.CMD_FLAG_FUA)
    second = serve_s3("two", **DIRECT)
    new = second.connect()
    new.pwrite(b"b" * MIB, 0, nbd.CMD_FLAG_FUA)
    old.pwrite(b"c" * 4096, 0)
    first.stop(expect=1)
    assert "another writer took the volume over" in first.output()
    second.stop()
    assert serve_s3("two", **DIRECT).connect().pread(MIB, 0) == b"b" * MIB


def test_a_reader_beside_a_writer(serve_s3: ServeS3) -> None:
    """It sees what there was when it opened the volume, or an error."""
    handle = serve_s3("read", **DIRECT).connect()
    for chunk in (0, 2, 3, 4):
        handle.pwrite(b"a" * MIB, chunk * MIB)
    handle.flush()
    server = serve_s3("read", readonly="on", **DIRECT)
    reader = server.connect()
    handle.pwrite(b"b" * MIB, 0)
    handle.pwrite(b"b" * MIB, MIB)
    handle.trim(MIB, 2 * MIB)
    handle.pwrite(b"a" * MIB, 3 * MIB, nbd.CMD_FLAG_FUA)
    assert reader.pread(MIB, MIB) == bytes(MIB)
    assert reader.pread(MIB, 4 * MIB) == b"a" * MIB
    for chunk in (0, 2):
        with pytest.raises(NbdError):
            reader.pread(4096, chunk * MIB)
    assert server.output().count("it has been changed since the volume was opened") == 2


def test_mkfs_of_16_tib(serve_s3: ServeS3) -> None:
    """A trim of what is empty asks the store for nothing."""
    server = serve_s3("huge", size="16T", layout="direct")
    handle = server.connect()
    step = 1 << 31
    for offset in range(0, 16 << 40, step):
        handle.trim(step, offset)
    handle.pwrite(b"a" * 4096, (16 << 40) - 4096)
    handle.flush()
    assert len(serve_s3.objects("huge", "chunk/")) == 1
    server.stop()
    handle = serve_s3("huge").connect()
    assert handle.pread(8192, (16 << 40) - 8192) == bytes(4096) + b"a" * 4096


@pytest.mark.parametrize(
    ("action", "method"),
    [
        (refused(503, "SlowDown"), "PUT"),
        (done_but_refused(500, "InternalError"), "PUT"),
        (done_but_reset, "PUT"),
        (reset_in_request(100_000), "PUT"),
        (refused(500, "InternalError"), "GET"),
        (reset_in_reply(1000), "GET"),
    ],
    ids=["503", "500 after commit", "reset after commit", "reset in the body", "GET 500", "GET reset"],
)
def test_errors_of_the_store_are_retried(serve_s3: ServeS3, proxy: FaultProxy, action: Action, method: str) -> None:
    server = serve_s3("faults", through=proxy, **DIRECT)
    rule = proxy.add(Rule(action, method=method, key="/chunk/", skip=1, times=4))
    fio_random_verify(server.uri, "--bs=4k", "--size=16M", "--io_size=4M", "--iodepth=16", "--end_fsync=1")
    assert rule.taken > 0
    server.stop()


def test_a_chunk_that_was_refused_and_arrived_is_trimmed(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    server = serve_s3("arrived", through=proxy, **DIRECT)
    handle = server.connect()
    rule = proxy.add(Rule(done_but_refused(507, "InsufficientStorage"), method="PUT", key="/chunk/", times=1))
    handle.pwrite(b"a" * MIB, MIB)
    with pytest.raises(NbdError):
        handle.flush()
    handle.trim(MIB, MIB)
    assert rule.taken == 1
    handle.flush()
    assert serve_s3.objects("arrived", "chunk/") == {}
    handle.pwrite(b"b" * MIB, MIB, nbd.CMD_FLAG_FUA)
    server.stop()


def test_foreign_objects_are_refused(serve_s3: ServeS3, store: Store) -> None:
    serve_s3("foreign", **DIRECT).stop()
    chosen = parameters(store.url, store.credentials, "foreign", prefix=serve_s3.prefix, memory="80M")
    key = f"{serve_s3.prefix}/foreign/chunk/00/0000000000000000"
    store.client().put_object(Bucket=BUCKET, Key=key, Body=b"short")
    result = run_nbdkit("./plugins/s3.so", *chosen, "--run", "true")
    assert result.returncode != 0 and "is not a chunk of it" in result.stderr
    store.client().delete_object(Bucket=BUCKET, Key=key)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk-size": "3M"}, "chunk-size=3145728: not a power of two; use one such as 2097152"),
        ({"chunk-size": "1k"}, "chunk-size=1k: "),
        ({"chunk-size": "64M", "memory": "80M"}, "memory=83886080: too little for chunk-size=67108864; give 268435456"),
        ({"layout": "directly"}, "layout=directly: "),
    ],
)
def test_bad_parameters(store: Store, settings: dict[str, str], message: str) -> None:
    values = {"layout": "direct", "create": "on", "size": "64M", **settings}
    result = run_nbdkit("./plugins/s3.so", *parameters(store.url, store.credentials, "bad", **values))
    assert result.returncode != 0
    assert message in result.stderr


def test_a_log_is_not_served_as_direct(serve_s3: ServeS3, store: Store) -> None:
    serve_s3("alog").stop()
    chosen = parameters(store.url, store.credentials, "alog", prefix=serve_s3.prefix, layout="direct")
    result = run_nbdkit("./plugins/s3.so", *chosen, "--run", "true")
    assert result.returncode != 0
    assert "layout=direct: the volume exists and is a log" in result.stderr
