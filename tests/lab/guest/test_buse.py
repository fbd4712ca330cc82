# SPDX-License-Identifier: BSD-3-Clause
"""userblk-buse on the kernel's nbd driver: its beginning, its ends, and what it refuses. Data: test_systems.py."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from guest import BUILD, LIMIT, MIB, RELEASE, mapped, read, requests, run, start_verify, suspended, through_mapper
from waiting import stop, thread_states, wait_until

BUSE = Path(BUILD, "buse/userblk-buse")
NVME = os.environ["LAB_NVME"]

CGROUP = Path("/sys/fs/cgroup/buse-test")

tells_who = pytest.mark.skipif(RELEASE == "bullseye", reason="kernel: it does not tell who has connected an nbd disk")

Server = subprocess.Popen[str]
Start = Callable[..., tuple[Server, str]]


def children_of(pid: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if (process / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(process.name))
    return found


def is_running(pid: int) -> bool:
    """Or has it ended, perhaps without being waited for?"""
    return Path("/proc", str(pid), "exe").exists()


@pytest.fixture
def start() -> Iterator[Start]:
    """start(words...): a server and the path of its disk; killed at the end if it has not ended."""
    run(["modprobe", "nbd"])
    servers: list[Server] = []

    def enter(*words: str) -> tuple[Server, str]:
        server = subprocess.Popen(
            [str(BUSE), "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )
        servers.append(server)
        assert server.stdout and server.stderr
        line = server.stdout.readline()
        assert line, server.stderr.read()
        return server, json.loads(line)["disk"]

    yield enter
    guards = [pid for server in servers for pid in children_of(server.pid)]
    for server in servers:
        server.kill()
        server.communicate(timeout=LIMIT)
    wait_until("the guards have ended", lambda: not any(map(is_running, guards)), LIMIT)


def size(disk: str) -> int:
    return int(Path("/sys/block", Path(disk).name, "size").read_text()) * 512


def queue(disk: str, name: str) -> str:
    return Path("/sys/block", Path(disk).name, "queue", name).read_text().strip()


def await_gone(disk: str) -> None:
    pid = Path("/sys/block", Path(disk).name, "pid")
    wait_until("the disk is gone", lambda: not size(disk) and not pid.exists(), LIMIT)


def child_of(server: Server, name: str) -> int:
    """buse-guard disconnects the disk when the server has been killed; buse-holder has it open."""
    (child,) = (pid for pid in children_of(server.pid) if Path(f"/proc/{pid}/comm").read_text() == f"{name}\n")
    return child


def guard_of(server: Server) -> int:
    return child_of(server, "buse-guard")


def processes_that_hang() -> list[str]:
    """Those of programs that wait in the kernel where no signal reaches them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is a thread of the kernel
            if os.readlink(process / "exe") and "D" in thread_states(int(process.name)):
                found.append(f"{process.name}: {(process / 'comm').read_text()}")
    return found


def await_end_of_all(disk: str) -> None:
    """What a server that was killed leaves: nothing."""
    await_gone(disk)
    wait_until("nothing hangs", lambda: not processes_that_hang(), LIMIT)


