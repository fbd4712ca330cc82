# SPDX-License-Identifier: BSD-3-Clause
"""Compression and encryption of the S3 device: what is stored, what is refused, what damage does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from device import KEY, ServeS3
from fault_proxy import Exchange, FaultProxy, Rule, flipped_byte, flipped_byte_sent, passed_on, shortened_reply
from nbdkit_server import Handle, NbdError, fio_random_verify
from servers import BUCKET, Versitygw
from waiting import wait_until

MIB = 1 << 20
BLOCK = 4096
PATTERN = b"The quick brown fox jumps over the lazy dog. "  # compresses, and is easily found


def text(blocks: int) -> bytes:
    size = blocks * BLOCK
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


def stored_files(serve: ServeS3, volume: str) -> list[Path]:
    """The files in which versitygw keeps the objects."""
    assert isinstance(serve.store, Versitygw)
    directory = serve.store.objects / serve.prefix / volume
    return [path for path in directory.rglob("*") if path.is_file()]


def fill(handle: Handle) -> bytes:
    """What compresses and what does not, in parts that overlap, so that compaction has something to do."""
    model = bytearray(8 * MIB)
    rng = random.Random(5)
    for i in range(300):
        first = rng.randrange(2048 - 64)
        data = text(64) if i % 2 else rng.randbytes(17 * BLOCK)
        handle.pwrite(data, first * BLOCK)
        model[first * BLOCK : first * BLOCK + len(data)] = data
        if i % 10 == 0:
            handle.flush()
    handle.flush()
    return bytes(model)


@pytest.mark.parametrize("features", ["", "zstd", "aes", "zstd aes"])
def test_plaintext_is_nowhere_in_an_encrypted_volume(serve_s3: ServeS3, features: str) -> None:
    server = serve_s3("v", features=features, gc_delay="0", checkpoint="8", batch_size="1M")
    model = fill(server.connect())
    server.stop()
    server = serve_s3("v", features=features)
    assert server.connect().pread(len(model), 0) == model
    server.kill()
    data = [path.read_bytes() for path in stored_files(serve_s3, "v")]
    assert len(data) > 3
    # The pattern may be gone where data is compressed; otherwise every part is there.
    parts = [part for i in range(0, len(model), 64 * 997) if any(part := model[i : i + 64])]
    found = [part for part in parts if any(part in body for body in data)]
    if "aes" in features:
        assert not found and not any(PATTERN in body for body in data)
    else:
        assert found
    assert not any(KEY in body for body in data)


@pytest.mark.parametrize("features", ["zstd", "zstd aes"])
def test_compression_makes_small(serve_s3: ServeS3, features: str) -> None:
    server = serve_s3("v", features=features)
    handle = server.connect()
    before = sum(serve_s3.objects("v", "log/").values())
    handle.pwrite(text(2048), 0)
    handle.flush()
    small = sum(serve_s3.objects("v", "log/").values()) - before
    assert 8192 < small < MIB
    handle.pwrite(random.Random(1).randbytes(8 * MIB), 16 * MIB)
    handle.flush()
    # What does not shrink is stored as it is.
    large = sum(serve_s3.objects("v", "log/").values()) - before - small
    assert 8 * MIB < large < 8 * MIB * 1.01
    assert handle.pread(8 * MIB, 0) == text(2048)
    server.stop()
    counters = server.counters()
    assert counters["log_bytes"] == small + large


def test_parallel_sealing(serve_s3: ServeS3) -> None:
    server = serve_s3("v", features="zstd aes", batch_size="1M", checkpoint="8")
    load = ("--size=32M", "--iodepth=32", "--bsrange=4k-256k", "--buffer_compress_percentage=50")
    fio_random_verify(server.uri, *load)
    server.stop()


def test_clone_of_an_encrypted_volume(serve_s3: ServeS3) -> None:
    """It has the parent's key and a check of its own, and reads what the parent's derived key had encrypted."""
    parent = serve_s3.drive("v", features="zstd aes")
    parent.pwrite(text(64), 0)
    parent("create", "a")
    parent("clone", "a", serve_s3.prefix, "c")
    serve_s3.cloned("c")
    parent.stop()
    with refused(serve_s3, "c", "is encrypted; give"):
        serve_s3("c")
    handle = serve_s3("c", features="zstd aes").connect()
    handle.pwrite(bytes(BLOCK), BLOCK)
    assert handle.pread(64 * BLOCK, 0) == text(1) + bytes(BLOCK) + text(64)[2 * BLOCK :]
    assert serve_s3("v", features="zstd aes").connect().pread(64 * BLOCK, 0) == text(64)


@contextmanager
def refused(serve: ServeS3, volume: str, message: str) -> Iterator[None]:
    """An open ends with one line, which says this, and nothing is changed."""
    before = serve.objects(volume)
    with pytest.raises(AssertionError, match=message) as error:
        yield
    lines = [line for line in str(error.value).splitlines() if "nbdkit" in line]
    assert len(lines) == 1, lines
    assert serve.objects(volume) == before


def test_wrong_keys_are_refused(serve_s3: ServeS3, tmp_path: Path) -> None:
    server = serve_s3("v", features="aes")
    server.connect().pwrite(text(1), 0)
    server.stop()
    files = {"wrong": bytes(32), "short": bytes(31), "long": bytes(33)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for name, message in {
        "wrong": "is not the key",
        "short": "does not have exactly 32 bytes",
        "long": "does not have exactly 32 bytes",
        "none": "No such file",
    }.items():
        with refused(serve_s3, "v", f"encryption-key=.*/{name}: .*{message}"):
            serve_s3("v", encryption_key=str(tmp_path / name))
    with refused(serve_s3, "v", "is encrypted; give .*encryption-key="):
        serve_s3("v")
    with refused(serve_s3, "v", "is encrypted; give .*encryption-key="):
        serve_s3("v", readonly="on")
    with refused(serve_s3, "v", "memory=90000000: too little"):
        serve_s3("v", features="aes", memory="90000000")
    assert serve_s3("v", features="aes").connect().pread(BLOCK, 0) == text(1)


def test_features_are_the_volumes(serve_s3: ServeS3) -> None:
    """They are decided at creation: what can no longer be changed is refused, what is there is used."""
    serve_s3("v").stop()
    with refused(serve_s3, "v", "compress=zstd: volume=v is not compressed"):
        serve_s3("v", compress="zstd")
    with refused(serve_s3, "v", "encryption-key=.*: volume=v is not encrypted"):
        serve_s3("v", features="aes")
    server = serve_s3("w", compress="zstd")
    server.connect().pwrite(text(256), 0)
    server.stop()
    server = serve_s3("w")
    server.connect().pwrite(text(256), MIB)
    server.stop()
    assert sum(serve_s3.objects("w", "log/").values()) < 256 * 1024


@pytest.mark.parametrize("features", ["zstd", "aes"])
def test_damage_is_an_error_that_names_the_object(serve_s3: ServeS3, features: str) -> None:
    server = serve_s3("v", features=features)
    handle = server.connect()
    handle.pwrite(text(64), 0)
    handle.flush()
    noise = random.Random(2).randbytes(64 * BLOCK)
    handle.pwrite(noise, MIB)
    handle.flush()
    server.stop()
    victim = sorted(serve_s3.objects("v", "log/"), key=lambda key: key[-16:])[2]
    client, name = serve_s3.store.client(), f"{serve_s3.prefix}/v/{victim}"
    data = bytearray(client.get_object(Bucket=BUCKET, Key=name)["Body"].read())
    data[-1] ^= 1
    client.put_object(Bucket=BUCKET, Key=name, Body=bytes(data))
    server = serve_s3("v", features=features)
    handle = server.connect()
    with pytest.raises(NbdError, match="Input/output"):
        handle.pread(BLOCK, MIB + 63 * BLOCK)
    # The unit beside it, and the other object.
    assert handle.pread(BLOCK, MIB) == noise[:BLOCK]
    assert handle.pread(64 * BLOCK, 0) == text(64)
    assert f"the data of object {name} is damaged" in server.output()
    server.stop()


@pytest.mark.parametrize("features", ["zstd", "zstd aes"])
def test_damage_on_the_way_is_read_again(serve_s3: ServeS3, proxy: FaultProxy, features: str) -> None:
    server = serve_s3("v", features=features)
    handle = server.connect()
    handle.pwrite(text(512), 0)
    handle.flush()
    server.stop()
    handle = serve_s3("v", through=proxy, features=features).connect()
    rules = [
        proxy.add(Rule(flipped_byte(-1), method="GET", key="/log/", skip=1, times=1)),
        proxy.add(Rule(flipped_byte(0), method="GET", key="/log/", skip=3, times=1)),
        proxy.add(Rule(shortened_reply(100), method="GET", key="/log/", skip=5, times=2)),
    ]
    for first in range(0, 512, 16):
        assert handle.pread(16 * BLOCK, first * BLOCK) == text(512)[first * BLOCK :][: 16 * BLOCK]
    assert all(rule.taken == rule.times for rule in rules)


@pytest.mark.parametrize("signing", ["sha256", "crc32c"])
def test_damage_of_what_is_uploaded_is_refused(serve_s3: ServeS3, proxy: FaultProxy, signing: str) -> None:
    """The store does it, by the digest or by the checksum; then the device sends it again."""
    heads: list[tuple[bool, bool]] = []

    def damaged(exchange: Exchange) -> None:
        digest = exchange.request.get("x-amz-content-sha256")
        heads.append((digest == "UNSIGNED-PAYLOAD", exchange.request.get("x-amz-checksum-crc32c") is not None))
        flipped_byte_sent(-1)(exchange)

    server = serve_s3("v", through=proxy, payload_signing=signing)
    handle = server.connect()
    proxy.add(Rule(damaged, method="PUT", key="/log/", times=1))
    handle.pwrite(text(64), 0)
    handle.flush()
    assert heads == [(signing == "crc32c",) * 2]
    assert [p.status for p in proxy.passed if p.method == "PUT" and "/log/" in p.key][-2:] == [400, 200]
    server.stop()
    assert "payload-signing" not in server.output()
    assert serve_s3("v").connect().pread(64 * BLOCK, 0) == text(64)


def test_reserve_is_stored_with_a_checksum(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """With payload-signing=crc32c it is not hashed either, and is what its checksum says."""
    put: list[tuple[str | None, bool, int]] = []

    def noted(exchange: Exchange) -> None:
        digest = exchange.request.get("x-amz-content-sha256")
        passed_on(exchange)
        put.append((digest, exchange.request.get("x-amz-checksum-crc32c") is not None, exchange.answered or 0))

    server = serve_s3("v", through=proxy, payload_signing="crc32c", batch_size="1M", uploads="1", memory="16M")
    handle = server.connect()
    proxy.add(Rule(noted, method="PUT", key="/probe/"))
    for place in range(40):
        handle.pwrite(random.Random(place).randbytes(MIB), place * MIB)
    handle.flush()
    wait_until("a PUT", lambda: put)
    assert put == [("UNSIGNED-PAYLOAD", True, 200)]
