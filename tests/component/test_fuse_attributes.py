# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: owners, modes, ACLs, times, extended attributes."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from fuse_crowd import FEW_FILES
from fuse_mount import LIBFUSE, MODES, NOBODY, Mount, aligned, as_user, bare_mapping, direct, lacking_for_mode, traced
from fuse_sources import on_image, over
from loops import mounted
from nbdkit_server import RUN_TIMEOUT_S, checked, run
from views import HAS_BIRTH, statx

FuseStart = Callable[..., Mount]
GROUP = 4321
SETUID_MODE = 0o6775


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_belong_to_whoever_makes_them(fuse: Mount) -> None:
    fuse.point.chmod(0o777)
    script = f"cd {fuse.point} && : >file && mkdir dir && mkfifo fifo && ln -s x link && ln file hard"
    assert as_user(NOBODY, "sh", "-c", script).stderr == ""
    for name in ("file", "dir", "fifo", "link", "hard"):
        for top in (fuse.source, fuse.point):
            status = (top / name).lstat()
            assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY), name
    (fuse.point / "root").touch()
    assert (fuse.source / "root").stat().st_uid == 0


def test_users_do_not_mix(fuse: Mount) -> None:
    """The daemon changes its threads' users all the time: none may take another's."""
    fuse.point.chmod(0o777)
    users = (1001, 1002, 1003, 0)
    script = "cd $0 && for i in $(seq 200); do : >$(id -u)-$i; done"
    running = []
    for uid in users:
        argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        running.append(subprocess.Popen([*argv, "sh", "-c", script, str(fuse.point)]))
    assert [process.wait(RUN_TIMEOUT_S) for process in running] == [0, 0, 0, 0]
    owners = {(name.split("-")[0], (fuse.source / name).stat().st_uid) for name in os.listdir(fuse.source)}
    assert owners == {(str(uid), uid) for uid in users}
    groups = {(fuse.source / name).stat().st_gid for name in os.listdir(fuse.source)}
    assert groups == set(users)


def test_supplementary_group_opens_a_directory(fuse: Mount) -> None:
    shared = fuse.point / "shared"
    shared.mkdir()
    os.chown(shared, 0, GROUP)
    shared.chmod(0o2770)
    assert as_user(NOBODY, "touch", str(shared / "no")).returncode != 0
    assert as_user(NOBODY, "touch", str(shared / "yes"), groups=str(GROUP)).stderr == ""
    status = (fuse.source / "shared/yes").stat()
    assert (status.st_uid, status.st_gid) == (NOBODY, GROUP)
    assert as_user(NOBODY, "mkdir", str(shared / "dir"), groups=str(GROUP)).stderr == ""
    status = (fuse.source / "shared/dir").stat()
    assert (status.st_gid, status.st_mode & stat.S_ISGID) == (GROUP, stat.S_ISGID)


@pytest.mark.parametrize(("uid", "readable"), [(NOBODY, False), (0, True)])
def test_permissions_hold(uid: int, readable: bool, fuse: Mount) -> None:
    (fuse.point / "secret").write_text("secret")
    (fuse.point / "secret").chmod(0o600)
    result = as_user(uid, "cat", str(fuse.point / "secret"))
    assert (result.returncode == 0) is readable


def test_umask(fuse: Mount) -> None:
    script = f"cd {fuse.point}; umask 027; : >a; mkdir b; umask 077; : >c; umask 0; : >d; mkdir e"
    checked(["sh", "-c", script])
    found = [mode(fuse.source / name) for name in "abcde"]
    assert found == [0o640, 0o750, 0o600, 0o666, 0o777]


def test_umasks_do_not_mix(fuse: Mount) -> None:
    """Threads that the daemon starts in between begin with the umask of another."""
    script = "cd $0 && umask $1 && for i in $(seq 200); do : >$1-$i; done"
    masks = ("000", "077", "027", "002")
    running = [subprocess.Popen(["sh", "-c", script, str(fuse.point), mask]) for mask in masks]
    assert [process.wait(RUN_TIMEOUT_S) for process in running] == [0] * len(masks)
    wrong = {
        name: oct(mode(fuse.source / name))
        for name in os.listdir(fuse.source)
        if mode(fuse.source / name) != 0o666 & ~int(name.split("-")[0], 8)
    }
    assert wrong == {}


