# SPDX-License-Identifier: BSD-3-Clause
"""A disk of ours used as a disk: file system, verified data, discard, a server that dies."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from guest import LIMIT, MIB, RELEASE, Up, config, read, run
from userblk.harness.model.config import load_system
from userblk.harness.systems import absent
from userblk.harness.systems.nbdkit import connected, disconnect_nbd, owner_of
from waiting import wait_until

PF_MEMALLOC_NOIO = 0x80000  # of include/linux/sched.h, in the flags of proc_pid_stat(5)
SYSTEMS = pytest.mark.parametrize(("kind", "mode"), [("buse", ""), ("nbdkit", ""), ("tcmu", ""), ("tcmu", "handler")])


@SYSTEMS
def test_file_system(up: Up, mountpoint: Path, kind: str, mode: str) -> None:
    with up(config(kind, mode=mode)) as running:
        disk = running.used.path
        queue = running.used.queue
        assert (queue / "write_cache").read_text().strip() == "write back", "flushes would never be sent"
        run(["mkfs.ext4", "-q", disk])
        run(["mount", disk, mountpoint])
        assert mountpoint.is_mount()
        run(
            ["fio", "--name=verify", f"--directory={mountpoint}", "--size=4M", "--rw=randwrite", "--bs=4k",
             "--ioengine=psync", "--numjobs=2", "--thread", "--fsync=128", "--verify=crc32c", "--verify_fatal=1"]
        )  # fmt: skip
        run(["fstrim", "-v", mountpoint])
        run(["umount", mountpoint])
        run(["fsck.ext4", "-f", "-n", disk])
    # On the native device below is what was written through ours.
    run(["fsck.ext4", "-f", "-n", os.environ["LAB_NVME"]])


@SYSTEMS
def test_raw_verify_and_discard(up: Up, kind: str, mode: str) -> None:
    with up(config(kind, mode=mode)) as running:
        disk = running.used.path
        run(
            ["fio", "--name=verify", f"--filename={disk}", "--size=16M", "--rw=randwrite", "--bsrange=512-128k",
             "--ioengine=libaio", "--iodepth=16", "--direct=1", "--verify=crc32c", "--verify_fatal=1"]
        )  # fmt: skip
        assert any(read(disk, 0, MIB))
        # Zeroes are promised for -z, whatever the device does with a discard.
        run(["blkdiscard", "-z", "-o", str(3 * 512), "-l", str(MIB), disk])
        assert any(read(disk, 0, 3 * 512))
        assert not any(read(disk, 3 * 512, MIB))
        assert any(read(disk, 3 * 512 + MIB, MIB))
        run(["blkdiscard", "-o", str(4 * MIB), "-l", str(4 * MIB), disk])
        # The emulated device reads as zeroes where it was discarded: the discard arrived.
        assert not any(read(disk, 4 * MIB, 4 * MIB))
        assert any(read(disk, 8 * MIB, MIB))


@pytest.mark.parametrize(("kind", "mode"), [*SYSTEMS.args[1], ("ublk", "workers")])
def test_a_server_needs_no_memory_from_its_own_disk(up: Up, kind: str, mode: str) -> None:
    """The kernel does not write to disks to find memory for it: neither for the main thread, nor for the newest."""
    with up(config(kind, mode=mode)) as running:
        tasks = Path(f"/proc/{running.server}/task")
        for thread in (running.server, max(int(path.name) for path in tasks.iterdir())):
            fields = (tasks / str(thread) / "stat").read_text().rpartition(")")[2].split()
            assert int(fields[6]) & PF_MEMALLOC_NOIO, f"thread {thread} of {running.server}"


@pytest.mark.parametrize("kind", ["buse", "nbdkit"])
def test_a_disk_that_somebody_else_has_connected_since_stays(up: Up, kind: str) -> None:
    with up(config(kind)) as running:
        disk = running.used.path
        owner = owner_of(disk)
        if RELEASE == "bullseye":
            assert owner == ""
            pytest.skip("kernel: it does not tell who has connected an nbd disk")
        disconnect_nbd(disk, owner=f"{owner}1")
        assert connected(disk) and len(read(disk, 0, MIB)) == MIB
        disconnect_nbd(disk, owner=owner)
        assert owner and not connected(disk)


@SYSTEMS
def test_server_killed_during_io(up: Up, kind: str, mode: str) -> None:
    """Errors, no hang, and everything can be torn down."""
    with up(config(kind, timeout_s=5, mode=mode)) as running:
        load = subprocess.Popen(
            ["fio", "--name=load", f"--filename={running.used.path}", "--size=64M", "--rw=randrw", "--bs=4k",
             "--ioengine=psync", "--direct=1", "--numjobs=4", "--thread", "--time_based", "--runtime=60"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            counter = running.used.queue.parent / "stat"
            before = int(counter.read_text().split()[0])
            wait_until("fio does I/O", lambda: int(counter.read_text().split()[0]) >= before + 200, LIMIT, process=load)
            os.kill(running.server, signal.SIGKILL)
            wait_until("the server's death is noticed", running.server_died, LIMIT)
            running.fail_io()
            output, _ = load.communicate(timeout=LIMIT)
            assert load.returncode != 0, output
            assert "error" in output.lower()
        finally:
            if load.poll() is None:
                load.kill()
                load.wait(LIMIT)


@SYSTEMS
def test_null(up: Up, kind: str, mode: str) -> None:
    with up(config(kind, "null", mode=mode)) as running:
        assert running.used.size == 256 * MIB
        assert not any(read(running.used.path, 0, MIB))
        for operation in ("randread", "randwrite"):
            output = run(
                ["fio", "--name=null", f"--filename={running.used.path}", f"--rw={operation}", "--bs=4k", "--direct=1",
                 "--ioengine=psync", "--numjobs=16", "--thread", "--time_based", "--runtime=1", "--group_reporting",
                 "--output-format=terse", "--terse-version=3"]
            )  # fmt: skip
            fields = output.strip().splitlines()[-1].split(";")
            done = int(fields[7 if operation == "randread" else 48])
            assert done > 100, output


def test_a_system_of_commands_only(up: Up) -> None:
    """nbdkit's own file plugin, which no line of Python knows."""
    system = load_system("nbdkit-file")
    assert absent(system) == []
    with up(system) as running:
        assert running.settings["connections"] == min(16, os.cpu_count() or 1) and running.problems() == []
        disk = running.used.path
        run(
            ["fio", "--name=verify", f"--filename={disk}", "--size=1M", "--rw=randwrite", "--bs=4k",
             "--ioengine=psync", "--direct=1", "--verify=crc32c", "--verify_fatal=1"]
        )  # fmt: skip
        os.kill(running.server, signal.SIGKILL)
        wait_until("the server's death is noticed", running.server_died, LIMIT)
        running.fail_io()
    assert absent(load_system("bdus"))
