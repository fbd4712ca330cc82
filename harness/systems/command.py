# SPDX-License-Identifier: BSD-3-Clause
"""A system that is commands only: a server of somebody else's, described by configs/systems/NAME.toml.

The server stays in the foreground, or (BDUS) ends once a daemon of the same program serves. Its disk is that of the
kernel's NBD client on the socket that it was given, one that its standard output names, or a loop device on a file that
it shows in a file system of its own. docs/extending.md describes the keys.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from ..machine.blockdev import BlockDevice, identify
from ..machine.filesystem import mount_points
from ..machine.interrupt import held
from ..machine.subprocesses import CommandError, Process
from ..machine.teardown import PATIENCE, Teardown, await_true, end_process, made_as, start_time, undo
from ..model.config import SystemConfig, queue_of
from ..model.parts import KINDS
from ..model.tables import Table
from . import nbdkit
from .base import (
    BringUpError,
    Context,
    Required,
    Running,
    await_up,
    find_program,
    placeholders,
    requires_of,
    scratch,
    set_queue,
    settle,
)

DISKS = ("nbd", "output", "loop")  # how the server becomes a disk
# What its commands may hold in braces, beside the environment variables that it requires.
PLACEHOLDERS = ("device", "directory", "socket", "pidfile", "mount", "size", "block_size", "threads", "connections")
DAEMON_PATIENCE = 2.0  # s from the disk's name to the end of the process that started the daemon


def _serves(disk: str) -> bool:
    """Is the disk there, with something in it?"""
    try:
        return Path("/sys/class/block", Path(disk).name, "size").read_text().strip() != "0"
    except OSError:
        return False


def _made(disk: str) -> int:
    return made_as(Path("/sys/class/block", Path(disk).name))


@undo
def stop_by_command(argv: str, disk: str, made: int = 0) -> None:
    """Unless the disk is another one by now. made: what it was when it came, 0: that was not recorded."""

    def ours() -> bool:
        return _serves(disk) and made in (0, _made(disk))

    if ours():
        subprocess.run(json.loads(argv), capture_output=True, timeout=PATIENCE, check=False)
        await_true(f"{disk} was not removed", lambda: not ours())


@undo
def stop_named(argv: str, output: str, pid: int, started: int) -> None:
    """The same of what a server has named by now, in its output; one that has not is ended first. argv: with {disk}."""
    if not (disk := _first_line(Path(output))):
        end_process(pid, started, "the server")
        disk = _first_line(Path(output))
    if disk:
        stop_by_command(_with_disk(json.loads(argv), disk), disk)


def _with_disk(argv: list[str], disk: str) -> str:
    return json.dumps([word.replace("{disk}", disk) for word in argv])


def _attachment(device: str) -> int:
    """Each time that a file is attached it has another one; 0: none is."""
    return made_as(Path("/sys/block", Path(device).name, "loop"))


@undo
def detach_loop(device: str, attachment: int = 0) -> None:
    """Unless somebody else has attached it since. attachment: as it was when we had, 0: that was not recorded."""

    def ours() -> bool:
        return bool(found := _attachment(device)) and attachment in (0, found)

    if ours():
        subprocess.run(["losetup", "--detach", device], capture_output=True, timeout=PATIENCE, check=False)
        await_true(f"{device} is still attached", lambda: not ours())


def detach_at_teardown(device: str, teardown: Teardown) -> None:
    """A loop device that has just been attached."""
    teardown.push("detach_loop", device=device, attachment=_attachment(device))


def _first_line(path: Path) -> str:
    """Once it is complete."""
    try:
        line, end, _ = path.read_text(errors="replace").partition("\n")
    except FileNotFoundError:
        return ""
    return line.strip() if end else ""


def _daemon(server: Process, argv: list[str]) -> tuple[int, int]:
    """pid and start of the server itself, or of the process that it left serving. Raises BringUpError."""
    if server.poll() is None:
        return server.pid, server.started
    program = os.path.realpath(find_program(argv[0]) or argv[0])
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.path.realpath(entry / "exe") == program:
                found.append((start_time(int(entry.name)), int(entry.name)))
        except OSError:
            continue  # it has just ended
    started, pid = max(found, default=(0, 0))
    if started < server.started:
        raise BringUpError(f"{argv[0]} has ended, and no process of it serves")
    return pid, started


def up(context: Context) -> Running:
    config, teardown, recorder, device = context.config, context.teardown, context.recorder, context.device
    directory = scratch(teardown)
    size = device.size if config.uses_device else context.area
    values = {
        "device": device.path,
        "directory": str(directory),
        "socket": str(directory / "s"),
        "pidfile": str(directory / "pid"),
        "size": str(size),
        "block_size": str(device.logical_block_size),
        "threads": str(config.threads),
        "connections": str(min(config.connections, os.cpu_count() or 1)),
    }
    values |= {name: os.environ.get(name, "") for name in config.requires.environment}
    if any("{mount}" in word for word in (*config.server, config.file)):
        values["mount"] = str(mount_points(teardown)[0])
    argv = [word.format_map(values) for word in config.server]
    stop = [word.format_map(values | {"disk": "{disk}"}) for word in config.stop if config.disk == "output"]
    with held():
        server = recorder.spawn(argv, teardown=teardown)
        output = (recorder.directory / str(server.record["stdout"])).absolute()
        if stop:  # it may become a daemon at any time
            words = json.dumps(stop)
            teardown.push("stop_named", argv=words, output=str(output), pid=server.pid, started=server.started)
    if "mount" in values:
        teardown.push("unmount", path=values["mount"])

    settings: dict[str, object] = {"server": " ".join(argv)}
    used: BlockDevice
    if config.disk == "nbd":
        with_pidfile = any("{pidfile}" in word for word in config.server)
        await_up(f"{argv[0]} is not ready", Path(values["pidfile" if with_pidfile else "socket"]).exists, server)
        disk = nbdkit.connect(context, Path(values["socket"]), int(values["connections"]))
        used = nbdkit.disk_of(context, disk, server)
    elif config.disk == "output":
        # One that becomes a daemon ends here with exit code 0, and has named its disk.
        await_up(f"{argv[0]} names no disk", lambda: bool(_first_line(output)), None if stop else server)
        disk = _first_line(output)
        if stop:
            server.wait(DAEMON_PATIENCE)
        await_up(f"{argv[0]} serves no {disk}", lambda: _serves(disk))
        if stop:
            words = _with_disk(stop, disk)
            teardown.replace("stop_named", "stop_by_command", argv=words, disk=disk, made=_made(disk))
        settle()
        used = identify(disk)
        set_queue(context, used)
    else:
        file = Path(config.file.format_map(values))
        await_up(f"{argv[0]} shows no {file}", file.exists, server)
        with held():
            loop = recorder.run(["losetup", "--find", "--show", str(file)], timeout=PATIENCE).strip()
            detach_at_teardown(loop, teardown)
        with suppress(CommandError):  # not every file system can; its settings tell
            recorder.run(["losetup", "--direct-io=on", loop], timeout=PATIENCE)
        settings["direct_io"] = Path("/sys/block", Path(loop).name, "loop/dio").read_text().strip()
        used = identify(loop)
        set_queue(context, used)
    if used.size != size:
        raise BringUpError(f"{used.path}: has {used.size} bytes, not {size}")

    pid, started = _daemon(server, argv)
    connections = int(values["connections"])

    def problems() -> list[str]:
        return nbdkit.changed(used, connections) if config.disk == "nbd" else []

    def fail_io() -> None:
        if config.disk == "nbd":
            nbdkit.hang_up(used.path)

    return Running(
        used=used,
        backing=device if config.uses_device else None,
        server=pid,
        server_started=started,
        settings=settings | ({"connections": connections} if config.disk == "nbd" else {}),
        problems=problems,
        fail_io=fail_io,
    )


COMMAND_KEYS = ("name", "kind", "server", "disk", "uses_device", "connections", "threads", "timeout_s", "file", "stop")


def _read(name: str, table: Table) -> SystemConfig:
    """A system that is commands only."""
    server, disk = table.texts("server"), table.text("disk", DISKS)
    system = SystemConfig(
        name=name,
        kind="command",
        device="passthrough" if table.boolean("uses_device") else "null",
        connections=table.integer("connections", 1) if disk == "nbd" else 0,
        threads=table.integer("threads", 1) if "threads" in table.values else 1,
        timeout_s=table.integer("timeout_s", 1) if disk == "nbd" else 0,
        queue=queue_of(table),
        server=server,
        stop=table.texts("stop", optional=True),
        file=table.text("file") if disk == "loop" else "",
        disk=disk,
        requires=requires_of(table, server[0]),
    )
    table.end((*COMMAND_KEYS, "queue", "requires"))
    allowed = (*PLACEHOLDERS, *system.requires.environment)
    for key, words, more in (("server", server, ()), ("stop", system.stop, ("disk",)), ("file", [system.file], ())):
        for word in words:
            for used in placeholders(table, key, word):
                if used not in (*allowed, *more):
                    known = ", ".join(f"{{{one}}}" for one in (*allowed, *more))
                    raise table.error(key, word, f"{{{used}}} is unknown; use one of {known}")
    if disk == "nbd" and not any("{socket}" in word for word in server):
        raise table.error("server", server, "disk=nbd needs {socket} in it")
    return system


class Command(Required):
    name = "command"

    def read(self, name: str, table: Table) -> SystemConfig:
        return _read(name, table)

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Command())
