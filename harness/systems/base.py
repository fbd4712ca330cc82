# SPDX-License-Identifier: BSD-3-Clause
"""What all systems share."""

from __future__ import annotations

import os
import shutil
import signal
import string
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ..machine.blockdev import BlockDevice
from ..machine.paths import CHECKOUT
from ..machine.subprocesses import CommandError, Process, Recorder
from ..machine.teardown import (
    RUN,
    Teardown,
    has_threads,
    holds_within,
    module_loaded,
    read_setting,
    restore_setting,
    start_time,
    undo,
    write_setting,
)
from ..model.config import Requires, SystemConfig, parameters_of, queue_of
from ..model.parts import KINDS, Kind
from ..model.tables import Table

# For kernel modules: as many disks as suite attach has at once.
PARAMETERS = {"nbd": ("nbds_max=64",)}
PATIENCE = 60.0  # s for every step of a bring-up
ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
OUR_DEVICES = ("passthrough", "null")


class BringUpError(Exception):
    """A system cannot be brought up; one line."""


def built(build: str, *parts: str) -> Path:
    """A file that make built. Raises BringUpError."""
    path = (CHECKOUT or Path()).joinpath(build, *parts)
    if not path.exists():
        raise BringUpError(f"{path} is missing; build it with make")
    return path


@dataclass(frozen=True)
class Context:
    """What a system is made of. area: bytes of the device that are used; after: left when all is torn down.

    mountable: the workload mounts the device, so nothing else may hold it.
    outlives: the disk must outlive its server, and wait for another one.
    """

    config: SystemConfig
    device: BlockDevice
    area: int
    build: str
    recorder: Recorder
    teardown: Teardown
    after: ExitStack
    mountable: bool = False
    outlives: bool = False

    def library(self, *parts: str) -> Path:
        """A file that make built. Raises BringUpError."""
        return built(self.build, *parts)

    def parameters(self) -> dict[str, str]:
        """key=value of our device, but for its size."""
        values = {"file": self.device.path} if self.config.uses_device else {}
        return values | dict(self.config.parameters)


@dataclass
class Running:
    """A system that is up. used: what the workload opens; server: 0 for native.

    file: what it opens instead, a file that is no block device; used is then not touched.
    problems: what is no longer as it was set up. fail_io: makes hanging I/O fail once the server is gone.
    mkfs, mount: options of an ext4 on it.
    serve: mounts another file system over one that is mounted, for one run; None: there is none. on_device: it mounts
    the device instead, so that nothing else must.
    ended: has a server that is not a process of this machine, or is several, ended?
    restart: where the disk outlives its server, starts another one for it and returns that; replace: the same while
    the old one lives, which ends by it. Called by change_server() only.
    """

    used: BlockDevice
    file: Path | None = None
    backing: BlockDevice | None = None
    server: int = 0
    server_started: int = 0
    settings: dict[str, object] = field(default_factory=dict)
    problems: Callable[[], list[str]] = lambda: []
    fail_io: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None
    mkfs: Sequence[str] = ()
    mount: Sequence[str] = ()
    serve: Callable[[Path, Path, Recorder, Teardown], Running] | None = None
    on_device: bool = False
    ended: Callable[[], bool] = lambda: False
    restart: Callable[[], int] | None = None
    replace: Callable[[], int] | None = None

    @property
    def target(self) -> str:
        """What a workload on the device opens."""
        return str(self.file or self.used.path)

    def devices(self) -> list[BlockDevice]:
        """The device that the workload uses, and the one below; none where it uses a file."""
        return [] if self.file else [self.used] + ([self.backing] if self.backing else [])

    def server_died(self) -> bool:
        started = start_time(self.server)
        return bool(self.server) and (not started or started != self.server_started) or self.ended()

    def change_server(self, event: str) -> None:
        """Let another server take the place of this one: "kill" it first, or "replace" it. Raises BringUpError."""
        change = self.replace if event == "replace" else self.restart
        if change is None:
            raise BringUpError(f"{self.used.path}: its framework does not support {event}")
        old, started = self.server, self.server_started
        self.server = 0  # its end is no failure
        try:
            if event == "kill":
                os.kill(old, signal.SIGKILL)
                await_up("the killed server does not end", lambda: start_time(old) != started and not has_threads(old))
            self.server = change()
        except BaseException:
            self.fail_io()  # nobody else will answer
            raise
        self.server_started = start_time(self.server)


