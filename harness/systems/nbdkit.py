# SPDX-License-Identifier: BSD-3-Clause
"""nbdkit with one of our plugins, behind the kernel's NBD client; and that client for any other NBD server."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..machine.blockdev import BlockDevice, forget_errors, identify
from ..machine.interrupt import held
from ..machine.subprocesses import CommandError, Process, Recorder
from ..machine.teardown import PATIENCE, Teardown, await_true, undo
from ..model.parts import KINDS
from . import nbd_netlink
from .base import BringUpError, Context, Running, Served, await_up, scratch, set_queue, settle

MODULES = ("nbd",)

# Where the disk outlives its server: what the server had is sent again after this (s); it must be more than any request
# takes. And for how long the disk waits for a server.
RESEND_S = 10
DEAD_CONNECTION_S = 60

NO_FREE_DEVICE = "no free /dev/nbdN; disconnect one with nbd-client -d, or load nbd with more"

TELLS_OWNER = (5, 16)  # Linux before tells the number of any process, once that of nbd-client has ended


def connected(device: str) -> bool:
    """Has it a server, or somebody who still has it open after the server's end?"""
    block = Path("/sys/block", Path(device).name)
    return (block / "pid").exists() or (block / "size").read_text().strip() != "0"


def owner_of(device: str) -> str:
    """The process that connected it, by its number; "": nobody has, or the kernel does not tell."""
    if tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) < TELLS_OWNER:
        return ""
    try:
        return Path("/sys/block", Path(device).name, "pid").read_text().strip()
    except OSError:
        return ""


@undo
def disconnect_nbd(device: str, owner: str = "") -> None:
    """Unless somebody else has connected it since. owner: owner_of() when we had, "": that was not recorded."""

    def ours() -> bool:
        return connected(device) and (not owner or owner_of(device) in ("", owner))

    if Path(device).exists() and ours():
        hang_up(device)
        await_true(f"{device} is still connected", lambda: not ours())


def disconnect_at_teardown(device: str, teardown: Teardown) -> None:
    """A disk that has just been connected."""
    teardown.push("disconnect_nbd", device=device, owner=owner_of(device))


def hang_up(device: str) -> None:
    """End the connections; the device stays as long as somebody has it open."""
    subprocess.run(["nbd-client", "-d", device], capture_output=True, timeout=PATIENCE, check=False)


def free_devices() -> Iterator[str]:
    blocks = sorted(Path("/sys/block").glob("nbd*"), key=lambda path: int(path.name[3:]))
    for block in blocks:
        device = f"/dev/{block.name}"
        if not connected(device) and Path(device).exists():
            yield device


def connect(context: Context, socket: Path, connections: int) -> str:
    """Connect a free disk by nbd-client as the system is configured: /dev/nbdN."""
    options = ["-b", str(context.device.logical_block_size), "-C", str(connections)]
    options += ["-timeout", str(context.config.timeout_s)]
    return connect_kernel(socket, options, context.recorder, context.teardown)


def connect_kernel(socket: Path, options: Sequence[str], recorder: Recorder, teardown: Teardown) -> str:
    """A free kernel disk, connected to a server until teardown: /dev/nbdN. Raises BringUpError, CommandError."""
    error: CommandError | None = None
    for device in free_devices():
        try:
            with held():
                recorder.run(["nbd-client", "-unix", str(socket), device, *options], timeout=PATIENCE)
                disconnect_at_teardown(device, teardown)
            return device
        except CommandError as failure:
            error = failure  # another program may have taken it first
    raise error or BringUpError(NO_FREE_DEVICE)


def disk_of(context: Context, device: str, server: Process) -> BlockDevice:
    """The connected disk, once it is as it must be, with the system's queue. Raises BringUpError."""
    block_size = context.device.logical_block_size
    size = context.device.size if context.config.uses_device else context.area
    await_up(f"{device} does not have {size} bytes", lambda: identify(device).size == size, server)
    settle()
    forget_errors(device)
    used = identify(device)
    if used.logical_block_size != block_size:
        raise BringUpError(f"{device}: has logical blocks of {used.logical_block_size} bytes, not {block_size}")
    set_queue(context, used)
    return used


def changed(used: BlockDevice, connections: int) -> list[str]:
    """What is no longer as it was set up."""
    queues = sum(1 for _ in (used.queue.parent / "mq").iterdir())
    found = [] if connected(used.path) else [f"{used.path} is no longer connected"]
    if queues != connections:
        found.append(f"{used.path} has {queues} connections instead of {connections}")
    return found


def up(context: Context) -> Running:
    config, teardown, recorder = context.config, context.teardown, context.recorder
    plugin = context.library("plugins", f"{config.device}.so")
    connections = min(config.connections, os.cpu_count() or 1)
    directory = scratch(teardown)
    socket, pidfile = directory / "s", directory / "pid"

    parameters = context.parameters()
    if not config.uses_device:
        parameters |= {"size": str(context.area), "block-size": str(context.device.logical_block_size)}
    argv = ["nbdkit", "-f", "-U", str(socket), "-P", str(pidfile), "-t", str(config.threads), str(plugin)]
    argv += [f"{key}={value}" for key, value in parameters.items()]

    def start() -> Process:
        server = recorder.spawn(argv, teardown=teardown)
        await_up("nbdkit is not ready", pidfile.exists, server)
        return server

    server = start()
    block_size = context.device.logical_block_size
    timeout_s = config.timeout_s
    waits: dict[str, object] = {}
    if context.outlives:
        timeout_s, waits["dead_connection_s"] = min(timeout_s, RESEND_S), DEAD_CONNECTION_S
        with held():
            device = nbd_netlink.attach(socket, connections, block_size, timeout_s, DEAD_CONNECTION_S)
            disconnect_at_teardown(device, teardown)
    else:
        device = connect(context, socket, connections)

    def restart() -> int:
        for path in (socket, pidfile):
            path.unlink(missing_ok=True)
        pid = start().pid
        disconnect_at_teardown(device, teardown)  # before the server's end
        nbd_netlink.reconnect(device, socket, connections)
        return pid

    used = disk_of(context, device, server)
    return Running(
        used=used,
        backing=context.device if config.uses_device else None,
        server=server.pid,
        server_started=server.started,
        settings={"connections": connections, "threads": config.threads, "timeout_s": timeout_s, **waits, **parameters},
        problems=lambda: changed(used, connections),
        fail_io=lambda: hang_up(device),
        restart=restart if context.outlives else None,
    )


class Nbdkit(Served):
    name = "nbdkit"
    needs = MODULES
    packages = {"nbdkit": "nbdkit", "nbd-client": "nbd-client"}
    made = "plugins", "plugins/{device}.so"
    with_connections = True
    in_paper = True
    events = ("kill",)
    resend_s = RESEND_S

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Nbdkit())
