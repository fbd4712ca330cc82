# SPDX-License-Identifier: BSD-3-Clause
"""Servers of userblk-ublk that are killed, recovered and replaced."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from guest import LIMIT, MIB, NVME, finish, more_requests, read, requests, run, start_verify, suspended, through_mapper
from guest_ublk import MODES, NEEDS_UBLK, UBLK, Add, disks, info, kill, mode_options, ublk
from waiting import thread_state, wait_until

CYCLES = 64
REPLACEMENTS = 100
SCANS_LATER = tuple(map(int, platform.release().split(".")[:2])) >= (6, 19)  # for partitions: not within START_DEV
STAGES = 16  # calls of a thread into io_uring from its start until it serves, and some more

pytestmark = NEEDS_UBLK


def is_busy(disk: str) -> bool:
    """Is a request under way?"""
    inflight = Path("/sys/block", Path(disk).name, "inflight")
    return inflight.exists() and any(map(int, inflight.read_text().split()))


@pytest.mark.long
def test_many_cycles(add: Add) -> None:
    for cycle in range(CYCLES):
        disk = add("--mode=uring" if cycle % 2 else "--mode=workers", "null", "size=1M")
        ublk("delete", disk)
    assert disks() == []
    assert list(Path("/dev").glob("ublkb*")) == []


@pytest.mark.parametrize("mode", MODES)
def test_killed_server_is_recovered(add: Add, mode: str) -> None:
    """No request fails: they wait for the next server."""
    disk = add(*mode_options(mode), "passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=24M")
    kill(disk)
    assert info(disk)["state"] == "waiting"
    assert load.poll() is None
    ublk("recover", disk)
    assert info(disk)["state"] == "live"
    finish(load)


def test_recovered_where_its_directory_is_gone(add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was for relative paths only."""
    gone, program = tmp_path / "gone", UBLK.resolve()
    for file, code in ((str(tmp_path / "absolute"), 0), ("../relative", 2)):
        gone.mkdir()
        monkeypatch.chdir(gone)
        disk = run([program, "add", "passthrough", f"file={file}", "size=1M"]).strip()
        monkeypatch.undo()
        gone.rmdir()
        kill(disk)
        ublk("recover", disk, expect=code)
        assert info(disk)["state"] == ("waiting" if code else "live")
        ublk("delete", disk)


def test_a_lost_file_is_not_created_again(add: Add, tmp_path: Path) -> None:
    """A disk that continues has its data or no server, but never zeroes."""
    file, lost = tmp_path / "file", tmp_path / "lost"
    disk = add("passthrough", f"file={file}", "size=8M")
    data = os.urandom(MIB)
    with open(disk, "wb", buffering=0) as stream:
        stream.write(data)
        os.fsync(stream.fileno())
    kill(disk)
    file.rename(lost)
    for words in (("recover", disk), ("replace", disk, "passthrough", f"file={file}", "size=8M")):
        assert "bring back the file" in ublk(*words, expect=2)
        assert not file.exists()
        assert info(disk)["state"] == "waiting"
    file.touch()
    assert "bring back the file" in ublk("recover", disk, expect=2)
    assert file.stat().st_size == 0
    lost.rename(file)
    ublk("recover", disk)
    kept = read(disk, 0, MIB) == data  # pytest would look for the differences for minutes
    assert kept


def test_killed_server_without_recovery(add: Add) -> None:
    disk = add("--recovery=none", "passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=64M")
    kill(disk)
    assert load.wait(LIMIT) != 0
    wait_until("the disk is gone", lambda: not Path(disk).exists(), LIMIT)
    assert "--recovery=none" in ublk("recover", disk, expect=2)
    ublk("delete", disk)
    add("passthrough", f"file={NVME}")


def test_recovery_fail(add: Add) -> None:
    """What the server had fails; the disk waits."""
    disk = add("--recovery=fail", "passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=64M", "--loops=1000")
    for _ in range(20):  # one that is killed may have none
        kill(disk)
        ublk("recover", disk)
        with suppress(subprocess.TimeoutExpired):
            load.wait(1)
            break
    load.kill()  # unless it has ended
    assert load.wait() > 0
    finish(start_verify(disk, "--size=2M"))