def test_default_acl_overrides_the_umask(fuse: Mount) -> None:
    need("setfacl", "getfacl")
    for top in (fuse.point, fuse.source):  # the source is what it is compared with
        directory = top / f"acl-{top.name}"
        directory.mkdir()
        checked(["setfacl", "-d", "-m", "u::rwx,g::rwx,o::rx,u:1234:rwx", str(directory)])
        checked(["sh", "-c", f"umask 077; : >{directory}/file; mkdir {directory}/dir"])
    for name in ("file", "dir"):
        acls = [
            checked(["getfacl", "-cpn", str(fuse.source / directory / name)])
            for directory in ("acl-mount", "acl-source")
        ]
        assert acls[0] == acls[1]
        assert "user:1234:rwx" in acls[0]


def test_acl_grants_access(fuse: Mount) -> None:
    need("setfacl")
    path = fuse.point / "file"
    path.write_text("text")
    path.chmod(0o600)
    assert as_user(NOBODY, "cat", str(path)).returncode != 0
    checked(["setfacl", "-m", f"u:{NOBODY}:r", str(path)])
    assert as_user(NOBODY, "cat", str(path)).stdout == "text"
    assert mode(path) == mode(fuse.source / "file") == 0o640


def test_acl_by_a_stranger_to_the_group_clears_setgid(fuse: Mount) -> None:
    need("setfacl")
    path = fuse.point / "file"
    path.touch()
    os.chown(path, NOBODY, GROUP)
    path.chmod(0o2770)
    assert as_user(NOBODY, "setfacl", "-m", "u:1:r", str(path), groups=str(GROUP)).stderr == ""
    assert mode(fuse.source / "file") & stat.S_ISGID
    assert as_user(NOBODY, "setfacl", "-m", "u:1:rw", str(path)).stderr == ""
    assert not mode(fuse.source / "file") & stat.S_ISGID


@pytest.mark.parametrize(
    "change",
    [
        "printf x >>$0",
        "printf x 1<>$0",
        ": >$0",
        "truncate -s 1 $0",
        "truncate -s 100000 $0",
        "fallocate -l 100000 $0",
        "dd if=/dev/zero of=$0 bs=4096 count=1 oflag=direct conv=notrunc status=none",
        "xfs_io -c 'copy_range -l 4096 '$1 $0",
    ],
)
@pytest.mark.parametrize("capabilities", [False, True])
def test_change_by_another_user_clears_privileges(change: str, capabilities: bool, fuse: Mount) -> None:
    path = fuse.point / "program"
    path.write_text("text")
    path.chmod(0o777 if capabilities else 0o6777)
    if "xfs_io" in change:
        need("xfs_io")
    other = fuse.point / "other"
    other.write_bytes(b"x" * 4096)
    other.chmod(0o644)
    if capabilities:
        need("setcap", "getcap")
        checked(["setcap", "cap_net_raw+ep", str(path)])
        assert "cap_net_raw" in checked(["getcap", str(fuse.source / "program")])
    assert as_user(NOBODY, "sh", "-c", change, str(path), str(other)).stderr == ""
    run(["sync", "-f", str(path)])
    for top in (fuse.source, fuse.point):
        assert mode(top / "program") == 0o777
        if capabilities:
            assert checked(["getcap", str(top / "program")]) == ""


@pytest.mark.parametrize("change", [": >$0", "chgrp 65534 $0"])
def test_the_source_takes_capabilities_away(change: str, fuse_source: Path, fuse_start: FuseStart) -> None:
    """The daemon needs not have the right to, as in many containers."""
    need("setcap", "getcap")
    path = fuse_start(wrapper=("setpriv", "--bounding-set=-setfcap", "--inh-caps=-setfcap")).point / "file"
    for capable in (False, True):
        path.write_text("text")
        os.chown(path, NOBODY, 0)
        path.chmod(0o4755)
        if capable:
            checked(["setcap", "cap_net_raw+ep", str(fuse_source / "file")])
        assert as_user(NOBODY, "sh", "-c", change, str(path)).stderr == ""
        assert mode(path) == 0o755
        assert checked(["getcap", str(path)]) == ""


