# SPDX-License-Identifier: BSD-3-Clause
"""What a guest in virtual time is made of: parameters (configs/models); modules for its timer, its disks, wake-ups of
idle CPUs and what it says to the host; a library that makes the spin locks of programs fit one CPU, and one that holds
QEMU's main loop back.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import CACHE, CHECKOUT, LabError
from .rootfs import Tree, die_with_parent, in_root, locked

MODELS = CHECKOUT / "configs" / "models"
SOURCES = CHECKOUT / "lab" / "ssd"
SPIN_LOCKS = CHECKOUT / "lab" / "preload" / "spin_locks.c"
MAIN_LOOP = CHECKOUT / "lab" / "preload" / "main_loop.c"
MODULES = ("userblk_clock.ko", "userblk_ssd.ko", "userblk_channel.ko", "userblk_writeback.ko", "userblk_wakeup.ko")
CALIBRATION = "calibration"  # which cells of the paper's native columns it is set from: for who reads results
MOST_IDLE_STATES, MOST_CPUS = 8, 128  # of lab/ssd/idle_cpus.h
LEAST_SPEED, MOST_SPEED = 100, 20000  # instructions a microsecond that a kernel's clock can be set to

# What the module wants of every disk beside its name, serial and size.
NUMBERS = (
    *("queues", "depth", "max_kib", "channels", "command_ns", "read_ns", "read_ps", "stream_ns", "stream_ps"),
    *("read_link_ps", "write_link_ps", "duplex", "write_ns", "buffer_bytes", "drain_ps", "flush_ns", "discard_ns"),
)


@dataclass(frozen=True)
class Cpu:
    """instructions_per_us: what it executes in a microsecond of the guest's time."""

    name: str
    version: int
    instructions_per_us: int

    def __str__(self) -> str:
        return f"{self.name}-{self.version}"


@dataclass(frozen=True)
class Model:
    """
    One SSD, and the machine that has it. numbers: struct ssd_parameters of lab/ssd/model.h, and the queues. cpus: how
    many the machine has. Their idle states, from the lightest: how long a CPU must be idle for each (residency_us), and
    how long it takes to leave it (exit_us), in microseconds.
    """

    name: str
    version: int
    serial: str
    numbers: Mapping[str, int]
    cpus: int
    residency_us: tuple[int, ...]
    exit_us: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}-{self.version}"

    def words(self, size: int) -> str:
        """What the module's parameter says of it. size: bytes."""
        numbers = " ".join(f"{name}={value}" for name, value in self.numbers.items())
        return f"name=lab{self.name} serial={self.serial} bytes={size} {numbers}"

    def machine(self) -> str:
        """What the module of the wake-up latency wants."""
        residencies, exits = (",".join(map(str, values)) for values in (self.residency_us, self.exit_us))
        return f"lab{self.name} {self.cpus} {residencies} {exits}"


def _read(name: str, texts: Sequence[str], numbers: Sequence[str], lists: Sequence[str] = ()) -> dict[str, Any]:
    """A file of configs/models with just these keys. Raises LabError."""
    path = MODELS / f"{name}.toml"
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}; restore it, or use --clock real") from None
    except ValueError as error:
        raise LabError(f"{path}: {error}") from None
    keys = (*texts, *numbers, *lists, CALIBRATION)
    if odd := sorted({*keys} ^ values.keys()):
        known = ", ".join(keys)
        raise LabError(f"{path}: {odd[0]}: {'unknown' if odd[0] in values else 'missing'}; its keys are {known}")
    for key in numbers:
        if type(values[key]) is not int or values[key] < 0:
            raise LabError(f"{path}: {key}={values[key]}: must be a whole number from 0 on")
    for key in lists:
        if type(values[key]) is not list or any(type(value) is not int or value < 0 for value in values[key]):
            raise LabError(f"{path}: {key}={values[key]}: must be a list of whole numbers from 0 on")
    return values


def disk_models() -> list[Model]:
    """The models of the guest's two disks, each with its machine. Raises LabError."""
    return [_disk_model(name) for name in ("sata", "nvme")]


