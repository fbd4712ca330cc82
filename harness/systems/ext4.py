# SPDX-License-Identifier: BSD-3-Clause
"""The ext4 of the native device in another way: made or mounted with options, without read-ahead, or on a RAM disk."""

from __future__ import annotations

import os
import subprocess

from ..machine.blockdev import BlockDevice, identify
from ..machine.teardown import PATIENCE, module_loaded, read_setting, remove_module, write_setting
from ..model.config import SystemConfig
from ..model.parts import KINDS
from ..model.tables import Table
from .base import BringUpError, Context, Running, SystemKind, module_there, settle

RAM_DISK = "ramdisk"  # device
MODULE = "brd"


def _ram_disk(context: Context) -> BlockDevice:
    """As large as the device; takes memory for what is written only."""
    if os.environ.get("LAB_RAM"):  # the lab's own, on which instructions are counted, and nothing else runs
        remove_module(MODULE)
    if module_loaded(MODULE):
        raise BringUpError(f"kernel module {MODULE} is loaded already, with a size of its own; unload it (modprobe -r)")
    context.teardown.push("remove_module", name=MODULE)
    argv = ["modprobe", MODULE, "rd_nr=1", f"rd_size={context.device.size >> 10}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise BringUpError(f"kernel module {MODULE} cannot be loaded: {done.stderr.strip() or 'no message'}")
    settle()
    return identify("/dev/ram0")


class Ext4(SystemKind):
    """For workloads on a file system only."""

    name = "ext4"
    blocks = False

    def read(self, name: str, table: Table) -> SystemConfig:
        ahead = {"read_ahead_kb": str(table.integer("read_ahead_kb", 0))} if "read_ahead_kb" in table.values else {}
        system = SystemConfig(
            name,
            self.name,
            device=table.text("device", (RAM_DISK,)) if "device" in table.values else "",
            options=table.texts("mkfs", optional=True),
            mount=table.texts("mount", optional=True),
            queue=ahead,
        )
        table.end(("name", "kind", "device", "mkfs", "mount", "read_ahead_kb"))
        return system

    def absent(self, config: SystemConfig) -> list[str]:
        return [f"the kernel has no {MODULE}"] * (config.device == RAM_DISK and not module_there(MODULE))

    def up(self, context: Context) -> Running:
        config = context.config
        used = _ram_disk(context) if config.device == RAM_DISK else context.device
        for name, value in config.queue.items():
            path = used.queue / name
            context.teardown.push("restore_setting", path=str(path), value=read_setting(path))
            try:
                write_setting(path, value)
            except OSError as error:
                raise BringUpError(f"{used.path}: {name}={value} cannot be set: {error.strerror}") from None
        settings: dict[str, object] = {"mkfs": list(config.options), "mount": list(config.mount), **config.queue}
        return Running(used=used, mkfs=config.options, mount=config.mount, settings=settings)


KINDS.add(Ext4())
