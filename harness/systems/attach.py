# SPDX-License-Identifier: BSD-3-Clause
"""Disks that come and go.

    python3 -m userblk.harness.systems.attach --kind ublk --build build/host --disks 8 --samples 9 --output attach.json

Each cycle adds all disks at the same moment, each with its own server of the null device (TCMU: one daemon, which
starts with them; loop: a file in memory). When all have been read, it removes them at the same moment. Samples, in
seconds: from the first moment until a disk is there (`there`), and until 4 KiB have been read from it past the page
cache (`read`); from the second moment until the disk and its server are gone (`gone`; TCMU's daemon ends with the last
disk). Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import mmap
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import IO

from ..machine.blockdev import is_there
from ..machine.interrupt import handle_signals
from ..machine.teardown import TeardownError, holds_within
from . import lio
from .base import BringUpError, built
from .nbdkit import NO_FREE_DEVICE, connected, free_devices
from .vduse import CONTROL, destroy_vduse, remove_vdpa
from .vduse import disk_of as vduse_disk

SIZE = 64 << 20  # bytes of each disk
BLOCK = 4096
POLL_S = 0.001
LOOP_CTL_REMOVE = 0x4C81
PATIENCE_S = 120.0  # for each step of a disk
NULL = ["null", f"size={SIZE}"]
FAILURES = (OSError, BringUpError, lio.LioError, TeardownError, subprocess.TimeoutExpired)


class Ended:
    """
    The signal by which this program has to end; 0: none. Looked at while disks come: as an exception it might come
    while a thread starts, which nobody would then wait for.
    """

    number = 0


def end_by(number: int, frame: FrameType | None) -> None:
    Ended.number = Ended.number or number


def until(what: str, condition: Callable[[], bool]) -> None:
    """Raises BringUpError when it takes too long."""
    if not holds_within(PATIENCE_S, condition, POLL_S):
        raise BringUpError(f"{what} within {PATIENCE_S:g} s")


def appears(what: str, condition: Callable[[], bool], server: subprocess.Popen[bytes] | None = None) -> None:
    """until(), of a disk to come. Raises BringUpError also when the server ends, or this program has to end."""

    def there() -> bool:
        if condition():
            return True
        if Ended.number:
            raise BringUpError(f"{what}: interrupted")
        if server and server.poll() is not None:
            raise BringUpError(f"{what}: its server has ended with code {server.returncode}")
        return False

    until(what, there)


def await_end(server: subprocess.Popen[bytes]) -> None:
    """At once when it ends: Popen.wait() with a limit looks after 31, 63, 113 ms and so on."""
    descriptor = os.pidfd_open(server.pid)
    try:
        if not select.select([descriptor], [], [], PATIENCE_S)[0]:
            raise BringUpError(f"process {server.pid} does not end within {PATIENCE_S:g} s")
    finally:
        os.close(descriptor)
    server.wait()


def has_output(stream: IO[bytes]) -> bool:
    """Looks at once when it comes, or ends: no time passes between two looks."""
    return bool(select.select([stream], [], [], 0.2)[0])


def has_size(disk: str) -> bool:
    """Is the whole disk there?"""
    size = Path("/sys/block", Path(disk).name, "size")
    return size.exists() and int(size.read_text()) * 512 == SIZE and is_there(disk)


def read_block(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, BLOCK) as buffer:
            if os.preadv(descriptor, [buffer], 0) != BLOCK:
                raise BringUpError(f"{path}: less than {BLOCK} bytes can be read")
    finally:
        os.close(descriptor)


def command(*argv: str | Path) -> str:
    """What it prints. A Ctrl-C does not end it. Raises BringUpError."""
    done = subprocess.run(
        list(map(str, argv)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        start_new_session=True,
    )
    if done.returncode:
        raise BringUpError(f"{argv[0]}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Framework:
    """How disks come and go. start() and stop() are called at once for all numbers, each from a thread of its own."""

    def __init__(self, build: str, directory: Path) -> None:
        self.build = build
        self.directory = directory
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        self.disks: dict[int, str] = {}

    def begin(self) -> None:
        """What all disks of a cycle share."""

    def end(self) -> None:
        """The end of that, after the last disk."""

    def close(self) -> None:
        """After the last cycle."""

    def start(self, number: int) -> str:
        """What can be opened, once it is there."""
        raise NotImplementedError

    def stop(self, number: int) -> None:
        """Until the disk and its server are gone."""
        disk = self.disks.pop(number)
        self.end_server(number)
        until(f"{disk} was not removed", lambda: not Path("/sys/block", Path(disk).name).exists())

    def spawn(self, number: int, *argv: str | Path, output: bool = False) -> subprocess.Popen[bytes]:
        server = subprocess.Popen(
            list(map(str, argv)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output else subprocess.DEVNULL,
            start_new_session=True,
        )
        self.servers[number] = server
        return server

    def disk_named(self, number: int, *argv: str | Path) -> str:
        """What a server prints first: its disk."""
        server = self.spawn(number, *argv, output=True)
        assert server.stdout
        appears(f"{argv[0]} names no disk", partial(has_output, server.stdout))
        words = server.stdout.readline().decode().split()
        if not words:
            raise BringUpError(f"{argv[0]}: exit code {server.wait(PATIENCE_S)}")
        self.disks[number] = words[-1]
        appears(f"{words[-1]} does not appear", lambda: has_size(words[-1]), server)
        return words[-1]

    def end_server(self, number: int) -> None:
        """It is killed if it does not end by itself, which is a BringUpError."""
        server = self.servers.pop(number)
        server.terminate()
        try:
            await_end(server)
        except BringUpError:
            server.kill()
            server.wait(PATIENCE_S)
            raise
        finally:
            if server.stdout:
                server.stdout.close()


class Ublk(Framework):
    def start(self, number: int) -> str:
        program = built(self.build, "ublk", "userblk-ublk")
        return self.disk_named(number, program, "add", "--foreground", "--recovery=none", "--mode=uring", *NULL)


class OnNbd(Framework):
    """On disks of the kernel's NBD client that nobody else has."""

    free: Sequence[str] = ()  # when the cycle began

    def begin(self) -> None:
        self.free = list(free_devices())

    def disk(self, number: int) -> str:
        if number >= len(self.free):
            raise BringUpError(NO_FREE_DEVICE)
        return self.free[number]


