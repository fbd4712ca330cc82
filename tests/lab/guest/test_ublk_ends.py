# SPDX-License-Identifier: BSD-3-Clause
"""What userblk-ublk does with data and mounts at the end of a disk, and who may end it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guest import LIMIT, MIB, NVME, SATA, change, mapped, read, run, start_verify, suspended, through_mapper
from guest_ublk import NEEDS_UBLK, UBLK, Add, assert_kept, disks, info, kill, ublk
from waiting import thread_state, wait_until

pytestmark = NEEDS_UBLK


def test_waiting_disk_can_be_deleted(add: Add) -> None:
    disk = add("passthrough", f"file={NVME}")
    load = start_verify(disk, "--size=64M")
    kill(disk)
    ublk("delete", disk)
    assert load.wait(LIMIT) != 0


def test_a_mounted_disk_that_waits_is_not_deleted(add: Add, mountpoint: Path) -> None:
    """Its file system would lose what a server could still write."""
    disk = add("passthrough", f"file={NVME}")
    data = mount_with_file(disk, mountpoint)
    kill(disk)
    assert f"in use by {mountpoint}; unmount or release it" in ublk("delete", disk, expect=2)
    ublk("recover", disk)
    run(["umount", mountpoint])
    ublk("delete", disk)
    assert_kept(data, mountpoint)


@pytest.mark.skipif(not SATA, reason="machine: it has no second disk")
def test_nor_is_one_that_a_mount_does_not_name(add: Add, mountpoint: Path) -> None:
    """The journal of another disk's file system, which the kernel has claimed for it."""
    disk = add("passthrough", f"file={NVME}")
    run(["mkfs.ext4", "-qF", "-b", "4096", "-O", "journal_dev", disk, "32M"])
    run(["mkfs.ext4", "-qF", "-b", "4096", "-J", f"device={disk}", SATA, "64M"])
    run(["mount", SATA, mountpoint])
    try:
        kill(disk)
        assert "in use; unmount or release it" in ublk("delete", disk, expect=2)
        ublk("recover", disk)
    finally:
        run(["umount", mountpoint])
    ublk("delete", disk)


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