def start_load(disk: str, *options: str) -> subprocess.Popen[str]:
    """Requests without end, once there are some."""
    before = requests(disk)
    load = subprocess.Popen(
        ["fio", "--name=load", f"--filename={disk}", "--size=64M", "--rw=randrw", "--bs=4k", "--ioengine=libaio",
         "--iodepth=16", "--direct=1", "--time_based", "--runtime=600", *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until("fio does I/O", lambda: requests(disk) >= before + 50, LIMIT, process=load)
    return load


def has_failed(load: subprocess.Popen[str]) -> None:
    """Whichever is met first: a request that fails, or the disk that has gone."""
    output, _ = load.communicate(timeout=LIMIT)
    assert load.returncode != 0 and ("error" in output.lower() or "zero sized block device" in output), output


def has(text: bytes) -> bool:
    """Does the device begin with it? pytest would look for the differences for minutes."""
    with open(NVME, "rb") as stream:
        return stream.read(len(text)) == text


def hanging_threads(pid: int) -> int:
    """Those of a process and its children that wait in the kernel where no signal reaches them."""
    return sum(thread_states(one).count("D") for one in (pid, *children_of(pid)))


@contextmanager
def grouped(server: Server) -> Iterator[None]:
    """The server and its guard in a control group, as in a container. Both have ended at the end of the block."""
    CGROUP.mkdir()
    for pid in (server.pid, *children_of(server.pid)):
        (CGROUP / "cgroup.procs").write_text(f"{pid}\n")
    try:
        yield
    finally:
        (CGROUP / "cgroup.freeze").write_text("0")
        server.kill()
        server.wait(LIMIT)
        wait_until("the group is empty", lambda: not (CGROUP / "cgroup.procs").read_text(), LIMIT)
        CGROUP.rmdir()


def size_of_group() -> int:
    return len((CGROUP / "cgroup.threads").read_text().split())


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


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    stop(server.pid)
    yield
    server.send_signal(signal.SIGCONT)


@contextmanager
def stopped_by_terminal(server: Server) -> Iterator[None]:
    """By Ctrl-Z, until fg."""
    server.send_signal(signal.SIGTSTP)
    wait_until("it stops", lambda: set(thread_states(server.pid)) == {"T"})
    yield
    server.send_signal(signal.SIGCONT)


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """As `docker pause` does it."""
    (CGROUP / "cgroup.freeze").write_text("1")
    wait_until("it is frozen", lambda: "frozen 1" in (CGROUP / "cgroup.events").read_text())
    yield
    (CGROUP / "cgroup.freeze").write_text("0")


@pytest.mark.parametrize("halted", [stopped, stopped_by_terminal, frozen])
def test_requests_wait_for_a_halted_server(
    start: Start, halted: Callable[[Server], AbstractContextManager[None]]
) -> None:
    server, disk = start("passthrough", f"file={NVME}")
    text = os.urandom(4 * MIB)
    with grouped(server), open(disk, "r+b", buffering=0) as stream:
        stream.write(text)
        with halted(server):
            load = subprocess.Popen(["dd", f"if={disk}", "of=/dev/null", "bs=1M", "skip=8", "count=8", "iflag=direct"])
            time.sleep(2.0)
            assert load.poll() is None and size(disk) == size(NVME)
        assert load.wait(LIMIT) == 0
        os.fsync(stream.fileno())
        assert has(text)
        # And what is written back at the end.
        text = os.urandom(4 * MIB)
        os.pwrite(stream.fileno(), text, 0)
        server.send_signal(signal.SIGTERM)
        code, errors = ended(server)
        assert code == 0, errors
    await_gone(disk)
    assert has(text)


def test_a_tracer_comes_and_goes(start: Start) -> None:
    server, disk = start("passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=8M")
    for _ in range(3):
        tracer = subprocess.Popen(["strace", "-f", "-o", "/dev/null", "-p", str(server.pid)], stderr=subprocess.DEVNULL)
        time.sleep(1.0)
        while tracer.poll() is None:  # it misses a signal that comes right before it waits for its process
            tracer.send_signal(signal.SIGINT)
            time.sleep(0.5)
    output, _ = load.communicate(timeout=LIMIT)
    assert load.returncode == 0, output
    assert server.poll() is None
    server.send_signal(signal.SIGTERM)
    code, errors = ended(server)
    assert code == 0, errors


def test_a_timeout_ends_the_disk(start: Start) -> None:
    server, disk = start("--timeout=2", "null", f"size={MIB}")
    stop(server.pid)
    run(["dd", f"if={disk}", "of=/dev/null", "bs=4k", "count=1", "iflag=direct"], expect=1)
    server.send_signal(signal.SIGCONT)
    code, errors = ended(server)
    assert (code, errors) == (
        1, f"userblk-buse: {disk}: the kernel closed the disk: a request took longer than --timeout\n"
    )  # fmt: skip
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


@tells_who
@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGKILL], ids=["server", "guard"])
def test_a_disk_of_another_with_its_number_is_left_alone(start: Start, tmp_path: Path, number: int) -> None:
    """It was connected by ioctl, so that the kernel shows no identity of it at all."""
    server, disk = start("null", f"size={MIB}")
    guard = guard_of(server)
    stop(server.pid)
    run(["nbd-client", "-d", disk])
    os.kill(child_of(server, "buse-holder"), signal.SIGKILL)
    await_gone(disk)
    place = tmp_path / "socket"
    other = subprocess.Popen(["nbdkit", "-f", "-U", str(place), "memory", "2M"])
    try:
        wait_until("nbdkit listens", place.exists, process=other)
        run(["nbd-client", "-nonetlink", "-unix", place, disk])
        wait_until("it has its size", lambda: size(disk) == 2 * MIB)
        assert len(read(disk, 0, 4096)) == 4096
        server.send_signal(number)
        server.wait(LIMIT)
        wait_until("the guard has ended", lambda: not is_running(guard), LIMIT)
        assert size(disk) == 2 * MIB and len(read(disk, 0, 4096)) == 4096
        run(["nbd-client", "-d", disk])
        await_gone(disk)
    finally:
        other.terminate()
        other.wait(LIMIT)


