# SPDX-License-Identifier: BSD-3-Clause
"""Random requests to our devices through nbdkit and FUSE: they hold what a model in memory holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

import pytest
from block_targets import FileTarget, NbdTarget
from blocks import SECTOR, Limits, search
from device import ServeS3
from fuse_mount import DISK_PROGRAM, Mount, ext4, lacking_for_fuse, launch
from loops import loop, loop_of_large_sectors, loop_without_zeroes
from nbdkit_server import Nbdkit, missing_components, nbd, plugin_path
from servers import KINDS, started

SECONDS = float(os.environ.get("DIFFERENTIAL_SECONDS", "7"))  # of each way
pytestmark = pytest.mark.timeout(SECONDS + 900)
MIB = 1 << 20
SIZE = 8 * MIB

Disk = Callable[[Path, int], AbstractContextManager[str]]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def through_nbd(server: Nbdkit, limits: Limits, name: str) -> None:
    target = NbdTarget(nbd, [server.connect() for _ in range(2)])
    print(f"{name}: {search(limits, target, SECONDS)} sequences")
    server.stop()


@pytest.mark.skipif(bool(missing_components()), reason=", ".join(missing_components()))
@pytest.mark.parametrize(
    ("device", "parameters", "limits"),
    [
        ("passthrough", ("direct=off",), Limits(SIZE + 512, unit=1)),
        ("passthrough", ("direct=on",), Limits(SIZE)),
        ("passthrough", ("direct=on",), Limits(SIZE, unit=1, largest=MIB + 4096)),  # not as blocks are: bounced
        ("null", (f"size={SIZE}",), Limits(SIZE, unit=1, keeps=False)),
    ],
    ids=["buffered", "direct", "bounced", "null"],
)
def test_nbdkit(device: str, parameters: tuple[str, ...], limits: Limits, tmp_path: Path, stack: ExitStack) -> None:
    if device == "passthrough":
        disk = tmp_path / "disk"
        with disk.open("wb") as file:
            file.truncate(limits.size)
        parameters = (f"file={disk}", *parameters)
    server = Nbdkit(tmp_path, plugin_path(device), *parameters)
    stack.callback(server.kill)
    through_nbd(server, limits, f"{device} {' '.join(parameters[1:])}")


class NewServers(NbdTarget):
    """Another server for each sequence: what the kernel has refused once is not asked for again."""

    def __init__(self, stack: ExitStack, directory: Path, *parameters: str) -> None:
        super().__init__(nbd, [])
        self.directory = directory
        self.parameters = parameters
        self.server: Nbdkit | None = None
        self.servers = 0
        stack.callback(self.kill)

    def kill(self) -> None:
        if self.server:
            self.server.kill()

    def begin(self) -> None:
        self.stop()
        self.servers += 1
        home = self.directory / str(self.servers)
        home.mkdir()
        self.server = Nbdkit(home, plugin_path("passthrough"), *self.parameters)
        self.handles = [self.server.connect() for _ in range(2)]

    def stop(self) -> None:
        if self.server:
            self.server.stop()


@pytest.mark.skipif(bool(missing_components()), reason=", ".join(missing_components()))
@pytest.mark.parametrize("direct", ["on", "off"])
@pytest.mark.parametrize("disk", [loop, loop_without_zeroes, loop_of_large_sectors])
def test_nbdkit_on_a_disk(disk: Disk, direct: str, tmp_path: Path, stack: ExitStack) -> None:
    large = disk is loop_of_large_sectors  # of which clients need not know
    size, unit, torn = (MIB + 4096, 1, True) if large else (MIB, SECTOR, direct == "off")
    device = stack.enter_context(disk(tmp_path, size))  # so small that requests often meet
    limits = Limits(size, unit, MIB // 4, trim=disk is not loop_without_zeroes, fast_zero=True, torn=torn)
    target = NewServers(stack, tmp_path, f"file={device}", f"direct={direct}")
    sequences = search(limits, target, SECONDS)
    target.stop()
    print(f"passthrough {disk.__name__} direct={direct}: {sequences} sequences")


@pytest.mark.skipif(bool(missing_components()), reason=", ".join(missing_components()))
@pytest.mark.parametrize("features", ["", "zstd aes", "direct"])
def test_nbdkit_s3(features: str, tmp_path: Path, stack: ExitStack) -> None:
    store = stack.enter_context(started(KINDS["versitygw"]))
    serve = ServeS3(store, "differential", tmp_path)
    more = {"size": "8M"} | ({"layout": "direct"} if features == "direct" else {})
    server = serve("v", features=features if features != "direct" else "", **more)
    stack.callback(server.kill)
    through_nbd(server, Limits(SIZE, unit=1), f"s3 {features}")


@pytest.mark.skipif(bool(lacking_for_fuse()), reason=str(lacking_for_fuse()))
@pytest.mark.parametrize("direct", ["on", "off"])
def test_fuse_disk(direct: str, stack: ExitStack) -> None:
    top = stack.enter_context(ext4())
    disk, point = top / "disk", top / "point"
    with disk.open("wb") as file:
        file.truncate(SIZE)
    point.touch()
    mount: Mount = launch(DISK_PROGRAM, disk, point, [str(point), "passthrough", str(disk), f"direct={direct}"], ())
    stack.callback(mount.kill)
    limits = Limits(SIZE, unit=1)
    with closing(FileTarget(point, limits.at_once, direct=False, disk=False)) as target:
        print(f"fuse-disk direct={direct}: {search(limits, target, SECONDS)} sequences")
    mount.unmount()