def test_recovery_fail_all(add: Add) -> None:
    if not json.loads(ublk("features", "--json"))["USER_RECOVERY_FAIL_IO"]:
        pytest.skip("kernel: its ublk cannot fail requests while there is no server")
    disk = add("--recovery=fail-all", "passthrough", f"file={NVME}")
    kill(disk)
    assert info(disk)["state"] == "failing"
    run(["dd", "if=/dev/zero", f"of={disk}", "count=1", "oflag=direct"], expect=1)
    ublk("recover", disk)
    pid = info(disk)["pid"]
    assert "--recovery=fail-all" in ublk("replace", disk, "passthrough", f"file={NVME}", expect=2)
    assert info(disk)["pid"] == pid and info(disk)["state"] == "live"
    run(["dd", "if=/dev/zero", f"of={disk}", "count=1", "oflag=direct"])


@pytest.fixture
def one_cpu() -> Iterator[Callable[[bool], None]]:
    """one_cpu(True): all but one of the machine's CPUs are offline."""

    def enter(alone: bool) -> None:
        for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/online"):
            if path.parent.name != "cpu0":
                path.write_text("0" if alone else "1")

    if not Path("/sys/devices/system/cpu/cpu1/online").exists():
        pytest.skip("machine: it has one CPU, or they cannot go offline")
    yield enter
    enter(False)


def test_offline_cpus(add: Add, one_cpu: Callable[[bool], None]) -> None:
    """A queue whose CPUs are all offline has a thread all the same."""
    one_cpu(True)
    disk = add("--queues=2", "passthrough", f"file={NVME}")
    finish(start_verify(disk, "--size=1M"))
    ublk("delete", disk)
    one_cpu(False)
    disk = add("--queues=2", "passthrough", f"file={NVME}")
    one_cpu(True)
    kill(disk)
    ublk("recover", disk)
    finish(start_verify(disk, "--size=1M"))
    one_cpu(False)
    finish(start_verify(disk, "--size=1M"))


@pytest.mark.parametrize("mode", MODES)
def test_replaced_under_load(add: Add, mode: str) -> None:
    options = mode_options(mode)
    disk = add(*options, "passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=32M", "--loops=4")
    pids = {info(disk)["pid"]}
    for _ in range(3):
        ublk("replace", disk, options[0], "passthrough", f"file={NVME}")
        pids.add(info(disk)["pid"])
    assert len(pids) == 4
    assert load.poll() is None, "over before it was replaced"
    finish(load)


@pytest.mark.parametrize("recovery", ["reissue", "fail"])
@pytest.mark.parametrize(("depth", "times"), [(1, 1), pytest.param(4, 3, marks=pytest.mark.long)])
def test_replaced_with_a_full_queue(add: Add, depth: int, times: int, recovery: str) -> None:
    """No tag waits for a request, so that the kernel cannot tell the server to end."""
    if recovery == "fail" and not json.loads(ublk("features", "--json"))["QUIESCE"]:
        pytest.skip("kernel: its ublk cannot quiesce a disk")
    words = ("passthrough", f"file={NVME}")
    disk = add("--queues=1", f"--depth={depth}", f"--recovery={recovery}", *words)
    load = start_verify(disk, "--size=8M", "--loops=100000", "--verify_backlog=64", "--verify_state_save=0")
    try:
        for _ in range(times if recovery == "reissue" else 1):
            before = requests(disk)
            ublk("replace", disk, *words)  # half a minute on a kernel that cannot quiesce it
            wait_until("a request comes through", partial(more_requests, disk, before), LIMIT)
            assert load.poll() is None, load.communicate()[0]
    finally:
        load.send_signal(signal.SIGINT)
        output, _ = load.communicate(timeout=LIMIT)
    assert "err= 0" in output, output


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--queues=1", "--depth=1")], ids=["", "full"])
def test_a_hung_device_outlasts_a_replacement(add: Add, options: tuple[str, ...]) -> None:
    """The old server ends after the new one has given up. full: the kernel has no tag to tell it by."""
    with through_mapper("hung") as device:
        disk = add(*options, "passthrough", f"file={device}")
        try:
            with suspended("hung"):
                write = subprocess.Popen(["dd", "if=/dev/zero", f"of={disk}", "bs=4k", "count=1", "oflag=direct"])
                time.sleep(1.0)  # until the server has the write
                replacement = subprocess.Popen(
                    [UBLK, "replace", disk, "passthrough", f"file={device}"],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )  # fmt: skip
                time.sleep(70.0)
                assert replacement.poll() is None
            output, _ = replacement.communicate(timeout=LIMIT)
            assert replacement.returncode == 1 and "continues as before" in output, output
            assert info(disk)["state"] == "live"
            assert write.wait(LIMIT) == 0
            finish(start_verify(disk, "--size=1M"))
        finally:
            ublk("delete", "--force", disk)


