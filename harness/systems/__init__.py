# SPDX-License-Identifier: BSD-3-Clause
"""Systems: the ways in which a device is offered to the workload. Each is a context manager that always tears down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..blockdev import BlockDevice
from ..commands import Recorder
from ..config import LAYERS, SystemConfig
from ..teardown import Teardown
from . import buse, command, dm_linear, fuse, fuse_disk, iblock, loop, native, nbdkit, nvme_tcp, tcmu, ublk, vduse
from .base import Context, Running, SystemError_, load_modules

__all__ = ["Context", "Running", "SystemError_", "absent", "bring_up", "load_modules", "modules"]

_UP = {
    "native": native.up,
    "buse": buse.up,
    "nbdkit": nbdkit.up,
    "tcmu": tcmu.up,
    "fuse": fuse.up,
    "fuse-disk": fuse_disk.up,
    "ublk": ublk.up,
    "command": command.up,
    "loop": loop.up,
    "dm-linear": dm_linear.up,
    "iblock": iblock.up,
    "nvme-tcp": nvme_tcp.up,
    "vduse": vduse.up,
}
_MODULES = {
    "native": (),
    "buse": buse.MODULES,
    "nbdkit": nbdkit.MODULES,
    "tcmu": tcmu.MODULES,
    "fuse": fuse.MODULES,
    "fuse-disk": fuse.MODULES,
    "ublk": ublk.MODULES,
    "loop": loop.MODULES,
    "dm-linear": dm_linear.MODULES,
    "iblock": iblock.MODULES,
    "nvme-tcp": nvme_tcp.MODULES,
    "vduse": vduse.MODULES,
}
# Of kinds whose server is somebody else's: program -> Debian package.
PROGRAMS = {"loop": loop.PROGRAMS, "dm-linear": dm_linear.PROGRAMS, "vduse": vduse.PROGRAMS}


def modules(config: SystemConfig) -> tuple[str, ...]:
    """Kernel modules that a system needs."""
    if config.kind == "store":
        return nbdkit.MODULES if config.client == "kernel" else ()
    return tuple(config.requires.modules) if config.kind == "command" else _MODULES[config.kind]


def absent(config: SystemConfig) -> list[str]:
    """Why a system of others cannot run here, a line each: it is left out then. One of ours that cannot is an error."""
    if config.kind == "command":
        return command.absent(config)
    if config.kind not in LAYERS:
        return []
    programs = PROGRAMS.get(config.kind, {})
    return [f"{name} is not installed" for name in programs if not command.find_program(name)] + [
        f"the kernel has no {name}" for name in modules(config) if not command.module_there(name)
    ]


@contextmanager
def bring_up(
    config: SystemConfig,
    device: BlockDevice,
    area: int,
    build: str,
    recorder: Recorder,
    teardown: Teardown,
    mountable: bool = False,
    outlives: bool = False,
) -> Iterator[Running]:
    """The system on the device, for the length of the with block. Raises SystemError_, CommandError, TeardownError."""
    mark = teardown.mark()
    try:
        with ExitStack() as after:
            context = Context(config, device, area, build, recorder, teardown, after, mountable, outlives)
            try:
                running = _UP[config.kind](context)
                try:
                    yield running
                finally:
                    running.close()
            finally:
                teardown.unwind(mark)
    finally:
        recorder.save()
