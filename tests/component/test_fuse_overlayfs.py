# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough over overlayfs, whose files change their numbers when they are copied up, and under it."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuse_mount import (
    MODES,
    PROGRAM,
    RENAME_EXCHANGE,
    Mount,
    lacking_for_fuse,
    lacking_for_mode,
    renameat2,
    rings_enabled,
    stat_errno,
    traced,
)
from fuse_sources import over, overlay
from nbdkit_server import checked, run
from waiting import wait_until

FuseStart = Callable[..., Mount]

pytestmark = pytest.mark.skipif(lacking_for_fuse() is not None, reason=str(lacking_for_fuse()))


@pytest.mark.parametrize("option", ["--passthrough=auto", "--passthrough"])
def test_overlayfs_upon_the_mount(option: str, fuse_source: Path, fuse_start: FuseStart) -> None:
    if "auto" not in option and (reason := lacking_for_mode("passthrough")):
        pytest.skip(reason)
    mount = fuse_start(option)
    assert mount.status["passthrough"] == ("off" if lacking_for_mode("passthrough") else "on")
    (mount.point / "file").write_text("text")
    with overlay(mount.point, fuse_source.with_name("space")) as top:
        assert (top / "file").read_text() == "text"
        (top / "file").write_text("other")
        assert (top / "file").read_text() == "other"
    assert (mount.point / "file").read_text() == "text"


@pytest.mark.parametrize("option", ["--passthrough=auto", "--passthrough"])
def test_passthrough_over_overlayfs(option: str, fuse_source: Path) -> None:
    """The kernel has no fourth file system upon three: passthrough then takes the place of one, if it is asked for."""
    if reason := lacking_for_mode("passthrough"):
        pytest.skip(reason)
    (fuse_source / "file").write_text("text")
    # At the end it would say that the kernel refuses to pass a file through.
    with overlay(fuse_source, fuse_source.with_name("space")) as below, over(below, fuse_source, option) as mount:
        assert mount.status["passthrough"] == ("off" if "auto" in option else "on")
        assert (mount.point / "file").read_text() == "text"
        if "auto" in option:
            with overlay(mount.point, fuse_source.with_name("more")) as top:
                assert (top / "file").read_text() == "text"


@contextmanager
def links(fuse_source: Path) -> Iterator[Path]:
    """An overlayfs that makes two files of the hard links first and second when one is changed; with another file."""
    (fuse_source / "first").write_bytes(b"old")
    (fuse_source / "other").touch()
    os.link(fuse_source / "first", fuse_source / "second")
    with overlay(fuse_source, fuse_source.with_name("space"), "index=off") as below:
        yield below


@pytest.fixture
def over_links(request: pytest.FixtureRequest, fuse_source: Path) -> Iterator[Mount]:
    """Mounted over such links, both of which the kernel knows."""
    mode = getattr(request, "param", "default")
    if reason := lacking_for_mode(mode):
        pytest.skip(reason)
    with links(fuse_source) as below, rings_enabled(), over(below, fuse_source, *MODES[mode]) as mount:
        for name in ("first", "second"):
            assert (mount.point / name).read_bytes() == b"old"
        yield mount


@pytest.mark.parametrize("over_links", MODES, indirect=True)
@pytest.mark.parametrize("name", ["first", "second"])
def test_links_of_a_lower_layer_become_two_files(name: str, over_links: Mount) -> None:
    """What is written to one is in this one, and only there."""
    descriptor = os.open(over_links.point / name, os.O_RDWR)
    try:
        os.pwrite(descriptor, b"new", 0)
        os.listdir(over_links.point)
        contents = {path.name: path.read_bytes() for path in over_links.point.iterdir()}
        assert contents == {"first": b"old", "second": b"old", "other": b""} | {name: b"new"}
    finally:
        os.close(descriptor)
    assert {path.name: path.read_bytes() for path in over_links.source.iterdir()} == contents


