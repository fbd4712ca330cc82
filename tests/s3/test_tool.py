# SPDX-License-Identifier: BSD-3-Clause
"""userblk-s3 on volumes that nobody serves: each command, what it refuses, and what it finds."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from device import ServeS3
from fault_proxy import Exchange, FaultProxy, Rule, delayed, flipped_byte
from nbdkit_server import ROOT
from servers import BUCKET
from stamps import BLOCK, stamped
from tool import Tool, program, said
from waiting import wait_until

RUN = 11


@pytest.fixture
def tool(serve_s3: ServeS3) -> Tool:
    return Tool(serve_s3)


def overwrite(serve: ServeS3, key: str, change: Callable[[bytes], bytes]) -> None:
    s3 = serve.store.client()
    key = f"{serve.prefix}/v/{key}"
    data = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    s3.put_object(Bucket=BUCKET, Key=key, Body=change(data))


def delete(serve: ServeS3, key: str) -> None:
    serve.store.client().delete_object(Bucket=BUCKET, Key=f"{serve.prefix}/v/{key}")


def log_of(serve: ServeS3, data: bool = True) -> list[str]:
    """Keys of the log in its order; data: without fences and the like."""
    log = serve.objects("v", "log/")
    return sorted((key for key in log if log[key] > 4096 or not data), key=lambda key: key[-16:])


# ---- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("snapshot", "create", "A b"), "snapshot=A b: not a valid name for a snapshot; use"),
        (("snapshot", "delete", "../x"), "snapshot=../x: not a valid name for a snapshot; use"),
        (("clone", "", "w"), "snapshot=: not a valid name for a snapshot; use"),
        (("clone", "a", "c d"), "clone=c d: not a valid name for a volume; use"),
        (("clone", "a", "c", "--to-prefix=//"), "--to-prefix=//: not a valid prefix of keys; use"),
        (("rekey",), "--new-encryption-key: missing; give"),
    ],
)
def test_wrong_words_are_refused_before_the_store_is_asked(words: tuple[str, ...], text: str) -> None:
    result = program(*words, "v", "endpoint=http://127.0.0.1:1", "bucket=abc", "credentials=/nowhere")
    assert text in said(result)


def test_the_manual_has_what_help_has() -> None:
    result = program("--help")
    assert result.returncode == 0
    usage, manual = result.stdout, (ROOT / "userblk-s3/userblk-s3.1").read_text(encoding="utf-8")
    commands, rest = usage.split("Commands:")[1].split("Options:")
    options = rest.split("Parameters")[0]
    sections = {part.split("\n", 1)[0]: part for part in manual.split("\n.Sh ")}
    for help_part, name, help_pattern, manual_pattern in (
        (
            commands,
            "DESCRIPTION",
            r"^    ([a-z]+(?: (?:create|list|delete|rollback)\b)?)",
            r"^\.It Cm ([a-z ]+?)(?: Ar .*)?$",
        ),
        (options, "OPTIONS", r"^    --([a-z-]+)", r"^\.It Fl -([a-z-]+)"),
    ):
        listed = re.findall(help_pattern, help_part, re.MULTILINE)
        assert listed == re.findall(manual_pattern, sections[name], re.MULTILINE) != []
    for parameter in ("endpoint", "control", "config"):
        assert re.search(rf"^    {parameter}=", usage, re.MULTILINE)
    assert "    --json (all)\n" in options and "    --confirm=NAME (delete, abort)\n" in options


def test_version() -> None:
    assert program("--version").stdout.startswith("userblk-s3 ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "no command"),
        (["--json"], "no command"),
        (["destroy", "v"], "destroy: no such command"),
        (["snapshot"], "snapshot: write create, list, delete or rollback after it"),
        (["snapshot", "make", "x"], "snapshot: write create, list, delete or rollback after it"),
        (["snapshot", "create"], "snapshot: an operand is missing; write: snapshot create SNAPSHOT"),
        (["snapshot", "create", "config=f"], "snapshot: an operand is missing; write: snapshot create SNAPSHOT"),
        (["snapshot", "rollback"], "snapshot: an operand is missing; write: snapshot rollback SNAPSHOT\n"),
        (["clone", "monday"], "clone: an operand is missing; write: clone SNAPSHOT NEW\n"),
        (["info", "--force", "v"], "--force: no such option"),
        (["info", "--confirm=v", "v"], "--confirm: not an option of this command"),
        (["delete", "--confirm"], "--confirm: needs a value"),
        (["stats", "--price-put=dear", "v"], "--price-put=dear: not a price"),
        (["info", "v", "colour=red"], "colour: unknown parameter of s3"),
        (["info", "V", "endpoint=http://127.0.0.1:1", "bucket=disks"], "volume=V: not a valid name"),
        (["info", "endpoint=http://127.0.0.1:1", "bucket=disks"], "volume: missing"),
        (["info", "v", "bucket=disks"], "endpoint: missing"),
        (["delete", "v", "endpoint=http://127.0.0.1:1", "bucket=disks"], "--confirm: missing"),
        (["delete", "--confirm=w", "v", "endpoint=http://127.0.0.1:1", "bucket=disks"], "--confirm=w: the volume is v"),
        (["create", "v", "endpoint=http://127.0.0.1:1", "bucket=disks"], "size: missing"),
        (["stats", "v", "endpoint=http://127.0.0.1:1", "bucket=disks"], "control: missing"),
        (
            ["info", "v", "endpoint=http://127.0.0.1:1", "bucket=disks", "control=/" + 120 * "x"],
            "control=/xxx",
        ),
    ],
)
def test_mistakes_get_one_line(words: list[str], line: str) -> None:
    assert f"{said(program(*words))}\n".startswith(line)


def test_a_store_that_refuses_gets_one_line(tool: Tool, tmp_path: Path) -> None:
    wrong_key = tmp_path / "wrong"
    wrong_key.write_text("access-key-id=userblktest\nsecret-access-key=wrong\n", encoding="utf-8")
    wrong_key.chmod(0o600)
    for command in ("info", "list", "gc", "check"):
        assert "bucket=elsewhere" in tool.refused(command, bucket="elsewhere")
        assert "credentials" in tool.refused(command, credentials=str(wrong_key))
    assert "not found under prefix=" in tool.refused("info")
    assert "not found" in tool.refused("delete", "--confirm=v")
    assert "no server is there" in tool.refused("stats", control=str(tmp_path / "none"))


# ---- a volume's life ----------------------------------------------------------------------------


def test_create_info_list(tool: Tool, serve_s3: ServeS3) -> None:
    created = tool("create", size="64M", block_size="512")
    assert (created["volume"], created["size_bytes"], created["block_bytes"]) == ("v", 64 << 20, 512)
    assert "exists already" in tool.refused("create", size="64M")
    info = tool("info")
    assert info["uuid"] == created["uuid"] and info["was_closed"] is True
    assert (info["mapped_bytes"], info["encrypted"]) == (0, False) and "readonly" not in info
    handle = serve_s3("v", block_size="512").connect()
    handle.pwrite(b"x" * 8192, 4096)
    handle.flush()
    serve_s3.servers[-1].stop()
    assert tool("info")["mapped_bytes"] == 8192
    Tool(serve_s3, "w")("create", size="1M")
    # Neither a volume, nor what has no name of one, nor what lies deeper.
    s3 = serve_s3.store.client()
    for key in ("other/hello", "Upper/super", "deep/er/super", "plain"):
        s3.put_object(Bucket=BUCKET, Key=f"{serve_s3.prefix}/{key}", Body=b"hello")
    overwrite_super(serve_s3, "x", b"hello")
    volumes = tool("list", volume="")["volumes"]
    assert [(v["name"], v["state"], v["size_bytes"]) for v in volumes] == [
        ("v", "good", 64 << 20),
        ("w", "good", 1 << 20),
        ("x", "damaged", None),
    ]
    text = tool.run("list").stdout
    assert "64.0 MiB" in text and "damaged" in text


def overwrite_super(serve: ServeS3, volume: str, data: bytes) -> None:
    serve.store.client().put_object(Bucket=BUCKET, Key=f"{serve.prefix}/{volume}/super", Body=data)


def test_newer_format_is_refused(tool: Tool, serve_s3: ServeS3) -> None:
    tool("create", size="64M")
    overwrite(serve_s3, "super", lambda data: data[:8] + b"\x63" + data[9:])
    before = serve_s3.objects("v")
    for words in (["info"], ["check"], ["gc"], ["delete", "--confirm=v"], ["delete", "--confirm=v", "--take-over"]):
        assert "/super" in tool.refused(*words)
    assert tool("list")["volumes"][0]["state"] == "newer format"
    assert serve_s3.objects("v") == before


def test_a_new_volume_is_no_snapshot(tool: Tool, serve_s3: ServeS3) -> None:
    """What a server's file says about the snapshot to serve is not about the volume that is made, or deleted."""
    assert tool("create", size="64M", snapshot="monday")["size_bytes"] == 64 << 20
    tool("delete", "--confirm=v", snapshot="monday")
    assert serve_s3.objects("v") == {}


