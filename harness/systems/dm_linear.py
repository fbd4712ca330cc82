# SPDX-License-Identifier: BSD-3-Clause
"""dm-linear over the device: the thinnest layer that the kernel can put between."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..machine.blockdev import identify
from ..machine.teardown import PATIENCE, TeardownError, undo
from ..model.parts import KINDS
from .base import BringUpError, Context, Layer, Running, set_queue, settle

MODULES = ("dm_mod",)

NAME = "userblk"
SECTOR = 512


def _node(name: str) -> str:
    """/dev/dm-N, since not every machine has a udev that names it; "" if there is none."""
    for file in Path("/sys/block").glob("dm-*/dm/name"):
        if file.read_text().strip() == name:
            return f"/dev/{file.parents[1].name}"
    return ""


@undo
def remove_mapped(name: str) -> None:
    if not _node(name):
        return
    argv = ["dmsetup", "remove", "--retry", name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode and _node(name):
        raise TeardownError(done.stderr.strip() or f"dm disk {name} was not removed")


def up(context: Context) -> Running:
    device = context.device
    if _node(NAME):
        raise BringUpError(f"a dm disk {NAME} exists already; remove it with: dmsetup remove {NAME}")
    context.teardown.push("remove_mapped", name=NAME)
    table = f"0 {device.size // SECTOR} linear {device.path} 0"
    context.recorder.run(["dmsetup", "create", NAME, "--table", table], timeout=PATIENCE)
    settle()
    used = identify(_node(NAME))
    set_queue(context, used)
    return Running(used=used, backing=device)


class DmLinear(Layer):
    name = "dm-linear"
    needs = MODULES
    packages = {"dmsetup": "dmsetup"}

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(DmLinear())
