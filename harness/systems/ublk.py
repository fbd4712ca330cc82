# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk: one of our devices on the kernel's ublk driver."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from ..machine.blockdev import identify
from ..machine.subprocesses import Process
from ..machine.teardown import PATIENCE, TeardownError, made_as, undo
from ..model.parts import KINDS
from .base import Context, Running, Served, await_up, expect_size, set_queue, settle

MODULES = ("ublk_drv",)
DEVICES = Path("/dev")


@undo
def remove_ublk(program: str, number: int, character: int = 0) -> None:
    """
    The disk, whether its server lives or not, unless its number is another disk's by now. character: character_of() it
    when we had added it, 0: that was not recorded.
    """

    def ours() -> bool:
        return (DEVICES / f"ublkc{number}").exists() and character in (0, character_of(number))

    if not ours():
        return
    argv = [program, "delete", "--force", str(number)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    if done.returncode and ours():
        raise TeardownError(done.stderr.strip() or f"/dev/ublkb{number} was not removed")


def character_of(number: int) -> int:
    """A disk's character device, which stays when a server has died: the disk itself does not. 0: there is none."""
    try:
        device = (DEVICES / f"ublkc{number}").stat().st_rdev
    except OSError:
        return 0
    return made_as(Path(f"/sys/dev/char/{os.major(device)}:{os.minor(device)}"))


def up(context: Context) -> Running:
    config, device, teardown, recorder = context.config, context.device, context.teardown, context.recorder
    program = str(context.library("ublk", "userblk-ublk"))
    parameters = context.parameters()
    if not config.uses_device:
        parameters |= {"size": str(context.area), "block-size": str(device.logical_block_size)}
    served = [f"--mode={config.mode}", f"--threads={config.threads}", config.device]
    served += [f"{key}={value}" for key, value in parameters.items()]

    def start(command: str, *words: str) -> tuple[Process, dict[str, Any]]:
        """A server, and what it tells once its disk can be used."""
        server = recorder.spawn([program, command, "--foreground", "--json", *words], teardown=teardown)
        output = recorder.directory / str(server.record["stdout"])
        await_up("userblk-ublk is not ready", lambda: output.read_bytes().endswith(b"}\n"), server)
        return server, json.loads(output.read_text())

    # With --recovery=none the kernel fails all requests once the server is gone: nothing hangs.
    server, added = start("add", f"--recovery={'reissue' if context.outlives else 'none'}", *served)
    number = str(added["number"])
    character = character_of(added["number"])
    teardown.push("remove_ublk", program=program, number=added["number"], character=character)

    settle()
    used = identify(added["disk"])
    size = device.size if config.uses_device else context.area
    expect_size(used, size, device)
    set_queue(context, used)

    def change(command: str, *words: str) -> int:
        server, _ = start(command, number, *words)
        # Before the server's end.
        teardown.push("remove_ublk", program=program, number=added["number"], character=character)
        return server.pid

    return Running(
        used=used,
        backing=device if config.uses_device else None,
        server=server.pid,
        server_started=server.started,
        settings={"mode": config.mode, "threads": config.threads, **parameters}
        | {key: added[key] for key in ("queues", "depth", "max_request", "zero_copy")},
        fail_io=lambda: remove_ublk(program, added["number"], character),
        restart=(lambda: change("recover")) if context.outlives else None,
        replace=(lambda: change("replace", *served)) if context.outlives else None,
    )


class Ublk(Served):
    name = "ublk"
    needs = MODULES
    made = "ublk", "ublk/userblk-ublk"
    with_timeout = False
    modes = ("workers", "uring")
    events = ("kill", "replace")

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Ublk())
