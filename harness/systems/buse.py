# SPDX-License-Identifier: BSD-3-Clause
"""userblk-buse: one of our devices on the kernel's nbd driver, one request at a time."""

from __future__ import annotations

import json

from ..machine.blockdev import identify
from ..machine.interrupt import held
from ..model.parts import KINDS
from .base import Context, Running, Served, await_up, expect_size, set_queue, settle
from .nbdkit import MODULES, connected, disconnect_at_teardown, hang_up


def up(context: Context) -> Running:
    config, device, teardown, recorder = context.config, context.device, context.teardown, context.recorder
    program = str(context.library("buse", "userblk-buse"))
    parameters = context.parameters()
    if not config.uses_device:
        parameters |= {"size": str(context.area), "block-size": str(device.logical_block_size)}
    argv = [program, "--json", f"--timeout={config.timeout_s}", config.device]
    argv += [f"{key}={value}" for key, value in parameters.items()]
    server = recorder.spawn(argv, teardown=teardown)
    output = recorder.directory / str(server.record["stdout"])
    await_up("userblk-buse is not ready", lambda: output.read_bytes().endswith(b"}\n"), server)
    disk = json.loads(output.read_text())["disk"]
    with held():
        disconnect_at_teardown(disk, teardown)

    settle()
    used = identify(disk)
    size = device.size if config.uses_device else context.area
    expect_size(used, size, device)
    set_queue(context, used)
    return Running(
        used=used,
        backing=device if config.uses_device else None,
        server=server.pid,
        server_started=server.started,
        settings={"connections": 1, "threads": 1, "timeout_s": config.timeout_s, **parameters},
        problems=lambda: [] if connected(disk) else [f"{disk} is no longer connected"],
        fail_io=lambda: hang_up(disk),
    )


class Buse(Served):
    name = "buse"
    needs = MODULES
    made = "buse", "buse/userblk-buse"
    with_threads = False

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Buse())