def test_a_server_that_dies_while_its_disk_is_written_back(add: Add) -> None:
    """The kernel would wait for another one, and the command with it."""
    disk = add("passthrough", f"file={NVME}")
    with dirty(disk) as data:
        os.kill(info(disk)["pid"], signal.SIGSTOP)
        delete = subprocess.Popen([UBLK, "delete", disk], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(1.0)  # until it writes back
        kill(disk)
        _, output = delete.communicate(timeout=60)
        assert delete.returncode == 1 and "its server died" in output, output
        ublk("recover", disk)
        assert ublk("delete", disk) == f"{disk}: written back and removed\n"
    kept = read(NVME, 0, 8 * MIB) == data
    assert kept


@pytest.mark.long
def test_a_server_that_takes_over_during_the_write_back_is_waited_for(add: Add) -> None:
    """It reports what it could not keep at its end, which takes a while here."""
    words = ("--flush=weak", "passthrough", f"file={NVME}", "direct=off")
    disk = add(*words)
    with dirty(disk):
        os.kill(info(disk)["pid"], signal.SIGSTOP)
        delete = subprocess.Popen([UBLK, "delete", disk], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(1.0)  # until it writes back
        server = subprocess.Popen(
            ["strace", "-f", "-D", "-o", "/dev/null", "-e", "inject=fsync,fdatasync:error=EIO:delay_enter=3000000",
             UBLK, "replace", "--foreground", disk, *words],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        _, output = delete.communicate(timeout=LIMIT)
        assert delete.returncode == 1 and "its server could not keep" in output, output
        assert server.wait(LIMIT) == 1


@pytest.mark.parametrize("sync", ["of GNU", "of others"])
def test_what_cannot_be_written_back_stays_unless_forced(
    add: Add,
    broken: tuple[str, Callable[[], None]],
    sync: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are sync(1)s that only call sync(2), which tells nothing."""
    if sync == "of others":
        (tmp_path / "sync").write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / "sync").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    device, break_it = broken
    disk = add("passthrough", f"file={device}")
    with dirty(disk):
        break_it()
        assert "not removed" in ublk("delete", disk, expect=1)
        assert info(disk)["state"] == "live"
        assert "the last writes are lost" in ublk("delete", "--force", disk)
    assert disks() == []


def test_what_the_server_could_not_keep_is_told(add: Add, broken: tuple[str, Callable[[], None]]) -> None:
    """With weak flushes, its last one decides that."""
    device, break_it = broken
    disk = add("--flush=weak", "passthrough", f"file={device}", "direct=off")
    with dirty(disk):
        break_it()
        assert "its server could not keep" in ublk("delete", disk, expect=1)
    assert disks() == [] and not list(Path("/run/userblk-ublk").glob("*"))


def test_it_is_told_where_there_is_no_room(small_run: None, add: Add, broken: tuple[str, Callable[[], None]]) -> None:
    test_what_the_server_could_not_keep_is_told(add, broken)


def test_a_server_that_cannot_be_seen_is_told(add: Add) -> None:
    """Before Linux 6.16 its number may be that of no process, as here, or of another."""
    disk = add("--flush=weak", "passthrough", f"file={NVME}")
    output = run(["unshare", "--pid", "--fork", "--mount-proc", UBLK, "delete", disk], expect=1)
    assert "removed, but its server cannot be seen from here" in output
    assert disks() == []


@pytest.fixture
def broken() -> Iterator[tuple[str, Callable[[], None]]]:
    """A device, and what makes all its writes fail from then on."""
    run(["modprobe", "dm-flakey"])

    def break_it() -> None:
        sectors = run(["blockdev", "--getsz", NVME]).strip()
        change("broken", f"0 {sectors} flakey {NVME} 0 0 60 1 error_writes")

    with through_mapper("broken") as disk:
        yield disk, break_it


def mount_with_file(disk: str, mountpoint: Path) -> bytes:
    """A file system on the disk, with a file that nobody has synced."""
    data = os.urandom(MIB)
    run(["mkfs.ext4", "-qF", disk])
    run(["mount", disk, mountpoint])
    (mountpoint / "file").write_bytes(data)
    return data


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


def test_a_disk_that_its_server_cannot_open_may_be_in_use(add: Add, mountpoint: Path) -> None:
    """As in a container that has the character device alone."""
    nodes = """
node() { mknod "/dev/$1" c $(tr : ' ' <"/sys/class/$2/$1/dev"); }
mount -t tmpfs dev /dev
node null mem
node ublk-control misc
until test -e /sys/class/ublk-char/ublkc3/dev; do sleep 0.1; done && node ublkc3 ublk-char &
exec "$@"
"""
    server = subprocess.Popen(
        ["unshare", "--mount", "sh", "-ec", nodes, "sh", UBLK.resolve(), "add", "--foreground", "--number=3",
         "passthrough", f"file=/proc/{os.getpid()}/root{NVME}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert server.stdout and server.stdout.readline() == "/dev/ublkb3\n"
        data = mount_with_file("/dev/ublkb3", mountpoint)
        server.terminate()
        assert "it is not known whether it is in use" in server.stdout.readline()
        time.sleep(1.5)  # for what comes too early
        assert info("/dev/ublkb3")["state"] == "live"
        run(["umount", mountpoint])
        server.terminate()
        assert server.wait(LIMIT) == 1, "it says what it could not write"
        wait_until("the disk is gone", lambda: disks() == [], LIMIT)
        assert_kept(data, mountpoint)
    finally:
        server.kill()
        server.communicate()


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
@pytest.mark.parametrize("cause", ["flush", "writes that sysfs does not show"])
def test_a_long_write_back_is_no_loss(tmp_path: Path, cause: str) -> None:
    """
    It takes longer than a disk that does nothing may. flush: one of what waits in the page cache of the device, which
    shows work below; writes: which end one after the other.
    """
    statistics = "1" if cause == "flush" else "0"
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
            [UBLK, "add", "--foreground", "--number=5", "passthrough", "file=/dev/nbd0",
             "direct=off" if cause == "flush" else "direct=on"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert server.stdout and server.stdout.readline() == "/dev/ublkb5\n"
        for name in ("nbd0", "ublkb5"):
            Path("/sys/block", name, "queue/iostats").write_text(statistics)
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


def stops(server: int) -> bool:
    """Has the server asked the kernel to stop its disk?"""
    return run(["pgrep", "--parent", str(server), "--full", "stop-for-server"], expect=None) != ""


@contextmanager
def hanging(add: Add) -> Iterator[str]:
    """A disk whose device hangs, with a write; it answers from the end of the block on, and then the disk goes."""
    with through_mapper("hung") as device:
        disk = add("passthrough", f"file={device}")
        with suspended("hung"):
            write = subprocess.Popen(["dd", "if=/dev/zero", f"of={disk}", "bs=4k", "count=1", "oflag=direct"])
            time.sleep(1.0)  # until the server has the write
            yield disk
        write.wait(LIMIT)
        wait_until("the disk is gone", lambda: not disks() and not Path(disk).exists(), 60)


def begin_stop(server: int) -> None:
    for _ in range(3):  # no write-back, which would hang as well
        os.kill(server, signal.SIGTERM)
        time.sleep(1.5)
    wait_until("the disk is being stopped", lambda: stops(server), LIMIT)


def begin_search(disk: str) -> subprocess.Popen[bytes]:
    """For partitions, for which the kernel reads; so that nobody can open the disk."""
    search = subprocess.Popen(["blockdev", "--rereadpt", disk], stdin=subprocess.DEVNULL)
    # Without a server, the disk has no request in flight.
    wait_until("the kernel reads", lambda: thread_state(search.pid) == "D", LIMIT, process=search)
    time.sleep(0.5)  # if it waited for something else
    assert thread_state(search.pid) == "D"
    return search


@contextmanager
def searched(add: Add, *options: str) -> Iterator[str]:
    """A disk whose partitions the kernel looks for; its device answers from the end of the block on."""
    with through_mapper("hung") as device:
        disk = add(*options, "passthrough", f"file={device}")
        with suspended("hung"):
            search = begin_search(disk)
            yield disk
        search.wait(LIMIT)


def test_signals_count_while_the_kernel_looks_for_partitions(add: Add) -> None:
    with searched(add) as disk:
        begin_stop(info(disk)["pid"])
    wait_until("the disk is gone", lambda: disks() == [], 60)


def test_a_server_that_is_killed_while_the_kernel_looks_for_partitions(add: Add) -> None:
    """It would wait for itself if it opened its disk."""
    with searched(add, "--recovery=none") as disk:
        server = info(disk)["pid"]
        os.kill(server, signal.SIGTERM)
        time.sleep(1.5)
        os.kill(server, signal.SIGKILL)
    wait_until("its server is gone", lambda: not Path("/proc", str(server)).exists(), LIMIT)
    wait_until("the kernel notices the death", lambda: info(disk)["state"] != "live", LIMIT)
    ublk("delete", disk)


def test_a_disk_that_nobody_can_open_is_not_deleted(add: Add) -> None:
    with searched(add) as disk:
        assert "cannot be opened: no answer; it may be in use" in ublk("delete", disk, expect=2)
        assert info(disk)["state"] == "live"
        run(["dmsetup", "resume", "hung"])
        assert ublk("delete", disk) == f"{disk}: written back and removed\n"


def test_a_disk_that_nobody_can_open_is_deleted_without_a_server(add: Add) -> None:
    """A program that had claimed it would be known, and nothing else helps those that wait for it."""
    disk = add("passthrough", f"file={NVME}")
    kill(disk)
    search = begin_search(disk)
    ublk("delete", disk)
    search.wait(LIMIT)


def test_a_server_that_is_killed_while_its_disk_is_stopped(add: Add) -> None:
    """Once its device goes on, all is gone, as without the kill."""
    with hanging(add) as disk:
        server = info(disk)["pid"]
        begin_stop(server)
        os.kill(server, signal.SIGKILL)
        time.sleep(1.0)
    assert not Path("/proc", str(server)).exists()


def test_a_stop_whose_server_is_killed_at_once(add: Add) -> None:
    """Before that process could learn who its parent is; here that one is not."""
    disk = add("--recovery=none", "null", "size=1M")
    number = disk.removeprefix("/dev/ublkb")
    cookie = Path("/run/userblk-ublk", number).read_text().split("\0")[0]
    ublk("stop-for-server", number, cookie, "1")
    assert disks() == []


def test_a_stop_whose_process_is_killed(add: Add) -> None:
    """The server goes on with it, and closes its device."""
    with hanging(add) as disk:
        server = info(disk)["pid"]
        begin_stop(server)
        run(["pkill", "-KILL", "-f", "stop-for-server"])
        time.sleep(1.0)
    wait_until("its server is gone", lambda: not Path("/proc", str(server)).exists(), LIMIT)


@pytest.mark.long
def test_a_hung_disk_is_deleted_when_its_device_answers(add: Add) -> None:
    """The command does not wait for that, and says so."""
    with hanging(add) as disk:
        assert "is being removed, but its device does not answer" in ublk("delete", "--force", disk, expect=1)


def test_removed_while_mounted(add: Add, mountpoint: Path) -> None:
    disk = add("passthrough", f"file={NVME}")
    data = mount_with_file(disk, mountpoint)
    assert ublk("delete", "--force", disk) == f"{disk}: written back and removed while in use\n"
    run(["umount", mountpoint])
    assert_kept(data, mountpoint)
    run(["fsck.ext4", "-f", "-n", NVME])
    assert disks() == []