def test_change_clears_privileges_without_user_namespaces(fuse_start: FuseStart) -> None:
    """A kernel without them has no maps of users, but root is root."""
    path = (
        fuse_start(wrapper=traced("openat", "error=ENOENT", "/proc/self/uid_map", "/proc/self/gid_map")).point / "file"
    )
    path.write_text("text")
    path.chmod(0o6777)
    assert as_user(NOBODY, "sh", "-c", "printf x >>$0", str(path)).stderr == ""
    assert mode(path) == 0o777


@pytest.mark.parametrize("flags", ["", "oflag=direct"])
def test_a_changed_program_runs_as_its_user(flags: str, fuse: Mount) -> None:
    """The kernel must not go by the mode that it knew before."""
    program = fuse.point / "program"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4777)
    assert as_user(NOBODY, str(program), "-u").stdout == "0\n"
    change = f"dd if=/usr/bin/id of=$0 bs=4096 count=1 conv=notrunc,fsync status=none {flags}; exec $0 -u"
    assert as_user(NOBODY, "sh", "-c", change, str(program)).stdout == f"{NOBODY}\n"


def test_root_keeps_setuid_and_chown_clears_it(fuse: Mount) -> None:
    path = fuse.point / "program"
    path.write_text("text")
    path.chmod(SETUID_MODE)
    with path.open("a") as file:
        file.write("more")
    assert mode(path) == mode(fuse.source / "program") == SETUID_MODE
    os.chown(path, NOBODY, NOBODY)
    assert mode(path) == mode(fuse.source / "program") == 0o775
    status = (fuse.source / "program").stat()
    assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY)


def test_root_keeps_setuid_by_a_write_that_meets_an_open(fuse: Mount) -> None:
    """One thread of the rings serves both, and submits the write with the rights that it has after the open."""
    path = fuse.point / "program"
    path.write_bytes(bytes(4096))
    path.chmod(0o4755)
    descriptor, cpus = direct(path), os.sched_getaffinity(0)
    script = "import os, sys\nwhile True: os.close(os.open(sys.argv[1], os.O_RDONLY | os.O_CREAT))"
    openers: list[subprocess.Popen[bytes]] = []
    os.sched_setaffinity(0, {min(cpus)})
    try:
        openers += [subprocess.Popen([sys.executable, "-c", script, str(fuse.point / f"{n}")]) for n in range(3)]
        with aligned(b"x" * 4096) as memory:
            for _ in range(300):
                os.pwritev(descriptor, [memory], 0)
                assert mode(fuse.source / "program") == 0o4755
    finally:
        for opener in openers:
            opener.kill()
            opener.wait()
        os.sched_setaffinity(0, cpus)
        os.close(descriptor)


def test_the_group_that_a_file_had_decides_over_setgid(fuse: Mount) -> None:
    """As native: a bit without group execution goes with a file of a group that its owner is not in."""
    if fuse.status["killpriv-v2"] != "on":
        pytest.skip("libfuse: this bit goes by the caller's groups from 3.18.3")
    modes = []
    for directory in (fuse.source, fuse.point):
        for group in (GROUP, NOBODY):
            path = directory / f"{directory.name}-of-{group}"
            path.touch()
            os.chown(path, NOBODY, group)
            path.chmod(0o2644)
            assert as_user(NOBODY, "chgrp", str(NOBODY), str(path)).stderr == ""
            modes.append(oct(mode(path)))
    assert modes == ["0o644", "0o2644"] * 2


@pytest.mark.parametrize(
    "change",
    [
        "printf x >>$0",
        ": >$0",
        "truncate -s 1 $0",
        "fallocate -l 10000 $0",
        "dd if=/dev/zero of=$0 bs=4096 count=1 oflag=direct conv=notrunc status=none",
        "setfacl -m u:1:r $0",
        "chmod 0755 $0; chmod 2775 $0",
        "rm $0; python3 -c 'import os, sys; os.umask(0); os.mknod(sys.argv[1], 0o102775)' $0",
    ],
)
def test_root_keeps_setgid_after_many_opens(fuse: Mount, change: str) -> None:
    """Passing files through takes a right from the daemon's threads, which these changes need back."""
    if "setfacl" in change:
        need("setfacl")
    path = fuse.point / "file"
    os.chown(fuse.point, 0, GROUP)
    fuse.point.chmod(0o2755)
    path.write_bytes(bytes(4096))
    os.chown(path, 0, GROUP)
    path.chmod(0o2775)
    for i in range(20):
        (fuse.source / f"other{i}").touch()

    def open_all() -> None:
        for i in range(20):
            os.close(os.open(fuse.point / f"other{i}", os.O_RDONLY))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(open_all) for _ in range(16)]:
            done.result()
    checked(["sh", "-c", change, str(path)])
    assert mode(fuse.source / "file") == 0o2775


