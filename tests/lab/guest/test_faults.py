# SPDX-License-Identifier: BSD-3-Clause
"""What fails below a device fails above it, as the same kind of error in every framework, and is reported once."""

from __future__ import annotations

import errno
import mmap
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from fuse_mount import launch, unmount
from guest import BUILD, LIMIT, MIB, RELEASE, Up, config, mapped, run
from userblk.harness.model.config import SystemConfig
from waiting import wait_until

NVME = os.environ["LAB_NVME"]
FUSE_DISK = Path(BUILD, "fuse-disk/userblk-fuse-disk").resolve()
SECTOR = 512
SIZE = 64 * MIB
BAD = 16 * MIB  # where the fault is, as long as this
GOOD = 32 * MIB
LENGTH = 64 * 1024
ANSWER_LIMIT = 60.0  # s: nothing may hang

SYSTEMS = {
    "nbdkit": config("nbdkit", direct="on"),
    "buse": config("buse", direct="on"),
    "tcmu": config("tcmu", direct="on"),
    "tcmu-threads": config("tcmu", mode="handler", direct="on"),
    "ublk-workers": config("ublk", mode="workers", direct="on"),
    "ublk-uring": config("ublk", mode="uring", direct="on"),
    "fuse-disk": config("fuse-disk", direct="on"),
}
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


@contextmanager
def opened(path: str) -> Iterator[Disk]:
    disk = Disk(path)
    try:
        yield disk
    finally:
        os.close(disk.fd)


Serve = Callable[..., AbstractContextManager[Disk]]


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


def reported(directory: Path, what: str) -> int:
    """How many failed requests the servers of a test reported; complete when they have ended."""
    texts = [path.read_text(errors="replace") for path in directory.rglob("*") if path.is_file()]
    return sum(len(re.findall(rf"\b{what} of \d+ bytes at \d+: ", text)) for text in texts)


def change(name: str, table: str) -> None:
    run(["dmsetup", "load", name, "--table", table])
    run(["dmsetup", "suspend", "--noflush", "--nolockfs", name])
    run(["dmsetup", "resume", name])


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
def test_errors_below(serve: Serve, name: str, tmp_path: Path) -> None:
    """dm-error in a part of the disk: requests there fail, others do not, and later all are good again."""
    reads, writes, _ = ERRORS[name]
    with mapped("faulty", LINEAR) as path:
        with serve(SYSTEMS[name], path) as disk:
            assert disk.write(BAD, b"a") == disk.write(GOOD, b"g") == disk.flush() == 0
            change("faulty", broken("error"))
            assert disk.read(BAD) == reads
            assert disk.write(BAD) == writes
            assert disk.holds(GOOD, b"g") and disk.write(GOOD, b"h") == 0 and disk.flush() == 0
            change("faulty", LINEAR)
            assert disk.holds(BAD, b"a") and disk.holds(GOOD, b"h")
            assert disk.write(BAD, b"b") == disk.flush() == 0 and disk.holds(BAD, b"b")
    # The kernel's SCSI layer and nbd may ask again; a second has one line.
    assert 1 <= reported(tmp_path, "read") <= 5 and 1 <= reported(tmp_path, "write") <= 5


@pytest.mark.parametrize("name", SYSTEMS)
def test_writes_that_cannot_be_kept(serve: Serve, name: str) -> None:
    """dm-flakey fails writes below a page cache: the flush tells of it, and no later one calls them kept."""
    system = SYSTEMS[name]
    buffered = config(system.kind, mode=system.mode, direct="off")
    run(["modprobe", "dm-flakey"])
    with mapped("faulty", LINEAR) as path, serve(buffered, path) as disk:
        assert disk.write(BAD, b"a") == disk.flush() == 0
        change("faulty", f"0 {SIZE // SECTOR} flakey {NVME} 0 0 60 1 error_writes")
        assert disk.write(BAD, b"b") == 0
        assert disk.flush() != 0
        change("faulty", LINEAR)
        assert disk.flush() != 0, "what was lost was acknowledged"
        assert disk.read(GOOD) == 0


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_device_that_stalls(serve: Serve, name: str) -> None:
    with mapped("faulty", LINEAR) as path, serve(SYSTEMS[name], path) as disk:
        assert disk.write(BAD, b"a") == 0
        run(["dmsetup", "suspend", "--noflush", "--nolockfs", "faulty"])
        resume = threading.Timer(5, lambda: run(["dmsetup", "resume", "faulty"]))
        began = time.monotonic()
        resume.start()
        assert disk.write(BAD, b"b") == disk.flush() == 0
        assert time.monotonic() - began > 2
        resume.join()
        assert disk.holds(BAD, b"b")


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
def test_a_medium_error(serve: Serve, name: str, tmp_path: Path) -> None:
    reads, _, _ = ERRORS[name]
    medium = ("opts=2", f"medium_error_start={BAD // SECTOR}", "medium_error_count=8")
    with scsi_debug(*medium) as path, serve(SYSTEMS[name], path) as disk:
        assert disk.read(BAD) == reads
        assert disk.read(GOOD) == 0 and disk.write(GOOD, b"g") == 0 and disk.holds(GOOD, b"g")
    assert 1 <= reported(tmp_path, "read") <= 5


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_vanished_device(serve: Serve, name: str) -> None:
    """No request hangs, each says that the device is gone, and all can be torn down."""
    with scsi_debug() as path, serve(SYSTEMS[name], path) as disk:
        assert disk.write(GOOD, b"g") == 0
        Path("/sys/block", Path(path).name, "device/delete").write_text("1")
        answers = [disk.read(GOOD), disk.write(GOOD), disk.flush()]
        assert answers == [GONE[name]] * 3, [errno.errorcode.get(answer, answer) for answer in answers]


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
def test_no_room(serve: Serve, name: str, small: Path) -> None:
    _, _, full = ERRORS[name]
    system = SYSTEMS[name]
    full_below: SystemConfig = config(system.kind, mode=system.mode, direct="off", file=str(small))
    with serve(full_below) as disk:
        assert disk.write(0, b"a") == 0
        results = [disk.write(at) for at in range(MIB, 3 * MIB, LENGTH)]
        assert set(results) == {0, full}, results
        assert disk.holds(0, b"a") and disk.write(0, b"b") == 0 and disk.holds(0, b"b")
