# SPDX-License-Identifier: BSD-3-Clause
"""NFS over loopback: the ext4 of the native device, which the kernel's server exports to this machine alone, and the
kernel's client mounts. Both are set up for every run."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from ..machine.filesystem import mounted_type, unmount
from ..machine.interrupt import held
from ..machine.mounts import mounts_of
from ..machine.subprocesses import CommandError, Process, Recorder
from ..machine.teardown import PATIENCE, Teardown, TeardownError, await_true, start_time, undo
from ..model.config import SystemConfig
from ..model.parts import KINDS
from ..model.tables import Table
from .base import BringUpError, Context, Layer, Running

CONTROL = Path("/proc/fs/nfsd")
EXPORTS = Path("/var/lib/nfs/etab")
HERE = "127.0.0.1"
PORT = 2049
# fsid=0: the root of what NFSv4 shows. Nobody else has access, and root is who measures.
EXPORT = "rw,sync,no_subtree_check,no_root_squash,fsid=0"
# A request that is not answered for three minutes fails; by default it would wait forever.
MOUNT = "soft"


def threads() -> int:
    """How many the server has; 0 if it does not run."""
    try:
        return int((CONTROL / "threads").read_text())
    except OSError:
        return 0


def first_thread(name: str = "nfsd") -> tuple[int, int]:
    """pid and start of the first thread of the kernel's server, zeroes: none can be seen here."""
    for pid in sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):  # it has just ended
            process = Path(f"/proc/{pid}")
            of_kernel = not (process / "cmdline").read_bytes()
            if of_kernel and (process / "comm").read_text(errors="replace") == f"{name}\n" and (at := start_time(pid)):
                return pid, at
    return 0, 0


def fail_requests(point: str) -> None:
    """Those that wait, and all to come (Linux 6.4); before that each fails after its time."""
    for mount in mounts_of():
        control = Path(f"/sys/fs/nfs/{os.major(mount.number)}:{os.minor(mount.number)}/shutdown")
        if mount.point == point and control.exists():
            control.write_text("1")


def _exported(path: str) -> bool:
    return EXPORTS.exists() and any(line.split("\t")[0] == path for line in EXPORTS.read_text().splitlines())


@undo
def unmount_nfs(path: str, authority: int, started: int) -> None:
    """What is dirty is written back, or lost if the server, or the process that it asks, is gone."""
    if not threads() or start_time(authority) != started:
        fail_requests(path)
    unmount(path)


@undo
def stop_nfs_server(thread: int = 0, started: int = 0) -> None:
    """Unless somebody else has started it since. Both: first_thread() when we had, zeroes: that was not recorded."""
    if threads() and (not thread or start_time(thread) == started):
        (CONTROL / "threads").write_text("0\n")
        await_true("the kernel's NFS server does not stop", lambda: not threads())


@undo
def end_export(path: str) -> None:
    if _exported(path):
        argv = ["exportfs", "-u", f"{HERE}:{path}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if _exported(path):
            raise TeardownError(done.stderr.strip() or f"{path} is still exported")


def start_authority(recorder: Recorder, teardown: Teardown) -> Process:
    """rpc.mountd, which tells the kernel who may see what. Raises CommandError."""
    # One of nfs-utils 1 that begins without it takes the kernel for an old one, and answers it nothing.
    if mounted_type(CONTROL) != "nfsd":
        teardown.push("unmount", path=str(CONTROL))
        recorder.run(["mount", "-t", "nfsd", "nfsd", str(CONTROL)], timeout=PATIENCE)
    # Versions 2 and 3 have a protocol for mounts, which is not needed.
    return recorder.spawn(["rpc.mountd", "-F", "-N", "2", "-N", "3"], teardown=teardown)


def export(path: Path, count: int, recorder: Recorder, teardown: Teardown) -> None:
    """The kernel's server with count threads shows what is at path to this machine. Raises CommandError."""
    teardown.push("end_export", path=str(path))
    recorder.run(["exportfs", "-o", EXPORT, f"{HERE}:{path}"], timeout=PATIENCE)
    argv = ["rpc.nfsd", "--no-nfs-version", "3", "--host", HERE, "--port", str(PORT), str(count)]
    with held():
        try:
            recorder.run(argv, timeout=PATIENCE)
        finally:  # it may have started some
            thread, started = first_thread()
            teardown.push("stop_nfs_server", thread=thread, started=started)
    # Nobody has files open from before; it would wait 90 s for them.
    (CONTROL / "v4_end_grace").write_text("Y\n")


def up(context: Context) -> Running:
    """The native device; the file system comes with each run's mount. Raises BringUpError."""
    if threads():
        raise BringUpError("the kernel's NFS server runs already; stop it, for example with: systemctl stop nfs-server")
    device, count = context.device, context.config.threads

    def serve(source: Path, mountpoint: Path, recorder: Recorder, teardown: Teardown) -> Running:
        authority = start_authority(recorder, teardown)
        export(source, count, recorder, teardown)
        teardown.push("unmount_nfs", path=str(mountpoint), authority=authority.pid, started=authority.started)
        recorder.run(["mount", "-t", "nfs4", "-o", MOUNT, f"{HERE}:/", str(mountpoint)], timeout=PATIENCE)
        if authority.poll() is not None:
            raise CommandError(f"rpc.mountd: exit code {authority.poll()}")
        (mounted,) = (mount for mount in mounts_of() if mount.point == str(mountpoint))

        settings = {"mounted": mounted.kind, "options": ",".join(mounted.options), "server_threads": count}
        return Running(
            used=device,
            settings=settings | {"server_memory_limit": "machine"},  # the kernel's threads are in no control group
            problems=lambda: [] if mounted_type(mountpoint) else [f"{mountpoint} is no longer mounted"],
            ended=lambda: threads() != count or authority.poll() is not None,
            fail_io=lambda: fail_requests(str(mountpoint)),
        )

    return Running(used=device, serve=serve)


class Nfs(Layer):
    """For workloads on a file system only."""

    name = "nfs"
    blocks = False
    needs = ("nfsd", "nfsv4")
    packages = dict.fromkeys(("exportfs", "rpc.mountd", "rpc.nfsd"), "nfs-kernel-server") | {"mount.nfs4": "nfs-common"}

    def read(self, name: str, table: Table) -> SystemConfig:
        system = SystemConfig(name, self.name, threads=table.integer("threads", 1))
        table.end(("name", "kind", "threads"))
        return system

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Nfs())
