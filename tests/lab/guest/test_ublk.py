# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk on the kernel's driver: data, ends and beginnings of servers, and what it refuses."""

from __future__ import annotations

import json
import mmap
import os
import platform
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from guest import LIMIT, MIB, NVME, finish, mapped, more_requests, read, requests, run, start_verify
from guest_ublk import NEEDS_UBLK, UBLK, Add, disks, info, ublk
from waiting import thread_state, wait_until

MODES = ("workers", "uring", "zero-copy")
CYCLES = 64
REPLACEMENTS = 100
STAGES = 16  # calls of a thread into io_uring from its start until it serves, and some more

pytestmark = NEEDS_UBLK


def mode_options(mode: str) -> list[str]:
    if mode == "workers":
        return ["--mode=workers"]
    has = json.loads(ublk("features", "--json"))["AUTO_BUF_REG"]
    if mode == "zero-copy" and not has:
        pytest.skip("kernel: its ublk registers no buffers by itself")
    return ["--mode=uring", f"--zero-copy={'on' if mode == 'zero-copy' else 'off'}"]


def kill(disk: str) -> None:
    """As a crash would; until the kernel has noticed."""
    os.kill(info(disk)["pid"], signal.SIGKILL)
    wait_until("the kernel notices the death", lambda: info(disk)["state"] != "live", LIMIT)


# ---- data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_verify_and_discard(add: Add, mode: str) -> None:
    disk = add(*mode_options(mode), "passthrough", f"file={NVME}")
    assert info(disk)["zero_copy"] == (mode == "zero-copy")
    finish(start_verify(disk, "--size=16M", "--fdatasync=32"))
    assert read(NVME, 0, MIB) == read(disk, 0, MIB)
    assert any(read(disk, 0, MIB))
    run(["blkdiscard", "-f", "-z", "-o", str(3 * 512), "-l", str(MIB), disk])
    assert any(read(disk, 0, 3 * 512))
    assert not any(read(disk, 3 * 512, MIB))
    assert any(read(disk, 3 * 512 + MIB, MIB))
    run(["blkdiscard", "-f", "-o", str(4 * MIB), "-l", str(4 * MIB), disk])
    # The emulated device reads as zeroes where it was discarded: the discard arrived.
    assert not any(read(disk, 4 * MIB, 4 * MIB))
    assert any(read(disk, 8 * MIB, MIB))


@pytest.mark.parametrize("mode", MODES)
def test_file_system(add: Add, mountpoint: Path, mode: str) -> None:
    disk = add(*mode_options(mode), "passthrough", f"file={NVME}")
    queue = Path("/sys/block", Path(disk).name, "queue")
    assert (queue / "write_cache").read_text().strip() == "write back", "flushes would never be sent"
    assert (queue / "fua").read_text().strip() == "1"
    run(["mkfs.ext4", "-qF", disk])
    run(["mount", disk, mountpoint])
    run(
        ["fio", "--name=verify", f"--directory={mountpoint}", "--size=4M", "--rw=randwrite", "--bs=4k",
         "--ioengine=psync", "--numjobs=2", "--thread", "--fsync=64", "--verify=crc32c", "--verify_fatal=1"]
    )  # fmt: skip
    run(["fstrim", "-v", mountpoint])
    assert "in use" in ublk("delete", disk, expect=2)
    run(["umount", mountpoint])
    run(["fsck.ext4", "-f", "-n", disk])
    ublk("delete", disk)
    run(["fsck.ext4", "-f", "-n", NVME])


@pytest.mark.parametrize("mode", MODES)
def test_file_without_direct(add: Add, tmp_path: Path, mode: str) -> None:
    """FUA through the page cache, and a file that is made by the server."""
    disk = add(*mode_options(mode), "passthrough", f"file={tmp_path / 'file'}", "size=32M", "direct=off")
    assert int(Path("/sys/block", Path(disk).name, "size").read_text()) * 512 == 32 * MIB
    finish(start_verify(disk, "--size=8M", "--sync=dsync"))


