# SPDX-License-Identifier: BSD-3-Clause
"""The kernel's loop device over the device, with direct I/O: one more layer, and no user space."""

from __future__ import annotations

from pathlib import Path

from ..blockdev import identify
from ..interrupt import held
from ..teardown import PATIENCE
from .base import Context, Running, SystemError_, set_queue, settle

MODULES = ("loop",)
PROGRAMS = {"losetup": "mount"}


def up(context: Context) -> Running:
    device = context.device
    argv = ["losetup", "--find", "--show", "--direct-io=on", f"--sector-size={device.logical_block_size}", device.path]
    with held():
        path = context.recorder.run(argv, timeout=PATIENCE).strip()
        context.teardown.push("detach_loop", device=path)
    if Path("/sys/block", Path(path).name, "loop/dio").read_text().strip() != "1":
        raise SystemError_(f"{path}: refuses direct I/O on {device.path}")
    settle()
    used = identify(path)
    set_queue(context, used)
    return Running(used=used, backing=device, settings={"direct_io": 1})