def test_ended_by_the_number_that_the_kernel_shows(start: Start) -> None:
    server, disk = start("null", f"size={MIB}")
    os.kill(int(Path("/sys/block", Path(disk).name, "pid").read_text()), signal.SIGTERM)
    assert ended(server) == (0, "")
    await_gone(disk)


def test_killed(start: Start) -> None:
    """Errors at once; the disk goes, and the device can be served again."""
    server, disk = start("passthrough", f"file={NVME}")
    load = start_load(disk)
    server.kill()
    has_failed(load)
    await_end_of_all(disk)
    _, again = start("passthrough", f"file={NVME}")
    assert again == disk


@pytest.mark.parametrize("used", [False, True], ids=["closed", "open"])
def test_killed_with_dirty_pages(start: Start, used: bool) -> None:
    server, disk = start("passthrough", f"file={NVME}")
    stream = open(disk, "r+b", buffering=0)
    stream.write(bytes(16 * MIB))
    if not used:
        stream.close()
    server.kill()
    server.wait(LIMIT)
    if used:
        with pytest.raises(OSError) as caught:
            os.fsync(stream.fileno())
        assert caught.value.errno == errno.EIO
        stream.close()
    await_end_of_all(disk)


def test_killed_while_it_is_stopped(start: Start) -> None:
    """The kernel waits in the middle of a request, which holds up all others."""
    server, disk = start("passthrough", f"file={NVME}")
    load = start_load(disk, "--rw=randwrite", "--bs=256k", "--iodepth=64", "--numjobs=2")
    stop(server.pid)
    time.sleep(1.0)
    server.kill()
    has_failed(load)
    await_end_of_all(disk)


def test_killed_while_its_disk_is_mounted(start: Start, mountpoint: Path) -> None:
    server, disk = start("passthrough", f"file={NVME}")
    run(["mkfs.ext4", "-qF", disk])
    run(["mount", disk, mountpoint])
    with open(mountpoint / "file", "wb") as stream:
        stream.write(bytes(4 * MIB))
        server.kill()
        server.wait(LIMIT)
        with pytest.raises(OSError):
            os.fsync(stream.fileno())
    run(["umount", mountpoint])
    await_end_of_all(disk)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_killed_while_its_device_hangs(start: Start, number: int) -> None:
    """In the middle of a write-back, and with a thread that no signal ends."""
    with through_mapper("below") as below:
        server, disk = start("passthrough", f"file={below}")
        with suspended("below"):
            with open(disk, "r+b", buffering=0) as stream:
                stream.write(bytes(MIB))
                server.send_signal(signal.SIGTERM)
                wait_until("it hangs", lambda: hanging_threads(server.pid) == 2, LIMIT)
                guard = guard_of(server)
                server.send_signal(number)
                wait_until("the disk is disconnected", lambda: not is_running(guard), 60)
                with pytest.raises(OSError):
                    os.fsync(stream.fileno())
        server.wait(LIMIT)
    await_end_of_all(disk)


