# SPDX-License-Identifier: BSD-3-Clause
"""The kernel's loop device over the device, with direct I/O: one more layer, and no user space."""

from __future__ import annotations

from pathlib import Path

from ..machine.blockdev import identify
from ..machine.interrupt import held
from ..machine.teardown import PATIENCE
from ..model.config import SystemConfig
from ..model.parts import KINDS
from .base import BringUpError, Context, Layer, Running, set_queue, settle
from .command import detach_at_teardown

MODULES = ("loop",)


def up(context: Context) -> Running:
    device = context.device
    argv = ["losetup", "--find", "--show", f"--sector-size={device.logical_block_size}", device.path]
    with held():
        path = context.recorder.run(argv, timeout=PATIENCE).strip()
        detach_at_teardown(path, context.teardown)
    # Not with the first: where this is refused, losetup may leave the device, and fail.
    context.recorder.run(["losetup", "--direct-io=on", path], timeout=PATIENCE)
    if Path("/sys/block", Path(path).name, "loop/dio").read_text().strip() != "1":
        raise BringUpError(f"{path}: refuses direct I/O on {device.path}")
    settle()
    used = identify(path)
    set_queue(context, used)
    return Running(used=used, backing=device, settings={"direct_io": 1})


class Loop(Layer):
    name = "loop"
    needs = MODULES
    packages = {"losetup": "mount"}

    def attaches(self, system: SystemConfig) -> bool:
        return True  # over a file in memory

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Loop())
