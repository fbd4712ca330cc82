# SPDX-License-Identifier: BSD-3-Clause
"""userblk-buse on the kernel's nbd driver: its beginning, its ends, and what it refuses. Data: test_systems.py."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guest import BUILD, LIMIT, MIB, run, start_verify
from waiting import stop, wait_until

BUSE = Path(BUILD, "buse/userblk-buse")
NVME = os.environ["LAB_NVME"]

Server = subprocess.Popen[str]
Start = Callable[..., tuple[Server, str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(words...): a server and the path of its disk; killed at the end if it has not ended."""
    run(["modprobe", "nbd"])
    servers: list[Server] = []

    def enter(*words: str) -> tuple[Server, str]:
        server = subprocess.Popen(
            [str(BUSE), "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        servers.append(server)
        assert server.stdout and server.stderr
        line = server.stdout.readline()
        assert line, server.stderr.read()
        return server, json.loads(line)["disk"]

    yield enter
    for server in servers:
        server.kill()
        server.communicate(timeout=LIMIT)


def size(disk: str) -> int:
    return int(Path("/sys/block", Path(disk).name, "size").read_text()) * 512


def queue(disk: str, name: str) -> str:
    return Path("/sys/block", Path(disk).name, "queue", name).read_text().strip()


def await_gone(disk: str) -> None:
    pid = Path("/sys/block", Path(disk).name, "pid")
    wait_until("the disk is gone", lambda: not size(disk) and not pid.exists(), LIMIT)


def ended(server: Server) -> tuple[int, str]:
    _, errors = server.communicate(timeout=LIMIT)
    return server.returncode, errors


def test_the_disk_is_what_the_device_is(start: Start) -> None:
    _, disk = start("passthrough", f"file={NVME}")
    assert size(disk) == size(NVME)
    assert queue(disk, "logical_block_size") == queue(NVME, "logical_block_size")
    assert queue(disk, "write_cache") == "write back"
    assert queue(disk, "fua") == "1"
    assert int(queue(disk, "discard_max_bytes")) > 0
    _, second = start("passthrough", f"file={os.environ['LAB_SATA']}", "readonly=on")
    assert second != disk
    assert Path("/sys/block", Path(second).name, "ro").read_text().strip() == "1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_writes_back_and_removes_the_disk(start: Start, number: int) -> None:
    server, disk = start("passthrough", f"file={NVME}")
    text = os.urandom(MIB)
    # Kept open: what was written stays in the page cache of the disk until the signal.
    with open(disk, "r+b", buffering=0) as stream:
        stream.write(text)
        server.send_signal(number)
        code, errors = ended(server)
        assert code == 0, errors
    await_gone(disk)
    with open(NVME, "rb") as stream:
        assert stream.read(MIB) == text


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_signals_of_one_cause_write_back_once(start: Start, busy: bool) -> None:
    """systemd sends two at the end of a login. After the first, the disk answers no flush."""
    server, disk = start("passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=64M") if busy else None
    server.send_signal(signal.SIGTERM)
    server.send_signal(signal.SIGHUP)
    code, errors = ended(server)
    assert code == 0 and "lost" not in errors, errors
    await_gone(disk)
    if load:
        load.wait(LIMIT)


def test_a_timeout_and_zeroes_do_not_go_together(start: Start) -> None:
    # A node that no other had: Linux 6.12 keeps what the one before offered.
    _, disk = start("--timeout=60", "--disk=/dev/nbd15", "null", f"size={MIB}")
    assert queue(disk, "write_zeroes_max_bytes") == "0"


def test_a_device_of_less_than_a_block_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(300))
    text = run([BUSE, "passthrough", f"file={file}", "direct=off"], expect=2)
    assert "300 bytes; a disk needs a block of 512" in text


def test_an_ignored_hang_up_leaves_the_disk_alone(start: Start) -> None:
    """As nohup(1) has it, for the end of a terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server, disk = start("null", f"size={MIB}")
    finally:
        signal.signal(signal.SIGHUP, before)
    server.send_signal(signal.SIGHUP)
    time.sleep(1.0)
    assert server.poll() is None and size(disk) == MIB
    server.send_signal(signal.SIGTERM)
    code, errors = ended(server)
    assert code == 0, errors


def test_a_terminal_does_not_stop_it(start: Start) -> None:
    """Ctrl-Z, for example. The kernel would close the disk."""
    server, disk = start("passthrough", f"file={NVME}")
    text = os.urandom(MIB)
    with open(disk, "r+b", buffering=0) as stream:
        stream.write(text)
        for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            server.send_signal(number)
        time.sleep(1.0)
        server.send_signal(signal.SIGCONT)
        os.fsync(stream.fileno())
        assert server.poll() is None and size(disk) == size(NVME)
        server.send_signal(signal.SIGTERM)
        code, errors = ended(server)
        assert code == 0, errors
    with open(NVME, "rb") as stream:
        kept = stream.read(MIB) == text  # pytest would look for the differences for minutes
    assert kept


def test_a_stop_is_told(start: Start) -> None:
    """No program can prevent this one."""
    server, disk = start("null", f"size={MIB}")
    stop(server.pid)
    server.send_signal(signal.SIGCONT)
    code, errors = ended(server)
    assert code == 1 and f"{disk}: the kernel closed the disk because this server was stopped" in errors, errors
    await_gone(disk)


def test_a_signal_writes_back_the_partitions(start: Start) -> None:
    """Each has a page cache of its own."""
    server, disk = start("passthrough", f"file={NVME}")
    entry = struct.pack("<4xB3xII", 0x83, 2048, 8 * MIB // 512)  # a partition of Linux at 1 MiB
    with open(disk, "r+b", buffering=0) as stream:
        stream.write(bytes(446) + entry + bytes(48) + b"\x55\xaa")
        os.fsync(stream.fileno())
    run(["blockdev", "--rereadpt", disk])
    text = os.urandom(MIB)
    try:
        with open(f"{disk}p1", "r+b", buffering=0) as stream:
            stream.write(text)
            server.send_signal(signal.SIGTERM)
            code, errors = ended(server)
            assert code == 0, errors
        await_gone(disk)
        with open(NVME, "rb") as stream:
            stream.seek(MIB)
            kept = stream.read(MIB) == text  # pytest would look for the differences for minutes
        assert kept
    finally:
        run(["wipefs", "-qa", NVME])


def test_disconnected_by_another(start: Start) -> None:
    server, disk = start("null", f"size={MIB}")
    run(["nbd-client", "-d", disk])
    code, errors = ended(server)
    assert code == 0, errors
    await_gone(disk)


def test_killed(start: Start) -> None:
    """Errors at once; the disk goes, and the device can be served again."""
    server, disk = start("passthrough", f"file={NVME}")
    load = subprocess.Popen(
        ["fio", "--name=load", f"--filename={disk}", "--size=64M", "--rw=randrw", "--bs=4k", "--ioengine=libaio",
         "--iodepth=16", "--direct=1", "--time_based", "--runtime=60"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    counter = Path("/sys/block", Path(disk).name, "stat")
    wait_until("fio does I/O", lambda: int(counter.read_text().split()[0]) >= 50, LIMIT, process=load)
    server.kill()
    output, _ = load.communicate(timeout=LIMIT)
    # Whichever is met first: a request that fails, or the disk that has gone.
    assert load.returncode != 0 and ("error" in output.lower() or "zero sized block device" in output)
    await_gone(disk)
    _, again = start("passthrough", f"file={NVME}")
    assert again == disk


def test_mounted_and_served_disks_are_refused(start: Start, mountpoint: Path, tmp_path: Path) -> None:
    server, disk = start("passthrough", f"file={NVME}")
    run(["mkfs.ext4", "-qF", disk])
    run(["mount", disk, mountpoint])
    refused: list[tuple[list[str], str]] = [
        ([f"--disk={disk}", "null", "size=1M"], "in use"),
        ([f"--disk={disk}", "passthrough", f"file={tmp_path / 'made'}", "size=1M", "direct=off"], "in use"),
        (["--disk=/dev/nbd15x", "null", "size=1M"], "name /dev/nbdN"),
        ([f"--disk={NVME}", "null", "size=1M"], "name /dev/nbdN"),
        (["--disk=/dev/nbd999", "null", "size=1M"], "does not exist"),
        (["passthrough", f"file={NVME}"], "in use"),
        (["null", "size=x"], "size=x"),
        (["--timeout=-1", "null", "size=1M"], "--timeout=-1"),
        (["nothing"], "no such device"),
        ([], "missing"),
    ]
    for words, reason in refused:
        output = run([BUSE, *words], expect=1 if "--disk=/dev/nbd999" in words else 2)
        assert reason in output, words
        assert output.count("\n") == 1, output
    assert not (tmp_path / "made").exists()
    assert server.poll() is None
    (mountpoint / "file").write_bytes(b"x" * MIB)
    run(["umount", mountpoint])
    run(["fsck.ext4", "-f", "-n", disk])


def test_unprivileged_users_are_refused() -> None:
    run(["modprobe", "nbd"])
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    assert "run as root" in run([*user, BUSE, "null", "size=1M"], expect=1)


def test_the_manual_has_what_help_has() -> None:
    usage, manual = run([BUSE, "--help"]), Path("buse/userblk-buse.8").read_text()
    said = re.findall(r"^    --([a-z]+)", usage.split("Options:")[1].split("Device ")[0], re.M)
    assert said == re.findall(r"^\.It Fl -([a-z]+)", manual, re.M) != []