@dataclass(frozen=True)
class Failure:
    """What was seen of a system that has all it needs. kernel: as uname has it, or its beginning."""

    kernel: str
    why: str
    remedy: str

    @property
    def here(self) -> bool:
        return os.uname().release.startswith(self.kernel)


class SystemKind(Kind):
    """A kind of system as it is brought up; a file of its own adds one to KINDS.

    needs: kernel modules. packages: of programs that it runs, Debian's package by program. made: what make builds for
    it, target and file, with {device} for the device's name. foreign: a server of somebody else's.
    """

    needs: tuple[str, ...] = ()
    packages: Mapping[str, str] = {}
    made: tuple[str, str] | None = None
    foreign = False

    def up(self, context: Context) -> Running:
        """Bring it up; what is made is noted in the context's teardown. Raises BringUpError, CommandError."""
        raise NotImplementedError

    def modules(self, config: SystemConfig) -> tuple[str, ...]:
        """Kernel modules that a system needs."""
        return self.needs

    def programs(self, config: SystemConfig) -> Mapping[str, str]:
        """Programs that a system needs, and the packages that bring them."""
        return self.packages

    def makes(self, config: SystemConfig) -> tuple[str, str] | None:
        """What make builds for a system: target and file."""
        return (self.made[0], self.made[1].format(device=config.device)) if self.made else None

    def failure(self, config: SystemConfig) -> Failure | None:
        """With what kernel it was seen to fail."""
        return None

    def absent(self, config: SystemConfig) -> list[str]:
        """Why a third-party system cannot run here, a line each: it is left out then. Ours that cannot is an error."""
        return []


class Required(SystemKind):
    """Third-party programs; the file of a system says what must be there for them."""

    foreign = True

    def modules(self, config: SystemConfig) -> tuple[str, ...]:
        return (*self.needs, *config.requires.modules)

    def programs(self, config: SystemConfig) -> Mapping[str, str]:
        return dict.fromkeys(config.requires.programs, " ".join(config.requires.packages))

    def absent(self, config: SystemConfig) -> list[str]:
        needs = config.requires
        found = [f"{program} is not installed" for program in needs.programs if not find_program(program)]
        found += [f"the kernel has no {module}" for module in self.modules(config) if not module_there(module)]
        unset = (name for name in needs.environment if not os.environ.get(name))
        return found + [f"{name} is not set in the environment" for name in unset]


def requires_of(table: Table, program: str) -> Requires:
    """A system's [requires]; program: what it needs if it names none."""
    asked = table.table("requires", optional=True)
    requires = Requires(
        programs=asked.texts("programs", optional=True) or [program],
        modules=asked.texts("modules", optional=True),
        environment=asked.texts("environment", optional=True),
        packages=asked.texts("packages", optional=True),
        hint=asked.text("hint") if "hint" in asked.values else "",
    )
    asked.end(tuple(Requires.__dataclass_fields__))
    return requires


def placeholders(table: Table, key: str, word: str) -> list[str]:
    """What stands in braces in a word of a command."""
    try:
        return [name for _, name, _, _ in string.Formatter().parse(word) if name is not None]
    except ValueError as error:
        raise table.error(key, word, f"{error}; write {{{{ and }}}} for braces of its own") from None


class Served(SystemKind):
    """One of our devices behind a framework. with_connections, with_timeout, modes: further keys of its file.

    default_mode: a file may lack a mode.
    """

    with_connections = False
    with_timeout = True
    with_threads = True
    modes: tuple[str, ...] = ()
    default_mode = False

    def read(self, name: str, table: Table) -> SystemConfig:
        has_mode = self.modes and ("mode" in table.values or not self.default_mode)
        system = SystemConfig(
            name=name,
            kind=self.name,
            device=table.text("device", OUR_DEVICES),
            connections=table.integer("connections", 1) if self.with_connections else 0,
            threads=table.integer("threads", 1) if self.with_threads else 1,
            timeout_s=table.integer("timeout_s", 1) if self.with_timeout else 0,
            mode=table.text("mode", self.modes) if has_mode else "",
            queue=queue_of(table),
            parameters=parameters_of(table),
        )
        own = {
            "connections": self.with_connections,
            "threads": self.with_threads,
            "timeout_s": self.with_timeout,
            "mode": bool(self.modes),
        }
        table.end(("name", "kind", "device", *(key for key, has in own.items() if has), "queue", "parameters"))
        return system

    def attaches(self, system: SystemConfig) -> bool:
        return not system.uses_device


