# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: names, links, directories, and what stays when a name goes."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from fuse_mount import AT_FDCWD, LIBFUSE, RENAME_EXCHANGE, Mount, aligned, renameat2, traced
from fuse_sources import on_image, over
from loops import mounted
from nbdkit_server import checked, run
from waiting import wait_until

FuseStart = Callable[..., Mount]
MIB = 1 << 20
AT_SYMLINK_FOLLOW = 0x400
RENAME_NOREPLACE, RENAME_WHITEOUT = 1, 4
ONE_THREAD = ["--max-threads=1"] if LIBFUSE >= (3, 12) else []
NFS, FUSE, SMB, PLAN_9 = 0x6969, 0x65735546, 0xFE534D42, 0x01021997  # types of file systems
libc = ctypes.CDLL(None, use_errno=True)


def test_hard_links_are_one_file(fuse: Mount) -> None:
    first, second = fuse.point / "first", fuse.point / "second"
    first.write_text("one")
    os.link(first, second)
    second.write_text("two and more")
    assert first.stat().st_ino == second.stat().st_ino
    assert (first.stat().st_nlink, first.stat().st_size) == (2, 12)
    assert first.read_text() == "two and more"
    first.unlink()
    assert second.stat().st_nlink == 1


def test_symlink_can_be_hard_linked(fuse_default: Mount) -> None:
    point = fuse_default.point
    (point / "link").symlink_to("nowhere")
    os.link(point / "link", point / "again", follow_symlinks=False)
    assert os.readlink(point / "again") == "nowhere"


def test_rename_noreplace(fuse: Mount) -> None:
    for name in ("a", "b"):
        (fuse.point / name).write_text(name)
    assert renameat2(fuse.point / "a", fuse.point / "b", RENAME_NOREPLACE) == errno.EEXIST
    # A name that the kernel does not know yet: only the source can refuse.
    (fuse.source / "hidden").write_text("hidden")
    assert renameat2(fuse.point / "a", fuse.point / "hidden", RENAME_NOREPLACE) == errno.EEXIST
    assert (fuse.source / "hidden").read_text() == "hidden"
    assert renameat2(fuse.point / "a", fuse.point / "c", RENAME_NOREPLACE) == 0
    assert (fuse.source / "c").read_text() == "a"


def test_rename_exchange(fuse: Mount) -> None:
    (fuse.point / "file").write_text("file")
    (fuse.point / "directory").mkdir()
    assert renameat2(fuse.point / "file", fuse.point / "directory", RENAME_EXCHANGE) == 0
    assert (fuse.point / "directory").read_text() == "file"
    assert (fuse.point / "file").is_dir()
    assert (fuse.source / "file").is_dir()


def test_rename_whiteout(fuse_default: Mount) -> None:
    (fuse_default.point / "file").write_text("file")
    assert renameat2(fuse_default.point / "file", fuse_default.point / "new", RENAME_WHITEOUT) == 0
    assert stat.S_ISCHR((fuse_default.source / "file").stat().st_mode)
    assert (fuse_default.source / "new").read_text() == "file"


def test_open_file_survives_rename(fuse: Mount) -> None:
    (fuse.point / "a").mkdir()
    with (fuse.point / "a/file").open("w+") as file:
        file.write("before ")
        file.flush()
        (fuse.point / "a").rename(fuse.point / "b")
        (fuse.point / "b/file").rename(fuse.point / "elsewhere")
        file.write("after")
        file.flush()
        os.fsync(file.fileno())
        assert (fuse.source / "elsewhere").read_text() == "before after"


def test_unlinked_open_file_lives(fuse: Mount) -> None:
    path = fuse.point / "file"
    with path.open("w+b") as file:
        file.write(b"x" * 5000)
        file.flush()
        path.unlink()
        os.fchmod(file.fileno(), 0o600)
        os.ftruncate(file.fileno(), 3000)
        os.utime(file.fileno(), (5, 7))
        status = os.fstat(file.fileno())
        assert (status.st_nlink, status.st_size, status.st_mtime) == (0, 3000, 7)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert os.pread(file.fileno(), 4000, 0) == b"x" * 3000
    assert not path.exists()


def test_file_replaced_by_rename_lives(fuse: Mount) -> None:
    (fuse.point / "new").write_text("new")
    (fuse.point / "old").write_text("old")
    with (fuse.point / "old").open() as file:
        (fuse.point / "new").rename(fuse.point / "old")
        assert file.read() == "old"
        assert os.fstat(file.fileno()).st_nlink == 0
    assert (fuse.point / "old").read_text() == "new"


