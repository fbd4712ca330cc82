# SPDX-License-Identifier: BSD-3-Clause
"""What fails below a device fails above it, as the same kind of error in every framework, and is reported once."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from block_targets import FileTarget
from blocks import Request
from fuse_mount import launch, unmount
from guest import BUILD, LIMIT, MIB, RELEASE, Up, change, config, mapped, run, suspended
from userblk.harness.model.config import SystemConfig
from userblk.harness.systems.base import module_there
from waiting import wait_until

NVME = os.environ["LAB_NVME"]
FUSE_DISK = Path(BUILD, "fuse-disk/userblk-fuse-disk").resolve()
SECTOR = 512
SIZE = 64 * MIB
BAD = 16 * MIB  # where the fault is, as long as this
GOOD = 32 * MIB
LENGTH = 64 * 1024
ANSWER_LIMIT = 60.0  # s: nothing may hang
LOSES = Path("/sys/bus/pseudo/drivers/scsi_debug/every_nth")  # which commands scsi_debug with opts=4 leaves unanswered
LOST_LIMIT = 1  # s

SYSTEMS = {
    "nbdkit": config("nbdkit", direct="on"),
    "buse": config("buse", direct="on"),
    "tcmu": config("tcmu", direct="on"),
    "tcmu-threads": config("tcmu", mode="handler", direct="on"),
    "ublk-workers": config("ublk", mode="workers", direct="on"),
    "ublk-uring": config("ublk", mode="uring", direct="on"),
    "fuse-disk": config("fuse-disk", direct="on"),
}
# make test-lab waits for one of each kind of framework.
SOON = ("nbdkit", "tcmu", "ublk-uring", "fuse-disk")
SOME_SOON = [pytest.param(name, marks=() if name in SOON else pytest.mark.long) for name in SYSTEMS]
# What a reader, a writer and one without room get. Linux's nbd client knows no error but one.
ERRORS = {
    "nbdkit": (errno.EIO, errno.EIO, errno.EIO),
    "buse": (errno.EIO, errno.EIO, errno.EIO),
    "tcmu": (errno.ENODATA, errno.EIO, errno.ENOSPC),  # sd's words for medium errors of reads
    "tcmu-threads": (errno.ENODATA, errno.EIO, errno.ENOSPC),
    "ublk-workers": (errno.EIO, errno.EIO, errno.ENOSPC),
    "ublk-uring": (errno.EIO, errno.EIO, errno.ENOSPC),
    "fuse-disk": (errno.EIO, errno.EIO, errno.ENOSPC),
}

# What all of them get whose disk is gone; sd's word for hardware errors.
GONE = {name: errors[0] for name, errors in ERRORS.items()} | {
    "tcmu": errno.EREMOTEIO,
    "tcmu-threads": errno.EREMOTEIO,
    "ublk-workers": errno.ENODEV,
    "ublk-uring": errno.ENODEV,
    "fuse-disk": errno.ENODEV,
}


def bounded(call: Callable[[], object]) -> int:
    """errno of a call in a thread of its own, 0: none. Fails when it hangs."""
    result: list[int] = []

    def body() -> None:
        try:
            call()
            result.append(0)
        except OSError as error:
            result.append(error.errno or -1)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(ANSWER_LIMIT)
    assert result, f"no answer within {ANSWER_LIMIT:g} s"
    return result[0]


class Disk:
    """Direct I/O of LENGTH bytes, and the errno that it gets."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.memory = mmap.mmap(-1, LENGTH)

    def read(self, offset: int) -> int:
        return bounded(lambda: os.preadv(self.fd, [self.memory], offset))

    def write(self, offset: int, byte: bytes = b"w") -> int:
        self.memory[:] = byte * LENGTH
        return bounded(lambda: os.pwritev(self.fd, [self.memory], offset))

    def holds(self, offset: int, byte: bytes) -> bool:
        assert self.read(offset) == 0
        return self.memory[:] == byte * LENGTH

    def flush(self) -> int:
        return bounded(partial(os.fsync, self.fd))

    def other(self, op: str, offset: int) -> int:
        """A trim, zero, or FUA (a write with it)."""
        target = FileTarget(self.path, 1, direct=True, disk=stat.S_ISBLK(os.stat(self.path).st_mode))
        request = Request("write" if op == "FUA" else op, offset, LENGTH, fua=op == "FUA")
        try:
            return bounded(partial(target.one, request))
        finally:
            target.close()


@contextmanager
def opened(path: str) -> Iterator[Disk]:
    disk = Disk(path)
    try:
        yield disk
    finally:
        os.close(disk.fd)