class Buse(OnNbd):
    def start(self, number: int) -> str:
        return self.disk_named(number, built(self.build, "buse", "userblk-buse"), f"--disk={self.disk(number)}", *NULL)

    def stop(self, number: int) -> None:
        disk = self.disks.pop(number)
        self.end_server(number)
        until(f"{disk} is still connected", lambda: not connected(disk))


class Nbd(OnNbd):
    def start(self, number: int) -> str:
        socket, disk = self.directory / str(number), self.disk(number)
        ready = self.directory / f"{number}.pid"
        plugin = built(self.build, "plugins", "null.so")
        server = self.spawn(number, "nbdkit", "-f", "-U", socket, "-P", ready, plugin, f"size={SIZE}")
        appears("nbdkit is not ready", ready.exists, server)
        command("nbd-client", "-unix", socket, disk, "-b", "512")
        self.disks[number] = disk  # not before: another program may have taken it first
        appears(f"{disk} does not appear", lambda: has_size(disk), server)
        return disk

    def stop(self, number: int) -> None:
        disk = self.disks.pop(number)
        command("nbd-client", "-d", disk)
        self.end_server(number)
        until(f"{disk} is still connected", lambda: not connected(disk))
        for path in (self.directory / str(number), self.directory / f"{number}.pid"):
            path.unlink(missing_ok=True)


class Tcmu(Framework):
    """The kernel makes one backstore at a time."""

    def __init__(self, build: str, directory: Path) -> None:
        super().__init__(build, directory)
        self.luns: dict[int, lio.Lun] = {}
        self.removed = Lock()  # one of them at a time
        self.runner: lio.TcmuRunner | None = None
        lio.POLL = POLL_S
        lio.load_modules()

    def begin(self) -> None:
        self.runner = lio.TcmuRunner(built(self.build, "tcmu-handlers"), threads=16)
        self.runner.__enter__()
        lio.LOOPBACK.mkdir(exist_ok=True)

    def end_daemon(self) -> None:
        if self.runner:
            self.runner.__exit__(None, None, None)
            self.runner = None

    def end(self) -> None:
        self.end_daemon()
        with suppress(OSError):  # others may have a target of the fabric
            lio.LOOPBACK.rmdir()

    def start(self, number: int) -> str:
        hba = lio.TARGET / "core" / f"user_{number}"
        self.luns[number] = lio.Lun(lio.Backstore.user("userblk_null", "", SIZE), f"attach{number}", hba)
        self.luns[number].__enter__()
        disk = str(self.luns[number].disk)
        appears(f"{disk} does not appear", lambda: has_size(disk))
        return disk

    def stop(self, number: int) -> None:
        self.luns[number].__exit__(None, None, None)
        with self.removed:
            del self.luns[number]
            if not self.luns:
                self.end_daemon()  # the server of the last one, too


class Vduse(Framework):
    adding = Lock()  # the kernel has one added at a time

    def start(self, number: int) -> str:
        name = f"attach{number}"
        node = CONTROL.parent / name
        if node.exists():
            raise BringUpError(f"{node} exists already: another server runs")
        below = f"driver=null-co,node-name=below,size={SIZE},read-zeroes=on"
        export = f"type=vduse-blk,id=export,node-name=below,name={name},writable=on"
        pidfile = self.directory / name
        pidfile.unlink(missing_ok=True)
        server = self.spawn(
            number, "qemu-storage-daemon", "--blockdev", below, "--export", export, "--pidfile", str(pidfile)
        )
        appears("qemu-storage-daemon is not ready", pidfile.exists, server)  # the node comes before its queues
        self.disks[number] = name
        with self.adding:
            command("vdpa", "dev", "add", "name", name, "mgmtdev", "vduse")
        appears("the virtio disk does not appear", lambda: bool(vduse_disk(name)), server)
        return vduse_disk(name)

    def stop(self, number: int) -> None:
        name = self.disks.pop(number)
        try:
            remove_vdpa(name)
        finally:
            self.end_server(number)
            destroy_vduse(name)


