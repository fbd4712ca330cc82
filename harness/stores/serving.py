# SPDX-License-Identifier: BSD-3-Clause
"""Block devices over an object store: ours and others, each served for one run and reached without a kernel module
(fio's NBD client, or s3backer's FUSE file) or through the kernel's NBD client."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..machine.packages import installing
from ..machine.subprocesses import Process, Recorder
from ..machine.teardown import PATIENCE, Teardown, await_true, undo
from ..model.config import SystemConfig, parameters_of
from ..model.parts import KINDS
from ..model.tables import Table
from ..systems.base import BringUpError, SystemKind, await_up, built, find_program, scratch
from ..systems.nbdkit import MODULES, connect_kernel, disconnect_nbd, hang_up
from .servers import Access

STOP_LIMIT = 600.0  # s to store what is left: through a slow store
VOLUME = "bench"
STORE_DEVICES = ("s3", "s3backer", "nbdkit-s3", "null")
PLUGINS = ("s3", "null")  # of ours
CLIENTS = ("fio", "kernel", "file")
S3BACKER_PACKAGE, PYTHON_PACKAGE = "s3backer", "nbdkit-plugin-python"


def lacks(config: SystemConfig) -> str:
    """What this machine lacks for a system, with the remedy; empty: nothing."""
    if config.device == "s3backer":
        if not shutil.which("s3backer"):
            return f"s3backer is not installed; run: {installing(S3BACKER_PACKAGE)}"
        if not Path("/dev/fuse").exists():
            return "there is no /dev/fuse; load the kernel module fuse"
    elif not find_program("nbdkit"):
        return f"nbdkit is not installed; run: {installing('nbdkit')}"
    if config.client == "kernel" and not find_program("nbd-client"):
        return f"nbd-client is not installed; run: {installing('nbd-client')}"
    if config.device == "nbdkit-s3":
        argv = ["nbdkit", "S3", "--dump-plugin"]
        if subprocess.run(argv, capture_output=True, check=False).returncode:
            return f"nbdkit's S3 plugin cannot be loaded; run: {installing(PYTHON_PACKAGE, 'python3-boto3')}"
    return ""


@dataclass
class Served:
    """A system that serves a volume. target: what fio gets to find it.

    flush_by_end: it answers a flush at once, so that only its end tells that all is stored.
    """

    target: Sequence[str]
    server: Process
    teardown: Teardown
    mark: int
    flush_by_end: bool = False
    unmount: Path | None = None
    device: str = ""  # of the kernel
    settings: dict[str, object] = field(default_factory=dict)

    def fail_io(self) -> None:
        """Let what waits for a server that has ended fail."""
        if self.device:
            hang_up(self.device)

    def stop(self, at_end: Callable[[], None] = lambda: None) -> None:
        """
        Ends it, which stores what is left. Raises BringUpError if it does not end well. at_end: called when it has
        ended, while its clock is there.
        """
        if self.device:
            disconnect_nbd(self.device)
        if self.unmount:
            subprocess.run(["umount", str(self.unmount)], check=False, timeout=STOP_LIMIT)
        elif self.server.poll() is None:
            self.server.child.terminate()
        if not self.server.ended(STOP_LIMIT):
            raise BringUpError(f"{self.server.record['name']} does not end within {STOP_LIMIT:.0f} s")
        at_end()
        code = self.server.poll()
        self.teardown.unwind(self.mark)
        if code:
            raise BringUpError(self.server.fate())


@undo
def unmount_fuse(path: str) -> None:
    if os.path.ismount(path):
        subprocess.run(["umount", path], check=False, timeout=PATIENCE)
        await_true(f"{path} is still mounted", lambda: not os.path.ismount(path))


def serve(
    config: SystemConfig, access: Access, size: int, create: bool, build: str, recorder: Recorder, teardown: Teardown
) -> Served:
    """Start the system over the store's volume of size bytes, made if create. Raises BringUpError, CommandError."""
    mark = teardown.mark()
    directory = scratch(teardown)
    parameters = dict(config.parameters)
    if config.device == "s3backer":
        return _s3backer(access, size, parameters, directory, config, recorder, teardown, mark)
    environment, filters = {}, []
    if config.device == "null":
        plugin = str(built(build, "plugins", "null.so"))
        parameters |= {"size": str(size), "block-size": "4096"}
    elif config.device == "nbdkit-s3":
        plugin = "S3"
        parameters |= {"endpoint-url": access.endpoint, "bucket": access.bucket}
        parameters |= {"key": access.prefix, "size": str(size)}
        # It wants whole objects; its manual says to put this filter before it.
        filters = ["--filter=blocksize"]
        parameters["minblock"] = parameters["object-size"]
        environment = access.environment()
    else:
        plugin = str(built(build, "plugins", "s3.so"))
        parameters = {"volume": VOLUME, "prefix": access.prefix, **parameters}
        parameters |= {"endpoint": access.endpoint, "region": access.region, "bucket": access.bucket}
        parameters |= {"credentials": str(access.credentials)}
        if create:
            parameters |= {"create": "on", "size": str(size)}
    socket, pidfile = directory / "s", directory / "pid"
    argv = ["nbdkit", "-f", "-U", str(socket), "-P", str(pidfile), "-t", str(config.threads), *filters, plugin]
    argv += [f"{key}={value}" for key, value in parameters.items()]
    server = recorder.spawn(argv, teardown=teardown, environment=environment)
    await_up("nbdkit is not ready", lambda: pidfile.exists() and pidfile.read_text().endswith("\n"), server)
    settings: dict[str, object] = {"threads": config.threads, "client": config.client, **config.parameters}
    device = ""
    if config.client == "kernel":
        device = connect_kernel(socket, ["-b", "4096", "-timeout", "600"], recorder, teardown)
        target = ["--ioengine=libaio", "--direct=1", f"--filename={device}"]
    else:
        target = ["--ioengine=nbd", f"--uri=nbd+unix:///?socket={socket}"]
    return Served(target, server, teardown, mark, device=device, settings=settings)