@pytest.mark.long
def test_a_flush_that_failed_with_the_old_server_fails(add: Add) -> None:
    """The kernel tells that server, which was killed meanwhile, and issues the flush again."""
    sectors = int(run(["blockdev", "--getsz", NVME]))
    # Unlike writes to the bad block, flushes succeed.
    bad = f"0 2048 linear {NVME} 0\n2048 8 error\n2056 {sectors - 2056} linear {NVME} 2056\n"
    with through_mapper("hung") as device:
        words = ("passthrough", f"file={device}", "direct=off")
        disk = add(*words)
        pid = info(disk)["pid"]
        with suspended("hung"):
            write = subprocess.Popen(
                ["dd", "if=/dev/zero", f"of={disk}", "bs=4k", "count=1", "seek=256", "oflag=direct",
                 "conv=fdatasync"]
            )  # fmt: skip
            time.sleep(1.0)  # until the flush waits for what it writes
            replacement = subprocess.Popen([UBLK, "replace", disk, *words], stdin=subprocess.DEVNULL)
            wait_until("the old server is killed", lambda: thread_state(pid) == "Z", LIMIT)  # its first thread
            run(["dmsetup", "load", "hung"], stdin=bad)
        assert replacement.wait(LIMIT) == 0
        assert info(disk)["pid"] != pid
        assert write.wait(LIMIT) == 1
        ublk("delete", "--force", disk)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_replaced_a_hundred_times_under_load(add: Add, mode: str) -> None:
    options = mode_options(mode)
    disk = add(*options, "passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=32M", "--loops=100000", "--rate_iops=2000", "--verify_backlog=256",
                        "--verify_state_save=0")  # fmt: skip
    try:
        pids = {info(disk)["pid"]}
        for number in range(REPLACEMENTS):
            # Back and forth, where the disk allows both.
            word = options[0] if mode == "zero-copy" or number % 2 else "--mode=workers"
            before = requests(disk)
            ublk("replace", disk, word, "passthrough", f"file={NVME}")
            pids.add(info(disk)["pid"])
            wait_until("a request comes through", partial(more_requests, disk, before), LIMIT)
            assert load.poll() is None, load.communicate()[0]
        assert len(pids) == REPLACEMENTS + 1
    finally:
        load.send_signal(signal.SIGINT)
        output, _ = load.communicate(timeout=LIMIT)
    assert "err= 0" in output, output  # EILSEQ is what does not verify


