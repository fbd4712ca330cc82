# SPDX-License-Identifier: BSD-3-Clause
"""The kernel's NVMe target with the device as its namespace, and the kernel's NVMe client, over loopback TCP."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path

from ..machine.blockdev import identify, is_there
from ..machine.teardown import TeardownError, await_true, undo
from ..model.parts import KINDS
from .base import BringUpError, Context, Layer, Running, await_up, expect_size, set_queue, settle

MODULES = ("nvmet", "nvmet_tcp", "nvme_tcp")

TARGET = Path("/sys/kernel/config/nvmet")
PORT = TARGET / "ports/20261"  # a number that nobody counts up to
NQN = "nqn.2026-11.org.userblk:device"
ADDRESS = {"trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1"}
SERVICES = range(4420, 4440)  # TCP ports, of which the first free one is taken


def host_nqn(host: uuid.UUID) -> str:
    return f"nqn.2014-08.org.nvmexpress:uuid:{host}"


def _controllers(nqn: str) -> list[Path]:
    """The client's, in sysfs."""
    found = []
    for file in Path("/sys/class/nvme").glob("nvme*/subsysnqn"):
        with contextlib.suppress(OSError):  # it is just going
            if file.read_text().strip() == nqn:
                found.append(file.parent)
    return found


def _disk(nqn: str) -> str:
    """/dev/nvmeNn1, "" as long as there is none."""
    for file in Path("/sys/class/nvme-subsystem").glob("nvme-subsys*/subsysnqn"):
        if file.read_text().strip() == nqn:
            # With multipath the disk is the subsystem's, else the controller's.
            tops = [file.parent, *_controllers(nqn)]
            names = [path.name for top in tops for path in top.glob("nvme*n1") if (path / "size").exists()]
            for name in names:
                if Path("/sys/block", name, "size").exists() and Path("/dev", name).is_block_device():
                    return f"/dev/{name}"
    return ""


@undo
def disconnect_nvme(nqn: str) -> None:
    for controller in _controllers(nqn):
        with contextlib.suppress(OSError):
            (controller / "delete_controller").write_text("1")
    await_true(f"the client of {nqn} is still connected", lambda: not _controllers(nqn) and not _disk(nqn))


@undo
def remove_nvmet(nqn: str, host: str = "") -> None:
    """What there is of the target, in reverse. host: the NQN of its client; older records have none."""
    subsystem = TARGET / "subsystems" / nqn
    try:
        if (PORT / "subsystems" / nqn).is_symlink():
            (PORT / "subsystems" / nqn).unlink()
        if PORT.exists():
            PORT.rmdir()
        for allowed in subsystem.glob("allowed_hosts/*"):
            allowed.unlink()
        if host and (TARGET / "hosts" / host).exists():
            (TARGET / "hosts" / host).rmdir()
        for namespace in subsystem.glob("namespaces/*"):
            (namespace / "enable").write_text("0")
            namespace.rmdir()
        if subsystem.exists():
            subsystem.rmdir()
    except OSError as error:
        raise TeardownError(f"{subsystem}: {error.strerror}") from None


def up(context: Context) -> Running:
    device, teardown = context.device, context.teardown
    subsystem = TARGET / "subsystems" / NQN
    for path in (subsystem, PORT):
        if path.exists():
            raise BringUpError(f"{path} exists already: another target runs")
    host = uuid.uuid4()
    client = host_nqn(host)
    teardown.push("remove_nvmet", nqn=NQN, host=client)
    try:
        namespace = subsystem / "namespaces/1"
        subsystem.mkdir()
        # Any user of this machine can speak NVMe over TCP. With any host allowed, one need not even look up a name.
        (TARGET / "hosts" / client).mkdir()
        (subsystem / "allowed_hosts" / client).symlink_to(TARGET / "hosts" / client)
        namespace.mkdir()
        (namespace / "device_path").write_text(device.path)
        (namespace / "enable").write_text("1")
        PORT.mkdir()
        for name, value in ADDRESS.items():
            (PORT / f"addr_{name}").write_text(value)
        service = _listen(subsystem)
        teardown.push("disconnect_nvme", nqn=NQN)
        connect(service, host)
    except OSError as error:
        raise BringUpError(f"nvme over TCP: {error.filename or TARGET}: {error.strerror}") from None
    await_up("the NVMe disk does not appear", lambda: is_there(_disk(NQN)))
    settle()
    used = identify(_disk(NQN))
    expect_size(used, device.size, device)
    set_queue(context, used)
    return Running(used=used, backing=device, settings={"port": service, "queues": os.cpu_count() or 1})


def _listen(subsystem: Path) -> int:
    """The TCP port on which the target now listens: the first that nobody else has. Raises OSError."""
    for service in SERVICES:
        (PORT / "addr_trsvcid").write_text(str(service))
        try:
            (PORT / "subsystems" / subsystem.name).symlink_to(subsystem)
            return service
        except OSError:
            continue
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(PORT))


def connect(service: int, host: uuid.UUID) -> None:
    """What `nvme connect` does. Raises OSError."""
    options = {
        "nqn": NQN,
        "transport": ADDRESS["trtype"],
        "traddr": ADDRESS["traddr"],
        "trsvcid": service,
        "hostnqn": host_nqn(host),
        "hostid": host,
        "nr_io_queues": os.cpu_count() or 1,
    }
    fd = os.open("/dev/nvme-fabrics", os.O_RDWR)
    try:
        os.write(fd, ",".join(f"{key}={value}" for key, value in options.items()).encode())
    finally:
        os.close(fd)


class NvmeTcp(Layer):
    name = "nvme-tcp"
    needs = MODULES

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(NvmeTcp())
