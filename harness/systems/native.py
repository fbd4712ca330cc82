# SPDX-License-Identifier: BSD-3-Clause
"""The device itself. It is held open exclusively, as the servers of the other systems hold it, unless it is mounted."""

from __future__ import annotations

import os

from ..model.config import SystemConfig
from ..model.parts import KINDS
from ..model.tables import Table
from .base import BringUpError, Context, Running, SystemKind


def up(context: Context) -> Running:
    path = context.device.path
    if context.mountable:
        return Running(used=context.device)
    try:
        fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        raise BringUpError(f"{path}: cannot be opened exclusively: {error.strerror}") from None
    return Running(used=context.device, close=lambda: os.close(fd))


class Native(SystemKind):
    name = "native"
    bare = True

    def read(self, name: str, table: Table) -> SystemConfig:
        table.end(("name", "kind"))
        return SystemConfig(name, self.name)

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Native())
