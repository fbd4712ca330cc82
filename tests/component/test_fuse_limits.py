# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: nothing but the source, whatever that is."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fuse_crowd import FEW_FILES, descriptors, fill
from fuse_mount import LIBFUSE, MODES, NOBODY, Mount, as_user, lacking_for_mode, start, traced, unmount
from nbdkit_server import RUN_TIMEOUT_S, checked, run
from waiting import wait_until

FuseStart = Callable[..., Mount]
# As acl(5) lies in its attribute: read and write for the user, read for the group and others.
ACL = bytes.fromhex("02000000 01000600ffffffff 04000400ffffffff 20000400ffffffff")


def test_file_removed_below_is_stale_not_another(fuse_source: Path, fuse_start: FuseStart) -> None:
    (fuse_source / "file").write_text("old")
    mount = fuse_start("--nocache", wrapper=FEW_FILES)
    descriptor = os.open(mount.point / "file", os.O_PATH)
    try:
        (mount.point / "crowd").mkdir()
        fill(fuse_source / "crowd")
        for entry in os.scandir(mount.point / "crowd"):
            entry.stat()
        number = (fuse_source / "file").stat().st_ino
        (fuse_source / "file").unlink()
        (fuse_source / "file").write_text("new")
        assert (fuse_source / "file").stat().st_ino == number, "the number was not recycled"
        with pytest.raises(OSError) as caught:
            os.fstat(descriptor)
        assert caught.value.errno == errno.ESTALE
        assert (mount.point / "file").read_text() == "new"
    finally:
        os.close(descriptor)


@pytest.fixture
def on_ramfs(request: pytest.FixtureRequest, fuse_source: Path) -> Iterator[Mount]:
    """Over a file system that lacks much, where every user may enter. The parameter: options of its mount."""
    options = getattr(request, "param", "rw")
    mounted = run(["mount", "-t", "ramfs", "-o", options, "userblk-test", str(fuse_source)])
    if mounted.returncode != 0:
        pytest.skip(f"kernel: no ramfs: {mounted.stderr}")
    try:
        mount = start(fuse_source, fuse_source.with_name("mount"))
        try:
            yield mount
            mount.unmount()
        finally:
            mount.kill()
    finally:
        unmount(fuse_source)


def test_source_without_file_handles(on_ramfs: Mount) -> None:
    """Then every inode keeps its descriptor, and the status line says so."""
    for number in range(100):
        (on_ramfs.point / str(number)).write_text("text")
    assert [(on_ramfs.point / str(n)).read_text() for n in range(100)] == ["text"] * 100
    expected = descriptors(on_ramfs) >= 100
    assert (on_ramfs.status["handles"] == "refused") is expected


def test_source_whose_handles_do_not_last(fuse_source: Path, fuse_start: FuseStart) -> None:
    """FUSE has none for a file that has left the memory, if its server has none: here a file would be stale."""
    for number in range(180):
        (fuse_source / str(number)).write_text("text")
    below, place = fuse_start(), fuse_source.with_name("upon")
    place.mkdir()
    mount = start(below.point, place, "--timeout=0", wrapper=FEW_FILES)
    try:
        opened = os.open(mount.point / "0", os.O_PATH)
        try:
            for number in range(180):
                assert (mount.point / str(number)).stat().st_size == 4
            checked(["sh", "-c", "echo 2 >/proc/sys/vm/drop_caches"])
            assert os.fstat(opened).st_size == 4
        finally:
            os.close(opened)
        assert mount.status["handles"] == "refused"
        mount.unmount()
    finally:
        mount.kill()


def test_source_without_acls_is_open_to_all(on_ramfs: Mount) -> None:
    """The kernel, which asks for them before anybody but the owner may do a thing, takes no error for an answer."""
    (on_ramfs.point / "file").write_text("text")
    (on_ramfs.point / "file").chmod(0o644)
    listed = as_user(NOBODY, "ls", str(on_ramfs.point))
    assert (listed.stdout, listed.stderr) == ("file\n", "")
    assert as_user(NOBODY, "cat", str(on_ramfs.point / "file")).stdout == "text"
    for top in (on_ramfs.source, on_ramfs.point):
        with pytest.raises(OSError) as caught:
            os.setxattr(top / "file", "system.posix_acl_access", ACL)
        assert caught.value.errno == errno.EOPNOTSUPP