def test_times_to_the_nanosecond(fuse: Mount) -> None:
    path = fuse.point / "file"
    path.write_text("text")
    os.utime(path, ns=(1_234_567_890_123_456_789, 987_654_321_987_654_321))
    for top in (fuse.point, fuse.source):
        status = (top / "file").stat()
        assert status.st_atime_ns == 1_234_567_890_123_456_789
        assert status.st_mtime_ns == 987_654_321_987_654_321
    (fuse.point / "link").symlink_to("file")
    os.utime(fuse.point / "link", (1, 2), follow_symlinks=False)
    assert (fuse.source / "link").lstat().st_mtime == 2
    assert (fuse.source / "file").stat().st_mtime_ns == 987_654_321_987_654_321


@pytest.mark.parametrize("name", [name for name in MODES if lacking_for_mode(name) is None])
@pytest.mark.parametrize("option", ["relatime", "noatime", "nodiratime"])
def test_times_of_access_are_kept_if_asked_for(
    option: str, name: str, fuse_source: Path, fuse_start: FuseStart
) -> None:
    """In the source, whose files the daemon reads, or the kernel on its behalf."""
    (fuse_source / "directory").mkdir()
    (fuse_source / "directory/file").write_bytes(b"data" * 4096)
    (fuse_source / "directory/link").symlink_to("file")
    mount = fuse_start(*MODES[name], "-o", option)
    assert mount.status["noatime"] == ("off" if option == "relatime" else "on")
    paths = ["directory/file", "directory/link", "directory"]
    for path in paths:
        os.utime(fuse_source / path, (1, 2), follow_symlinks=False)
    assert (mount.point / "directory/link").read_bytes() == b"data" * 4096
    assert len(os.listdir(mount.point / "directory")) == 2
    changed = {path for path in paths if (fuse_source / path).lstat().st_atime_ns != 1_000_000_000}
    assert changed == {"relatime": set(paths), "noatime": set(), "nodiratime": set(paths[:2])}[option]
    (mount.point / "directory/new").write_text("new")
    (mount.point / "directory/new").rename(mount.point / "directory/file")
    assert (mount.point / "directory/file").read_text() == "new"


def test_reading_a_directory_without_its_time(fuse: Mount) -> None:
    """O_NOATIME, as backup programs open."""
    times = []
    for flags in (os.O_NOATIME, 0):
        path = fuse.source / f"directory{flags}"
        path.mkdir()
        os.utime(path, (1, 2))
        descriptor = os.open(fuse.point / path.name, os.O_RDONLY | os.O_DIRECTORY | flags)
        try:
            assert os.listdir(descriptor) == []
        finally:
            os.close(descriptor)
        times.append(path.stat().st_atime == 1)
    assert times == [True, False]


def test_modification_is_seen_in_the_time(fuse: Mount) -> None:
    path = fuse.point / "file"
    path.write_text("text")
    os.utime(path, (1, 1))
    with path.open("a") as file:
        file.write("more")
    assert path.stat().st_mtime > 1_000_000_000
    assert path.stat().st_size == 8


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("kind", ["tmpfs", "xfs", "btrfs"])
def test_opening_an_empty_file_to_replace_it_is_seen_in_the_time(
    kind: str, name: str, tmp_path: Path, fuse_source: Path
) -> None:
    """By O_TRUNC, as a shell does for the stamps of make(1). At truncate(2), only ext4 changes the time."""
    if reason := lacking_for_mode(name):
        pytest.skip(reason)
    source = mounted(tmp_path / "below", kind) if kind == "tmpfs" else on_image(kind, tmp_path)
    with source as below, over(below, fuse_source, *MODES[name]) as mount:
        path = mount.point / "file"
        for how in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            path.touch()
            os.utime(path, (1, 1))
            os.close(os.open(path, how | os.O_TRUNC))
            assert path.stat().st_mtime > 1
            assert (below / "file").stat().st_mtime > 1


