# SPDX-License-Identifier: BSD-3-Clause
"""tcmu-runner, and SCSI disks on LIO's loopback fabric: brought up and torn down by configfs.

Each part is a context manager. Leaving it removes what it made, also when the daemon was killed
meanwhile; every wait is bounded.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ..machine.blockdev import is_there
from ..machine.interrupt import held
from ..machine.teardown import TeardownError, holds_within, module_loaded, undo

CONFIGFS = Path("/sys/kernel/config")
TARGET = CONFIGFS / "target"
LOOPBACK = TARGET / "loopback"
MODULE_PARAMETERS = Path("/sys/module/target_core_user/parameters")
MODULES = ("sd_mod", "target_core_user", "tcm_loop")
IBLOCK_MODULES = ("sd_mod", "target_core_iblock", "tcm_loop")
NAME = "userblk"  # of a LUN, before the number of the process: two campaigns may run on one machine

START_LIMIT = 60.0  # s until tcmu-runner serves
STOP_LIMIT = 15.0  # s until it has ended by SIGTERM; then SIGKILL
DISK_LIMIT = 60.0  # s until a disk appears or a step of its removal is done
POLL = 0.05  # s


class LioError(Exception):
    """One line: what could not be brought up or torn down."""


def await_condition(what: str, limit: float, condition: Callable[[], bool]) -> None:
    """Wait until condition() holds, at most limit seconds."""
    if not holds_within(limit, condition, POLL):
        raise LioError(f"{what} within {limit:g} s")


def write_attribute(path: Path, value: str) -> None:
    """Write a configfs or sysfs attribute in one write(2), as their stores need."""
    try:
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise LioError(f"{path}: writing {value!r}: {error.strerror}") from error


def load_modules(names: Sequence[str] = MODULES) -> None:
    """Load what LIO needs for backstores of a kind and mount configfs, in as far as that is not done yet."""
    commands = []
    if missing := [name for name in names if not module_loaded(name)]:
        # The kernel refuses to change this directory later, and complains without it.
        Path("/etc/target").mkdir(exist_ok=True)
        commands.append(["modprobe", "-a", *missing])
    if not CONFIGFS.is_mount():
        commands.append(MOUNT_CONFIGFS)
    for argv in commands:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=START_LIMIT, check=False)
        if done.returncode:
            raise LioError(f"{' '.join(argv)}: {done.stderr.strip()}")


MOUNT_CONFIGFS = ["mount", "-t", "configfs", "configfs", str(CONFIGFS)]


class TcmuRunner:
    """A tcmu-runner of our own that loads the handlers in one directory."""

    def __init__(
        self,
        handlers: Path,
        *,
        threads: int | None = None,
        note: Callable[[TcmuRunner], None] = lambda _: None,
    ) -> None:
        """threads: of each device; None: the handlers' default. note: called once it runs, before it is ready."""
        self.handlers = handlers
        self.threads = threads
        self.note = note
        self.argv: list[str] = []
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_directory = Path()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not entered"
        return self._process

    @property
    def log(self) -> str:
        """What it has logged so far: errors, and the counters of devices that were closed."""
        try:
            return (self._log_directory / "tcmu-runner.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def __enter__(self) -> TcmuRunner:
        load_modules()
        logs = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tcmu-runner-"))
        self._log_directory = Path(logs)
        self.argv = ["tcmu-runner", "--handler-path", str(self.handlers), "--tcmu-log-dir", logs]
        environment = dict(os.environ)
        environment.pop("USERBLK_TCMU_THREADS", None)
        if self.threads is not None:
            environment["USERBLK_TCMU_THREADS"] = str(self.threads)
        try:
            output = self._stack.enter_context((self._log_directory / "output").open("wb"))
            with held():
                self._process = subprocess.Popen(
                    self.argv,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a Ctrl-C must reach us first
                )
                self.note(self)
            await_condition("tcmu-runner is not ready", START_LIMIT, self._ready)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _ready(self) -> bool:
        if self.process.poll() is not None:
            output = (self._log_directory / "output").read_text(errors="replace") + self.log
            lines = [line for line in output.splitlines() if line.strip()] or ["no output"]
            raise LioError(f"tcmu-runner ended with status {self.process.returncode}: {lines[-1]}")
        state = (MODULE_PARAMETERS / "block_netlink").read_text().strip()
        return self._listens() and state == "unblocked"

    def _listens(self) -> bool:
        """Has it joined the kernel's netlink group? Before that a new device would never return."""
        for line in Path("/proc/net/netlink").read_text().splitlines()[1:]:
            _, protocol, port, groups, *_ = line.split()
            # A port is the process id, with a count above bit 22 for its further sockets.
            if protocol == "16" and int(port) & 0x3FFFFF == self.process.pid and int(groups, 16):
                return True
        return False

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait(STOP_LIMIT)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                try:
                    self._process.wait(STOP_LIMIT)
                except subprocess.TimeoutExpired:
                    self.kill()


@dataclass(frozen=True)
class Backstore:
    """What a LUN is made of. kind: "user" or "iblock". modules: of the kernel, which it needs."""

    kind: str
    control: str  # dev_config=...,dev_size=... or udev_path=...
    attributes: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = MODULES

    @staticmethod
    def user(
        subtype: str,
        config: str,
        size: int,
        *,
        block_size: int = 512,
        max_bytes: int = 1 << 20,
        timeout_s: int = 30,
    ) -> Backstore:
        """A backstore of one of our handlers. size, max_bytes (the largest request): bytes."""
        wrong = set(",:\n") & set(config)
        if wrong:
            raise LioError(f"cfgstring={config}: LIO cannot take {min(wrong)!r} in it; use config=FILE")
        # hw_max_sectors counts blocks, whatever its name says.
        control = (
            f"dev_config={subtype}/{config},dev_size={size},"
            f"hw_block_size={block_size},hw_max_sectors={max_bytes // block_size}"
        )
        return Backstore("user", control, (("cmd_time_out", str(timeout_s)),))

    @staticmethod
    def iblock(device: Path) -> Backstore:
        """LIO's own, in the kernel, on a block device."""
        return Backstore("iblock", f"udev_path={device},readonly=0", modules=IBLOCK_MODULES)


class Lun:
    """A backstore, exported on the loopback fabric, and the disk that this makes."""

    def __init__(self, backstore: Backstore, name: str = "", hba: Path | None = None) -> None:
        """
        name: unique on this machine, letters and digits; "": that of this process. hba: only to remove() what another
        process left.
        """
        self.backstore = backstore
        self.hba = hba or TARGET / "core" / f"{backstore.kind}_{os.getpid()}"
        self.name = name or NAME + self.hba.name.rpartition("_")[2]
        self.core = self.hba / self.name
        self.port = LOOPBACK / naa(f"{self.name} target") / "tpgt_1"
        self.disk = Path()
        self._made: list[Callable[[], None]] = []

    def __enter__(self) -> Lun:
        try:
            self._create()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self, directory: Path) -> None:
        if not directory.exists():
            directory.mkdir()
            self._made.append(directory.rmdir)

    def _create(self) -> None:
        load_modules(self.backstore.modules)
        self._make(self.hba)
        self._make(self.core)
        write_attribute(self.core / "control", self.backstore.control)
        self._bounded(f"{self.name} cannot be enabled", lambda: write_attribute(self.core / "enable", "1"))
        for attribute, value in self.backstore.attributes:
            write_attribute(self.core / "attrib" / attribute, value)
        self._make(LOOPBACK)
        self._make(self.port.parent)
        self._make(self.port)
        write_attribute(self.port / "nexus", naa(f"{self.name} initiator"))
        lun = self.port / "lun" / "lun_0"
        self._make(lun)
        link = lun / self.name
        link.symlink_to(self.core)
        self._made.append(link.unlink)
        await_condition(f"the disk of {self.name} does not appear", DISK_LIMIT, self._find_disk)

    def _find_disk(self) -> bool:
        host, _, target = (self.port / "address").read_text().strip().split(":")
        blocks = Path(f"/sys/bus/scsi/devices/{host}:0:{target}:0/block")
        for disk in blocks.iterdir() if blocks.is_dir() else ():
            self.disk = Path("/dev") / disk.name
            if not (disk / "queue").is_dir():  # the last to come, on Linux 5.10 after its partitions were looked for
                return False
            return (disk / "size").read_text().strip() != "0" and is_there(self.disk)
        return False

    def remove(self) -> None:
        """Remove what there is of it, also what another program made; does nothing if there is nothing."""
        lun = self.port / "lun" / "lun_0"
        directories = (self.hba, self.core, LOOPBACK, self.port.parent, self.port, lun)
        self._made = [path.rmdir for path in directories if path.exists()]
        if LOOPBACK.exists() and len(list(LOOPBACK.glob("naa.*"))) > self.port.parent.exists():
            self._made.remove(LOOPBACK.rmdir)  # others use it
        if (lun / self.name).is_symlink():
            self._made.append((lun / self.name).unlink)
        self._remove()

    def _remove(self) -> None:
        """In reverse; goes on after a failure, which it raises at the end."""
        failure: LioError | None = None
        while self._made:
            undo = self._made.pop()
            try:
                self._bounded(f"{self.name} cannot be removed", undo)
            except (LioError, OSError) as error:
                failure = failure or LioError(str(error))
        if failure:
            raise failure

    def _bounded(self, what: str, step: Callable[[], None]) -> None:
        """Do what may wait in the kernel for the daemon, and make the kernel give up in the end."""
        errors: list[BaseException] = []

        def body() -> None:
            try:
                step()
            except (LioError, OSError) as error:
                errors.append(error)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        end = time.monotonic() + DISK_LIMIT
        while thread.is_alive() and time.monotonic() < end:
            thread.join(0.5)
            if thread.is_alive() and not daemon_runs():
                self.fail_commands()
        if thread.is_alive():
            raise LioError(f"{what} within {DISK_LIMIT:g} s")
        if errors:
            raise LioError(f"{what}: {errors[0]}") from errors[0]

    def fail_commands(self) -> None:
        """Without a daemon: nobody will answer what lies in the ring, nor the kernel's netlink messages."""
        for path, value in (
            (self.core / "action" / "block_dev", "1"),
            (self.core / "action" / "reset_ring", "2"),
            (self.core / "action" / "block_dev", "0"),
            (MODULE_PARAMETERS / "block_netlink", "1"),
            (MODULE_PARAMETERS / "reset_netlink", "1"),
            (MODULE_PARAMETERS / "block_netlink", "0"),
        ):
            try:
                write_attribute(path, value)
            except LioError:
                pass  # gone already


@undo
def remove_lun(hba: str) -> None:
    """The disk, its target and its backstore, of whatever kind, in as far as they are there."""
    try:
        Lun(Backstore("", ""), hba=Path(hba)).remove()
    except LioError as error:
        raise TeardownError(str(error)) from None


def daemon_runs() -> bool:
    """Is there a tcmu-runner process, and not just the remains of one that nobody has waited for?"""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = stat.read_text(errors="replace").partition("(")[2].rpartition(")")
        except OSError:
            continue  # ended
        if name == "tcmu-runner" and fields.split()[0] not in "ZX":
            return True
    return False


def naa(text: str) -> str:
    """A world-wide name, always the same for the same text, of a form that targetcli accepts."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:5], "big") & (1 << 36) - 1
    return f"naa.5001405{digest:09x}"