class Loop(Framework):
    """The kernel keeps the devices that it has made for more disks than it had."""

    def __init__(self, build: str, directory: Path) -> None:
        super().__init__(build, directory)
        self.before = self.numbers()

    @staticmethod
    def numbers() -> set[int]:
        return {int(path.name.removeprefix("loop")) for path in Path("/sys/block").glob("loop[0-9]*")}

    def close(self) -> None:
        with open("/dev/loop-control", "rb") as control:
            for number in self.numbers() - self.before:
                with suppress(OSError):  # it is somebody else's by now
                    fcntl.ioctl(control, LOOP_CTL_REMOVE, number)

    def start(self, number: int) -> str:
        file = self.directory / str(number)
        with file.open("wb") as made:
            made.truncate(SIZE)
        disk = self.disks[number] = command("losetup", "--find", "--show", file).strip()
        appears(f"{disk} does not appear", lambda: has_size(disk))
        return disk

    def stop(self, number: int) -> None:
        disk = self.disks.pop(number)
        command("losetup", "--detach", disk)
        until(f"{disk} was not removed", lambda: not Path("/sys/block", Path(disk).name, "loop").exists())
        (self.directory / str(number)).unlink()


class FuseDisk(Framework):
    def start(self, number: int) -> str:
        file = self.directory / str(number)
        file.touch()
        server = self.spawn(number, built(self.build, "fuse-disk", "userblk-fuse-disk"), file, *NULL)
        self.disks[number] = str(file)
        appears(f"{file} is not mounted", lambda: file.stat().st_size == SIZE, server)
        return str(file)

    def stop(self, number: int) -> None:
        file = Path(self.disks.pop(number))
        self.end_server(number)
        until(f"{file} is still mounted", lambda: file.stat().st_size == 0)
        file.unlink()


# By the kind of a system.
FRAMEWORKS: dict[str, type[Framework]] = {
    "buse": Buse, "fuse-disk": FuseDisk, "loop": Loop, "nbdkit": Nbd, "tcmu": Tcmu, "ublk": Ublk, "vduse": Vduse,
}  # fmt: skip


def cycle(framework: Framework, disks: int, samples: dict[str, list[float]]) -> None:
    """All disks come and go once. Raises BringUpError, after which none is left if that is possible."""

    def appear(number: int) -> tuple[float, float]:
        path = framework.start(number)
        there = time.monotonic() - began
        read_block(path)
        return there, time.monotonic() - began

    def vanish(number: int) -> float:
        framework.stop(number)
        return time.monotonic() - began

    numbers = range(disks)
    with ThreadPoolExecutor(disks) as pool, ExitStack() as after:
        after.callback(framework.end)
        began = time.monotonic()
        framework.begin()
        try:
            for there, read in pool.map(appear, numbers):
                samples["there"].append(there)
                samples["read"].append(read)
            began = time.monotonic()
            samples["gone"] += pool.map(vanish, numbers)
        except BaseException:
            pool.shutdown(wait=True)
            with ThreadPoolExecutor(disks) as clearing:  # at once: a campaign gives it 20 s
                list(clearing.map(partial(clear, framework), numbers))
            raise


def clear(framework: Framework, number: int) -> None:
    """What there is of a disk of a cycle that failed. A server that still starts removes what it made when it ends."""
    for step in (framework.stop, framework.end_server):
        with suppress(KeyError, *FAILURES):
            step(number)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="userblk.harness.systems.attach", description=(__doc__ or "").split("\n\n")[2]
    )
    parser.add_argument("--kind", choices=sorted(FRAMEWORKS), required=True)
    parser.add_argument("--build", required=True, help="where make put the programs: build/host")
    parser.add_argument("--disks", type=int, default=1, help="at once")
    parser.add_argument("--samples", type=int, default=1, help="of each measure, at least")
    parser.add_argument("--output", type=Path, required=True, help="JSON: seconds, by measure")
    args = parser.parse_args(arguments)
    handle_signals(end_by)
    samples: dict[str, list[float]] = {"there": [], "read": [], "gone": []}
    with tempfile.TemporaryDirectory(prefix="attach-", dir="/dev/shm") as directory, ExitStack() as after:
        try:
            framework = FRAMEWORKS[args.kind](args.build, Path(directory))
            after.callback(framework.close)
            while len(samples["gone"]) < args.samples and not Ended.number:
                cycle(framework, args.disks, samples)
        except FAILURES as error:
            print(f"attach: {args.kind}, {args.disks} disks: {error}", file=sys.stderr)
            return 128 + Ended.number if Ended.number else 1
    if Ended.number:
        return 128 + Ended.number
    args.output.write_text(json.dumps(samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