@pytest.mark.parametrize("name", ["default", "nosplice", "io-uring"])
@pytest.mark.parametrize("kind", ["tmpfs", "xfs", "btrfs"])
def test_truncation_of_an_empty_file_with_write_back(kind: str, name: str, tmp_path: Path, fuse_source: Path) -> None:
    """By truncate(2). The kernel keeps the time, and says when it changes: so the source keeps it, too."""
    if reason := lacking_for_mode(name):
        pytest.skip(reason)
    source = mounted(tmp_path / "below", kind) if kind == "tmpfs" else on_image(kind, tmp_path)
    with source as below, over(below, fuse_source, *MODES[name]) as mount:
        assert mount.status["writeback"] == "on"
        path = mount.point / "file"
        path.touch()
        os.utime(path, (1, 1))
        os.truncate(path, 0)
        assert path.stat().st_mtime == (below / "file").stat().st_mtime == 1


def test_truncation_of_an_empty_file_needs_no_descriptor(fuse_source: Path) -> None:
    """truncate(2) has no error for that. Over ramfs, where no handle opens it again, the file keeps the one it has."""
    with (
        mounted(fuse_source.with_name("below"), "ramfs") as below,
        over(below, fuse_source, "--no-writeback", wrapper=FEW_FILES) as mount,
        ExitStack() as stack,
    ):
        for name in ("file", "other"):
            (mount.point / name).touch()
        os.utime(mount.point / "file", (1, 1))
        with pytest.raises(OSError) as caught:
            while True:
                stack.callback(os.close, os.open(mount.point / "other", os.O_RDONLY))
        assert caught.value.errno == errno.EMFILE
        os.truncate(mount.point / "file", 0)
        assert (below / "file").stat().st_mtime > 1


def test_direct_write_is_seen_in_the_time(fuse: Mount) -> None:
    (fuse.point / "file").write_bytes(bytes(4096))
    os.utime(fuse.point / "file", (1, 1))
    descriptor = direct(fuse.point / "file")
    try:
        with aligned(b"x" * 4096) as memory:
            os.pwritev(descriptor, [memory], 0)
        assert os.fstat(descriptor).st_mtime > 1
    finally:
        os.close(descriptor)


def birth(path: Path) -> int:
    if LIBFUSE < (3, 18):
        pytest.skip("libfuse: statx is there from 3.18")
    mask, _, time_ns = statx(str(path), follow=True)
    assert mask & HAS_BIRTH
    return time_ns


def test_birth_time(fuse: Mount) -> None:
    (fuse.point / "file").write_text("text")
    assert birth(fuse.point / "file") == birth(fuse.source / "file") > 10**18


@pytest.mark.parametrize("change", ["printf more >>$0", "truncate -s 8 $0", "fallocate -l 8 $0"])
def test_changes_of_another_user_are_seen_after_statx(change: str, fuse: Mount) -> None:
    """What statx(2) answers is kept as what stat(2) does: not the mode of a file whose bits a write takes away."""
    path, below = fuse.point / "file", fuse.source / "file"
    path.write_text("text")
    path.chmod(0o6777)
    os.utime(path, (1, 1))
    born = birth(path)
    assert as_user(NOBODY, "sh", "-c", change, str(path)).stderr == ""
    after, found = path.stat(), below.stat()
    assert (after.st_size, mode(path)) == (found.st_size, mode(below)) == (8, 0o777)
    assert after.st_mtime > 1
    if fuse.status["writeback"] != "on":  # the kernel's own clock
        assert (after.st_mtime_ns, after.st_ctime_ns) == (found.st_mtime_ns, found.st_ctime_ns)
    assert birth(path) == birth(below) == born


def test_changes_below_are_seen_after_statx(fuse_start: FuseStart) -> None:
    mount = fuse_start("--nocache")
    path, below = mount.point / "file", mount.source / "file"
    path.write_text("text")
    born = birth(path)
    below.write_text("longer text")
    below.chmod(0o600)
    after, found = path.stat(), below.stat()
    assert (after.st_size, mode(path)) == (11, 0o600)
    assert (after.st_mtime_ns, after.st_ctime_ns) == (found.st_mtime_ns, found.st_ctime_ns)
    time.sleep(0.02)
    (mount.source / "new").write_text("new")
    (mount.source / "new").replace(below)
    assert birth(path) == birth(below) > born