def test_recycled_inode_numbers_are_new_files(fuse: Mount) -> None:
    """ext4 hands the number of a removed file out again at once."""
    path, turn, numbers = fuse.point / "file", 0, set[int]()
    while turn < 50 or (len(numbers) == turn < 1000):  # in io_uring mode, a file may keep its number for a while
        path.write_text(f"content {turn}")
        numbers.add(path.stat().st_ino)
        assert path.read_text() == f"content {turn}"
        path.unlink()
        path.mkdir()
        assert path.is_dir()
        path.rmdir()
        turn += 1
    assert len(numbers) < turn, "no number was recycled: this tested nothing"


def numbered_alike(source: Path, kind: int, *more: str) -> tuple[str, ...]:
    """What makes the source a file system of that type, by strace(1), whose files have one number for all."""
    of_all = f"poke_exit=@arg3={'11' * 16}"  # device and number
    wrapper = traced("newfstatat", of_all, *(str(source / name) for name in ("", "old", "new", "link")))
    calls = "newfstatat,fstatfs" + "".join(f",{call.split(':')[0]}" for call in more)
    wrapper += ("-e", f"trace={calls}", "-e", f"inject=fstatfs:poke_exit=@arg2={kind.to_bytes(8, 'little').hex()}")
    return wrapper + tuple(word for call in more for word in ("-e", f"inject={call}"))


def test_recycled_inode_numbers_of_nfs(fuse_source: Path, fuse_start: FuseStart) -> None:
    """A file that is open here can be removed by another machine."""
    for name in ("old", "new"):
        (fuse_source / name).write_text(name)
    mount = fuse_start(wrapper=numbered_alike(fuse_source, NFS))
    assert (mount.point / "old").stat().st_ino == (mount.point / "new").stat().st_ino == 0x1111111111111111
    with (mount.point / "old").open() as file:
        assert ((mount.point / "new").read_text(), file.read()) == ("new", "old")


@pytest.mark.parametrize("kind", [SMB, PLAN_9])
def test_recycled_inode_numbers_without_handles(kind: int, fuse_source: Path, fuse_start: FuseStart) -> None:
    """A file that is known here has been removed by another machine. That it has no name left is all that tells."""
    (fuse_source / "old").write_text("old")
    no_birth = "statx:poke_exit=@arg5=00000000"
    mount = fuse_start("--nocache", wrapper=numbered_alike(fuse_source, kind, no_birth))
    with (mount.point / "old").open() as file:
        (fuse_source / "old").unlink()
        (fuse_source / "new").write_text("new")
        assert ((mount.point / "new").read_text(), file.read()) == ("new", "old")
        assert (mount.point / "new").read_text() == "new"


def test_recycled_inode_numbers_and_times_of_birth(fuse_source: Path, fuse_start: FuseStart) -> None:
    for name in ("old", "new"):
        (fuse_source / name).write_text(name)
    (fuse_source / "link").hardlink_to(fuse_source / "old")
    mount = fuse_start("--nocache", wrapper=numbered_alike(fuse_source, SMB))
    with (mount.point / "old").open("r+b", buffering=0) as file:
        assert ((mount.point / "new").read_text(), file.read()) == ("new", b"old")
        assert os.path.samestat((mount.point / "link").stat(), os.fstat(file.fileno()))


def test_files_of_a_fuse_server_with_equal_numbers(fuse_source: Path, fuse_start: FuseStart) -> None:
    """One that shows several file systems by one device. Each stays a file of its own, and one, also when both live."""
    for name in ("old", "new"):
        (fuse_source / name).write_text(name)
    (fuse_source / "link").hardlink_to(fuse_source / "old")
    mount = fuse_start("--timeout=0", wrapper=numbered_alike(fuse_source, FUSE))
    with (mount.point / "old").open("r+b", buffering=0) as old, (mount.point / "new").open("r+b", buffering=0) as new:
        for _ in range(2):
            old.write(b"O")
            new.write(b"N")
            assert [(mount.point / name).read_bytes()[:1] for name in ("old", "new", "link")] == [b"O", b"N", b"O"]
            old.seek(1)
            new.seek(1)
        os.fsync(old.fileno())
        os.fsync(new.fileno())
        assert [(fuse_source / name).read_text() for name in ("old", "new", "link")] == ["OOd", "NNw", "OOd"]


