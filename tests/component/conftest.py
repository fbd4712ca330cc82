# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the component tests: servers, loop devices and small file systems, always undone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fuse_mount import (
    DISK_PROGRAM,
    MODES,
    NULLFS_PROGRAM,
    Mount,
    ext4,
    lacking_for_fuse,
    lacking_for_mode,
    launch,
    rings_enabled,
    start,
)
from nbdkit_server import PRELOAD, SIZE, Nbdkit, Serve, checked, missing_components, plugin_path, run


@pytest.fixture(autouse=True, scope="session")
def components() -> None:
    missing = missing_components()
    if missing:
        pytest.skip("not installed: " + ", ".join(missing))


@pytest.fixture
def exits_after_strerror() -> None:
    """
    For tests in which nbdkit ends after it has named an errno. With ASan's library preloaded, glibc
    2.36 then waits forever for its locale lock in exit(), also with nbdkit's own plugins.
    """
    if PRELOAD:
        pytest.skip("sanitizer: nbdkit hangs in exit() after strerror() with ASan preloaded")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """serve(PLUGIN, PARAMETER..., options=(), wrapper=()) starts a server."""
    servers: list[Nbdkit] = []

    def start(
        plugin: str,
        *parameters: str,
        options: tuple[str, ...] = (),
        wrapper: tuple[str, ...] = (),
    ) -> Nbdkit:
        directory = tmp_path / f"server{len(servers)}"
        directory.mkdir()
        servers.append(Nbdkit(directory, plugin_path(plugin), *parameters, options=options, wrapper=wrapper))
        return servers[-1]

    with ExitStack() as stack:
        yield start
        for server in servers:
            stack.callback(server.kill)
        for server in servers:
            server.stop()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A regular file of SIZE zero bytes, not allocated."""
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(SIZE)
    return path


def need_root(what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"{what} needs root")


@pytest.fixture
def loop(disk: Path) -> Iterator[str]:
    """A loop device over disk."""
    need_root("a loop device")
    attached = run(["losetup", "--find", "--show", str(disk)])
    if attached.returncode != 0:
        pytest.skip(f"no loop device: {attached.stderr.strip()}")
    device = attached.stdout.strip()
    try:
        yield device
    finally:
        checked(["losetup", "--detach", device])


@pytest.fixture
def small_filesystem(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs with room for 1 MiB."""
    need_root("a mount")
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = run(["mount", "-t", "tmpfs", "-o", "size=1M", "userblk-test", str(directory)])
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        checked(["umount", str(directory)])


@pytest.fixture(scope="session")
def fuse_disk() -> Iterator[Path]:
    """An ext4 for the FUSE tests."""
    reason = lacking_for_fuse()
    if reason:
        pytest.skip(reason)
    with rings_enabled(), ext4() as point:
        yield point


@pytest.fixture
def fuse_source(fuse_disk: Path) -> Iterator[Path]:
    """An empty directory on that ext4, with a directory to mount at beside it."""
    directory = fuse_disk / "t"  # short: the path of a socket has at most 107 characters
    for name in ("source", "mount"):
        (directory / name).mkdir(parents=True)
    try:
        yield directory / "source"
    finally:
        checked(["rm", "-rf", str(directory)])


FuseStart = Callable[..., Mount]


@pytest.fixture
def fuse_start(fuse_source: Path) -> Iterator[FuseStart]:
    """fuse_start(OPTION..., wrapper=()) mounts the source; at the end it unmounts cleanly."""
    mounts: list[Mount] = []

    def begin(*options: str, wrapper: tuple[str, ...] = ()) -> Mount:
        point = fuse_source.with_name("mount")
        mounts.append(start(fuse_source, point, *options, wrapper=wrapper))
        return mounts[-1]

    yield begin
    end(mounts)


def end(mounts: list[Mount]) -> None:
    """Unmounts cleanly what is still served; leaves nothing behind, however that goes."""
    with ExitStack() as stack:
        for mount in mounts:
            stack.callback(mount.kill)
        for mount in mounts:
            if mount.process.poll() is None:
                mount.unmount()


@pytest.fixture
def fuse_file(fuse_source: Path) -> Iterator[FuseStart]:
    """fuse_file(DEVICE, PARAMETER..., options=(), wrapper=()) shows a device as a file; unmounts it as above."""
    mounts: list[Mount] = []

    def begin(*words: str, options: tuple[str, ...] = (), wrapper: tuple[str, ...] = ()) -> Mount:
        point = fuse_source.with_name("file")
        point.touch()
        arguments = [*options, str(point), *words]
        mounts.append(launch(DISK_PROGRAM, fuse_source / "disk", point, arguments, wrapper))
        return mounts[-1]

    yield begin
    end(mounts)


@pytest.fixture
def nullfs_start(tmp_path: Path) -> Iterator[FuseStart]:
    """nullfs_start(OPTION...) mounts a file system without data; unmounts it as above."""
    if reason := lacking_for_fuse():
        pytest.skip(reason)
    mounts: list[Mount] = []
    point = tmp_path / "null"
    point.mkdir()

    def begin(*options: str) -> Mount:
        mounts.append(launch(NULLFS_PROGRAM, tmp_path, point, ["--foreground", *options, str(point)]))
        return mounts[-1]

    with rings_enabled():
        yield begin
        end(mounts)


@pytest.fixture(params=[mode for mode in MODES if lacking_for_mode(mode) is None])
def fuse(request: pytest.FixtureRequest, fuse_start: FuseStart) -> Mount:
    """The file system in each mode that this machine has."""
    return fuse_start(*MODES[request.param])


@pytest.fixture
def fuse_default(fuse_start: FuseStart) -> Mount:
    """The file system as the paper measured it."""
    return fuse_start()
