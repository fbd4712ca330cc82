# SPDX-License-Identifier: BSD-3-Clause
"""Our FUSE file systems: userblk-passthrough over the ext4 of the native device, userblk-nullfs over nothing. Mounted
again for every run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..machine.filesystem import mounted_type
from ..machine.interrupt import held
from ..machine.subprocesses import Process, Recorder
from ..machine.teardown import Teardown, read_setting, write_setting
from ..model.config import SystemConfig
from ..model.parts import KINDS
from ..model.tables import Table
from .base import BringUpError, Context, Running, SystemKind, await_up

MODULES = ("fuse",)
PROGRAM = "userblk-passthrough"
RINGS = Path("/sys/module/fuse/parameters/enable_uring")  # there once the module is


def status(text: str, program: str = PROGRAM) -> dict[str, str]:
    """What the daemon's status line says, {} as long as there is none."""
    for line in text.splitlines():
        words = line.split()
        if words[:2] == [f"{program}:", "ready"]:
            return dict(word.split("=", 1) for word in words[2:] if "=" in word)
    return {}


def fallbacks(found: Mapping[str, str], wanted: Mapping[str, str], program: str = PROGRAM) -> list[str]:
    """What was not granted, or is not as the system's configuration says; a line each."""
    lines = [f"{program}: {name} was refused" for name, value in found.items() if value == "refused"]
    for name, value in wanted.items():
        if name not in found:
            lines.append(f"{program}: its status line does not report {name}")
        elif found[name] not in (value, "refused"):
            lines.append(f"{program}: {name} is {found[name]} instead of {value}")
    return lines


def mount(
    argv: Sequence[str], point: Path, negotiated: Mapping[str, str], recorder: Recorder, teardown: Teardown
) -> tuple[Process, dict[str, str], Callable[[], list[str]]]:
    """A daemon that serves what is mounted on point, what it said, and what may be wrong with it later."""
    program = Path(argv[0]).name
    with held():
        daemon = recorder.spawn(argv, teardown=teardown)
        teardown.push("unmount", path=str(point))  # before the daemon's end: what it caches is written then
    output = recorder.directory / str(daemon.record["stdout"])
    await_up(f"{program} is not ready", lambda: bool(status(output.read_text(errors="replace"), program)), daemon)
    if not mounted_type(point).startswith("fuse"):
        raise BringUpError(f"{point}: is not a FUSE file system although {program} is ready")
    found = status(output.read_text(errors="replace"), program)

    def problems() -> list[str]:
        gone = [] if mounted_type(point).startswith("fuse") else [f"{point} is no longer mounted"]
        return fallbacks(found, negotiated, program) + gone

    return daemon, found, problems


def negotiation(table: Table) -> dict[str, Any]:
    """The daemon's options, and what its status line must say."""
    negotiated = table.table("negotiated")
    return {
        "options": table.texts("options", optional=True),
        "negotiated": {key: negotiated.text(key) for key in list(negotiated.values)},
    }


def wants_rings(config: SystemConfig) -> bool:
    return config.negotiated.get("io-uring") == "on"


def allow_rings(teardown: Teardown) -> None:
    """Until teardown the kernel grants FUSE over io_uring, which it has off as a default."""
    before = read_setting(RINGS)
    if before != "Y":
        teardown.push("restore_setting", path=str(RINGS), value=before)
        write_setting(RINGS, "Y")


def up(context: Context, parts: Sequence[str], over: bool) -> Running:
    """The native device; the file system comes with each run's mount. over: the program at parts shows another one."""
    program = context.library(*parts)
    config = context.config
    if wants_rings(config):
        allow_rings(context.teardown)

    def serve(source: Path, mountpoint: Path, recorder: Recorder, teardown: Teardown) -> Running:
        argv = [str(program), "-f", *config.options, *([str(source)] if over else []), str(mountpoint)]
        daemon, found, problems = mount(argv, mountpoint, config.negotiated, recorder, teardown)
        return Running(
            used=context.device,
            server=daemon.pid,
            server_started=daemon.started,
            settings={"negotiated": found, "options": list(config.options)},
            problems=problems,
        )

    return Running(used=context.device, serve=serve)


class Fuse(SystemKind):
    name = "fuse"
    needs = MODULES
    made = "fuse-passthrough", "fuse-passthrough/userblk-passthrough"
    blocks = False
    for_others = ("-o", "allow_other")
    device = ""

    def read(self, name: str, table: Table) -> SystemConfig:
        system = SystemConfig(name, self.name, self.device, **negotiation(table))
        table.end(("name", "kind", "options", "negotiated"))
        return system

    def absent(self, config: SystemConfig) -> list[str]:
        if not wants_rings(config) or not Path("/sys/module/fuse").exists() or RINGS.exists():
            return []
        return [f"Linux {platform.release()} has no FUSE over io_uring, which came with 6.14"]

    def up(self, context: Context) -> Running:
        return up(context, ("fuse-passthrough", PROGRAM), over=True)


class Nullfs(Fuse):
    name = "nullfs"
    made = "fuse-nullfs", "fuse-nullfs/userblk-nullfs"
    device = "null"
    own_files = True

    def up(self, context: Context) -> Running:
        return up(context, ("fuse-nullfs", "userblk-nullfs"), over=False)


KINDS.add(Fuse())
KINDS.add(Nullfs())