class Layer(SystemKind):
    """What the kernel, or somebody else's server, puts between a program and the device. with_null: or over none."""

    with_null = False

    def read(self, name: str, table: Table) -> SystemConfig:
        null = self.with_null and "device" in table.values
        device = table.text("device", ("null",)) if null else ""
        system = SystemConfig(name=name, kind=self.name, device=device, queue=queue_of(table))
        table.end(("name", "kind", "queue", *(("device",) if self.with_null else ())))
        return system

    def absent(self, config: SystemConfig) -> list[str]:
        found = [f"{name} is not installed" for name in self.packages if not find_program(name)]
        found += [f"the kernel has no {name}" for name in self.needs if not module_there(name)]
        failure = self.failure(config)
        return found + ([f"Linux {failure.kernel}: {failure.why}"] if failure and failure.here else [])


def kind_of(config: SystemConfig) -> SystemKind:
    kind = KINDS[config.kind]
    assert isinstance(kind, SystemKind)
    return kind


def find_program(name: str) -> str | None:
    """Also where only root's PATH leads."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{ADMIN_PATH}")


def module_there(name: str) -> bool:
    """Is it loaded, built in, or can it be loaded?"""
    if module_loaded(name):
        return True
    modprobe = find_program("modprobe")
    if not modprobe:
        return False
    argv = [modprobe, "--dry-run", "--quiet", name]
    try:
        return not subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=False).returncode
    except subprocess.TimeoutExpired:
        return False


def await_up(what: str, condition: Callable[[], bool], process: Process | None = None) -> None:
    """Poll condition. Raises BringUpError after PATIENCE seconds, CommandError as soon as process has ended."""

    def there() -> bool:
        if condition():
            return True
        if process and process.poll() is not None:
            raise CommandError(process.fate())
        return False

    if not holds_within(PATIENCE, there):
        raise BringUpError(f"{what} within {PATIENCE:.0f} s")


def scratch(teardown: Teardown) -> Path:
    """A directory of ours until teardown; short, since socket paths end at 107 bytes."""
    return teardown.new_directory("s-", RUN)


def load_modules(names: tuple[str, ...], teardown: Teardown) -> None:
    """Load what is not there yet, and note to unload it. Raises BringUpError."""
    for name in names:
        if module_loaded(name):
            continue
        teardown.push("remove_module", name=name)
        argv = ["modprobe", name, *PARAMETERS.get(name, ())]
        result = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if result.returncode:
            raise BringUpError(f"kernel module {name} cannot be loaded: {result.stderr.strip() or 'no message'}")


def settle() -> None:
    """Let udev finish with a new device, where there is udev."""
    if Path("/run/udev/control").exists() and shutil.which("udevadm"):
        subprocess.run(["udevadm", "settle", "--timeout=10"], check=False, timeout=PATIENCE)


def expect_size(used: BlockDevice, size: int, device: BlockDevice) -> None:
    """Does a disk of ours have its expected size, and blocks as the device below has? Raises BringUpError."""
    if used.size != size or used.logical_block_size != device.logical_block_size:
        raise BringUpError(
            f"{used.path}: has {used.size} bytes in blocks of {used.logical_block_size},"
            f" not {size} in blocks of {device.logical_block_size}"
        )


@undo
def restore_queue(path: str, value: str) -> None:
    """Where the kernel refuses that of a disk that nothing is attached to, a line says so."""
    try:
        restore_setting(path, value)
    except OSError as error:
        print(f"userblk: {path} cannot be put back to {value}: {error}", file=sys.stderr)


def set_queue(context: Context, used: BlockDevice) -> None:
    """Set the queue of a device of ours as configured; "native": as the device below has it. Raises BringUpError.

    The kernel's loop and nbd disks keep it when they are detached. It is put back then, since a disk whose server is
    dead would never take it.
    """
    values = {}
    for name in context.config.queue:
        path = used.queue / name
        context.teardown.push_below(used.path, restore_queue.__name__, path=str(path), value=read_setting(path))
    for name, wanted in context.config.queue.items():
        value = read_setting(context.device.queue / name) if wanted == "native" else wanted
        if name == "max_sectors_kb":
            value = str(min(int(value), int(read_setting(used.queue / "max_hw_sectors_kb"))))
        values[name] = value
        try:
            write_setting(used.queue / name, value)
        except OSError as error:
            raise BringUpError(f"{used.path}: {name}={value} cannot be set: {error.strerror}") from None
    for name, value in values.items():  # one may have changed another
        if (found := read_setting(used.queue / name)) != value:
            raise BringUpError(f"{used.path}: {name} became {found} after it was set to {value}")