def _s3backer(
    access: Access,
    size: int,
    parameters: dict[str, str],
    directory: Path,
    config: SystemConfig,
    recorder: Recorder,
    teardown: Teardown,
    mark: int,
) -> Served:
    keys = directory / "keys"
    keys.write_text(f"{access.access_key}:{access.secret_key}\n")
    keys.chmod(0o600)
    point = directory / "mount"
    point.mkdir()
    # With --region it would put the bucket into the host name. --force: copied back, it may say that it is mounted.
    argv = ["s3backer", "-f", f"--accessFile={keys}", f"--baseURL={access.endpoint}/", f"--prefix={access.prefix}/"]
    argv += [f"--size={size}", f"--blockCacheThreads={config.threads}", "--listBlocks", "--force"]
    argv += [f"--{key}={value}" for key, value in parameters.items()]
    teardown.push("unmount_fuse", path=str(point))
    server = recorder.spawn([*argv, access.bucket, str(point)], teardown=teardown)
    await_up("s3backer serves no file", (point / "file").exists, server)
    target = ["--ioengine=libaio", "--direct=1", f"--filename={point / 'file'}"]
    settings: dict[str, object] = {"threads": config.threads, "client": config.client, **config.parameters}
    return Served(target, server, teardown, mark, flush_by_end=True, unmount=point, settings=settings)


class OverStore(SystemKind):
    name = "store"
    of_store = True

    def read(self, name: str, table: Table) -> SystemConfig:
        system = SystemConfig(
            name=name,
            kind=self.name,
            device=table.text("device", STORE_DEVICES),
            client=table.text("client", CLIENTS),
            threads=table.integer("threads", 1),
            parameters=parameters_of(table),
        )
        if (system.device == "s3backer") != (system.client == "file"):
            raise table.error("client", system.client, 'must be "file" for s3backer and only for it')
        table.end(("name", "kind", "device", "client", "threads", "parameters"))
        return system

    def modules(self, config: SystemConfig) -> tuple[str, ...]:
        return MODULES if config.client == "kernel" else ()

    def programs(self, config: SystemConfig) -> Mapping[str, str]:
        if config.device == "s3backer":
            return {"s3backer": S3BACKER_PACKAGE}
        return {"nbdkit": "nbdkit"} | ({"nbd-client": "nbd-client"} if config.client == "kernel" else {})

    def makes(self, config: SystemConfig) -> tuple[str, str] | None:
        return ("plugins", f"plugins/{config.device}.so") if config.device in PLUGINS else None

    def needs_store(self, system: SystemConfig) -> bool:
        return system.uses_device


KINDS.add(OverStore())