@pytest.mark.parametrize("name", ["user.one", "trusted.one", "security.one"])
def test_extended_attributes(name: str, fuse: Mount) -> None:
    path = fuse.point / "file"
    path.touch()
    os.setxattr(path, name, b"value", os.XATTR_CREATE)
    with pytest.raises(FileExistsError):
        os.setxattr(path, name, b"value", os.XATTR_CREATE)
    os.setxattr(path, name, b"v" * 3000, os.XATTR_REPLACE)
    assert os.getxattr(path, name) == os.getxattr(fuse.source / "file", name) == b"v" * 3000
    assert os.listxattr(path) == os.listxattr(fuse.source / "file") == [name]
    os.removexattr(path, name)
    assert os.listxattr(fuse.source / "file") == []
    with pytest.raises(OSError) as caught:
        os.getxattr(path, name)
    assert caught.value.errno == errno.ENODATA


def test_trusted_attributes_are_listed_to_root_only(fuse: Mount) -> None:
    need("getfattr")
    (fuse.source / "file").touch()
    for name in ("trusted.first", "user.one", "trusted.second", "user.two"):
        os.setxattr(fuse.source / "file", name, b"value")
    for top in (fuse.source, fuse.point):
        listed = as_user(NOBODY, "getfattr", "-m", "-", "--absolute-names", str(top / "file")).stdout.split()[3:]
        assert listed == ["user.one", "user.two"]
        assert len(os.listxattr(top / "file")) == 4


@pytest.mark.parametrize("change", ["setfattr -n system.name -v x", "setfattr -x system.name"])
def test_attributes_that_the_source_decides_over(change: str, fuse_start: FuseStart) -> None:
    """It would decide by the rights of the daemon. Here it grants everything, and has changed the mode."""
    need("setfattr")
    call = "removexattr" if "-x" in change else "setxattr"
    mount = fuse_start(wrapper=traced(call, "retval=0"))
    path, below = mount.point / "file", mount.source / "file"
    path.touch(0o644)
    assert "not permitted" in as_user(NOBODY, *change.split(), str(path)).stderr
    for uid in (0, NOBODY):
        os.chown(path, uid, 0)
        assert mode(path) == 0o644
        below.chmod(0o600)
        assert as_user(uid, *change.split(), str(path)).stderr == ""
        assert mode(path) == 0o600
        path.chmod(0o644)


def test_extended_attribute_does_not_fit(fuse_default: Mount) -> None:
    path = fuse_default.point / "file"
    path.touch()
    os.setxattr(path, "user.name", b"value")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(3)
    assert libc.getxattr(os.fsencode(path), b"user.name", None, 0) == 5
    assert libc.getxattr(os.fsencode(path), b"user.name", buffer, 3) == -1
    assert ctypes.get_errno() == errno.ERANGE


def test_inode_flags(fuse: Mount) -> None:
    need("chattr", "lsattr")
    for name in ("file", "dir"):
        path = fuse.point / name
        path.touch() if name == "file" else path.mkdir()
        checked(["chattr", "+i", str(path)])
        try:
            assert "i" in checked(["lsattr", "-d", str(fuse.source / name)]).split()[0]
            assert "i" in checked(["lsattr", "-d", str(path)]).split()[0]
            with pytest.raises(PermissionError):
                path.rename(fuse.point / "other")
        finally:
            checked(["chattr", "-i", str(path)])
        path.rename(fuse.point / "other")
        checked(["rm", "-r", str(fuse.point / "other")])