def calls_to_start(trace: Path) -> int:
    """Calls of io_uring_enter of the thread that brings a disk up: the last one starts it."""
    server = subprocess.Popen(
        ["strace", "-o", trace, "-e", "trace=io_uring_enter",
         UBLK, "add", "--foreground", "passthrough", f"file={NVME}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert server.stdout and server.stdout.readline() == "/dev/ublkb0\n"
        calls = trace.read_text().count("io_uring_enter(")
        ublk("delete", "0")
        server.wait(LIMIT)
    finally:
        server.kill()
        server.communicate()
    return calls


@pytest.mark.long
def test_killed_at_each_stage_of_its_life(add: Add, tmp_path: Path) -> None:
    """Whatever is left can be deleted, and the device served again."""
    # An older kernel waits forever if the server is killed while it looks for partitions.
    stages = STAGES if SCANS_LATER else calls_to_start(tmp_path / "trace") - 1
    assert stages > 3
    for stage in range(1, stages + 1):
        server = subprocess.Popen(
            ["strace", *(["-f"] if SCANS_LATER else []), "-o", "/dev/null",
             "-e", f"inject=io_uring_enter:signal=KILL:when={stage}",
             UBLK, "add", "--foreground", "passthrough", f"file={NVME}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            assert server.stdout
            if server.stdout.readline().startswith("/dev/"):
                (disk,) = disks()
                os.kill(disk["pid"], signal.SIGKILL)
            server.wait(LIMIT)
        finally:
            server.kill()
            server.communicate()
        for disk in disks():
            ublk("delete", str(disk["number"]))
        assert disks() == [] and list(Path("/dev").glob("ublk[bc]*")) == [], f"killed at stage {stage}"
        assert list(Path("/run/userblk-ublk").glob("*")) == []
    name = add("passthrough", f"file={NVME}")
    kill(name)  # a disk whose server seems to live is written back first, which would wait for another one
    ublk("delete", name)
    finish(start_verify(add("passthrough", f"file={NVME}"), "--size=1M"))


@pytest.fixture
def held() -> Iterator[tuple[str, Callable[[], None]]]:
    """A device whose requests all wait, and what lets them go on."""

    def release() -> None:
        run(["dmsetup", "resume", "held"])

    with through_mapper("held") as device, suspended("held"):
        yield device, release


@pytest.mark.parametrize("event", ["stopped and continued", "terminated", "interrupted"])
def test_a_signal_while_it_starts(held: tuple[str, Callable[[], None]], add: Add, event: str) -> None:
    """
    START_DEV waits until the kernel has looked for partitions. (Newer ones look later, and others wait for that.)
    Not killed: Linux 6.12 then waits forever for the answer of a server that cannot end before.
    """
    device, release = held
    where = ["--foreground"] if event != "interrupted" else []
    if SCANS_LATER and not where:
        pytest.skip("kernel: the disk is there before it looks for partitions")

    server = subprocess.Popen(
        [UBLK, "add", *where, "--number=5", "--recovery=none", "passthrough", f"file={device}", "direct=off"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_until("somebody looks for partitions", lambda: is_busy("ublkb5"), LIMIT)
        if event == "stopped and continued":
            server.send_signal(signal.SIGSTOP)
            # Its first thread: the one that waits in the kernel for the partitions cannot stop.
            wait_until("it stops", lambda: thread_state(server.pid) == "T", LIMIT)
            server.send_signal(signal.SIGCONT)
        else:
            server.terminate()
        time.sleep(0.5)  # for what comes too early
        assert server.poll() == (None if where else -signal.SIGTERM), server.communicate()
    finally:
        release()
    try:
        if event == "stopped and continued":
            assert server.stdout and server.stdout.readline() == "/dev/ublkb5\n"
            finish(start_verify("/dev/ublkb5", "--size=1M"))
            server.terminate()
        assert server.wait(LIMIT) == 0 or not where, server.communicate()
    finally:
        server.kill()
        server.communicate()
    if not where:
        wait_until("the disk is removed again", lambda: not Path("/dev/ublkc5").exists(), LIMIT)
    assert disks() == [] and list(Path("/dev").glob("ublk[bc]*")) == []


@pytest.mark.parametrize("where", [(), ("--foreground",)], ids=["background", "foreground"])
def test_bad_replacement_leaves_the_old_one(add: Add, where: tuple[str, ...]) -> None:
    disk = add("passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=16M")
    for words, reason in (
        (("null", "size=1M"), "has only"),
        (("passthrough", "file=/nonexistent"), "No such file"),
        (("passthrough", f"file={NVME}", "readonly=on"), "read-only"),
    ):
        output = ublk("replace", *where, disk, *words, expect=2)
        assert reason in output
        assert "continues as before" in output
        assert info(disk)["state"] == "live"
    finish(load)


def test_replacement_without_threads_leaves_the_old_one(add: Add) -> None:
    """The new server is stopped by the machine when it has taken the disk already."""
    disk = add("passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=16M")
    output = run(
        ["strace", "-o", "/dev/null", "-e", "inject=clone3:error=EAGAIN", UBLK,
         "replace", "--foreground", disk, "passthrough", f"file={NVME}"],
        expect=1,
    )  # fmt: skip
    assert "cannot start the queues" in output
    assert "continues as before" in output
    assert info(disk)["state"] == "live"
    finish(load)


@pytest.mark.parametrize("queue", [1, 2])
def test_replacement_without_a_queue_leaves_the_old_one(add: Add, queue: int) -> None:
    """Before Linux 6.16, the driver must not know of any queue by then: the next server could have none."""
    words = ("null", f"size={16 * MIB}")
    disk = add("--queues=2", *words)
    if info(disk)["queues"] < queue:
        pytest.skip("machine: it has one CPU")
    output = run(
        ["strace", "-o", "/dev/null", "-e", f"inject=clone3:error=EAGAIN:when={queue}", UBLK,
         "replace", "--foreground", "--mode=uring", disk, *words],
        expect=1,
    )  # fmt: skip
    assert "cannot start the queues" in output and "continues as before" in output
    assert info(disk)["state"] == "live"
    ublk("replace", disk, *words)
    assert not any(read(disk, 0, MIB))


def test_killed_replacement_leaves_the_old_one(add: Add) -> None:
    disk = add("passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=16M")
    run(
        ["strace", "-o", "/dev/null", "-e", "inject=clone3:signal=KILL", UBLK,
         "replace", "--foreground", disk, "passthrough", f"file={NVME}"],
        expect=None,
    )  # fmt: skip
    wait_until("the disk is served", lambda: info(disk)["state"] == "live", LIMIT)
    finish(load)


def first_sectors(*files: Path) -> list[bytes]:
    return [file.read_bytes()[:512] for file in files]


def test_a_replacement_that_is_not_recorded_leaves_the_old_one(small_run: None, add: Add, tmp_path: Path) -> None:
    """The next recovery would serve the old file, without what was written since."""
    old, new = tmp_path / "old", tmp_path / "new"
    disk = add("passthrough", f"file={old}", "size=1M")
    shutil.copy(old, new)
    output = ublk("replace", disk, "passthrough", f"file={new}", expect=None)
    with open(disk, "wb", buffering=0) as stream:
        stream.write(b"x" * 512)
        os.fsync(stream.fileno())
    served = first_sectors(old, new)
    kill(disk)
    ublk("recover", disk)
    assert read(disk, 0, 512) == b"x" * 512, output
    assert first_sectors(old, new) == served == [b"x" * 512, bytes(512)]
    assert "No space left" in output and "continues as before" in output


def test_a_replacement_that_fails_leaves_the_old_record(add: Add, tmp_path: Path) -> None:
    """The new one was recorded before."""
    disk = add("passthrough", f"file={NVME}")
    record = Path("/run/userblk-ublk", disk.removeprefix("/dev/ublkb"))
    before = record.read_bytes()
    server = subprocess.Popen(
        ["strace", "-D", "-o", "/dev/null", "-e", "inject=rename:delay_exit=15000000", UBLK,
         "replace", "--foreground", disk, "--threads=1", "passthrough", f"file={NVME}"],
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until("it is recorded", lambda: record.read_bytes() != before, LIMIT, process=server)
    finally:
        server.kill()
        server.wait(LIMIT)
    wait_until("the disk is served", lambda: info(disk)["state"] == "live", LIMIT)
    assert record.read_bytes() == before
    finish(start_verify(disk, "--size=1M"))


def test_a_server_that_dies_before_its_disk_is_recorded(add: Add) -> None:
    """Nobody could serve the disk if it were there already, and all who open it would wait."""
    run(
        ["strace", "-o", "/dev/null", "-e", "inject=rename:signal=KILL", UBLK,
         "add", "--foreground", "passthrough", f"file={NVME}"],
        expect=None,
    )  # fmt: skip
    (disk,) = disks()
    wait_until("the kernel notices the death", lambda: info(disk["disk"])["state"] != "live", LIMIT)
    assert info(disk["disk"])["state"] == "dead"
    ublk("delete", disk["disk"])


def test_a_replacement_of_a_waiting_disk_that_fails_leaves_the_record(add: Add) -> None:
    """The unit serves the disk by that a second later."""
    disk = add("passthrough", f"file={NVME}")
    before = info(disk)["arguments"]
    kill(disk)
    run(
        ["strace", "-f", "-o", "/dev/null", "-e", "inject=mmap:error=ENOMEM", "-P", disk.replace("ublkb", "ublkc"),
         UBLK, "replace", "--foreground", disk, "--threads=1", "passthrough", f"file={NVME}"],
        expect=1,
    )  # fmt: skip
    assert info(disk)["arguments"] == before
    ublk("recover", disk)
    finish(start_verify(disk, "--size=1M"))


def test_a_server_that_is_late_leaves_the_faster_one(add: Add, tmp_path: Path) -> None:
    """What it has may be older, and it must not wait for the other one's end."""
    old, new = tmp_path / "old", tmp_path / "new"
    disk = add("passthrough", f"file={old}", "size=1M")
    shutil.copy(old, new)
    kill(disk)
    late = subprocess.Popen(
        ["strace", "-D", "-o", "/dev/null", "-P", disk.replace("ublkb", "ublkc"), "-e",
         "inject=openat:delay_enter=8000000", UBLK, "recover", "--foreground", disk],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    time.sleep(3.0)  # until it has read the record
    ublk("replace", disk, "passthrough", f"file={new}")
    output, _ = late.communicate(timeout=LIMIT)
    assert late.returncode == 1 and "has another server" in output, output
    with open(disk, "wb", buffering=0) as stream:
        stream.write(b"x" * 512)
        os.fsync(stream.fileno())
    assert first_sectors(old, new) == [bytes(512), b"x" * 512]
    kill(disk)
    ublk("recover", disk)
    assert read(disk, 0, 512) == b"x" * 512


def test_no_server_is_ended_to_which_there_is_no_way_back(add: Add) -> None:
    disk = add("null", "size=1M")
    pid = info(disk)["pid"]
    record = Path("/run/userblk-ublk", disk.removeprefix("/dev/ublkb"))
    kept = record.read_bytes()
    record.unlink()
    assert "its parameters are unknown" in ublk("replace", disk, "null", "size=1M", expect=2)
    assert info(disk)["pid"] == pid and info(disk)["state"] == "live"
    record.write_bytes(kept)


def test_a_process_with_the_number_of_the_server_lives(add: Add) -> None:
    """Before Linux 6.16, the server's number is that of its container, where it is another one."""
    if not Path("/proc/sys/kernel/ns_last_pid").exists():
        pytest.skip("kernel: nobody can choose the number of a process")
    serve = 'echo $((NUMBER - 1)) >/proc/sys/kernel/ns_last_pid; "$@" & wait'
    words = ["passthrough", f"file={NVME}"]
    argv = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", serve, "sh", str(UBLK)]
    with subprocess.Popen(["sleep", "3600"]) as other:
        container = subprocess.Popen(
            [*argv, "add", "--foreground", *words],
            env=os.environ | {"NUMBER": str(other.pid)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            assert container.stdout
            disk = container.stdout.readline().strip()
            if "START_DEV" in disk or info(disk)["pid"] != other.pid:
                pytest.skip(f"kernel: its ublk knows the numbers of containers: {disk}")
            output = ublk("replace", disk, *words, expect=2)
            assert f"process {other.pid}" in output and "its container" in output
            assert other.poll() is None and info(disk)["state"] == "live"
            began = time.monotonic()
            assert "removed, but its server cannot be seen" in ublk("delete", disk, expect=1)
            assert time.monotonic() - began < 30, "waited for the end of the other process"
            assert container.wait(LIMIT) == 0
        finally:
            container.kill()
            container.wait()
            other.kill()