def test_an_interrupted_command_closes_the_volume(tool: Tool, serve_s3: ServeS3) -> None:
    """By SIGTERM: SIGINT and SIGHUP are ignored where tests run in the background."""
    write_pieces(serve_s3)
    argv = tool.argv("gc", gc_delay="600")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until("it has the volume", lambda: not tool("info")["was_closed"], process=process)
            process.terminate()
            out, said_of_it = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (1, "")
    assert said_of_it == "userblk-s3: interrupted; the volume has been closed\n"
    assert tool("info")["was_closed"] is True
    tool("snapshot", "create", "monday")


# ---- what it says, and where ---------------------------------------------------------------------


def test_an_answer_that_cannot_be_written_is_an_error(tool: Tool) -> None:
    tool("create", size="64M")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        result = subprocess.run(tool.argv("info"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1 and "cannot write the answer: No space left" in result.stderr


def test_no_error_is_written_into_a_log(tool: Tool, serve_s3: ServeS3, tmp_path: Path) -> None:
    """Without a standard error the next file that is opened gets its number."""
    log = tmp_path / "log"
    server = serve_s3("v", write_back=str(log), write_back_size="16M")
    handle = server.connect()
    handle.pwrite(stamped(RUN, 0, 1), 0)
    handle.flush()
    server.kill()
    before = log.read_bytes()[:4096]
    argv = tool.argv("snapshot", "create", "monday", write_back=str(log))
    result = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *argv], check=False)
    assert result.returncode == 2 and log.read_bytes()[:4096] == before


