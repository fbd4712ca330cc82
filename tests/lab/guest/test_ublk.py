# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk on the kernel's driver: data, the manual, and what it refuses."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from guest import MIB, NVME, finish, read, run, start_verify
from guest_ublk import MODES, NEEDS_UBLK, UBLK, Add, disks, info, kill, mode_options, ublk

pytestmark = NEEDS_UBLK


@pytest.mark.parametrize("mode", MODES)
def test_verify_and_discard(add: Add, mode: str) -> None:
    disk = add(*mode_options(mode), "passthrough", f"file={NVME}")
    assert info(disk)["zero_copy"] == (mode == "zero-copy")
    granted = info(disk)["granted"]
    assert "USER_RECOVERY_REISSUE" in granted and ("AUTO_BUF_REG" in granted) == (mode == "zero-copy")
    assert f" granted={','.join(granted)}: add " in ublk("info", disk)
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


def test_no_zero_copy_where_pages_must_not_change(add: Add, stable_writes: Path) -> None:
    """Such a device computes checksums of them, and the clients may write to theirs meanwhile."""
    words = (*mode_options("zero-copy")[:1], "passthrough", f"file={NVME}")
    disk = add(*words)
    assert info(disk)["zero_copy"]
    kill(disk)
    stable_writes.write_text("1")
    assert "may change" in ublk("recover", disk, expect=2)
    stable_writes.write_text("0")
    ublk("recover", disk)
    # A replacement that fails must not leave the disk without a server: the old one comes back.
    stable_writes.write_text("1")
    output = ublk("replace", disk, *words, expect=2)
    assert "use direct=off" in output and "continues as before" in output
    assert info(disk)["state"] == "live"
    ublk("replace", disk, *words, "direct=off")
    stable_writes.write_text("0")
    ublk("delete", disk)
    stable_writes.write_text("1")
    disk = add(*words, "direct=off")
    assert info(disk)["zero_copy"], "the page cache has copies"
    ublk("delete", disk)
    disk = add(*words)
    assert info(disk)["zero_copy"] is False
    finish(start_verify(disk, "--size=1M"))
    ublk("delete", disk)
    refused(("add", "--zero-copy=on", *words), "may change")


@pytest.fixture
def stable_writes() -> Iterator[Path]:
    path = Path("/sys/block", Path(NVME).name, "queue/stable_writes")
    before = path.read_text()
    yield path
    path.write_text(before)


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


def test_io_uring_may_be_disabled() -> None:
    """That is not told of a user, who may be root."""
    sysctl = Path("/proc/sys/kernel/io_uring_disabled")
    if not sysctl.exists():
        pytest.skip("kernel: io_uring cannot be disabled")
    before = sysctl.read_text()
    sysctl.write_text("2")
    try:
        output = ublk("features", expect=1)
    finally:
        sysctl.write_text(before)
    assert "io_uring" in output and "root" not in output and output.count("\n") == 1


def test_a_disk_that_cannot_be_examined_is_told(add: Add) -> None:
    """The question for what the kernel offers takes one call, or two."""
    add("null", "size=1M")
    add("null", "size=1M")
    trace = ["strace", "-o", "/dev/null", "-e", "inject=io_uring_enter:error=ENOMEM:when=3+"]
    assert re.search("ublk[01]: Cannot allocate memory", run([*trace, UBLK, "list"], expect=1))


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
