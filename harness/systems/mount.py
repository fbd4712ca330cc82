# SPDX-License-Identifier: BSD-3-Clause
"""A file system of somebody else's, which a program mounts: over the ext4 of the native device, or on the device in the
ext4's place. Described by configs/systems/NAME.toml (docs/extending.md); mounted again for every run.
"""

from __future__ import annotations

from pathlib import Path

from ..machine.filesystem import mounted_type
from ..machine.interrupt import held
from ..machine.subprocesses import Recorder
from ..machine.teardown import Teardown
from ..model.config import SystemConfig
from ..model.parts import KINDS
from ..model.tables import Table
from .base import BringUpError, Context, Required, Running, await_up, placeholders, requires_of

OVER = {"directory": ("source", "mountpoint", "work"), "device": ("device", "mountpoint")}  # what its words may hold
WORK = ".work"


def up(context: Context) -> Running:
    """The native device; the file system comes with each run's mount."""
    config, device = context.config, context.device
    on_device = config.disk == "device"

    def serve(source: Path, mountpoint: Path, recorder: Recorder, teardown: Teardown) -> Running:
        values = {
            "device": device.path,
            "source": str(source),
            "mountpoint": str(mountpoint),
            "work": str(source / WORK),
        }
        if any("{work}" in word for word in config.server):
            (source / WORK).mkdir()
        argv = [word.format_map(values) for word in config.server]
        with held():
            server = recorder.spawn(argv, teardown=teardown)
            teardown.push("unmount", path=str(mountpoint))  # before its end: what it caches is written then
        await_up(f"{argv[0]} mounts nothing", lambda: bool(mounted_type(mountpoint)), server)
        kind = mounted_type(mountpoint)
        if not kind.startswith("fuse"):
            raise BringUpError(
                f"{argv[0]}: what it mounts is {kind}, not a FUSE file system; name a program that serves FUSE itself"
            )

        def problems() -> list[str]:
            gone = mounted_type(mountpoint) != kind
            return [f"{mountpoint} is no longer mounted"] if gone else []

        return Running(
            used=device,
            server=server.pid,
            server_started=server.started,
            settings={"server": " ".join(argv), "mounted": kind},
            problems=problems,
        )

    return Running(used=device, serve=serve, on_device=on_device)


class Mount(Required):
    """For workloads on a file system only."""

    name = "mount"
    blocks = False
    for_others = None
    needs = ("fuse",)

    def read(self, name: str, table: Table) -> SystemConfig:
        server, over = table.texts("server"), table.text("over", tuple(OVER))
        system = SystemConfig(name, self.name, server=server, disk=over, requires=requires_of(table, server[0]))
        table.end(("name", "kind", "server", "over", "requires"))
        for word in server:
            for used in placeholders(table, "server", word):
                if used not in OVER[over]:
                    known = ", ".join(f"{{{one}}}" for one in OVER[over])
                    raise table.error("server", word, f"{{{used}}} is unknown; use one of {known}")
        if not any("{mountpoint}" in word for word in server):
            raise table.error("server", server, "needs {mountpoint} in it")
        return system

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Mount())