def test_a_reader_of_errors_that_ends_does_not_end_it(tool: Tool, serve_s3: ServeS3, tmp_path: Path) -> None:
    """A warning while the volume is open: of a key that others may read."""
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    tool("create", size="64M", encryption_key=str(key))
    key.chmod(0o644)
    reader, errors = os.pipe()
    os.close(reader)
    argv = tool.argv("snapshot", "create", "monday", encryption_key=str(key))
    result = subprocess.run(argv, stderr=errors, check=False)
    os.close(errors)
    assert result.returncode == 0
    assert tool("info", encryption_key=str(key))["was_closed"] is True


# ---- check ---------------------------------------------------------------------------------------


def write_pieces(serve: ServeS3) -> None:
    """Four objects of four blocks each, the last of which overwrites two blocks of the one before it."""
    server = serve("v")
    handle = server.connect()
    for number, first in enumerate((0, 100, 200, 202)):
        handle.pwrite(b"".join(stamped(RUN, first + i, number + 1) for i in range(4)), first * BLOCK)
        handle.flush()
    server.stop()


def ranges(result: dict[str, list[dict[str, int]]]) -> list[tuple[int, int]]:
    return [(d["offset"] // BLOCK, d["length"] // BLOCK) for d in result["damages"]]


def test_check_of_a_sound_volume(tool: Tool, serve_s3: ServeS3) -> None:
    write_pieces(serve_s3)
    before = serve_s3.objects("v")
    result = tool("check")
    checkpoint = serve_s3.objects("v", "ckpt/")
    assert len(checkpoint) == 2
    assert (result["objects"], result["damaged_objects"], result["damages"]) == (4 + 2, 0, [])
    parts = {*log_of(serve_s3), *(key for key in checkpoint if not key.endswith("root"))}
    assert result["checked_bytes"] == sum(size for key, size in before.items() if key in parts)
    assert serve_s3.objects("v") == before


FLIPPED: dict[str, tuple[Callable[[bytes], bytes], list[tuple[int, int]], str]] = {
    "last byte": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), [(103, 1)], "wrong checksums: 1"),
    "first byte of the data": (lambda data: data[:4096] + bytes([data[4096] ^ 1]) + data[4097:], [(100, 1)], "wrong"),
    "header": (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], [(100, 4)], "checksum"),
    "cut short": (lambda data: data[:-6000], [(102, 2)], "bytes instead of"),
    "too long": (lambda data: data + b"x", [(0, 0)], "bytes instead of"),
    "foreign": (lambda data: b"hello", [(100, 4)], ""),
}


