# SPDX-License-Identifier: BSD-3-Clause
"""qemu-storage-daemon as a vDPA device in user space, and the kernel's virtio disk on it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from ..machine.blockdev import identify, is_there
from ..machine.teardown import PATIENCE, TeardownError, await_true, undo
from ..model.config import SystemConfig
from ..model.parts import KINDS
from .base import BringUpError, Context, Failure, Layer, Running, await_up, expect_size, scratch, set_queue, settle

MODULES = ("vduse", "virtio_vdpa", "virtio_blk")

NAME = "userblk"
NO_DIRECT_IO = "the kernel does not transfer between a device and VDUSE's memory"  # EFAULT
SEEN = Failure("6.12.118", NO_DIRECT_IO, "boot another kernel, or use vduse-null")  # nothing is known of others
DEPTH = 256  # requests of each queue
CONTROL = Path("/dev/vduse/control")
NAME_MAX = 256  # bytes
VDUSE_DESTROY_DEV = 0x41008103  # _IOW(0x81, 3, char[NAME_MAX])


def disk_of(name: str) -> str:
    """/dev/vdX of a vDPA device, "" as long as there is none."""
    for path in Path("/sys/bus/vdpa/devices", name).glob("virtio*/block/vd*"):
        if (path / "size").read_text().strip() != "0" and is_there(f"/dev/{path.name}"):
            return f"/dev/{path.name}"
    return ""


@undo
def remove_vdpa(name: str) -> None:
    device = Path("/sys/bus/vdpa/devices", name)
    if device.exists():
        argv = ["vdpa", "dev", "del", name]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode and device.exists():
            raise TeardownError(done.stderr.strip() or f"vDPA device {name} was not removed")
    await_true(f"vDPA device {name} was not removed", lambda: not device.exists())


@undo
def destroy_vduse(name: str) -> None:
    """
    What a server leaves that ended while the vDPA device was there, which kept it from removing this. The kernel
    refuses one that is in use.
    """

    def gone() -> bool:
        with suppress(OSError), CONTROL.open("r+b", buffering=0) as control:
            fcntl.ioctl(control, VDUSE_DESTROY_DEV, name.encode().ljust(NAME_MAX, b"\0"))
        return not (CONTROL.parent / name).exists()

    if (CONTROL.parent / name).exists():
        await_true(f"{CONTROL.parent / name} was not removed", gone)


def read_once(path: str) -> None:
    """Raises BringUpError where direct I/O of the server fails."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.read(4096)
    except OSError as error:
        text = f"{path}: {error.strerror}; {NO_DIRECT_IO}: use another kernel, or leave vduse out"
        raise BringUpError(text) from None


def up(context: Context) -> Running:
    config, device, recorder, teardown = context.config, context.device, context.recorder, context.teardown
    node = CONTROL.parent / NAME
    if node.exists():
        raise BringUpError(f"{node} exists already: another server runs")
    size = device.size if config.uses_device else context.area
    queues = os.cpu_count() or 1
    below = (
        f"driver=host_device,node-name=below,filename={device.path},cache.direct=on,aio=native,discard=unmap"
        if config.uses_device
        else f"driver=null-co,node-name=below,size={size},read-zeroes=on"
    )
    export = (
        f"type=vduse-blk,id=export,node-name=below,name={NAME},writable=on,num-queues={queues},queue-size={DEPTH},"
        f"logical-block-size={device.logical_block_size}"
    )
    teardown.push("destroy_vduse", name=NAME)
    pidfile = scratch(teardown) / "pid"
    argv = ["qemu-storage-daemon", "--blockdev", below, "--export", export, "--pidfile", str(pidfile)]
    server = recorder.spawn(argv, teardown=teardown)
    await_up("qemu-storage-daemon is not ready", pidfile.exists, server)  # the node comes before its queues
    teardown.push("remove_vdpa", name=NAME)
    recorder.run(["vdpa", "dev", "add", "name", NAME, "mgmtdev", "vduse"], timeout=PATIENCE)
    await_up("the virtio disk does not appear", lambda: bool(disk_of(NAME)), server)
    settle()
    used = identify(disk_of(NAME))
    expect_size(used, size, device)
    read_once(used.path)
    set_queue(context, used)
    return Running(
        used=used,
        backing=device if config.uses_device else None,
        server=server.pid,
        server_started=server.started,
        settings={"queues": queues, "depth": DEPTH},
    )


class Vduse(Layer):
    name = "vduse"
    needs = MODULES
    # Debian 13 has the daemon in the first package, Debian 12 in the second.
    packages = {"qemu-storage-daemon": "qemu-utils qemu-system-common", "vdpa": "iproute2"}
    with_null = True

    def attaches(self, system: SystemConfig) -> bool:
        return not system.uses_device

    def failure(self, config: SystemConfig) -> Failure | None:
        return SEEN if config.uses_device else None

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Vduse())