def test_killed_while_it_starts(start: Start) -> None:
    del start  # the module
    chance = random.Random(1)
    for _ in range(30):
        server = subprocess.Popen([str(BUSE), "null", f"size={MIB}"], stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0, 0.15))
        server.kill()
        server.wait(LIMIT)
    for block in Path("/sys/block").glob("nbd*"):
        await_end_of_all(f"/dev/{block.name}")


def test_an_end_of_its_guard_ends_it(start: Start) -> None:
    server, disk = start("passthrough", f"file={NVME}")
    text = os.urandom(MIB)
    with open(disk, "r+b", buffering=0) as stream:
        stream.write(text)
        os.kill(guard_of(server), signal.SIGKILL)
        code, errors = ended(server)
    assert code == 1 and "was itself killed; the disk is written back and removed" in errors and "lost" not in errors
    await_gone(disk)
    assert has(text)


def test_an_end_of_its_holder_loses_nothing(start: Start) -> None:
    server, disk = start("passthrough", f"file={NVME}")
    text = os.urandom(MIB)
    with open(disk, "r+b", buffering=0) as stream:
        stream.write(text)
        os.kill(child_of(server, "buse-holder"), signal.SIGTERM)  # as systemd, which sends it to all
        os.kill(child_of(server, "buse-holder"), signal.SIGKILL)
        time.sleep(1.0)
        assert server.poll() is None and not has(text)
        server.send_signal(signal.SIGTERM)
        code, errors = ended(server)
        assert code == 0 and "lost" not in errors, errors
    await_gone(disk)
    assert has(text)


@contextmanager
def locked_by_a_user(*directories: str) -> Iterator[None]:
    """Anybody may lock what they may open."""
    descriptors = [os.open(directory, os.O_RDONLY) for directory in directories]
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@tells_who
@pytest.mark.parametrize("named", [False, True], ids=["any", "named"])
def test_killed_with_its_guard(start: Start, named: bool) -> None:
    """The next server ends what still waits."""
    server, disk = start("passthrough", f"file={NVME}")
    load = start_load(disk)
    guard = guard_of(server)
    with grouped(server):
        stop(server.pid)  # some are sent and not answered
        time.sleep(1.0)
        (CGROUP / "cgroup.kill").write_text("1")
        server.wait(LIMIT)
    wait_until("the guard has ended", lambda: not is_running(guard), LIMIT)
    time.sleep(1.0)
    assert load.poll() is None
    words = ("timeout", "5", str(BUSE), "null", f"size={MIB}", *([f"--disk={disk}"] if named else []))
    with locked_by_a_user("/dev", "/run"):
        # Refused while fio has it open, and else ended by timeout(1).
        run(words, expect=None)
        has_failed(load)
    await_end_of_all(disk)
    assert start(f"--disk={disk}", "null", f"size={MIB}")[1] == disk


