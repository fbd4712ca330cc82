# SPDX-License-Identifier: BSD-3-Clause
"""nbdkit with one of our plugins, behind the kernel's NBD client."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..blockdev import identify
from ..commands import CommandError
from ..interrupt import held
from ..teardown import PATIENCE, await_true, undo
from .base import Context, Running, SystemError_, await_up, scratch, set_queue, settle

MODULES = ("nbd",)


def _connected(device: str) -> bool:
    block = Path("/sys/block", Path(device).name)
    return (block / "pid").exists() or (block / "size").read_text().strip() != "0"


@undo
def disconnect_nbd(device: str) -> None:
    if Path(device).exists() and _connected(device):
        _hang_up(device)
        await_true(f"{device} stays connected", lambda: not _connected(device))


def _hang_up(device: str) -> None:
    """End the connections; the device stays as long as somebody has it open."""
    subprocess.run(["nbd-client", "-d", device], capture_output=True, timeout=PATIENCE, check=False)


def _free_devices() -> Iterator[str]:
    blocks = sorted(Path("/sys/block").glob("nbd*"), key=lambda path: int(path.name[3:]))
    for block in blocks:
        device = f"/dev/{block.name}"
        if not _connected(device) and Path(device).exists():
            yield device


def up(context: Context) -> Running:
    config, teardown, recorder = context.config, context.teardown, context.recorder
    plugin = context.library("plugins", f"{config.device}.so")
    connections = min(config.connections, os.cpu_count() or 1)
    directory = scratch(teardown)
    socket, pidfile = directory / "s", directory / "pid"

    parameters = context.parameters()
    if not config.backed:
        parameters |= {"size": str(context.area), "block-size": str(context.device.logical_block_size)}
    argv = ["nbdkit", "-f", "-U", str(socket), "-P", str(pidfile), "-t", str(config.threads), str(plugin)]
    server = recorder.spawn([*argv, *(f"{key}={value}" for key, value in parameters.items())], teardown=teardown)
    await_up("nbdkit is not ready", pidfile.exists, server)

    block_size = str(context.device.logical_block_size)
    options = ["-b", block_size, "-C", str(connections), "-timeout", str(config.timeout_s)]
    error: CommandError | None = None
    for device in _free_devices():
        try:
            with held():
                recorder.run(["nbd-client", "-unix", str(socket), device, *options], timeout=PATIENCE)
                teardown.push("disconnect_nbd", device=device)
            break
        except CommandError as failure:
            error = failure  # another program may have taken it first
    else:
        raise error or SystemError_("no free /dev/nbdN; disconnect one with nbd-client -d, or load nbd with more")

    size = context.device.size if config.backed else context.area
    await_up(f"{device} does not have {size} bytes", lambda: identify(device).size == size, server)
    settle()
    used = identify(device)
    if used.logical_block_size != context.device.logical_block_size:
        raise SystemError_(f"{device}: has logical blocks of {used.logical_block_size} bytes, not {block_size}")
    set_queue(context, used)

    def problems() -> list[str]:
        queues = sum(1 for _ in (used.queue.parent / "mq").iterdir())
        found = [] if _connected(device) else [f"{device} is no longer connected"]
        if queues != connections:
            found.append(f"{device} has {queues} connections instead of {connections}")
        return found

    return Running(
        used=used,
        backing=context.device if config.backed else None,
        server=server.pid,
        server_started=server.started,
        settings={"connections": connections, "threads": config.threads, "timeout_s": config.timeout_s, **parameters},
        problems=problems,
        fail_io=lambda: _hang_up(device),
    )