def test_null_reads_zeroes(add: Add) -> None:
    for mode in ("workers", "uring"):
        disk = add(f"--mode={mode}", "null", f"size={16 * MIB}")
        assert not any(read(disk, 0, 16 * MIB))
        run(["dd", "if=/dev/urandom", f"of={disk}", "bs=1M", "count=4", "oflag=direct"])
        assert not any(read(disk, 0, 4 * MIB))


@pytest.mark.parametrize("mode", ["workers", "uring"])
def test_null_reads_zeroes_where_data_were(add: Add, mode: str) -> None:
    """Into the only tag's buffer, which reads leave alone while it holds zeroes, and writes fill."""
    disk = add(f"--mode={mode}", "--queues=1", "--depth=1", "null", f"size={16 * MIB}")
    buffer = mmap.mmap(-1, MIB)  # aligned for direct I/O
    descriptor = os.open(disk, os.O_RDWR | os.O_DIRECT)
    try:
        for written, sizes in ((MIB, (4096, MIB)), (4096, (512, MIB)), (128 << 10, (MIB, 4096)), (512, (512,))):
            buffer[:] = b"x" * MIB
            assert os.pwritev(descriptor, [memoryview(buffer)[:written]], 0) == written
            for size in sizes:
                buffer[:] = b"y" * MIB
                assert os.preadv(descriptor, [memoryview(buffer)[:size]], 0) == size
                assert not any(buffer[:size]), (written, size)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("queues", "depth", "mode"),
    [(1, 1, "uring"), (1, 1, "workers"), (2, 3, "uring"), (2, 3, "workers"), (1, 4096, "uring"), (64, 5, "workers")],
)
def test_odd_queues_and_depths(add: Add, queues: int, depth: int, mode: str) -> None:
    disk = add(f"--mode={mode}", f"--queues={queues}", f"--depth={depth}", "passthrough", f"file={NVME}")
    assert info(disk)["depth"] == depth
    assert info(disk)["queues"] == min(queues, os.cpu_count() or 1)
    finish(start_verify(disk, "--size=2M"))


def test_readonly(add: Add) -> None:
    disk = add("passthrough", f"file={NVME}", "readonly=on")
    assert Path("/sys/block", Path(disk).name, "ro").read_text().strip() == "1"
    run(["dd", "if=/dev/zero", f"of={disk}", "count=1", "oflag=direct"], expect=1)


def test_a_device_that_becomes_readonly(add: Add) -> None:
    """The block layer has no error of its own for that: docs/architecture.md."""
    disk = add("passthrough", f"file={NVME}")
    run(["blockdev", "--setro", NVME])
    try:
        assert "Input/output error" in run(["dd", "if=/dev/zero", f"of={disk}", "count=1", "oflag=direct"], expect=1)
    finally:
        run(["blockdev", "--setrw", NVME])
    run(["dd", "if=/dev/zero", f"of={disk}", "count=1", "oflag=direct"])


# ---- ends and beginnings ------------------------------------------------------------------------------


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
    load = start_verify(disk, "--size=64M")
    kill(disk)
    ublk("recover", disk)
    assert load.wait(LIMIT) != 0
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


def test_weak_flush(add: Add) -> None:
    """No flush reaches the device while the disk lives; its end makes all durable."""

    def flushes() -> int:
        return int(Path("/sys/block", Path(NVME).name, "stat").read_text().split()[15])

    disk = add("--flush=weak", "passthrough", f"file={NVME}")
    before = flushes()
    finish(start_verify(disk, "--size=2M", "--fdatasync=1"))
    assert flushes() == before
    ublk("delete", disk)
    assert flushes() > before


def test_waiting_disk_can_be_deleted(add: Add) -> None:
    disk = add("passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=64M")
    kill(disk)
    ublk("delete", disk)
    assert load.wait(LIMIT) != 0