@tells_who
def test_killed_with_its_guard_while_it_writes_back(start: Start) -> None:
    """As systemd does it. What is sent later fails at once, and the next server ends what was sent before."""
    run(["modprobe", "dm-delay"])
    table = f"0 {size(NVME) // 512} delay {NVME} 0 0 {NVME} 0 200"  # ms for each write
    with mapped("slow", table) as slow:
        server, disk = start("passthrough", f"file={slow}")
        with open(disk, "r+b", buffering=0) as stream, grouped(server):
            stream.write(bytes(64 * MIB))
            server.send_signal(signal.SIGTERM)
            wait_until("it writes back", lambda: hanging_threads(server.pid) == 2, LIMIT)
            (CGROUP / "cgroup.kill").write_text("1")
            wait_until("the server has ended", lambda: server.poll() is not None, 60)
            argv = ["dd", f"if={disk}", "of=/dev/null", "bs=4k", "count=1", "skip=65536", "iflag=direct"]
            assert "rror" in run(["timeout", "-s", "KILL", "60", *argv], expect=1)
            run(["timeout", "5", BUSE, "null", f"size={MIB}"], expect=None)
            wait_until("the group is empty", lambda: not (CGROUP / "cgroup.procs").read_text(), 60)
    await_end_of_all(disk)
    assert start(f"--disk={disk}", "null", f"size={MIB}")[1] == disk


@tells_who
def test_killed_with_its_guard_and_dirty_pages(start: Start) -> None:
    """The last process that closes the disk writes them back."""
    server, disk = start("passthrough", f"file={NVME}")
    with grouped(server):
        with open(disk, "r+b", buffering=0) as stream:
            stream.write(bytes(64 * MIB))
        (CGROUP / "cgroup.kill").write_text("1")
        wait_until("the server has ended", lambda: server.poll() is not None, 60)
        assert start(f"--disk={disk}", "null", f"size={MIB}")[1] == disk
    assert not processes_that_hang()


@tells_who
def test_killed_with_its_guard_while_its_device_hangs(start: Start) -> None:
    """A disconnect would wait for the device, and with it all programs that use generic netlink."""
    with through_mapper("below") as below:
        server, disk = start("passthrough", f"file={below}")
        load = start_load(disk, "--rw=randwrite", "--bs=256k", "--iodepth=64", "--numjobs=2")
        guard = guard_of(server)
        with grouped(server), suspended("below"):
            wait_until("it hangs", lambda: hanging_threads(server.pid), LIMIT)
            time.sleep(2.0)  # the socket becomes full
            (CGROUP / "cgroup.kill").write_text("1")
            wait_until("all that can has ended", lambda: not is_running(guard) and size_of_group() <= 1, 60)
            text = run(["timeout", "-s", "KILL", "60", BUSE, f"--disk={disk}", "null", f"size={MIB}"], expect=2)
            assert "in use" in text
            other, second = start("null", f"size={MIB}")
            assert second != disk
            other.send_signal(signal.SIGTERM)
            assert ended(other) == (0, "")
        run(["timeout", "5", BUSE, "null", f"size={MIB}"], expect=None)
        has_failed(load)
    await_end_of_all(disk)


def test_a_named_disk_may_be_open_for_a_moment(start: Start) -> None:
    """As udev opens each."""
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, time; f = open('/dev/nbd3'); print(flush=True); time.sleep(3)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout
    holder.stdout.readline()
    assert start("--disk=/dev/nbd3", "null", f"size={MIB}")[1] == "/dev/nbd3"
    assert holder.wait(LIMIT) == 0
    with open("/dev/nbd4"):
        text = run([BUSE, "--disk=/dev/nbd4", "null", f"size={MIB}"], expect=2)
    assert "disk=/dev/nbd4: in use" in text


def test_there_is_always_a_free_disk(start: Start) -> None:
    count = len(list(Path("/sys/block").glob("nbd*")))
    disks = {start("null", f"size={MIB}")[1] for _ in range(count + 1)}
    assert len(disks) == count + 1 and all(len(read(disk, 0, 4096)) == 4096 for disk in disks)


@pytest.mark.skipif(not Path("/lib/modules", os.uname().release, "kernel").is_dir(), reason="kernel: it has no modules")
def test_the_kernel_loads_its_driver(start: Start) -> None:
    run(["modprobe", "-r", "nbd"])
    assert start("--disk=/dev/nbd2", "null", f"size={MIB}")[1] == "/dev/nbd2"


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
