# SPDX-License-Identifier: BSD-3-Clause
"""userblk-s3's commands that change a volume, by its server and without one, and which servers they do not disturb."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from device import ServeS3
from fault_proxy import FaultProxy, Rule, refused
from nbdkit_server import NbdError, plugin_path, run_nbdkit
from servers import BUCKET
from stamps import BLOCK, stamped
from tool import Tool
from volume_driver import Ended
from waiting import wait_until

RUN = 17


@pytest.fixture
def tool(serve_s3: ServeS3) -> Tool:
    return Tool(serve_s3)


# ---- a volume that somebody else may have -----------------------------------------------------------


def test_one_that_may_be_in_use_is_not_taken(tool: Tool, serve_s3: ServeS3) -> None:
    server = serve_s3("v")
    handle = server.connect()
    handle.pwrite(stamped(RUN, 0, 1), 0)
    handle.flush()
    before = serve_s3.objects("v")
    for words in (["gc"], ["snapshot", "create", "x"], ["resize"], ["delete", "--confirm=v"]):
        assert "--take-over" in tool.refused(*words, size="128M" if words == ["resize"] else "")
    assert serve_s3.objects("v") == before
    # Reading disturbs nobody.
    assert tool("info")["was_closed"] is False
    assert tool("check")["damages"] == []
    handle.pwrite(stamped(RUN, 0, 2), 0)
    handle.flush()
    # Nor is one that has crashed.
    server.kill()
    assert "wrote" in tool.refused("gc")
    tool("gc", "--take-over", gc_delay="0")
    tool("gc", gc_delay="0")
    assert serve_s3("v").connect().pread(BLOCK, 0) == stamped(RUN, 0, 2)


def test_taken_over_server_is_fenced(tool: Tool, serve_s3: ServeS3) -> None:
    handle = serve_s3("v").connect()
    handle.pwrite(stamped(RUN, 0, 1), 0)
    handle.flush()
    tool("gc", "--take-over", gc_delay="0")
    handle.pwrite(stamped(RUN, 0, 2), 0)
    with pytest.raises(NbdError):
        handle.flush()


# ---- snapshots, clones, size, garbage -----------------------------------------------------------


def read_block(serve: ServeS3, volume: str) -> bytes:
    server = serve(volume)
    try:
        return bytes(server.connect().pread(BLOCK, 0))
    finally:
        server.stop()


@pytest.mark.parametrize("served", [False, True], ids=["closed", "served"])
def test_snapshots_and_clones(tool: Tool, serve_s3: ServeS3, tmp_path: Path, served: bool) -> None:
    where: dict[str, Any] = {"control": str(tmp_path / "control")} if served else {}
    server = serve_s3("v", **where)

    def write(number: int) -> None:
        """Block 0, which is durable afterwards; of a server that ends again if the volume must be closed."""
        running = server if served else serve_s3("v")
        handle = running.connect()
        handle.pwrite(stamped(RUN, 0, number), 0)
        handle.flush()
        if not served:
            running.stop()

    if not served:
        server.stop()
    write(1)
    tool("snapshot", "create", "monday", **where)
    write(2)
    (listed,) = tool("snapshot", "list", **where)["snapshots"]
    assert (listed["name"], listed["size_bytes"], listed["clones"]) == ("monday", 64 << 20, 0)
    assert abs(listed["created_time"] - time.time()) < 600
    assert "monday" in tool.refused("snapshot", "create", "monday", **where)
    assert "tuesday" in tool.refused("snapshot", "delete", "tuesday", **where)
    assert "UPPER" in tool.refused("snapshot", "create", "UPPER", **where)

    tool("clone", "monday", "w", **where)
    assert "w" in tool.refused("clone", "monday", "w", **where)
    assert tool("snapshot", "list", **where)["snapshots"][0]["clones"] == 1
    assert "1 clone" in tool.refused("snapshot", "delete", "monday", **where)
    clone = Tool(serve_s3, "w")
    assert clone("info")["parent_snapshot"] == "monday"
    assert clone("check")["damages"] == []
    serve_s3.made("w")
    assert read_block(serve_s3, "w") == stamped(RUN, 0, 1)
    if not served:
        assert "clones" in tool.refused("delete", "--confirm=v")
    clone("delete", "--confirm=w")
    assert serve_s3.objects("w") == {}
    assert tool("snapshot", "list", **where)["snapshots"][0]["clones"] == 0
    assert tool("check", **where)["damages"] == []

    if served:
        assert "is being served" in tool.refused("snapshot", "rollback", "monday", **where)
    else:
        tool("snapshot", "rollback", "monday")
        assert read_block(serve_s3, "v") == stamped(RUN, 0, 1)
    tool("snapshot", "delete", "monday", **where)
    assert tool("snapshot", "list", **where)["snapshots"] == []
    assert tool.run("snapshot", "list", **where).stdout == ""


@pytest.mark.parametrize("served", [False, True], ids=["closed", "served"])
def test_resize(tool: Tool, serve_s3: ServeS3, tmp_path: Path, served: bool) -> None:
    where: dict[str, Any] = {"control": str(tmp_path / "control")} if served else {}
    server = serve_s3("v", **where)
    if not served:
        server.stop()
    assert tool("resize", size="128M", **where)["size_bytes"] == 128 << 20
    assert tool("info", **where)["size_bytes"] == 128 << 20
    assert "1000000" in tool.refused("resize", size="1000000", **where)
    if served:
        handle = server.connect()
        assert handle.get_size() == 128 << 20
        handle.pwrite(stamped(RUN, 0, 1), 100 << 20)
        handle.flush()
        tool.refused("resize", size="64M", **where)  # it would cut off what was written
        assert bytes(handle.pread(BLOCK, 100 << 20)) == stamped(RUN, 0, 1)


def secret(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def listing(serve: ServeS3) -> list[tuple[str, str, Any]]:
    """Everything that this test has in the store: keys, digests, times."""
    pages = serve.store.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=serve.prefix)
    return [(o["Key"], o["ETag"], o["LastModified"]) for page in pages for o in page.get("Contents", [])]


def test_what_is_refused_leaves_nothing_in_the_store(tool: Tool, serve_s3: ServeS3, tmp_path: Path) -> None:
    """Not even the fence of who looked. w is encrypted, x has layout=direct."""
    secret(tmp_path / "key", bytes(range(32)))
    handle = serve_s3("v").connect()
    handle.pwrite(stamped(RUN, 0, 1), 63 << 20)
    handle.flush()
    serve_s3.servers[-1].stop()
    serve_s3("w", encryption_key=str(tmp_path / "key")).stop()
    serve_s3("x", layout="direct").stop()
    tool("snapshot", "create", "monday")
    tool("snapshot", "create", "tuesday")
    tool("clone", "monday", "c")
    new_key = f"--new-encryption-key={tmp_path / 'key'}"
    same_key = {"volume": "w", "encryption_key": str(tmp_path / "key")}
    before = listing(serve_s3)
    refusals: list[tuple[list[str], dict[str, str], str]] = [
        (["create"], {"size": "64M"}, "volume=v: exists already; choose another name"),
        (["snapshot", "create", "monday"], {}, "snapshot=monday: volume v has a snapshot of that name; choose another"),
        (["snapshot", "delete", "friday"], {}, "snapshot=friday: volume v has no such snapshot; "),
        (["snapshot", "delete", "monday"], {}, "snapshot=monday: has 1 clone, such as "),
        (["snapshot", "rollback", "friday"], {}, "snapshot=friday: volume v has no such snapshot; "),
        (["snapshot", "rollback", "monday"], {}, "snapshot=monday: there are newer snapshots, the last is tuesday;"),
        (["clone", "friday", "y"], {}, "snapshot=friday: volume v has no such snapshot; "),
        (["clone", "monday", "c"], {}, f"clone: the bucket holds objects below {serve_s3.prefix}/c/, such as "),
        (["resize"], {"size": "1000000"}, "size=1000000: "),
        (["resize"], {"size": "4096"}, "size=4096: "),
        (["resize"], {"size": "2P"}, "size="),
        (["resize"], {"size": "32M"}, "size=33554432: there is data beyond that size; trim it first"),
        (["rekey", new_key], {}, "volume=v: is not encrypted"),
        (["rekey", new_key], same_key, "volume=w: already has this"),
        (["gc", "--take-over"], {"volume": "x"}, "volume=x: has layout=direct, which has no gc; copy"),
        (["resize", "--take-over"], {"volume": "x", "size": "128M"}, "volume=x: has layout=direct, which has no"),
        (["delete", "--confirm=v"], {}, "volume=v: its snapshot monday has clones, which need its data"),
        (["delete", "--confirm=v", "--take-over"], {}, "volume=v: its snapshot monday has clones"),
        (["delete", "--confirm=z"], {"volume": "z"}, "volume=z: not found"),
        (["gc"], {"volume": "z"}, "volume=z: not found under prefix="),
    ]
    for words, more, line in refusals:
        assert tool.refused(*words, **more).startswith(line), (words, more)
        assert listing(serve_s3) == before, (words, more)
    # And what is not refused is done.
    tool("resize", size="128M")
    tool("snapshot", "delete", "tuesday")
    tool("snapshot", "rollback", "monday")


@pytest.mark.parametrize("served", [False, True], ids=["closed", "served"])
def test_rekey(tool: Tool, serve_s3: ServeS3, tmp_path: Path, served: bool) -> None:
    where: dict[str, Any] = {"control": str(tmp_path / "control")} if served else {}
    old, new = tmp_path / "old", tmp_path / "new"
    secret(old, bytes(range(32)))
    secret(new, bytes(range(1, 33)))
    server = serve_s3("v", encryption_key=str(old), **where)
    handle = server.connect()
    handle.pwrite(stamped(RUN, 0, 1), 0)
    handle.flush()
    if served:
        key = {}  # the server has it
    else:
        assert "--take-over" in tool.refused("rekey", f"--new-encryption-key={new}", encryption_key=str(old))
        server.stop()
        key = {"encryption_key": str(old)}
    before = serve_s3.objects("v", "log/")

    assert "missing" in tool.refused("rekey", **key, **where)
    assert "not an option" in tool.refused("resize", f"--new-encryption-key={new}", **where)
    for name, data, message in (
        ("short", bytes(31), "does not have exactly 32 bytes"),
        ("none", None, "No such file"),
        ("same", old.read_bytes(), "already has this key"),
    ):
        if data is not None:
            secret(tmp_path / name, data)
        text = tool.refused("rekey", f"--new-encryption-key={tmp_path / name}", **key, **where)
        assert message in text and "encryption-key" in text
    if not served:
        wrong = {"encryption_key": str(new)}
        assert "is not the key" in tool.refused("rekey", f"--new-encryption-key={old}", **wrong)
        assert "encryption-key=" in tool.refused("rekey", f"--new-encryption-key={new}")

    assert tool("rekey", f"--new-encryption-key={new}", **key, **where) == {"old_key_opens_data": False}
    if served:
        handle.pwrite(stamped(RUN, 1, 2), BLOCK)
        handle.flush()
        server.stop()
    else:
        after = serve_s3.objects("v", "log/")
        assert {name: after[name] for name in before} == before
    assert "is not the key" in tool.refused("info", encryption_key=str(old))
    # A key that others may read is no secret.
    new.chmod(0o644)
    result = tool.run("rekey", f"--new-encryption-key={new}", encryption_key=str(old))
    assert f"--new-encryption-key={new}: every user may read it" in result.stderr
    new.chmod(0o600)
    handle = serve_s3("v", encryption_key=str(new)).connect()
    assert handle.pread(BLOCK, 0) == stamped(RUN, 0, 1)
    if served:
        assert handle.pread(BLOCK, BLOCK) == stamped(RUN, 1, 2)


@pytest.mark.parametrize("point", ["rekey-super-before", "rekey-super-after"])
def test_killed_rekey(tool: Tool, serve_s3: ServeS3, tmp_path: Path, point: str) -> None:
    keys = {name: tmp_path / name for name in ("old", "new")}
    for number, path in enumerate(keys.values()):
        secret(path, bytes([number]) * 32)
    driver = serve_s3.drive("v", encryption_key=str(keys["old"]), failpoint=point)
    driver.pwrite(stamped(RUN, 0, 1), 0)
    driver("flush")
    with pytest.raises(Ended):
        driver("rekey", keys["new"].read_bytes().hex())
    opens = "old" if point == "rekey-super-before" else "new"
    for name, path in keys.items():
        if name != opens:
            assert "is not the key" in tool.refused("info", encryption_key=str(path))
    handle = serve_s3("v", encryption_key=str(keys[opens])).connect()
    assert handle.pread(BLOCK, 0) == stamped(RUN, 0, 1)


def test_rekey_of_what_is_not_encrypted(tool: Tool, serve_s3: ServeS3, tmp_path: Path) -> None:
    secret(tmp_path / "key", bytes(32))
    serve_s3("v").stop()
    assert "volume=v: is not encrypted" in tool.refused("rekey", f"--new-encryption-key={tmp_path / 'key'}")


@pytest.mark.parametrize("served", [False, True], ids=["closed", "served"])
def test_gc(tool: Tool, serve_s3: ServeS3, tmp_path: Path, served: bool) -> None:
    where: dict[str, Any] = {"control": str(tmp_path / "control")} if served else {}
    server = serve_s3("v", gc_delay="0", **where)
    handle = server.connect()
    for number in range(1, 60):
        handle.pwrite(b"".join(stamped(RUN, i, number) for i in range(64)), 0)
        handle.flush()
    if not served:
        server.stop()
    result = tool("gc", gc_delay="0", **where)
    assert result["stored_bytes"] < result["stored_bytes_before"] / 4
    assert sum(serve_s3.objects("v", "log/").values()) < result["stored_bytes_before"] / 2
    lines = dict(line.split(maxsplit=1) for line in tool.run("gc", gc_delay="0", **where).stdout.splitlines())
    assert all(lines[name].endswith("iB") for name in ("stored_bytes_before", "stored_bytes"))
    assert tool("check", **where)["damages"] == []


def test_a_store_that_refuses_in_between(tool: Tool, serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """Status 2 says that nothing was changed: here something was."""
    server = serve_s3("v")
    server.connect().pwrite(stamped(RUN, 0, 1), 0)
    server.stop()
    rule = proxy.add(Rule(refused(403, "AccessDenied"), method="PUT", key="/snap/"))
    assert "made by the fault proxy; allow it to get" in tool.refused(
        "snapshot", "create", "s", through=proxy, expect=1
    )
    rule.times = 0
    for method in ("DELETE", "POST"):
        proxy.add(Rule(refused(403, "AccessDenied"), method=method))
    result = tool.run("delete", "--confirm=v", through=proxy)
    assert result.returncode == 1 and "made by the fault proxy; allow it to get" in result.stderr
    proxy.clear()
    tool("delete", "--confirm=v", through=proxy)


def test_a_store_that_refuses_at_once(tool: Tool, serve_s3: ServeS3, proxy: FaultProxy) -> None:
    serve_s3("v").stop()
    proxy.add(Rule(refused(403, "AccessDenied")))
    assert "made by the fault proxy; allow it to get" in tool.refused("snapshot", "create", "s", through=proxy)


@pytest.mark.parametrize("background", [False, True])
def test_server_that_cannot_have_its_socket_leaves_no_writer_behind(
    serve_s3: ServeS3, tool: Tool, tmp_path: Path, background: bool
) -> None:
    """nbdkit ends then without a word to its plugin, in the foreground or not."""
    serve_s3("v").stop()
    options = ["-U", str(tmp_path / "none/socket")] + ([] if background else ["-f"])
    result = run_nbdkit(*options, plugin_path("s3"), *tool.argv("info")[2:])
    assert result.returncode == 1 and "No such file" in result.stderr, result
    tool("gc", gc_delay="0")  # without --take-over


def test_captive_server_ends_once(serve_s3: ServeS3, tool: Tool) -> None:
    """The process that nbdkit forks serves the volume and closes it; that which forked it does not."""
    serve_s3("v").stop()
    options = ["-U", "-", plugin_path("s3"), *tool.argv("info")[2:], "--run", 'nbdinfo --size "$uri"']
    result = run_nbdkit(*options)
    assert result.returncode == 0 and "another writer" not in result.stderr, result
    # nbdkit may not wait for the end of its captive.
    wait_until("the volume is closed", lambda: not tool.run("gc", gc_delay="0").returncode)