def test_the_signal_of_the_queues_is_not_believed(add: Add) -> None:
    """They say by SIGUSR1 that they have ended, which is not so if others send it."""
    disk = add("passthrough", f"file={NVME}")
    pid = info(disk)["pid"]
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.5)
    os.kill(pid, signal.SIGTERM)
    wait_until("the disk is gone", lambda: disks() == [], LIMIT)


def test_deleted_by_one_who_ignores_children(add: Add) -> None:
    """An ignored SIGCHLD is passed on to programs, which then have no child to wait for."""
    disk = add("passthrough", f"file={NVME}")
    with dirty(disk) as data:
        script = 'trap "" CHLD; exec "$@"'
        assert run(["sh", "-c", script, "sh", UBLK, "delete", disk]) == f"{disk}: written back and removed\n"
    kept = read(NVME, 0, 8 * MIB) == data
    assert kept


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_remove_the_disk(add: Add, number: int) -> None:
    disk = add("passthrough", f"file={NVME}")
    os.kill(info(disk)["pid"], number)
    wait_until("the disk is gone", lambda: disks() == [], LIMIT)
    add("passthrough", f"file={NVME}")


@contextmanager
def dirty(disk: str) -> Iterator[bytes]:
    """Data that lies in the page cache alone, for as long as somebody has the disk open."""
    data = os.urandom(8 * MIB)
    descriptor = os.open(disk, os.O_RDWR)
    try:
        assert os.write(descriptor, data) == len(data)
        yield data
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("end", ["delete", "SIGTERM"])
def test_what_was_written_survives_an_orderly_end(add: Add, end: str) -> None:
    disk = add("passthrough", f"file={NVME}")
    with dirty(disk) as data:
        if end == "delete":
            assert ublk("delete", disk) == f"{disk}: written back and removed\n"
        else:
            os.kill(info(disk)["pid"], signal.SIGTERM)
        wait_until("the disk is gone", lambda: disks() == [], LIMIT)
    assert read(NVME, 0, 8 * MIB) == data


def test_what_cannot_be_written_back_stays_unless_forced(add: Add, broken: tuple[str, Callable[[], None]]) -> None:
    device, break_it = broken
    disk = add("passthrough", f"file={device}")
    with dirty(disk):
        break_it()
        assert "not removed" in ublk("delete", disk, expect=1)
        assert info(disk)["state"] == "live"
        assert "the last writes are lost" in ublk("delete", "--force", disk)
    assert disks() == []


@pytest.fixture
def broken() -> Iterator[tuple[str, Callable[[], None]]]:
    """A device, and what makes all its writes fail from then on."""
    run(["modprobe", "dm-mod"])
    run(["modprobe", "dm-flakey"])
    sectors = Path("/sys/block", Path(NVME).name, "size").read_text().strip()

    def break_it() -> None:
        table = f"0 {sectors} flakey {NVME} 0 0 60 1 error_writes"
        run(["dmsetup", "load", "broken", "--table", table])
        run(["dmsetup", "suspend", "--noflush", "--nolockfs", "broken"])
        run(["dmsetup", "resume", "broken"])

    with mapped("broken", f"0 {sectors} linear {NVME} 0") as disk:
        yield disk, break_it


def mount_with_file(disk: str, mountpoint: Path) -> bytes:
    """A file system on the disk, with a file that nobody has synced."""
    data = os.urandom(MIB)
    run(["mkfs.ext4", "-qF", disk])
    run(["mount", disk, mountpoint])
    (mountpoint / "file").write_bytes(data)
    return data


def assert_kept(data: bytes, mountpoint: Path) -> None:
    """The file is whole on the device itself."""
    run(["mount", NVME, mountpoint])
    try:
        assert (mountpoint / "file").read_bytes() == data
    finally:
        run(["umount", mountpoint])


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGHUP)], ids=["one", "two at once"])
def test_a_mounted_disk_is_served_until_it_is_unmounted(add: Add, mountpoint: Path, numbers: tuple[int, ...]) -> None:
    """Two at once are one: systemd sends both where a login ends."""
    disk = add("passthrough", f"file={NVME}")
    data = mount_with_file(disk, mountpoint)
    pid = info(disk)["pid"]
    for number in numbers:
        os.kill(pid, number)
    time.sleep(1.0)  # for what comes too early
    assert info(disk)["state"] == "live"
    (mountpoint / "more").write_bytes(data)
    run(["umount", mountpoint])
    wait_until("the disk is gone", lambda: disks() == [], LIMIT)
    run(["fsck.ext4", "-f", "-n", NVME])
    assert_kept(data, mountpoint)