def _disk_model(name: str) -> Model:
    values = _read(name, ("name", "serial"), ("version", *NUMBERS, "cpus"), ("residency_us", "exit_us"))
    residencies, exits = values["residency_us"], values["exit_us"]
    if not 2 <= values["cpus"] <= MOST_CPUS or values["cpus"] % 2:
        raise LabError(f"cpus={values['cpus']}: must be an even number from 2 to {MOST_CPUS}, two for each core")
    if not 1 <= len(residencies) <= MOST_IDLE_STATES:
        raise LabError(f"residency_us={residencies}: must have 1 to {MOST_IDLE_STATES} numbers")
    if residencies != sorted(set(residencies)):
        raise LabError(f"residency_us={residencies}: must rise")
    if len(exits) != len(residencies):
        raise LabError(f"exit_us={exits}: must have {len(residencies)} numbers, as residency_us has")
    numbers = {number: values[number] for number in NUMBERS}
    machine = (values["cpus"], tuple(residencies), tuple(exits))
    return Model(values["name"], values["version"], values["serial"], numbers, *machine)


def cpu_model() -> Cpu:
    """The model of the guest's CPU. Raises LabError."""
    values = _read("cpu", ("name",), ("version", "instructions_per_us"))
    speed = values["instructions_per_us"]
    if not LEAST_SPEED <= speed <= MOST_SPEED:
        raise LabError(f"instructions_per_us={speed}: must be from {LEAST_SPEED} to {MOST_SPEED}")
    return Cpu(values["name"], values["version"], speed)


def model_names() -> str:
    """Names and versions of all, which results carry. Raises LabError."""
    return " ".join(str(model) for model in (cpu_model(), *disk_models()))


def module_parameter(disks: Sequence[Model], size: int) -> str:
    return ";".join(model.words(size) for model in disks)


def machines_parameter(disks: Sequence[Model]) -> str:
    return ";".join(model.machine() for model in disks)


def headers(tree: Tree) -> Path:
    """Where the headers of the guest's kernel are, if it has them. A link there is meant inside its root."""
    build = tree.root / "lib/modules" / tree.release / "build"
    target = os.readlink(build) if build.is_symlink() else ""
    return tree.root / target.lstrip("/") if target.startswith("/") else build.parent / target if target else build


def ensure_modules(tree: Tree) -> tuple[list[Path], Path]:
    """
    What a guest in virtual time loads, and what QEMU does; built first where needed, in the guest's root by chroot.
    Raises LabError.
    """
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h") or path.name == "Kbuild")
    sources += [SPIN_LOCKS, MAIN_LOOP]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + tree.release.encode()).hexdigest()[:16]
    directory = CACHE / str(tree.variant) / "ssd"
    spin_locks, main_loop = (directory / f"{source.stem}.so" for source in (SPIN_LOCKS, MAIN_LOOP))
    made, modules = directory / "made", [*(directory / name for name in MODULES), spin_locks]
    with locked(f"ssd-{tree.variant}"):
        if made.exists() and made.read_text() == key and all(path.exists() for path in (*modules, main_loop)):
            return modules, main_loop
        if not headers(tree).is_dir():
            raise LabError(
                f"Linux {tree.release} comes without its headers, lib/modules/{tree.release}/build, which virtual time"
                " needs; add them as a directory, or use --clock real"
            )
        if os.geteuid() != 0:
            raise LabError("building the modelled SSDs needs root: run `lab/run --clock virtual true` as root once")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for path in sources:
            shutil.copy(path, directory)
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "LAB_EXTRA": str(directory)}
        commands = [["make", "-C", f"/lib/modules/{tree.release}/build", "M=/extra", "modules"]]
        commands += [
            ["gcc", "-O2", "-shared", "-fPIC", "-o", f"/extra/{source.stem}.so", f"/extra/{source.name}", "-ldl"]
            for source in (SPIN_LOCKS, MAIN_LOOP)
        ]
        log = directory / "build.log"
        with log.open("wb") as stream:
            for argv in commands:
                done = subprocess.run(
                    in_root(tree, argv),
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    preexec_fn=die_with_parent,
                )
        if done.returncode or not all(path.exists() for path in (*modules, main_loop)):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
            raise LabError(f"{SOURCES}: does not build for Linux {tree.release}, see {log}:\n{tail}")
        made.write_text(key)
    return modules, main_loop
