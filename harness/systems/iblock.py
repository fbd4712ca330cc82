# SPDX-License-Identifier: BSD-3-Clause
"""LIO's own backstore on the device, in the kernel, and a SCSI disk on the loopback fabric: TCMU without user space."""

from __future__ import annotations

from pathlib import Path

from ..machine.blockdev import identify
from ..model.parts import KINDS
from .base import BringUpError, Context, Layer, Running, expect_size, set_queue, settle
from .lio import IBLOCK_MODULES as MODULES
from .lio import Backstore, LioError, Lun


def up(context: Context) -> Running:
    device = context.device
    try:
        lun = Lun(Backstore.iblock(Path(device.path)))
        context.teardown.push("remove_lun", hba=str(lun.hba))
        lun.__enter__()  # left by remove_lun, which also works when this process was killed
    except LioError as error:
        raise BringUpError(str(error)) from None
    settle()
    used = identify(str(lun.disk))
    expect_size(used, device.size, device)
    set_queue(context, used)
    return Running(used=used, backing=device)


class Iblock(Layer):
    name = "iblock"
    needs = MODULES

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Iblock())