def test_a_second_signal_ends_a_mounted_disk(add: Add, mountpoint: Path) -> None:
    disk = add("passthrough", f"file={NVME}")
    data = mount_with_file(disk, mountpoint)
    pid = info(disk)["pid"]
    os.kill(pid, signal.SIGTERM)
    time.sleep(3.0)  # those within a second are one
    os.kill(pid, signal.SIGTERM)
    wait_until("the disk is gone", lambda: disks() == [], LIMIT)
    run(["umount", mountpoint])
    assert_kept(data, mountpoint)
    run(["fsck.ext4", "-f", "-n", NVME])


def test_who_uses_a_disk_is_named(add: Add) -> None:
    disk = add("passthrough", f"file={NVME}")
    sectors = Path("/sys/block", Path(disk).name, "size").read_text().strip()
    run(["modprobe", "dm-mod"])
    with mapped("layer", f"0 {sectors} linear {disk} 0") as layer:
        assert f"in use by {Path(layer).name} (layer); unmount or release it" in ublk("delete", disk, expect=2)
    run(["mkswap", disk])
    run(["swapon", disk])
    try:
        assert "in use by swap; unmount or release it" in ublk("delete", disk, expect=2)
    finally:
        run(["swapoff", disk])
    ublk("delete", disk)


@pytest.mark.long
def test_a_long_flush_is_no_loss(tmp_path: Path) -> None:
    """The writes wait in the page cache of the device, and the flush takes longer than a disk that does nothing may."""
    for module in ("ublk_drv", "nbd"):
        run(["modprobe", module])
    socket_path = tmp_path / "socket"
    slow = subprocess.Popen(
        ["nbdkit", "--foreground", f"--unix={socket_path}", "--filter=rate", "memory", "64M", "rate=1M"],
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    server = None
    try:
        wait_until("the slow device can be reached", socket_path.exists, LIMIT, process=slow)
        run(["nbd-client", "-unix", socket_path, "/dev/nbd0"])
        Path("/sys/block/nbd0/queue/max_sectors_kb").write_text("64")  # so that one after the other ends
        server = subprocess.Popen(
            [UBLK, "add", "--foreground", "--number=5", "passthrough", "file=/dev/nbd0", "direct=off"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert server.stdout and server.stdout.readline() == "/dev/ublkb5\n"
        with dirty("/dev/ublkb5"):
            begun = time.monotonic()
            server.terminate()
            output, _ = server.communicate(timeout=LIMIT)
            assert time.monotonic() - begun > 35.0
        assert server.returncode == 0 and "written back and removed" in output, output
    finally:
        if server:
            server.kill()
            server.communicate()
        run(["nbd-client", "-d", "/dev/nbd0"], expect=None)
        slow.kill()
        slow.wait(LIMIT)


def test_removed_while_mounted(add: Add, mountpoint: Path) -> None:
    disk = add("passthrough", f"file={NVME}")
    data = mount_with_file(disk, mountpoint)
    assert ublk("delete", "--force", disk) == f"{disk}: written back and removed while in use\n"
    run(["umount", mountpoint])
    assert_kept(data, mountpoint)
    run(["fsck.ext4", "-f", "-n", NVME])
    assert disks() == []


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
@pytest.mark.parametrize("depth", [1, 4])
def test_replaced_with_a_full_queue(add: Add, depth: int, recovery: str) -> None:
    """No tag waits for a request, so that the kernel cannot tell the server to end."""
    if recovery == "fail" and not json.loads(ublk("features", "--json"))["QUIESCE"]:
        pytest.skip("kernel: its ublk cannot quiesce a disk")
    words = ("passthrough", f"file={NVME}")
    disk = add("--queues=1", f"--depth={depth}", f"--recovery={recovery}", *words)
    load = start_verify(disk, "--size=8M", "--loops=100000", "--verify_backlog=64", "--verify_state_save=0")
    try:
        for _ in range(3 if recovery == "reissue" else 1):
            before = requests(disk)
            ublk("replace", disk, *words)
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
    run(["modprobe", "dm-mod"])
    sectors = Path("/sys/block", Path(NVME).name, "size").read_text().strip()
    with mapped("hung", f"0 {sectors} linear {NVME} 0") as device:
        disk = add(*options, "passthrough", f"file={device}")
        try:
            run(["dmsetup", "suspend", "--noflush", "--nolockfs", "hung"])
            write = subprocess.Popen(["dd", "if=/dev/zero", f"of={disk}", "bs=4k", "count=1", "oflag=direct"])
            time.sleep(1.0)  # until the server has the write
            replacement = subprocess.Popen(
                [UBLK, "replace", disk, "passthrough", f"file={device}"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            time.sleep(70.0)
            assert replacement.poll() is None
            run(["dmsetup", "resume", "hung"])
            output, _ = replacement.communicate(timeout=LIMIT)
            assert replacement.returncode == 1 and "continues as before" in output, output
            assert info(disk)["state"] == "live"
            assert write.wait(LIMIT) == 0
            finish(start_verify(disk, "--size=1M"))
        finally:
            run(["dmsetup", "resume", "hung"])
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
    # An older kernel looks for partitions within START_DEV, and waits forever if the server is killed meanwhile.
    scans_later = tuple(map(int, platform.release().split(".")[:2])) >= (6, 19)
    stages = STAGES if scans_later else calls_to_start(tmp_path / "trace") - 1
    assert stages > 3
    for stage in range(1, stages + 1):
        server = subprocess.Popen(
            ["strace", *(["-f"] if scans_later else []), "-o", "/dev/null",
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
    add("passthrough", f"file={NVME}")
    (disk,) = disks()
    os.kill(disk["pid"], signal.SIGKILL)
    ublk("delete", str(disk["number"]))
    finish(start_verify(add("passthrough", f"file={NVME}"), "--size=1M"))


@pytest.fixture
def held() -> Iterator[tuple[str, Callable[[], None]]]:
    """A device whose requests all wait, and what lets them go on."""

    def release() -> None:
        run(["dmsetup", "resume", "held"])

    run(["modprobe", "dm-mod"])
    sectors = Path("/sys/block", Path(NVME).name, "size").read_text().strip()
    run(["dmsetup", "create", "held", "--table", f"0 {sectors} linear {NVME} 0"])
    try:
        run(["dmsetup", "suspend", "--noflush", "--nolockfs", "held"])
        (disk,) = (path.parent.parent.name for path in Path("/sys/block").glob("dm-*/dm/name"))  # no udev names it
        yield f"/dev/{disk}", release
    finally:
        release()
        run(["dmsetup", "remove", "held"])


@pytest.mark.parametrize("event", ["stopped and continued", "terminated"])
def test_a_signal_while_it_starts(held: tuple[str, Callable[[], None]], add: Add, event: str) -> None:
    """
    START_DEV waits until the kernel has looked for partitions. (Newer ones look later, and others wait for that.)
    Not killed: Linux 6.12 then waits forever for the answer of a server that cannot end before.
    """
    device, release = held
    inflight = Path("/sys/block/ublkb5/inflight")

    def looking() -> bool:
        return inflight.exists() and any(map(int, inflight.read_text().split()))

    server = subprocess.Popen(
        [UBLK, "add", "--foreground", "--number=5", "--recovery=none", "passthrough", f"file={device}", "direct=off"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_until("somebody looks for partitions", looking, LIMIT)
        if event == "stopped and continued":
            server.send_signal(signal.SIGSTOP)
            # Its first thread: the one that waits in the kernel for the partitions cannot stop.
            wait_until("it stops", lambda: thread_state(server.pid) == "T", LIMIT)
            server.send_signal(signal.SIGCONT)
        else:
            server.terminate()
        time.sleep(0.5)  # for what comes too early
        assert server.poll() is None, server.communicate()
    finally:
        release()
    try:
        if event == "stopped and continued":
            assert server.stdout and server.stdout.readline() == "/dev/ublkb5\n"
            finish(start_verify("/dev/ublkb5", "--size=1M"))
            server.terminate()
        assert server.wait(LIMIT) == 0, server.communicate()
    finally:
        server.kill()
        server.communicate()
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


def test_a_process_with_the_number_of_the_server_lives(add: Add) -> None:
    """Before Linux 6.16, the server's number is that of its container, where it is another one."""
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
            ublk("delete", disk)
            assert time.monotonic() - began < 30, "waited for the end of the other process"
            assert container.wait(LIMIT) == 0
        finally:
            container.kill()
            container.wait()
            other.kill()


UNIT = Path("ublk/userblk-ublk@.service")


def unit_command(name: str) -> list[str]:
    """What the unit of disk 3 runs."""
    (line,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text().replace("\\\n", " "), re.M)
    line = line.replace("@sbindir@/userblk-ublk", str(UBLK.absolute()))
    return shlex.split(line.replace("%i", "3").replace("$$", "$"))


def unit_words() -> list[str]:
    """What it starts, without the device."""
    words = unit_command("ExecStart")
    assert words.pop() == "$USERBLK_DISK"
    return words


def users(disk: str) -> list[str]:
    """Volumes and swap on the disk."""
    volumes = [path.name for path in Path("/sys/block", Path(disk).name, "holders").iterdir()]
    return volumes + [line for line in Path("/proc/swaps").read_text().splitlines() if line.startswith(disk)]


@pytest.mark.parametrize("use", ["swap", "volume", "busy volume"])
def test_the_unit_ends_what_is_on_its_disk(
    add: Add, mountpoint: Path, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where it can. busy: once what was written so far is on the device."""
    monkeypatch.setenv("DM_DISABLE_UDEV", "1")  # there is none, which would name the volume
    disk = add("--number=3", "passthrough", f"file={NVME}")
    pid = info(disk)["pid"]
    user, data = None, os.urandom(MIB)
    if use == "swap":
        run(["mkswap", disk])
        run(["swapon", disk])
    else:
        run(["modprobe", "dm-mod"])
        run(["mkfs.ext4", "-qF", disk])
        sectors = Path("/sys/block", Path(disk).name, "size").read_text().strip()
        run(["dmsetup", "create", "layer", "--table", f"0 {sectors} linear {disk} 0"])
        run(["mount", "/dev/mapper/layer", mountpoint])
        (mountpoint / "file").write_bytes(data)
    try:
        if use == "busy volume":
            user = subprocess.Popen(["sleep", "infinity"], cwd=mountpoint)
        run(["env", f"MAINPID={pid}", *unit_command("ExecStop")], expect=None)
        assert user or users(disk) == []
        os.kill(pid, signal.SIGTERM)  # as systemd does then
        wait_until("the disk is gone", lambda: disks() == [], LIMIT / 5)
    finally:
        if user:
            user.kill()
            user.wait(LIMIT)
        run(["swapoff", disk], expect=None)
        run(["umount", "--lazy", mountpoint], expect=None)
        run(["dmsetup", "remove", "--force", "--retry", "layer"], expect=None)
    if use != "swap":
        assert user or "needs_recovery" not in run(["dumpe2fs", "-h", NVME])
        assert_kept(data, mountpoint)


def test_the_unit_leaves_a_disk_that_lives_alone(add: Add) -> None:
    """It takes away what remains of a disk that ended with its server, as one of the s3 device does."""
    disk = add("--number=3", "--recovery=none", "null", "size=1M")
    before = info(disk)
    run([*unit_words(), "passthrough", f"file={NVME}"], expect=2)
    assert info(disk) == before and before["state"] == "live"
    kill(disk)
    server = subprocess.Popen(
        [*unit_words(), "passthrough", f"file={NVME}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout and "/dev/ublkb3: removed" in server.stdout.readline()
        assert server.stdout.readline() == "/dev/ublkb3\n"
        assert info(disk)["pid"] == server.pid
        server.terminate()
        assert server.wait(LIMIT) == 0
    finally:
        server.kill()
        server.communicate()


def test_the_unit_adds_a_disk_and_recovers_it(add: Add) -> None:
    argv = [*unit_words(), "passthrough", f"file={NVME}"]
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind("\0userblk-test")
    systemd.settimeout(LIMIT)
    for state in ("", "waiting"):
        assert [disk["state"] for disk in disks()] == [state] * bool(state)
        server = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": "@userblk-test"},
        )
        assert systemd.recv(64) == b"READY=1"
        assert [disk["state"] for disk in disks()] == ["live"]
        assert info("/dev/ublkb3")["pid"] == server.pid
        if not state:
            server.kill()
            server.wait(LIMIT)
            wait_until("the disk waits", lambda: [disk["state"] for disk in disks()] == ["waiting"], LIMIT)
    server.terminate()
    assert server.wait(LIMIT) == 0
    systemd.close()
    wait_until("the disk is gone", lambda: disks() == [], LIMIT)


# ---- the manual, and refusals ---------------------------------------------------------------------------


def test_the_manual_has_what_help_has() -> None:
    usage, manual = ublk("--help"), Path("ublk/userblk-ublk.8").read_text()
    commands, rest = usage.split("Commands:")[1].split("Options:")
    options = rest.split("Device ")[0]
    sections = {part.split("\n", 1)[0]: part for part in manual.split("\n.Sh ")}
    for help_part, name, said, written in (
        (commands, "DESCRIPTION", r"^    ([a-z]+) ", r"^\.It Cm ([a-z]+)"),
        (options, "OPTIONS", r"^    --([a-z-]+)", r"^\.It Fl -([a-z-]+)"),
    ):
        assert re.findall(said, help_part, re.M) == re.findall(written, sections[name], re.M) != []


def refused(words: Sequence[str | Path], reason: str) -> None:
    output = ublk(*words, expect=2)
    assert reason in output
    assert output.count("\n") == 1, output


def test_refusals(add: Add, tmp_path: Path) -> None:
    disk = add("passthrough", f"file={NVME}")
    refused(("add", "passthrough", f"file={NVME}"), "in use")
    refused(("add", "--number=0", "null", "size=1M"), "choose another --number")
    refused(("add", "--mode=uring", "--zero-copy=on", "null", "size=1M"), "--zero-copy=on")
    made = ("passthrough", f"file={tmp_path / 'made'}", "size=1M", "direct=off")
    refused(("add", "--number=0", *made), "choose another --number")
    refused(("add", "--mode=workers", "--zero-copy=on", *made), "--zero-copy=on")
    assert not (tmp_path / "made").exists()
    refused(("recover", disk), "has a server")
    refused(("info", "77"), "no such disk")
    refused(("delete", "77"), "no such disk")
    assert [found["disk"] for found in disks()] == [disk]


def test_unprivileged_users_are_refused(add: Add) -> None:
    disk = add("null", "size=1M")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(UBLK)]
    for words in (
        ["delete", "0"], ["delete", "--force", "0"], ["recover", "0"], ["replace", "0", "null", "size=1M"],
        ["info", "0"], ["list"], ["features"], ["add", "null", "size=1M"], ["add", "passthrough", f"file={NVME}"],
    ):  # fmt: skip
        output = run([*nobody, *words], expect=1)
        assert "run as root" in output and output.count("\n") == 1, words
    assert len(disks()) == 1 and info(disk)["state"] == "live"