CHANGES: dict[str, Callable[[Path], object]] = {
    "open": lambda path: os.close(os.open(path, os.O_RDWR)),
    "truncate": lambda path: os.truncate(path, 1),
    "chmod": lambda path: path.chmod(0o600),
    "utime": lambda path: os.utime(path, (1, 1)),
    "setxattr": lambda path: os.setxattr(path, "user.name", b"value"),
    "chattr": lambda path: checked(["chattr", "+d", str(path)]),
    "link": lambda path: os.link(path, path.with_name("third")),
    "rename": lambda path: path.rename(path.with_name("moved")).rename(path),
    "exchange": lambda path: [renameat2(path.with_name("other"), path, RENAME_EXCHANGE) for _ in range(2)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_goes_to_the_upper_layer_stays_one_file(change: str, over_links: Mount) -> None:
    """The kernel manages locks: of two inodes, it would grant both."""
    path, number = over_links.point / "first", (over_links.source / "first").stat().st_ino
    with path.open() as before:
        fcntl.flock(before, fcntl.LOCK_EX)
        CHANGES[change](path)
        assert (over_links.source / "first").stat().st_ino != number, "it is where it was: this tests nothing"
        for name in ("third", "first") if change == "link" else ("first",):
            if name == "first":
                os.listdir(over_links.point)
            with path.with_name(name).open() as after, pytest.raises(BlockingIOError):
                fcntl.flock(after, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (over_links.point / "second").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("over_links", ["default", "no-writeback"], indirect=True)
@pytest.mark.parametrize("change", CHANGES)
def test_attributes_of_a_file_that_goes_to_the_upper_layer(change: str, over_links: Mount) -> None:
    """It has another number there, and one name: the kernel must not go on with those of before."""
    path, below = over_links.point / "first", over_links.source / "first"
    assert path.stat().st_nlink == below.stat().st_nlink == 2
    CHANGES[change](path)
    assert below.stat().st_nlink == (2 if change == "link" else 1)
    assert (path.stat().st_nlink, path.stat().st_ino) == (below.stat().st_nlink, below.stat().st_ino)


@pytest.mark.parametrize("mode", ["default", "no-writeback"])
@pytest.mark.parametrize("change", CHANGES)
def test_other_attributes_of_a_file_that_goes_to_the_upper_layer(change: str, mode: str, fuse_source: Path) -> None:
    """One with a single name: its number stays. Its copy has another time of change, and not all of its blocks."""
    (fuse_source / "other").touch()
    (fuse_source / "first").write_bytes(b"old")
    checked(["fallocate", "--keep-size", "--length=1MiB", str(fuse_source / "first")])
    with (
        overlay(fuse_source, fuse_source.with_name("space")) as source,
        over(source, fuse_source, *MODES[mode]) as mount,
    ):
        path, below = mount.point / "first", source / "first"
        before = path.stat()
        assert before.st_blocks >= 2048
        CHANGES[change](path)
        after, found = path.stat(), below.stat()
        assert after.st_blocks == found.st_blocks < 2048
        if mode == "no-writeback":  # otherwise, by the kernel's own clock
            assert before.st_ctime_ns < after.st_ctime_ns == found.st_ctime_ns


def test_attributes_of_a_file_whose_change_another_request_notices(fuse_source: Path) -> None:
    """It comes after the file has gone to the upper layer, and ends before the change does, which is made to wait."""
    wrapper = traced("setxattr", "delay_exit=1000000")
    with (
        links(fuse_source) as source,
        over(source, fuse_source, wrapper=wrapper) as mount,
        ThreadPoolExecutor() as pool,
    ):
        path, below = mount.point / "first", source / "first"
        assert path.stat().st_nlink == 2
        change = pool.submit(os.setxattr, path, "user.name", b"value")
        wait_until("it is changed", lambda: below.stat().st_nlink == 1)
        with pytest.raises(OSError):
            os.getxattr(path, "user.other")
        assert not change.done(), "it has not waited: this tests nothing"
        change.result()
        assert path.stat().st_nlink == 1


def truncate_without_time(path: Path) -> None:
    with pytest.raises(OSError):
        os.truncate(path, 1)


FAILURES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "truncate": ("default", truncate_without_time),
    # ext4 does not have that flag. With write-back, close(2) has the kernel ask.
    "chattr": ("no-writeback", lambda path: run(["chattr", "+C", str(path)])),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_attributes_of_a_file_whose_change_fails_in_the_upper_layer(failure: str, fuse_source: Path) -> None:
    mode, change = FAILURES[failure]
    wrapper = traced("utimensat", "error=EIO")
    with links(fuse_source) as source, over(source, fuse_source, *MODES[mode], wrapper=wrapper) as mount:
        path, below = mount.point / "first", source / "first"
        assert path.stat().st_nlink == 2
        change(path)
        assert below.stat().st_nlink == 1, "it is where it was: this tests nothing"
        assert path.stat().st_nlink == 1


@pytest.mark.parametrize("over_links", MODES, indirect=True)
def test_a_new_link_of_a_file_of_the_lower_layer_is_the_same_file(over_links: Mount) -> None:
    """The kernel caches it once: of two, each would be written back as if the other had not been changed."""
    path, link = over_links.point / "first", over_links.point / "third"
    os.link(path, link)
    assert link.lstat().st_ino == path.lstat().st_ino
    for number, name in enumerate((link, path, link)):
        with name.open("ab") as file:
            file.write(b" %d" % number)
        assert path.read_bytes() == link.read_bytes() == b"old 0 1 2"[: 5 + 2 * number]
    for top in (over_links.source, over_links.point):
        assert [(top / name).read_bytes() for name in ("first", "third", "second")] == [b"old 0 1 2"] * 2 + [b"old"]


def written(mount: Mount) -> int:
    """The bytes that the daemon, or the kernel for it, has put into the cache of the source's disk."""
    text = Path(f"/proc/{mount.process.pid}/io").read_text()
    return int(text.split("\nwrite_bytes: ")[1].split()[0])


REMOVALS: dict[str, Callable[[Path], object]] = {
    "unlink": lambda path: path.unlink(),
    "replace": lambda path: path.with_name("new").replace(path),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("removal", REMOVALS)
@pytest.mark.parametrize("names", [1, 2])
def test_a_file_of_the_lower_layer_is_removed_without_a_copy(
    names: int, removal: str, mode: str, fuse_source: Path
) -> None:
    """With write-back the kernel sends the times of what has lost its name, for which overlayfs would copy it."""
    if reason := lacking_for_mode(mode):
        pytest.skip(reason)
    size = 4 << 20
    (fuse_source / "file").write_bytes(b"x" * size)
    if names == 2:
        os.link(fuse_source / "file", fuse_source / "twin")
    (fuse_source / "new").write_text("new")
    with (
        overlay(fuse_source, fuse_source.with_name("space"), "index=off") as below,
        rings_enabled(),
        over(below, fuse_source, *MODES[mode]) as mount,
    ):
        descriptor, before = os.open(mount.point / "file", os.O_RDONLY), written(mount)
        try:
            REMOVALS[removal](mount.point / "file")
            assert written(mount) - before < size
            os.fsync(descriptor)
            assert os.pread(descriptor, 2, size - 1) == b"x"
        finally:
            os.close(descriptor)
        assert (mount.point / "file").exists() is (removal == "replace")


@pytest.mark.parametrize("over_links", ["default"], indirect=True)
def test_times_that_a_file_of_the_lower_layer_does_not_have_are_set(over_links: Mount) -> None:
    path, below = over_links.point / "first", over_links.source / "first"
    for seconds in (1, 1, 2):
        checked(["touch", "--no-create", "-m", f"--date=@{seconds}", str(path)])
        assert path.stat().st_mtime == below.stat().st_mtime == seconds
    assert over_links.point.joinpath("second").stat().st_mtime > 2


@pytest.mark.parametrize("over_links", ["default", "no-writeback"], indirect=True)
def test_a_time_that_a_file_of_the_lower_layer_has_is_set_all_the_same(over_links: Mount) -> None:
    path, below = over_links.point / "first", over_links.source / "first"
    before = below.stat()
    checked(["touch", "--no-create", "-m", f"--reference={path}", str(path)])
    assert below.stat().st_mtime_ns == before.st_mtime_ns
    assert below.stat().st_ctime_ns > before.st_ctime_ns


def test_links_that_cannot_be_told_apart_are_not_found(fuse_source: Path) -> None:
    """Taken for one, a write to one would be in the other."""
    wrapper = traced("inotify_add_watch", "error=ENOSPC")
    with links(fuse_source) as below, over(below, fuse_source, wrapper=wrapper) as mount:
        assert (mount.point / "first").read_bytes() == b"old"
        assert stat_errno(mount.point / "second") == errno.ENOSPC
        # It would get another number, by which it would be found as another file.
        with pytest.raises(OSError) as caught:
            (mount.point / "first").rename(mount.point / "moved")
        assert caught.value.errno == errno.ENOSPC
        (mount.point / "first").write_bytes(b"new")
        assert (mount.point / "second").read_bytes() == b"old"


def test_without_inotify_nothing_is_mounted_over_overlayfs(fuse_source: Path) -> None:
    wrapper = traced("inotify_init1", "error=EMFILE")
    with links(fuse_source) as below:
        result = run([*wrapper, str(PROGRAM), str(below), str(fuse_source.with_name("mount"))])
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == f"userblk-passthrough: {below}: no inotify; raise fs.inotify.max_user_instances\n"


def test_many_lookups_of_links_leave_nothing_in_inotify(fuse_source: Path) -> None:
    with links(fuse_source) as below, over(below, fuse_source, "--nocache") as mount:
        for _ in range(200):
            (mount.point / "first").stat()
            (mount.point / "second").stat()
        (watcher,) = [
            file.name
            for file in Path(f"/proc/{mount.process.pid}/fd").iterdir()
            if os.readlink(file) == "anon_inode:inotify"
        ]
        assert "inotify wd" not in Path(f"/proc/{mount.process.pid}/fdinfo/{watcher}").read_text()


def test_a_lookup_beside_a_change_of_the_number_finds_the_same_file(fuse_source: Path) -> None:
    """It sees the old number, and goes on late, when the change has ended."""
    with links(fuse_source) as below:
        wrapper = traced("%fstat", "delay_exit=1000000", str(below / "first"))
        number = (below / "first").stat().st_ino
        with over(below, fuse_source, wrapper=wrapper) as mount, ThreadPoolExecutor() as pool:
            path = mount.point / "first"
            with path.open() as before:
                fcntl.flock(before, fcntl.LOCK_EX)
                listed = pool.submit(os.listdir, mount.point)
                time.sleep(0.5)  # half of the delay, so that it has begun also on a busy machine
                os.setxattr(before.fileno(), "user.name", b"value")
                listed.result()
                assert (below / "first").stat().st_ino != number, "it is where it was: this tests nothing"
                with path.open() as after, pytest.raises(BlockingIOError):
                    fcntl.flock(after, fcntl.LOCK_EX | fcntl.LOCK_NB)