Serve = Callable[..., AbstractContextManager[Disk]]
FAILED = re.compile(r"\b(read|write|flush|trim|zero)(?: of \d+ bytes at \d+)?: ([A-Z][a-z /]+)")


class Log:
    """What the servers of a test told of failed requests, which must be as often as docs/architecture.md says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.least: Counter[tuple[str, str]] = Counter()
        self.most: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def failing(self, op: str, error: int, most: int = 0, least: int = 1) -> Iterator[None]:
        """
        Such requests fail with that error of the device, which is one line, or least: 0: none. most: 0: one more for
        every second that begins meanwhile, because a kernel may try again, or the block has several requests.
        """
        time.sleep(1 - time.monotonic() % 1)
        began = int(time.monotonic())
        yield
        line = op, os.strerror(error)
        self.least[line] += least
        self.most[line] += most or int(time.monotonic()) - began + 1

    def may_fail(self, op: str, error: int) -> None:
        """One more may, outside failing(): such as the flush of a server that ends."""
        self.most[op, os.strerror(error)] += 1

    def texts(self) -> str:
        """Complete when the servers have ended."""
        small = (path for path in self.directory.rglob("*") if path.is_file() and path.stat().st_size < MIB)
        return "\n".join(path.read_text(errors="replace") for path in small)

    def check(self) -> None:
        """No other failures were told either."""
        texts = self.texts()
        told = Counter((op, error.strip()) for op, error in FAILED.findall(texts))
        assert self.least <= told <= self.most, f"told {told}, of {self.least}: {texts}"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.fixture
def serve(up: Up, tmp_path: Path) -> Serve:
    """serve(system, device): what it is behind that framework, whose server must still live at the with block's end."""

    @contextmanager
    def enter(system: SystemConfig, device: str = NVME) -> Iterator[Disk]:
        if system.kind == "fuse-disk":
            with fuse_disk(tmp_path / "disk", {"file": device} | dict(system.parameters)) as disk:
                yield disk
            return
        with up(system, device) as running, opened(running.used.path) as disk:
            yield disk
            assert not running.server_died()

    return enter


@contextmanager
def fuse_disk(file: Path, parameters: dict[str, str]) -> Iterator[Disk]:
    """The harness has it over the null device only."""
    if RELEASE == "bullseye":
        pytest.skip("libfuse: userblk-fuse-disk needs 3.12")
    run(["modprobe", "fuse"])
    file.touch()
    words = [str(file), "passthrough", *(f"{key}={value}" for key, value in parameters.items())]
    mount = launch(FUSE_DISK, file, file, words)
    try:
        with opened(str(file)) as disk:
            yield disk
            assert mount.process.poll() is None
        unmount(file)
        assert mount.process.wait(LIMIT) == 0
    finally:
        mount.kill()


LINEAR = f"0 {SIZE // SECTOR} linear {NVME} 0"