@pytest.mark.parametrize("how", FLIPPED)
def test_check_finds_a_changed_object(tool: Tool, serve_s3: ServeS3, how: str) -> None:
    change, damaged, reason = FLIPPED[how]
    write_pieces(serve_s3)
    key = log_of(serve_s3)[1]
    overwrite(serve_s3, key, change)
    result = tool("check", expect=1)
    assert ranges(result) == damaged
    assert (result["damaged_objects"], result["damaged_bytes"]) == (1, sum(n for _, n in damaged) * BLOCK)
    for damage in result["damages"]:
        assert damage["object"] == f"{serve_s3.prefix}/v/{key}" and reason in damage["reason"]
    shown = tool.run("check")
    assert shown.returncode == 1 and key in shown.stdout and shown.stderr == ""


def test_check_finds_missing_objects(tool: Tool, serve_s3: ServeS3) -> None:
    write_pieces(serve_s3)
    log = log_of(serve_s3)
    delete(serve_s3, log[0])
    delete(serve_s3, log[2])
    result = tool("check", expect=1)
    # Two blocks of the third have been overwritten since.
    assert ranges(result) == [(0, 4), (200, 2)]
    assert {d["reason"] for d in result["damages"]} == {"is missing"}


def test_check_ignores_what_nobody_needs(tool: Tool, serve_s3: ServeS3) -> None:
    write_pieces(serve_s3)
    # Block 202, which the fourth object has overwritten, is the third one's third.
    overwrite(serve_s3, log_of(serve_s3)[2], lambda data: data[: 4096 + 2 * BLOCK] + b"\xff" + data[4097 + 2 * BLOCK :])
    assert tool("check")["damages"] == []


def test_check_finds_that_the_log_goes_on(tool: Tool, serve_s3: ServeS3) -> None:
    """A flushed object is lost behind the newest checkpoint: a reader sees the state before it, a server refuses."""
    server = serve_s3("v")
    handle = server.connect()
    for number in range(4):
        handle.pwrite(stamped(RUN, number, number + 1), number * BLOCK)
        handle.flush()
    server.kill()
    key = log_of(serve_s3)[1]
    delete(serve_s3, key)
    result = tool("check", expect=1)
    assert (result["damaged_objects"], result["damaged_bytes"]) == (1, 0)
    (damage,) = result["damages"]
    assert damage["object"] == f"{serve_s3.prefix}/v/{key}" and "no server can open the volume" in damage["reason"]
    shown = tool.run("check")
    assert shown.returncode == 1 and key in shown.stdout