def test_a_file_with_data_in_the_cache_does_not_become_immutable(fuse: Mount) -> None:
    """Nobody could write them any more. Where it does, the source has them."""
    need("chattr")
    path, below = fuse.point / "file", fuse.source / "file"
    # To write only, there is something to lose with write-back; also to read, mappings.
    for flags, safe in (
        (os.O_WRONLY, fuse.status["writeback"] == "off"),
        (os.O_RDWR, "on" in fuse.status["passthrough"]),
    ):
        descriptor = os.open(path, flags | os.O_CREAT | os.O_TRUNC)
        try:
            os.write(descriptor, b"text")
            result = run(["chattr", "+i", str(path)])
            assert (result.returncode == 0) is safe
            assert "busy" in result.stderr or safe
            os.fsync(descriptor)
            assert below.read_bytes() == b"text"
        finally:
            os.close(descriptor)
            checked(["chattr", "-i", str(below)])


@pytest.mark.parametrize("made", ["before", "now"])
def test_stores_to_a_mapping_change_times(fuse: Mount, made: str) -> None:
    """With kernel passthrough, neither the kernel nor the daemon sees them."""
    path, below = fuse.point / "file", fuse.source / "file"
    if made == "before":
        path.write_bytes(bytes(4096))
        path.stat()  # the kernel keeps this

    def store_and_compare(memory: ctypes.Array[ctypes.c_char], sync: Callable[[], None]) -> None:
        before = path.stat()
        statx(str(path), follow=True)  # the kernel keeps no attributes of this answer either
        time.sleep(0.02)
        memory[0] = bytes([memory[0][0] ^ 1])
        sync()
        after = path.stat()
        assert before.st_mtime_ns < after.st_mtime_ns and before.st_ctime_ns < after.st_ctime_ns
        if fuse.status["writeback"] != "on":  # the kernel's own clock
            assert after.st_mtime_ns == below.stat().st_mtime_ns

    with path.open("r+b" if made == "before" else "w+b", buffering=0) as file:
        file.truncate(4096)
        with bare_mapping(file.fileno(), 4096) as (memory, sync):
            store_and_compare(memory, sync)
            file.close()  # the mapping goes on
            store_and_compare(memory, sync)
            time.sleep(0.02)
            store_and_compare(memory, sync)
            memory[0] = bytes([memory[0][0] ^ 1])
    assert path.read_bytes()[:2] == b"\0\0"
    if fuse.status["writeback"] != "on":
        assert path.stat().st_mtime_ns == below.stat().st_mtime_ns


def test_change_of_inode_flags_is_a_change_of_the_file(fuse: Mount) -> None:
    """The kernel does not ask again by itself, and with write-back not at all for regular files."""
    need("chattr")
    for name in ("dir",) if fuse.status["writeback"] == "on" else ("dir", "file"):
        path = fuse.point / name
        path.touch() if name == "file" else path.mkdir()
        before = path.stat().st_ctime_ns
        time.sleep(0.02)  # more than the kernel's clock of files takes for a step
        checked(["chattr", "+A", str(path)])
        assert before < path.stat().st_ctime_ns == (fuse.source / name).stat().st_ctime_ns


def test_unprivileged_user_may_not_change_inode_flags(fuse_default: Mount) -> None:
    need("chattr", "lsattr")
    path = fuse_default.point / "file"
    path.touch()
    assert as_user(NOBODY, "chattr", "+d", str(path)).returncode != 0
    os.chown(path, NOBODY, NOBODY)
    assert as_user(NOBODY, "chattr", "+i", str(path)).returncode != 0
    assert as_user(NOBODY, "chattr", "+d", str(path)).stderr == ""
    assert "d" in checked(["lsattr", str(fuse_default.source / "file")]).split()[0]


def test_unprivileged_user_may_not_journal_data(fuse_start: FuseStart) -> None:
    """The source asks for a right of the daemon. Here it grants everything, also where root has not that right."""
    need("chattr")
    mount = fuse_start(wrapper=traced("ioctl", "retval=0"))
    path = mount.point / "file"
    path.touch()
    os.chown(path, NOBODY, NOBODY)
    assert "not permitted" in as_user(NOBODY, "chattr", "+j", str(path)).stderr
    assert as_user(NOBODY, "chattr", "+d", str(path)).stderr == ""
    checked(["chattr", "+j", str(path)])


def test_statfs_is_that_of_the_source(fuse: Mount) -> None:
    above, below = os.statvfs(fuse.point), os.statvfs(fuse.source)
    assert (above.f_blocks, above.f_bsize, above.f_files, above.f_namemax) == (
        below.f_blocks,
        below.f_bsize,
        below.f_files,
        below.f_namemax,
    )
