# SPDX-License-Identifier: BSD-3-Clause
"""userblk-fuse-disk: one of our devices as a regular file, through FUSE. No block device comes of it."""

from __future__ import annotations

from ..model.config import SystemConfig
from ..model.parts import KINDS
from ..model.tables import Table
from .base import BringUpError, Context, Running, SystemKind, scratch
from .fuse import MODULES, mount, negotiation

PROGRAM = "userblk-fuse-disk"


def up(context: Context) -> Running:
    config = context.config
    program = context.library("fuse-disk", PROGRAM)
    file = scratch(context.teardown) / "disk"
    file.touch()
    parameters = context.parameters() | {"size": str(context.area)}
    argv = [str(program), f"--max-threads={config.threads}", *config.options, str(file), config.device]
    argv += [f"{key}={value}" for key, value in parameters.items()]
    daemon, found, problems = mount(argv, file, config.negotiated, context.recorder, context.teardown)
    if (size := file.stat().st_size) != context.area:
        raise BringUpError(f"{file}: has {size} bytes, not {context.area}")
    return Running(
        used=context.device,
        file=file,
        server=daemon.pid,
        server_started=daemon.started,
        settings={"threads": config.threads, "negotiated": found, "options": list(config.options), **parameters},
        problems=problems,
    )


class FuseDisk(SystemKind):
    name = "fuse-disk"
    needs = MODULES
    made = "fuse-disk", "fuse-disk/userblk-fuse-disk"

    def read(self, name: str, table: Table) -> SystemConfig:
        # A file is no block device: it holds no data that a workload could have of a device below.
        device, threads = table.text("device", ("null",)), table.integer("threads", 1)
        system = SystemConfig(name, self.name, device, threads=threads, **negotiation(table))
        table.end(("name", "kind", "device", "threads", "options", "negotiated"))
        return system

    def attaches(self, system: SystemConfig) -> bool:
        return not system.uses_device

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(FuseDisk())