def broken(target: str) -> str:
    """A disk with LENGTH bytes at BAD that are like that; {} in it is where they begin on the NVMe disk."""
    first, length = BAD // SECTOR, LENGTH // SECTOR
    rest = first + length
    return (
        f"0 {first} linear {NVME} 0\n{first} {length} {target.format(f'{NVME} {first}')}\n"
        f"{rest} {SIZE // SECTOR - rest} linear {NVME} {rest}"
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_errors_below(serve: Serve, log: Log, name: str) -> None:
    """dm-error in a part of the disk: requests there fail, others do not, and later all are good again."""
    reads, writes, _ = ERRORS[name]
    with mapped("faulty", LINEAR) as path:
        with serve(SYSTEMS[name], path) as disk:
            assert disk.write(BAD, b"a") == disk.write(GOOD, b"g") == disk.flush() == 0
            change("faulty", broken("error"))
            with log.failing("read", errno.EIO):
                assert disk.read(BAD) == reads
            with log.failing("write", errno.EIO):
                assert disk.write(BAD) == writes
            assert disk.holds(GOOD, b"g") and disk.write(GOOD, b"h") == 0 and disk.flush() == 0
            change("faulty", LINEAR)
            assert disk.holds(BAD, b"a") and disk.holds(GOOD, b"h")
            assert disk.write(BAD, b"b") == disk.flush() == 0 and disk.holds(BAD, b"b")
    log.check()


@pytest.mark.parametrize("name", SOME_SOON)
def test_errors_of_other_requests(serve: Serve, log: Log, name: str) -> None:
    """The same for a write with FUA, a trim and a write of zeroes, which a kernel may send as writes."""
    _, fails, _ = ERRORS[name]
    with mapped("faulty", LINEAR) as path:
        with serve(SYSTEMS[name], path) as disk:
            assert disk.write(BAD, b"a") == disk.write(GOOD, b"g") == disk.flush() == 0
            change("faulty", broken("error"))
            with log.failing("write", errno.EIO):
                assert disk.other("FUA", BAD) == fails
            if SYSTEMS[name].kind == "tcmu":  # leaves zeroes, if a disk can at once: this one cannot
                assert disk.other("trim", BAD) == 0
            else:
                with log.failing("zero" if name == "fuse-disk" else "trim", errno.EIO):  # of a file it leaves zeroes
                    assert disk.other("trim", BAD) == fails
            with log.failing("write", errno.EIO, least=0), log.failing("zero", errno.EIO, least=0):
                assert disk.other("zero", BAD) == fails
            assert [disk.other(op, GOOD) for op in ("FUA", "trim", "zero")] == [0, 0, 0] and disk.holds(GOOD, b"\0")
            change("faulty", LINEAR)
            assert disk.holds(BAD, b"a") and disk.other("zero", BAD) == disk.flush() == 0 and disk.holds(BAD, b"\0")
    log.check()


@pytest.mark.parametrize("name", SYSTEMS)
def test_writes_that_cannot_be_kept(serve: Serve, log: Log, name: str) -> None:
    """dm-flakey fails writes below a page cache: the flush tells of it, and no later one calls them kept."""
    _, fails, _ = ERRORS[name]
    system = SYSTEMS[name]
    buffered = config(system.kind, mode=system.mode, direct="off")
    run(["modprobe", "dm-flakey"])
    with mapped("faulty", LINEAR) as path:
        with serve(buffered, path) as disk:
            assert disk.write(BAD, b"a") == disk.flush() == 0
            change("faulty", f"0 {SIZE // SECTOR} flakey {NVME} 0 0 60 1 error_writes")
            assert disk.write(BAD, b"b") == 0
            with log.failing("flush", errno.EIO):
                assert disk.flush() == fails
            change("faulty", LINEAR)
            with log.failing("flush", errno.EIO):
                assert disk.flush() == fails, "what was lost was acknowledged"
            assert disk.read(GOOD) == 0
    log.check()
    assert log.texts().count("every flush fails from now on") == 1


@pytest.mark.parametrize("name", SOME_SOON)
def test_a_device_that_stalls(serve: Serve, log: Log, name: str) -> None:
    with mapped("faulty", LINEAR) as path, serve(SYSTEMS[name], path) as disk:
        assert disk.write(BAD, b"a") == 0
        with suspended("faulty"):
            resume = threading.Timer(5, lambda: run(["dmsetup", "resume", "faulty"]))
            began = time.monotonic()
            resume.start()
            assert disk.write(BAD, b"b") == disk.flush() == 0
            assert time.monotonic() - began > 2
            resume.join()
        assert disk.holds(BAD, b"b")
    log.check()


@contextmanager
def scsi_debug(*parameters: str) -> Iterator[str]:
    before = set(os.listdir("/sys/block"))

    def new() -> list[str]:
        return [name for name in os.listdir("/sys/block") if name.startswith("sd") and name not in before]

    run(["modprobe", "scsi_debug", f"dev_size_mb={SIZE // MIB}", "delay=0", *parameters])
    try:
        wait_until("the disk appears", new, LIMIT)
        yield f"/dev/{new()[0]}"
    finally:
        remove = ["modprobe", "-r", "scsi_debug"]
        wait_until(
            "scsi_debug is not in use", lambda: not subprocess.run(remove, capture_output=True).returncode, ANSWER_LIMIT
        )


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_medium_error(serve: Serve, log: Log, name: str) -> None:
    reads, _, _ = ERRORS[name]
    medium = ("opts=2", f"medium_error_start={BAD // SECTOR}", "medium_error_count=8")
    with scsi_debug(*medium) as path, serve(SYSTEMS[name], path) as disk:
        with log.failing("read", errno.ENODATA):  # sd's word for it
            assert disk.read(BAD) == reads
        assert disk.read(GOOD) == 0 and disk.write(GOOD, b"g") == 0 and disk.holds(GOOD, b"g")
    log.check()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("nbdkit", "ublk-uring") else pytest.mark.long) for name in SYSTEMS]
)
def test_commands_without_an_answer(serve: Serve, log: Log, name: str) -> None:
    """The kernel gives them up. Later ones are good again."""
    reads, writes, _ = ERRORS[name]
    with scsi_debug("opts=4") as path:
        device = Path("/sys/block", Path(path).name, "device")
        (device / "timeout").write_text(f"{LOST_LIMIT}\n")
        (retries,) = device.glob("scsi_disk/*/max_retries")
        retries.write_text("0\n")
        with serve(SYSTEMS[name], path) as disk:
            assert disk.write(BAD, b"a") == disk.write(GOOD, b"g") == disk.flush() == 0
            LOSES.write_text("-1\n")
            began = time.monotonic()
            with log.failing("read", errno.EIO, most=1):
                assert disk.read(BAD) == reads
            # sd tries a write again five times, but not a read.
            with log.failing("write", errno.EIO, most=6 if SYSTEMS[name].kind == "tcmu" else 1):
                assert disk.write(BAD) == writes
            assert time.monotonic() - began >= 2 * LOST_LIMIT
            LOSES.write_text("0\n")
            assert disk.holds(GOOD, b"g") and disk.write(BAD, b"b") == disk.flush() == 0 and disk.holds(BAD, b"b")
    log.check()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_vanished_device(serve: Serve, log: Log, name: str) -> None:
    """No request hangs, each says that the device is gone, and all can be torn down."""
    with scsi_debug() as path, serve(SYSTEMS[name], path) as disk:
        assert disk.write(GOOD, b"g") == 0
        Path("/sys/block", Path(path).name, "device/delete").write_text("1")
        with log.failing("read", errno.ENODEV):
            answers = [disk.read(GOOD)]
        with log.failing("write", errno.ENODEV):
            answers.append(disk.write(GOOD))
        with log.failing("flush", errno.ENODEV):
            answers.append(disk.flush())
        log.may_fail("flush", errno.ENODEV)
        assert answers == [GONE[name]] * 3, [errno.errorcode.get(answer, answer) for answer in answers]
    log.check()
    assert log.texts().count("was removed while it was served") == 1


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A sparse file of the NVMe disk's size, with room for 1 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=1M", "small", point])
    try:
        file = point / "disk"
        file.touch()
        os.truncate(file, int(Path("/sys/block", Path(NVME).name, "size").read_text()) * SECTOR)
        yield file
    finally:
        run(["umount", point])


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_room(serve: Serve, log: Log, name: str, small: Path) -> None:
    _, _, full = ERRORS[name]
    system = SYSTEMS[name]
    full_below: SystemConfig = config(system.kind, mode=system.mode, direct="off", file=str(small))
    with serve(full_below) as disk:
        assert disk.write(0, b"a") == 0
        with log.failing("write", errno.ENOSPC):
            results = [disk.write(at) for at in range(MIB, 3 * MIB, LENGTH)]
        assert set(results) == {0, full}, results
        assert disk.holds(0, b"a") and disk.write(0, b"b") == 0 and disk.holds(0, b"b")
    log.check()