@pytest.mark.parametrize(("flags", "stays"), [(0, True), (os.O_EXCL, False)])
def test_new_file_that_cannot_be_opened(flags: int, stays: bool, on_ramfs: Mount) -> None:
    """It is there, as on the source, or it is not; in no case does the kernel go on without it while it is there."""
    (on_ramfs.point / "d").mkdir()
    with pytest.raises(OSError) as caught:
        os.open(on_ramfs.point / "d/probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT | flags)
    assert caught.value.errno == errno.EINVAL
    assert (on_ramfs.source / "d/probe").exists() is stays
    assert (on_ramfs.point / "d/probe").exists() is stays
    (on_ramfs.point / "d/probe").unlink(missing_ok=not stays)
    (on_ramfs.point / "d").rmdir()


@pytest.mark.parametrize("on_ramfs", ["sync"], indirect=True)
def test_writes_to_a_synchronous_source_are_synchronous(on_ramfs: Mount) -> None:
    with (on_ramfs.point / "file").open("wb", buffering=0) as file:
        file.write(b"text")
        assert (on_ramfs.source / "file").read_bytes() == b"text"


@pytest.mark.parametrize("mode", MODES)
def test_errors_that_the_kernel_takes_from_nobody(mode: str, fuse_start: FuseStart) -> None:
    """Some file systems let their own ones out: here ENOTSUPP."""
    if reason := lacking_for_mode(mode):
        pytest.skip(reason)
    mount = fuse_start(*MODES[mode], wrapper=traced("getxattr", "error=524"))
    (mount.source / "file").write_text("text")
    script = "import os, sys; os.getxattr(sys.argv[1], 'user.one')"
    argv = [sys.executable, "-c", script, str(mount.point / "file")]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as asked:
        try:
            assert "[Errno 5]" in asked.communicate(timeout=20)[1]
        except subprocess.TimeoutExpired:
            mount.kill()  # nothing else ends it
            raise


# What strace(1) sees of how the daemon opens files, and directories.
OPENED = tuple(f"/proc/self/fd/{number}" for number in range(3, 200))


def open_to_write(mount: Mount) -> None:
    with (mount.point / "file").open("r+b", buffering=0) as file:
        file.write(b"new")


def sync(mount: Mount) -> None:
    with (mount.point / "file").open("wb", buffering=0) as file:
        file.write(b"new")
        os.fsync(file.fileno())
        os.fdatasync(file.fileno())


def list_names(mount: Mount) -> None:
    assert os.listdir(mount.point) == ["file"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("use", "call", "paths"),
    [(open_to_write, "openat", OPENED), (sync, "fsync,fdatasync", ()), (list_names, "openat", (".",))],
)
def test_what_the_source_does_not_have_once(
    use: Callable[[Mount], None], call: str, paths: tuple[str, ...], mode: str, fuse_start: FuseStart
) -> None:
    """ENOSYS from the daemon would turn the call off for all: fsync(2) would do nothing, and open(2) not come here."""
    if reason := lacking_for_mode(mode):
        pytest.skip(reason)
    mount = fuse_start(*MODES[mode], wrapper=traced(call, "error=ENOSYS:when=1", *paths))  # once in each thread
    if use is sync and mount.status["async-io"] == "on":
        pytest.skip("kernel: no tracer sees the system calls that io_uring makes")
    (mount.source / "file").write_text("old")
    refused = 0
    while refused < 100:
        try:
            use(mount)
            break
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP
            refused += 1
    assert 0 < refused < 100
    assert (mount.source / "file").read_text() in ("new", "old" if use is list_names else "new")


def test_links_lead_where_the_user_may_go(fuse: Mount) -> None:
    """The kernel resolves them for the user; the daemon, root, never follows one."""
    outside = fuse.source.with_name("outside")
    outside.write_text("secret")
    outside.chmod(0o600)
    (fuse.source / "link").symlink_to(outside)
    (fuse.source / "up").symlink_to("../outside")
    fuse.point.chmod(0o777)
    for name in ("link", "up"):
        assert as_user(NOBODY, "cat", str(fuse.point / name)).returncode != 0
        assert as_user(NOBODY, "sh", "-c", f": >>{fuse.point / name}").returncode != 0
    assert as_user(NOBODY, "chmod", "777", str(fuse.point / "link")).returncode != 0
    assert outside.read_text() == "secret"
    assert outside.stat().st_mode & 0o777 == 0o600


def test_file_exchanged_for_a_link_is_not_followed(fuse: Mount) -> None:
    """Somebody works below while the kernel still believes in the old file."""
    outside = fuse.source.with_name("outside")
    outside.write_text("secret")
    (fuse.source / "file").write_text("harmless")
    (fuse.point / "file").stat()
    (fuse.source / "file").unlink()
    (fuse.source / "file").symlink_to(outside)
    (fuse.source / "directory").symlink_to(outside.parent)
    for flags in (os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_CREAT, os.O_RDONLY):
        try:
            os.close(os.open(fuse.point / "file", flags | os.O_NOFOLLOW))
        except OSError as error:
            assert error.errno in (errno.ELOOP, errno.ESTALE)
    assert outside.read_text() == "secret"


def test_create_over_a_fifo_made_below_does_not_hang(fuse: Mount) -> None:
    assert not (fuse.point / "fifo").exists()  # the kernel remembers that, where it caches
    os.mkfifo(fuse.source / "fifo")
    result = subprocess.run(
        ["dd", "if=/dev/null", f"of={fuse.point / 'fifo'}", "oflag=nonblock", "status=none"],
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert result.returncode != 0  # nobody reads it: ENXIO, or the kernel looks again
    assert (fuse.source / "fifo").is_fifo()


@pytest.mark.parametrize("truncate", [0, os.O_TRUNC])
def test_create_over_a_file_made_below_is_an_open(truncate: int, fuse: Mount) -> None:
    """The kernel, which may remember that there is none, leaves it to the server who may open what it finds."""
    fuse.source.chmod(0o777)
    open_it = f"import os; os.open('{fuse.point / 'file'}', os.O_RDWR | os.O_CREAT | {truncate}, 0o600)"
    assert not (fuse.point / "file").exists()
    (fuse.source / "file").write_text("secret")
    (fuse.source / "file").chmod(0o600)
    other = as_user(NOBODY, "/usr/bin/python3", "-c", open_it)
    assert "PermissionError" in other.stderr, other
    assert (fuse.source / "file").read_text() == "secret"
    owner = run(["/usr/bin/python3", "-c", open_it])
    assert owner.returncode == 0, owner
    assert (fuse.source / "file").read_text() == ("" if truncate else "secret")


def test_dots_stay_inside(fuse: Mount) -> None:
    (fuse.source / "directory").mkdir()
    listed = {entry for entry in os.listdir(fuse.point / "directory/..")}
    assert listed == {"directory"}
    assert (fuse.point / "..").stat().st_dev == fuse.source.parent.stat().st_dev


def test_mount_point_below_the_source_is_closed(fuse: Mount) -> None:
    inner = fuse.source / "inner"
    inner.mkdir()
    checked(["mount", "-t", "tmpfs", "userblk-test", str(inner)])
    try:
        (inner / "secret").write_text("secret")
        assert os.listdir(fuse.point) == ["inner"]
        with pytest.raises(OSError) as caught:
            (fuse.point / "inner").stat()
        assert caught.value.errno == errno.EXDEV
    finally:
        unmount(inner)


def test_removal_of_a_mount_point_asks_nobody(fuse_source: Path, fuse_start: FuseStart) -> None:
    """What is mounted there may be this file system, or one that does not answer, as here."""
    (fuse_source / "crowd").mkdir()
    fill(fuse_source / "crowd")
    (fuse_source / "directory").mkdir()
    above = fuse_source.with_name("above")
    above.mkdir()
    mount = fuse_start(wrapper=FEW_FILES)
    assert (mount.point / "directory").is_dir()
    for entry in os.scandir(mount.point / "crowd"):  # from now on, a removal looks for what is removed
        entry.stat()
    other = start(above, fuse_source / "directory", "--timeout=0")
    try:
        other.process.send_signal(signal.SIGSTOP)
        with subprocess.Popen(["rmdir", str(mount.point / "directory")], stderr=subprocess.PIPE, text=True) as removal:
            try:
                assert "busy" in removal.communicate(timeout=20)[1]
            finally:
                other.process.send_signal(signal.SIGCONT)
        other.unmount()
    finally:
        other.kill()


def test_removal_of_a_mount_point_mounts_nothing(fuse_source: Path, fuse_start: FuseStart) -> None:
    """There may be an autofs, which mounts what is wanted. Here it has nobody to ask, and gives up when it wants to."""
    (fuse_source / "crowd").mkdir()
    fill(fuse_source / "crowd")
    (fuse_source / "directory").mkdir()
    mount = fuse_start(wrapper=FEW_FILES)
    assert (mount.point / "directory").is_dir()
    for entry in os.scandir(mount.point / "crowd"):  # from now on, a removal looks for what is removed
        entry.stat()
    reading, asking = os.pipe()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as owner, ExitStack() as stack:
        stack.callback(os.close, asking)
        # Its process group alone would see an empty directory.
        options = f"fd={asking},pgrp={owner.pid},minproto=5,maxproto=5,direct"
        argv = [
            "mount",
            "--internal-only",
            "-t",
            "autofs",
            "-o",
            options,
            "userblk-test",
            str(fuse_source / "directory"),
        ]
        mounted = subprocess.run(argv, pass_fds=[asking], capture_output=True, text=True)
        os.close(reading)
        if "unknown filesystem type" in mounted.stderr:
            pytest.skip("kernel: no autofs")
        assert mounted.returncode == 0, mounted.stderr
        stack.callback(unmount, fuse_source / "directory")
        with pytest.raises(OSError) as caught:
            (mount.point / "directory").rmdir()
        assert caught.value.errno == errno.EBUSY
        left = checked(["findmnt", "--noheadings", "--output", "OPTIONS", "--types", "autofs"])
        assert f"fd={asking},pgrp={owner.pid}," in left  # fd=-1: it has given up


def test_mounting_below_the_source(fuse_source: Path) -> None:
    """The file system must not wait for itself."""
    point = fuse_source / "mount"
    point.mkdir()
    (fuse_source / "file").write_text("text")
    mount = start(fuse_source, point)
    try:
        assert (point / "file").read_text() == "text"
        assert {"file", "mount"} <= set(os.listdir(point))
        mount.unmount()
    finally:
        mount.kill()


def test_subvolumes_have_inode_numbers_of_their_own(tmp_path: Path, fuse_source: Path) -> None:
    """Equal ones, as each Btrfs subvolume gives them, would be a loop of directories for ls(1) and find(1)."""
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("btrfs-progs is not installed")
    image, below, point = tmp_path / "image", tmp_path / "below", fuse_source.with_name("mount")
    below.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    checked(["mkfs.btrfs", "-q", str(image)])
    mounted = run(["mount", "-o", "loop", str(image), str(below)])
    if mounted.returncode != 0:
        pytest.skip(f"kernel: no Btrfs: {mounted.stderr}")
    try:
        for name in ("one", "two"):
            checked(["btrfs", "subvolume", "create", str(below / name)])
            (below / name / "file").write_text(name)
        (below / "file").write_text("top")
        assert len({path.stat().st_ino for path in below.rglob("file")}) == 1
        mount = start(below, point)
        try:
            paths = [point, *point.rglob("*")]
            assert len(paths) == 6
            assert len({path.stat().st_ino for path in paths}) == 6
            assert point.stat().st_ino == below.stat().st_ino
            for path in paths:  # with the time of birth: another request
                assert checked(["stat", "--format=%i %W", str(path)]).split()[0] == str(path.stat().st_ino)
            for directory in (point, point / "one", point / "two"):
                for entry in os.scandir(directory):
                    if entry.is_file():
                        assert entry.inode() == entry.stat().st_ino
            assert [(point / name / "file").read_text() for name in ("one", "two", ".")] == ["one", "two", "top"]
            mount.unmount()
        finally:
            mount.kill()
    finally:
        unmount(below)


def answers(top: Path, changes: list[Callable[[Path], object]]) -> list[int]:
    """The errno of each change of a directory; 0: it was made."""

    def answer(change: Callable[[Path], object]) -> int:
        try:
            change(top)
        except OSError as error:
            return error.errno or 0
        return 0

    return [answer(change) for change in changes]


@pytest.mark.parametrize("name", [name for name in ("default", "passthrough") if lacking_for_mode(name) is None])
def test_the_source_becomes_read_only_and_writable_again(name: str, tmp_path: Path, fuse_source: Path) -> None:
    """Every change fails as below, and nothing that was written before is lost."""
    below, point = tmp_path / "below", fuse_source.with_name("mount")
    below.mkdir()
    changes: list[Callable[[Path], object]] = [
        lambda top: (top / "new").write_text("new"),
        lambda top: (top / "file").write_text("other"),
        lambda top: os.truncate(top / "file", 1),
        lambda top: (top / "file").chmod(0o600),
        lambda top: os.utime(top / "file"),
        lambda top: os.setxattr(top / "file", "user.one", b"1"),
        lambda top: (top / "directory").mkdir(),
        lambda top: os.link(top / "file", top / "link"),
        lambda top: (top / "file").rename(top / "renamed"),
        lambda top: (top / "again").unlink(),
    ]
    checked(["mount", "--bind", str(fuse_source), str(below)])
    try:
        mount = start(below, point, *MODES[name])
        try:
            (point / "file").write_text("text")
            (point / "again").write_text("text")
            # The daemon hears of the last close(2) a little later.
            remount = ["mount", "-o", "remount,bind,ro", str(below)]
            wait_until("nobody writes", lambda: run(remount).returncode == 0)
            assert answers(point, changes) == answers(below, changes) == [errno.EROFS] * len(changes)
            assert (below / "file").read_text() == (point / "file").read_text() == "text"
            checked(["mount", "-o", "remount,bind,rw", str(below)])
            assert answers(point, changes) == [0] * len(changes)
            assert sorted(os.listdir(below)) == ["directory", "link", "new", "renamed"]
            mount.unmount()
        finally:
            mount.kill()
    finally:
        unmount(below)


def test_a_read_only_source_is_a_read_only_mount(tmp_path: Path, fuse_source: Path) -> None:
    """access(2) answers as below, without asking the daemon."""
    below, point = tmp_path / "below", fuse_source.with_name("mount")
    below.mkdir()
    (fuse_source / "file").write_text("text")
    checked(["mount", "--bind", str(fuse_source), str(below)])
    try:
        checked(["mount", "-o", "remount,bind,ro", str(below)])
        mount = start(below, point)
        try:
            for top in (below, point):
                assert not os.access(top / "file", os.W_OK)
                assert os.statvfs(top).f_flag & os.ST_RDONLY
                with pytest.raises(OSError) as caught:
                    (top / "none").unlink()
                assert caught.value.errno == errno.EROFS
                assert (top / "file").read_text() == "text"
            mount.unmount()
        finally:
            mount.kill()
    finally:
        unmount(below)


def runs(top: Path) -> object:
    return run([str(top / "program"), "-u"]).stdout


def runs_as_its_owner(top: Path) -> object:
    return as_user(NOBODY, str(top / "program"), "-u").stdout


def reads_a_device(top: Path) -> object:
    return (top / "device").read_bytes()


def follows(top: Path) -> object:
    return os.readlink(top / "link"), (top / "link").read_bytes()


@pytest.mark.parametrize(
    ("option", "use"),
    [("noexec", runs), ("nosuid", runs_as_its_owner), ("nodev", reads_a_device), ("nosymfollow", follows)],
)
def test_the_mount_gives_no_more_rights_than_the_source(
    option: str, use: Callable[[Path], object], fuse_source: Path
) -> None:
    """Whatever the options of the mount say."""
    below, point = fuse_source.with_name("below"), fuse_source.with_name("mount")
    below.mkdir()
    shutil.copy("/usr/bin/id", fuse_source / "program")
    (fuse_source / "program").chmod(0o4755)
    os.mknod(fuse_source / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (fuse_source / "link").symlink_to("program")
    if option == "nosymfollow" and LIBFUSE < (3, 17):
        pytest.skip(f"libfuse: {'.'.join(map(str, LIBFUSE))} does not know nosymfollow; 3.17 does")

    def found(top: Path) -> object:
        try:
            return use(top)
        except OSError as error:
            assert error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP)
            return "denied"

    allowed = found(fuse_source)
    checked(["mount", "--bind", str(fuse_source), str(below)])
    try:
        checked(["mount", "-o", f"remount,bind,{option}", str(below)])
        mount = start(below, point, "-o", "exec")
        try:
            assert allowed != found(below) == found(point)
            mount.unmount()
        finally:
            mount.kill()
    finally:
        unmount(below)