def test_links_of_a_fuse_server_by_paths_are_one_file(fuse_source: Path, fuse_start: FuseStart) -> None:
    """Each name has a handle of its own there, as of libfuse's high-level interface; here each handle differs."""
    (fuse_source / "old").write_text("old")
    (fuse_source / "link").hardlink_to(fuse_source / "old")
    other = f"name_to_handle_at:poke_exit=@arg3=0800000001000000{'22' * 8}:when=1+2"
    mount = fuse_start(*ONE_THREAD, wrapper=numbered_alike(fuse_source, FUSE, other))
    with (mount.point / "old").open("r+b", buffering=0) as file:
        file.write(b"O")
        assert (mount.point / "link").read_bytes() == b"Old"


def test_directory_of_many_names(fuse: Mount) -> None:
    names = {f"name-{number:05}" + "x" * (number % 100) for number in range(4000)}
    for name in names:
        (fuse.source / name).touch()
    for _ in range(2):  # the second time from the cache, where there is one
        listed = os.listdir(fuse.point)
        assert len(listed) == len(names)
        assert set(listed) == names
    numbers = {entry.name: entry.inode() for entry in os.scandir(fuse.point)}
    assert numbers == {entry.name: entry.inode() for entry in os.scandir(fuse.source)}


def test_removing_while_listing_misses_nothing(fuse: Mount) -> None:
    for number in range(2000):
        (fuse.point / f"f{number}").touch()
    checked(["rm", "-r", "--", *map(str, fuse.point.iterdir())])
    assert os.listdir(fuse.source) == []


def test_a_directory_whose_offsets_cannot_be_sought(fuse_source: Path, fuse_start: FuseStart) -> None:
    """As on NFS whose server gives offsets of 2^63 and more: what does not fit into one answer is in the next."""
    names = {f"name {number} {'x' * 50}" for number in range(3000)}
    for name in names:
        (fuse_source / name).touch()
    mount = fuse_start(wrapper=traced("lseek", "error=EINVAL", str(fuse_source)))
    assert set(os.listdir(mount.point)) == names


def entries(descriptor: int, size: int = 1 << 16) -> list[str]:
    """The names that one call of getdents64(2) has for a buffer of that size."""
    buffer, found, at = ctypes.create_string_buffer(size), list[str](), 0
    length = libc.getdents64(descriptor, buffer, size)
    assert length >= 0, os.strerror(ctypes.get_errno())
    while at < length:
        record = buffer.raw[at : at + int.from_bytes(buffer.raw[at + 16 : at + 18], "little")]
        found.append(os.fsdecode(record[19:].split(b"\0")[0]))
        at += len(record)
    return found


@pytest.mark.parametrize("kind", ["btrfs", "ext4", "tmpfs"])
def test_a_directory_opened_before_a_file_is_made_has_it(kind: str, tmp_path: Path, fuse_source: Path) -> None:
    """Btrfs lists what was there at the open, or at the last seek; and all would get that, from the cache."""
    source = mounted(tmp_path / "below", kind) if kind == "tmpfs" else on_image(kind, tmp_path)
    with source as below, over(below, fuse_source) as mount:
        early = os.open(mount.point, os.O_RDONLY)
        try:
            (mount.point / "new").touch()
            assert "new" in entries(early)
            assert "new" in os.listdir(mount.point)
            (mount.point / "newer").touch()
            os.lseek(early, 0, os.SEEK_SET)
            assert "newer" in entries(early)
            assert "newer" in os.listdir(mount.point)
        finally:
            os.close(early)


@pytest.mark.parametrize("kind", ["btrfs", "ext4", "xfs"])
def test_what_was_read_ahead_does_not_hide_a_new_file(kind: str, tmp_path: Path, fuse_source: Path) -> None:
    """A listing that began before it was made goes on where one has begun since, whose answers the kernel keeps."""
    with nullcontext(fuse_source) if kind == "ext4" else on_image(kind, tmp_path) as below:
        for number in range(200):
            (below / f"name {number}").touch()
        last = os.listdir(below)[-1]
        (below / last).unlink()
        with over(below, fuse_source) as mount, ExitStack() as opened:
            paused, whole, late = (os.open(mount.point, os.O_RDONLY) for _ in range(3))
            for descriptor in (paused, whole, late):
                opened.callback(os.close, descriptor)
            assert last not in entries(paused, 4096)
            while entries(whole, 4096):
                pass
            (mount.point / last).touch()
            assert last not in entries(late, 4096)
            while entries(paused, 4096):
                pass
            assert len(os.listdir(mount.point)) == 200