@contextmanager
def zoned_disk() -> Iterator[str]:
    """A disk that takes writes only in the order of the blocks of a zone."""
    if not module_there("null_blk"):
        pytest.skip("kernel: it has no null_blk")
    run(["modprobe", "null_blk", "nr_devices=0"])
    disks = Path("/sys/kernel/config/nullb")
    if "zoned" not in (disks / "features").read_text():
        pytest.skip("kernel: its null_blk has no zones")
    made = disks / "zoned0"
    made.mkdir()
    try:
        for name, value in {"size": 64, "memory_backed": 1, "zone_size": 4, "zoned": 1, "power": 1}.items():
            (made / name).write_text(f"{value}\n")
        (path,) = [
            path
            for path in Path("/sys/block").iterdir()
            if (path / "queue/zoned").read_text().strip() == "host-managed"
        ]
        wait_until("its node is there", Path("/dev", path.name).exists, LIMIT)
        yield f"/dev/{path.name}"
    finally:
        (made / "power").write_text("0\n")
        made.rmdir()


def test_a_disk_that_takes_no_random_writes_is_refused() -> None:
    """Instead of a disk whose writes fail. Reads do not."""
    with zoned_disk() as disk:
        served = ["nbdkit", "-U", "-", f"{BUILD}/plugins/passthrough.so", f"file={disk}", "--run", "true"]
        (line,) = run(served, expect=1).splitlines()
        assert f"file={disk}: a host-managed zoned device" in line and "readonly=on" in line
        run([*served[:5], "readonly=on", *served[5:]])