def test_check_looks_twice(tool: Tool, serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """Bytes that are changed on the way are no damage; a store that does not answer is none either."""
    write_pieces(serve_s3)
    key = log_of(serve_s3)[1]
    rule = proxy.add(Rule(flipped_byte(-1), method="GET", key=key, times=1))
    assert tool("check", through=proxy)["damages"] == []
    assert rule.taken == 1
    proxy.add(Rule(delayed(before=lambda: 60), method="GET", key=key))
    result = tool.run("check", "--json", through=proxy, timeout="3", retry_deadline="5")
    assert result.returncode == 1 and key in result.stderr and "damaged_objects" not in result.stdout


# ---- deletion ------------------------------------------------------------------------------------


def test_delete(tool: Tool, serve_s3: ServeS3) -> None:
    write_pieces(serve_s3)
    s3 = serve_s3.store.client()
    s3.put_object(Bucket=BUCKET, Key=f"{serve_s3.prefix}/v/log/notes.txt", Body=b"mine")
    s3.put_object(Bucket=BUCKET, Key=f"{serve_s3.prefix}/vv/super", Body=b"a neighbour")
    result = tool("delete", "--confirm=v")
    assert result["foreign_objects"] == 1 and result["deleted_objects"] > 5
    assert list(serve_s3.objects("v")) == ["log/notes.txt"]
    assert list(serve_s3.objects("vv")) == ["super"]
    assert "not found" in tool.refused("info")


def kill_at(tool: Tool, proxy: FaultProxy, rule: Rule, *words: str) -> None:
    """kill -9 of a command when the proxy has received its request, which still goes on to the store."""
    proxy.add(rule)
    process = subprocess.Popen(tool.argv(*words, through=proxy), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until("the request comes", lambda: rule.taken, process=process)
        process.kill()
    finally:
        process.kill()
        process.wait()
    proxy.clear()
    proxy.wait_for_clients_to_go()


HELD = delayed(before=lambda: 0.5)


@pytest.mark.parametrize(
    "rule",
    [
        Rule(HELD, method="PUT", key="/deleted$"),
        Rule(HELD, method="DELETE", key="/super$"),
        Rule(HELD, method="POST"),
        Rule(HELD, method="DELETE", key="/deleted$"),
    ],
    ids=["copy of super", "super", "objects", "copy"],
)
def test_interrupted_deletion(tool: Tool, serve_s3: ServeS3, proxy: FaultProxy, rule: Rule) -> None:
    """What is left is a whole volume, or none, and the same command ends it."""
    write_pieces(serve_s3)
    kill_at(tool, proxy, rule, "delete", "--confirm=v")
    left = serve_s3.objects("v")
    volumes = tool("list")["volumes"]
    if not left:
        assert volumes == []
    elif "super" in left:
        assert volumes[0]["state"] == "good"
        assert tool("check")["objects"] == 4 + 2
    else:
        assert volumes[0]["state"] == "half deleted"
        assert "not found" in tool.refused("info")
        assert "userblk-s3 delete" in tool.refused("create", size="64M")
    if left:
        tool("delete", "--confirm=v")
    assert serve_s3.objects("v") == {}


def test_deletion_that_is_interrupted_beside_a_new_clone(tool: Tool, serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """The clone was made after the deletion had looked for one: the same command does not take its data away."""
    write_pieces(serve_s3)
    tool("snapshot", "create", "monday")

    def clone(exchange: Exchange) -> None:
        tool("clone", "monday", "w")
        HELD(exchange)

    kill_at(tool, proxy, Rule(clone, method="DELETE", key="/super$"), "delete", "--confirm=v")
    assert [(one["name"], one["state"]) for one in tool("list")["volumes"]] == [("v", "half deleted"), ("w", "good")]
    for _ in range(2):
        assert "its snapshot monday has clones" in tool.refused("delete", "--confirm=v")
        assert Tool(serve_s3, "w")("check")["damages"] == []
    assert "super" in serve_s3.objects("v")
    # A marker whose clone is not there, but may come: nothing is changed.
    Tool(serve_s3, "w")("delete", "--confirm=w")
    kill_at(tool, proxy, Rule(HELD, method="DELETE", key="/super$"), "delete", "--confirm=v")
    marker = f"{serve_s3.prefix}/v/snap/monday/child/{'1' * 32}"
    serve_s3.store.client().put_object(Bucket=BUCKET, Key=marker, Body=f"{serve_s3.prefix}/w\n".encode())
    before = serve_s3.objects("v").keys()
    assert "may just be created; try again in ten minutes" in tool.refused("delete", "--confirm=v")
    assert serve_s3.objects("v").keys() == before
    serve_s3.store.client().delete_object(Bucket=BUCKET, Key=marker)
    tool("delete", "--confirm=v")
    assert serve_s3.objects("v") == {}


def test_delete_of_a_volume_that_cannot_be_opened(tool: Tool, serve_s3: ServeS3) -> None:
    write_pieces(serve_s3)
    for key in (key for key in serve_s3.objects("v", "ckpt/") if key.endswith("root")):
        overwrite(serve_s3, key, lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    key = log_of(serve_s3)[0]
    overwrite(serve_s3, key, lambda data: b"hello")
    assert key in tool.refused("delete", "--confirm=v", expect=1)
    tool("delete", "--confirm=v", "--take-over")
    assert serve_s3.objects("v") == {}


def test_deletion_is_not_the_end_of_a_served_volume(tool: Tool, serve_s3: ServeS3, tmp_path: Path) -> None:
    control = str(tmp_path / "control")
    handle = serve_s3("v", control=control).connect()
    for words in (["delete", "--confirm=v"], ["delete", "--confirm=v", "--take-over"], ["create"]):
        assert "a server is listening" in tool.refused(*words, control=control, size="64M")
    handle.pwrite(stamped(RUN, 0, 1), 0)
    handle.flush()


def test_direct_layout_has_less(tool: Tool, serve_s3: ServeS3, tmp_path: Path) -> None:
    assert tool("create", size="64M", layout="direct")["layout"] == "direct"
    control = str(tmp_path / "control")
    server = serve_s3("v", control=control)
    handle = server.connect()
    handle.pwrite(stamped(RUN, 0, 1), 0)
    handle.flush()
    assert tool("info", control=control)["layout"] == "direct"
    assert tool("stats", control=control)["device_write_requests"] == 1
    for command in ("check", "gc"):
        assert "layout=direct" in tool.refused(command, control=control)
    assert "layout=direct" in tool.refused("check")
    server.stop()
    assert tool("list")["volumes"][0]["layout"] == "direct"
    assert "--take-over" in tool.refused("delete", "--confirm=v")
    tool("delete", "--confirm=v", "--take-over")
    assert serve_s3.objects("v") == {}