def test_kinds_of_files(fuse: Mount) -> None:
    os.mkfifo(fuse.point / "fifo")
    os.mknod(fuse.point / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (fuse.point / "link").symlink_to("fifo" * 500)
    assert stat.S_ISFIFO((fuse.source / "fifo").stat().st_mode)
    assert (fuse.point / "null").read_bytes() == b""
    assert os.readlink(fuse.point / "link") == "fifo" * 500
    assert sorted(os.listdir(fuse.point)) == ["fifo", "link", "null"]


def test_longest_names(fuse_default: Mount) -> None:
    (fuse_default.point / ("n" * 255)).touch()
    with pytest.raises(OSError) as caught:
        (fuse_default.point / ("n" * 256)).touch()
    assert caught.value.errno == errno.ENAMETOOLONG
    assert os.listdir(fuse_default.source) == ["n" * 255]


@pytest.mark.parametrize(
    ("call", "answer"), [("fstatfs", "@arg2=444d000000000000"), ("ioctl", "@arg3=00000040")], ids=["vfat", "chattr +F"]
)
def test_names_without_case(call: str, answer: str, fuse_start: FuseStart) -> None:
    """
    The kernel does not keep what a change by the other name makes wrong. On any kernel: strace(1) gives the source the
    type or the flag of one with such names, and the other ones change in the source as they would there.
    """
    mount = fuse_start(wrapper=traced(call, f"poke_exit={answer}"))
    above, below = mount.point / "d", mount.source / "d"
    below.mkdir()
    (below / "foo").write_text("old")
    os.link(below / "foo", below / "FOO")
    assert (above / "foo").read_text() == (above / "FOO").read_text() == "old"
    (above / "foo").unlink()
    (below / "FOO").unlink()
    (above / "FOO").write_text("new")
    assert (below / "FOO").read_text() == "new"
    assert not (above / "bar").exists()
    (above / "BAR").touch()
    os.link(below / "BAR", below / "bar")
    assert (above / "bar").exists()


def test_a_name_is_not_remembered_in_a_directory_without_case(fuse_source: Path, fuse_start: FuseStart) -> None:
    """The kernel takes what it remembers of a name along with a rename. mv(1) copies instead."""
    (fuse_source / "fold").mkdir()
    mount = fuse_start(wrapper=traced("ioctl", "poke_exit=@arg3=00000040", str(fuse_source / "fold")))
    point, fold = mount.point, mount.source / "fold"
    (point / "f").write_text("old")
    checked(["mv", str(point / "f"), str(point / "fold/A")])
    assert (point / "fold/A").read_text() == "old"
    (point / "x").write_text("new")
    checked(["mv", str(point / "x"), str(point / "fold/a")])
    os.replace(fold / "a", fold / "A")  # the source would do so by itself
    assert (point / "fold/A").read_text() == "new"
    (point / "y").touch()
    for old, new, flags in (("y", "fold/b", 0), ("y", "fold/A", RENAME_EXCHANGE), ("fold/A", "y", RENAME_EXCHANGE)):
        assert renameat2(point / old, point / new, flags) == errno.EXDEV
    assert renameat2(point / "fold/A", point / "fold/c", 0) == renameat2(point / "fold/c", point / "d", 0) == 0
    assert (point / "d").read_text() == "new"


def test_without_a_cache_every_name_can_be_renamed(fuse_source: Path, fuse_start: FuseStart) -> None:
    (fuse_source / "fold").mkdir()
    wrapper = traced("ioctl", "poke_exit=@arg3=00000040", str(fuse_source / "fold"))
    point = fuse_start("--nocache", wrapper=wrapper).point
    (point / "f").touch()
    (point / "f").rename(point / "fold/f")


def test_names_in_a_directory_whose_flag_cannot_be_read(fuse_start: FuseStart) -> None:
    """They may be without case. Here there is no descriptor to look with, after the first 50 of each thread."""
    if LIBFUSE < (3, 12):
        pytest.skip("libfuse: the number of threads has a limit from 3.12")
    mount = fuse_start("--max-threads=1", wrapper=traced("openat", "error=ENFILE:when=50+"))
    for number in range(100):
        (mount.source / str(number)).mkdir()
        assert not (mount.point / str(number) / "name").exists()
    (mount.source / "99/name").touch()
    assert (mount.point / "99/name").exists()


MAKERS: dict[str, Callable[[Path], object]] = {
    "mkdir": Path.mkdir,
    "symlink": lambda path: path.symlink_to("nowhere"),
    "mknod": os.mkfifo,
    "link": lambda path: path.hardlink_to(path.with_name("file")),
}


@pytest.mark.parametrize(("error", "stays"), [("ENFILE", False), ("ENOENT", True)])
@pytest.mark.parametrize("maker", MAKERS)
def test_what_was_made_in_vain_is_not_there(maker: str, error: str, stays: bool, fuse_start: FuseStart) -> None:
    """
    The kernel goes on to remember that there is no such name. Here there is no descriptor for any new file; or the
    name has gone, and what has it now is of somebody else.
    """
    wrapper = traced("openat2", f"error={error}:when=3+")  # the first: of the file; the second: of the name before it
    mount = fuse_start(*ONE_THREAD, wrapper=wrapper)
    (mount.source / "file").touch()
    assert (mount.point / "file").exists()
    with pytest.raises(OSError) as caught:
        MAKERS[maker](mount.point / "new")
    assert caught.value.errno == getattr(errno, error)
    assert sorted(os.listdir(mount.source)) == ["file", "new"][: 1 + stays]


def test_a_file_that_has_taken_the_name_stays(fuse_start: FuseStart) -> None:
    """A new file that could not be opened, which takes a while here, is not there, but another one is by then."""
    # The thread opens: the directory, to find out about it; the new file; and that once more, for direct I/O.
    mount = fuse_start(*ONE_THREAD, wrapper=traced("openat", "error=EINVAL:delay_exit=2000000:when=3"))
    (mount.source / "other").write_text("other")
    with ThreadPoolExecutor() as pool:
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_DIRECT
        opening = pool.submit(os.open, mount.point / "new", flags)
        wait_until("it is made", (mount.source / "new").exists)
        (mount.source / "other").rename(mount.source / "new")
        with pytest.raises(OSError) as caught:
            opening.result()
    assert caught.value.errno == errno.EINVAL
    assert (mount.source / "new").read_text() == "other"


def test_fsync_of_a_directory(fuse: Mount) -> None:
    descriptor = os.open(fuse.point, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def test_tmpfile_gets_a_name(fuse: Mount) -> None:
    if LIBFUSE < (3, 17):
        pytest.skip("libfuse: O_TMPFILE is there from 3.17")
    descriptor = os.open(fuse.point, os.O_TMPFILE | os.O_RDWR, 0o640)
    try:
        os.write(descriptor, b"text")
        assert os.fstat(descriptor).st_nlink == 0
        source = f"/proc/self/fd/{descriptor}".encode()
        name = os.fsencode(fuse.point / "name")
        assert libc.linkat(AT_FDCWD, source, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0
    finally:
        os.close(descriptor)
    assert (fuse.point / "name").read_bytes() == b"text"
    assert stat.S_IMODE((fuse.source / "name").stat().st_mode) == 0o640


def test_tmpfile_for_direct_io(fuse: Mount) -> None:
    if LIBFUSE < (3, 17):
        pytest.skip("libfuse: O_TMPFILE is there from 3.17")
    descriptor = os.open(fuse.point, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
    try:
        assert os.pwrite(descriptor, aligned(b"x" * 4096), 0) == 4096
        with aligned(bytes(8192)) as memory:
            assert os.preadv(descriptor, [memory], 0) == 4096
            assert memory[:4096] == b"x" * 4096
    finally:
        os.close(descriptor)


def test_closed_tmpfile_frees_its_space(fuse: Mount) -> None:
    if LIBFUSE < (3, 17):
        pytest.skip("libfuse: O_TMPFILE is there from 3.17")
    before = os.statvfs(fuse.source).f_bfree
    for _ in range(3):
        descriptor = os.open(fuse.point, os.O_TMPFILE | os.O_RDWR)
        os.posix_fallocate(descriptor, 0, 50 * MIB)
        os.close(descriptor)
    # The kernel forgets the inode when it likes; the file goes with the last descriptor.
    run(["sync", "-f", str(fuse.point)])
    block = os.statvfs(fuse.source).f_bsize
    wait_until("the space is free again", lambda: (before - os.statvfs(fuse.source).f_bfree) * block < 50 * MIB)
