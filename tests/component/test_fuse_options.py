# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: command line, status line, life and death."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from select import select

import pytest
from fuse_mount import (
    ENABLE_RINGS,
    LIBFUSE,
    MODES,
    NULLFS_PROGRAM,
    PROGRAM,
    Mount,
    frozen,
    lacking_for_fuse,
    lacking_for_mode,
    parse_status,
    stat_errno,
    threads,
    threads_that_wait,
    traced,
    unmount,
)
from nbdkit_server import ROOT, STOP_TIMEOUT_S, checked, run
from waiting import wait_until

FuseStart = Callable[..., Mount]

pytestmark = pytest.mark.skipif(lacking_for_fuse() is not None, reason=str(lacking_for_fuse()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-threads=0", "/", "/mnt"], "max-threads=0: give a number from 1 to 100000"),
        (["--max-threads=-1", "/", "/mnt"], "max-threads=-1: give a number"),
        (["-o", "max-threads=1x", "/", "/mnt"], "max-threads=1x: give a number"),
        (["--timeout=-1", "/", "/mnt"], "timeout=-1: give seconds"),
        (["--timeout=nan", "/", "/mnt"], "timeout=nan: give seconds"),
        (["--max-write=4095", "/", "/mnt"], "max-write=4095: give bytes from 4096 to 1048576"),
        (["--max-write=4096k", "/", "/mnt"], "max-write=4096k: give bytes"),
        (["--max-write=4096", "/", "/mnt"], "max-write=4096: needs nosplice below 131072; add it, or give more"),
        (["--max-write=126976", "/", "/mnt"], "max-write=126976: needs nosplice"),
        (["--max-write=131072", "--io-uring", "/", "/mnt"], "max-write=131072: contradicts io-uring"),
        (["--max-write=4096", "--io-uring", "/", "/mnt"], "max-write=4096: contradicts io-uring"),
        (["--nocache", "--timeout=5", "/", "/mnt"], "timeout=5: contradicts nocache"),
        (["--passthrough=on", "/", "/mnt"], "passthrough=on: give auto, or no value"),
        (["--cache", "/", "/mnt"], "--cache: no such option"),
        (["-o", "nosuch=3", "/", "/mnt"], "nosuch=3: no such option; leave it out, or see userblk-passthrough --help"),
        (["-o", "ro,nosuch", "/", "/mnt"], "nosuch: no such option; leave it out"),
        (["-o", "max_read=abc", "/", "/mnt"], "max_read=abc: give bytes from 4096 to 1048576, a multiple of 4096"),
        (["-o", "max_read=6000", "/", "/mnt"], "max_read=6000: give bytes from 4096 to 1048576"),
        (["-o", "strictatime", "/", "/mnt"], "strictatime: no such option; leave it out"),
        (["/", "/mnt", "/more"], "/more: one argument too many"),
        (["/"], "MOUNTPOINT is missing"),
        ([], "SOURCE is missing"),
        (["/does/not/exist", "/mnt"], "/does/not/exist: No such file or directory; SOURCE"),
        (["/etc/passwd", "/mnt"], "/etc/passwd: Not a directory; SOURCE"),
        (["/", "/does/not/exist"], "/does/not/exist: No such file or directory; MOUNTPOINT"),
        (["/", "/etc/passwd"], "/etc/passwd: Not a directory; MOUNTPOINT"),
        (["/", "/dev/fd/999"], "/dev/fd/999: No such file or directory; MOUNTPOINT"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    result = run([str(PROGRAM), *arguments])
    assert result.returncode == 2
    assert result.stderr.startswith(f"userblk-passthrough: {message}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_without_proc_no_file_could_be_opened(tmp_path: Path) -> None:
    without = ["unshare", "--mount", "sh", "-c", 'umount --lazy /proc && exec "$@"', "sh"]
    result = run([*without, str(PROGRAM), "/", str(tmp_path)])
    assert (result.returncode, result.stdout) == (2, "")
    said = [line for line in result.stderr.splitlines() if not line.startswith("==")]  # which a sanitizer says
    assert said == ["userblk-passthrough: /proc/self/fd: No such file or directory; mount /proc"]


def test_threads_that_would_share_a_umask_serve_nobody(tmp_path: Path) -> None:
    """A seccomp filter may forbid unshare(2): a private file of one user would get the umask of another one."""
    result = run([*traced("unshare", "error=EPERM"), str(PROGRAM), str(tmp_path), str(tmp_path)])
    assert result.returncode == 2
    assert "unshare(2)" in result.stderr and result.stderr.count("\n") == 1


def test_help_names_every_option() -> None:
    result = run([str(PROGRAM), "--help"])
    manual = (ROOT / "fuse-passthrough/userblk-passthrough.1").read_text()
    assert result.returncode == 0
    for option in (
        "no-writeback nocache nosplice clone-fd max-threads timeout max-write passthrough io-uring foreground debug"
        " help version"
    ).split():
        assert f"--{option}" in result.stdout
        assert f"Fl -{option}" in manual


def test_no_time_to_cache_is_no_cache(fuse_start: FuseStart) -> None:
    """So that what is tested of the one holds for the other."""
    states = []
    for option in ("--nocache", "--timeout=0"):
        mount = fuse_start(option)
        states.append(mount.status)
        mount.unmount()
    assert states[0] == states[1]
    assert (states[0]["timeout"], states[0]["writeback"]) == ("0", "off")


def test_defaults_are_those_of_the_paper(fuse_default: Mount) -> None:
    status = fuse_default.status
    assert status["writeback"] == "on"
    assert status["timeout"] == "86400"
    assert status["splice"] == "on"
    assert status["clone-fd"] == "off"
    assert status["passthrough"] == "off"
    assert status["io-uring"] == "off"
    assert status["handles"] == "on"
    assert status["ownership"] == "caller"
    assert status["libfuse"] == ".".join(map(str, LIBFUSE))


def test_small_writes_leave_reads_as_they_are(fuse_start: FuseStart) -> None:
    """By what libfuse tells of each request."""
    mount = fuse_start("--no-writeback", "--nosplice", "--max-write=4096", "--debug")
    assert mount.status["max-write"] == "4096"
    data = os.urandom(1 << 20)
    (mount.source / "file").write_bytes(data)
    (mount.point / "copy").write_bytes(data)
    assert (mount.point / "file").read_bytes() == data == (mount.source / "copy").read_bytes()
    reported = mount.errors.read_text(errors="replace")
    writes = re.findall(r"opcode: WRITE .*insize: (\d+)", reported)
    assert len(writes) == 256 and len(set(writes)) == 1 and int(writes[0]) < 8192
    assert max(map(int, re.findall(r"outsize: (\d+)", reported))) > 65536
    unmount(mount.point)
    assert mount.process.wait(STOP_TIMEOUT_S) == 0


def test_larger_writes_need_nothing_else(fuse_start: FuseStart) -> None:
    """As the optimised StackFS had them: 128 KiB, with splice."""
    mount = fuse_start("--max-write=131072", "--debug")
    assert mount.status["max-write"] == "131072" and mount.status["splice"] == "on"
    data = os.urandom(1 << 20)
    (mount.source / "file").write_bytes(data)
    (mount.point / "copy").write_bytes(data)
    assert (mount.point / "file").read_bytes() == data == (mount.source / "copy").read_bytes()
    reported = mount.errors.read_text(errors="replace")
    sizes = [int(size) for size in re.findall(r"opcode: WRITE .*insize: (\d+)", reported)]
    assert len(sizes) >= 8 and 131072 <= max(sizes) < 131072 + 4096
    unmount(mount.point)
    assert mount.process.wait(STOP_TIMEOUT_S) == 0


def test_status_says_what_each_option_changed(fuse_start: FuseStart) -> None:
    mount = fuse_start("--no-writeback", "--nosplice", "--clone-fd", "--timeout=1.5")
    assert mount.status["writeback"] == "off"
    assert mount.status["splice"] == "off"
    assert mount.status["clone-fd"] == "on"
    assert mount.status["timeout"] == "1.5"


def test_options_work_after_o(fuse_start: FuseStart) -> None:
    mount = fuse_start("-o", "nocache,max-threads=3,nosplice")
    assert mount.status["timeout"] == "0"
    assert mount.status["writeback"] == "off"
    assert mount.status["max-threads"] == "3"
    assert mount.status["splice"] == "off"


def test_options_of_fstab_for_others_are_dropped(fuse_start: FuseStart) -> None:
    """mount(8) passes some of them on, and people copy lines of fstab(5) and of /proc/mounts."""
    options = "defaults,auto,noauto,nouser,nofail,_netdev,relatime,comment=here,x-systemd.automount,X-mount.mkdir"
    mount = fuse_start("-o", options)
    (mount.point / "file").write_text("text")
    assert (mount.source / "file").read_text() == "text"


def test_fstab(fuse_source: Path, tmp_path: Path) -> None:
    if shutil.which("mount.fuse3") is None:
        pytest.skip("mount.fuse3 is not installed")
    point, table = fuse_source.with_name("mount"), tmp_path / "fstab"
    options = f"subtype={PROGRAM.name},nofail,_netdev,relatime,noatime,x-systemd.automount,timeout=1"
    table.write_text(f"{PROGRAM}#{fuse_source} {point} fuse {options} 0 0\n")
    (fuse_source / "file").write_text("text")
    checked(["mount", "--fstab", str(table), "--all", "--types", "fuse"])
    try:
        found = checked(["findmnt", "--noheadings", "--output", "FSTYPE,SOURCE,OPTIONS", str(point)]).split()
        assert found[:2] == [f"fuse.{PROGRAM.name}", str(fuse_source)]
        assert "noatime" in found[2].split(",")
        assert (point / "file").read_text() == "text"
    finally:
        unmount(point)


def test_max_read_limits_reads(fuse_start: FuseStart) -> None:
    """By what libfuse tells of each answer; it would end the mount of a program that does not agree to the limit."""
    mount = fuse_start("--nosplice", "--debug", "-o", "max_read=16384")
    data = os.urandom(1 << 18)
    (mount.source / "file").write_bytes(data)
    assert (mount.point / "file").read_bytes() == data
    sizes = [int(size) for size in re.findall(r"outsize: (\d+)", mount.errors.read_text(errors="replace"))]
    assert 16384 <= max(sizes) < 16384 + 4096
    unmount(mount.point)
    assert mount.process.wait(STOP_TIMEOUT_S) == 0


def test_passthrough_where_granted(fuse_start: FuseStart) -> None:
    granted = lacking_for_mode("passthrough") is None
    mount = fuse_start("--passthrough=auto")
    assert mount.status["passthrough"] == ("on" if granted else "off")
    assert mount.status["writeback"] == ("off" if granted else "on")
    (mount.point / "file").write_bytes(b"data")
    assert (mount.point / "file").read_bytes() == b"data"


@pytest.mark.parametrize("mode", ["passthrough", "io-uring", "io-uring+passthrough"])
def test_new_mode_is_on_or_an_error(mode: str, fuse_start: FuseStart) -> None:
    """Never a silent fallback: an old libfuse is an error, a new one is shown to serve it."""
    reason = lacking_for_mode(mode)
    if reason and reason.startswith("kernel: "):
        pytest.skip(reason)
    if reason:
        result = run([str(PROGRAM), *MODES[mode], "/", "/mnt"])
        assert result.returncode == 2
        assert "this program was built with libfuse" in result.stderr
        return
    fuse_start(*MODES[mode])  # looks at the status line


@pytest.mark.parametrize("mode", MODES)
def test_mode_is_tested_here(mode: str) -> None:
    """The other tests leave a mode out in silence; this one says so."""
    reason = lacking_for_mode(mode)
    if reason:
        pytest.skip(reason)


def test_refused_io_uring_is_told(fuse_start: FuseStart) -> None:
    reason = lacking_for_mode("io-uring")
    if reason:
        pytest.skip(reason)
    before = ENABLE_RINGS.read_text()
    mount = fuse_start("--timeout=1")
    mount.unmount()
    ENABLE_RINGS.write_text("N")
    try:
        result = run([str(PROGRAM), "--io-uring", str(mount.source), str(mount.point)])
        assert parse_status(result.stdout)["io-uring"] == "refused"
    finally:
        ENABLE_RINGS.write_text(before)
        unmount(mount.point)


def test_returns_from_the_background_when_ready(fuse_source: Path) -> None:
    point = fuse_source.with_name("mount")
    (fuse_source / "file").write_text("text")
    result = run([str(PROGRAM), str(fuse_source), str(point)])
    try:
        assert result.returncode == 0
        assert result.stderr == ""
        assert parse_status(result.stdout)["writeback"] == "on"
        assert (point / "file").read_text() == "text"
    finally:
        unmount(point)


def test_background_keeps_no_directory_in_use(fuse_source: Path, small_filesystem: Path) -> None:
    """Nor do relative paths need the one in which it was started."""
    (fuse_source / "file").write_text("text")
    point = fuse_source.with_name("mount")
    relative = [os.path.relpath(path, small_filesystem) for path in (fuse_source, point)]
    started = subprocess.run([PROGRAM, *relative], cwd=small_filesystem, capture_output=True, check=True)
    try:
        assert started.stderr == b""
        assert (point / "file").read_text() == "text"
        checked(["umount", str(small_filesystem)])
        checked(["mount", "-t", "tmpfs", "userblk-test", str(small_filesystem)])  # which its fixture unmounts
    finally:
        unmount(point)


def test_nor_does_a_thread_that_has_served_a_user_before(fuse_source: Path, small_filesystem: Path) -> None:
    """A thread that makes files has a umask of its own from then on, and with it a directory."""
    if reason := lacking_for_mode("io-uring"):
        pytest.skip(reason)
    before, point = ENABLE_RINGS.read_text(), fuse_source.with_name("mount")
    ENABLE_RINGS.write_text("N")
    try:
        argv = [str(PROGRAM), "--io-uring", str(fuse_source), str(point)]
        with subprocess.Popen(argv, cwd=small_filesystem, stdout=subprocess.PIPE) as started:
            wait_until("it is mounted", lambda: os.path.ismount(point))
            checked(["sh", "-c", 'umask 077; mkdir "$1/new"', "sh", str(point)])
            assert started.poll() is None, "it was ready at once: this tested nothing"
        checked(["umount", str(small_filesystem)])
        checked(["mount", "-t", "tmpfs", "userblk-test", str(small_filesystem)])  # which its fixture unmounts
    finally:
        ENABLE_RINGS.write_text(before)
        unmount(point)


def test_mount_calls_it(fuse_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("mount.fuse3") is None:
        pytest.skip("mount.fuse3 is not installed")
    monkeypatch.setenv("PATH", f"{PROGRAM.parent}:{os.environ['PATH']}")
    point = fuse_source.with_name("mount")
    kind = "fuse.userblk-passthrough"
    (fuse_source / "file").write_text("text")
    checked(["mount.fuse3", f"{PROGRAM}#{fuse_source}", str(point), "-o", "nosplice,timeout=3,noatime"])
    try:
        found = checked(["findmnt", "--noheadings", "--output", "FSTYPE,SOURCE,OPTIONS", str(point)])
        assert found.split()[:2] == [kind, str(fuse_source)]
        assert "noatime" in found
        assert (point / "file").read_text() == "text"
    finally:
        unmount(point)


@pytest.mark.parametrize(
    ("program", "source"), [(PROGRAM, "/"), (NULLFS_PROGRAM, None)], ids=lambda value: getattr(value, "name", "")
)
def test_a_mount_that_mount_fuse3_has_made_is_refused(program: Path, source: str | None, tmp_path: Path) -> None:
    """With drop_privileges, it mounts without default_permissions, and passes on what /dev/fuse is open as."""
    if shutil.which("mount.fuse3") is None:
        pytest.skip("mount.fuse3 is not installed")
    argv = ["mount.fuse3", f"{program}#{source}" if source else str(program), str(tmp_path), "-o", "drop_privileges"]
    result = run(argv)
    try:
        assert result.returncode == 2
        assert result.stderr.startswith(f"{program.name}: /dev/fd/")
        assert "has mounted it with drop_privileges, which is not supported; unmount it" in result.stderr
        assert result.stderr.count("\n") == 1
    finally:
        unmount(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_that_is_interrupted_leaves_no_mount(number: signal.Signals, fuse_source: Path) -> None:
    """The program that was to say that it is ready ends, before the one in the background is."""
    point = fuse_source.with_name("mount")
    wrapper = traced("statfs", "delay_enter=1000000")
    with subprocess.Popen([*wrapper, str(PROGRAM), str(fuse_source), str(point)], stdout=subprocess.DEVNULL) as starter:
        children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children")
        try:
            wait_until("it is mounted", lambda: os.path.ismount(point), process=starter)
            (daemon,) = children.read_text().split()
        finally:
            starter.send_signal(number)
    try:
        wait_until("the daemon ends", lambda: not Path("/proc", daemon).exists(), 20.0)
        assert not os.path.ismount(point)
    finally:
        run(["umount", "--lazy", str(point)])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts(number: signal.Signals, fuse_default: Mount) -> None:
    (fuse_default.point / "file").write_text("text")
    fuse_default.process.send_signal(number)
    assert fuse_default.process.wait(STOP_TIMEOUT_S) == 0
    assert not os.path.ismount(fuse_default.point)
    assert (fuse_default.source / "file").read_text() == "text"


def test_a_signal_leaves_the_mounts_of_others_alone(fuse_default: Mount) -> None:
    """Its own is gone from there, and goes on until its last file is closed, or until the signal."""
    (fuse_default.point / "file").write_text("text")
    descriptor = os.open(fuse_default.point / "file", os.O_RDONLY)
    checked(["umount", "--lazy", str(fuse_default.point)])
    checked(["mount", "-t", "tmpfs", "userblk-test", str(fuse_default.point)])
    try:
        assert os.read(descriptor, 4) == b"text"
        fuse_default.process.terminate()
        assert fuse_default.process.wait(STOP_TIMEOUT_S) == 0
        assert fuse_default.errors.read_text() == ""
        assert os.path.ismount(fuse_default.point)
    finally:
        unmount(fuse_default.point)
        with suppress(OSError):  # close(2) asks the daemon
            os.close(descriptor)


def test_a_signal_at_the_end_changes_nothing(fuse_source: Path, fuse_start: FuseStart) -> None:
    """It is closing the descriptors of inodes, slowly here, when it comes."""
    names = [str(number) for number in range(200)]
    for name in names:
        (fuse_source / name).touch()
    mount = fuse_start(wrapper=traced("close", "delay_enter=5000"))
    for name in names:
        (mount.point / name).stat()

    def files() -> set[str]:
        found = set()
        for file in Path(f"/proc/{mount.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it has been closed
                found.add(os.readlink(file))
        return found

    unmount(mount.point)
    wait_until("the session has ended", lambda: "/dev/fuse" not in files())
    mount.process.terminate()
    assert mount.process.wait(STOP_TIMEOUT_S) == 0
    assert mount.errors.read_text() == ""


def test_a_signal_while_it_takes_over_its_signals(fuse_source: Path) -> None:
    """libfuse first says that they are for it, slowly here, and then for which session."""
    point = fuse_source.with_name("mount")
    wrapper = traced("rt_sigaction", "delay_exit=100000")
    argv = ["env", "--default-signal", *wrapper, str(PROGRAM), "--foreground", str(fuse_source), str(point)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as daemon:
        status = Path(f"/proc/{daemon.pid}/status")

        def handled() -> int:
            return int(re.findall(r"^SigCgt:\s(\w+)", status.read_text(), re.MULTILINE)[0], 16) >> 14 & 1

        try:
            wait_until("SIGTERM is its own", handled, process=daemon)
            daemon.terminate()
            assert daemon.wait(20) == 0
        finally:
            daemon.kill()
            run(["umount", "--lazy", str(point)])


def test_a_signal_while_it_mounts_is_a_way_to_end(fuse_source: Path) -> None:
    """libfuse may have mount(8) note it, and waits for that, slowly here."""
    point, slow, begun = (fuse_source.with_name(name) for name in ("mount", "slow", "begun"))
    slow.write_text(f"#!/bin/sh\ntouch {begun}\nsleep 2\n")
    slow.chmod(0o755)
    wrapper = ["unshare", "--mount", "sh", "-c", f'mount --bind {slow} {shutil.which("mount")} && exec "$@"', "sh"]
    argv = [*wrapper, str(PROGRAM), "--foreground", str(fuse_source), str(point)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout
        try:
            # This libfuse may do without.
            wait_until("it mounts", lambda: begun.exists() or select([daemon.stdout], [], [], 0)[0], process=daemon)
            daemon.terminate()
            assert daemon.wait(20) == 0
        finally:
            daemon.kill()


def test_a_signal_while_it_unmounts_changes_nothing(fuse_start: FuseStart) -> None:
    """libfuse waits for umount(8), which is slow here, when the second one comes."""
    mount = fuse_start(wrapper=traced("umount2", "delay_enter=500000"))
    children = Path(f"/proc/{mount.process.pid}/task/{mount.process.pid}/children")
    mount.process.send_signal(signal.SIGINT)
    # Beside the one that uses the mount. Without /run/mount/utab, libfuse unmounts by itself.
    wait_until(
        "it waits for umount(8)", lambda: mount.process.poll() is not None or len(children.read_text().split()) > 1
    )
    mount.process.terminate()
    assert mount.process.wait(STOP_TIMEOUT_S) == 0
    assert not os.path.ismount(mount.point)
    assert mount.errors.read_text() == ""


def test_an_end_that_a_thread_hears_of_as_an_abort(fuse_start: FuseStart) -> None:
    """As the kernel says of an unmount to one who took a request at that moment."""
    wrapper = (*traced("read", "error=ECONNABORTED:when=20"), "-P", "/dev/fuse")
    mount = fuse_start("--nosplice", "--nocache", "--max-threads=1", wrapper=wrapper)
    with suppress(OSError):
        for number in range(20):
            (mount.point / f"file{number}").touch()
    assert mount.process.wait(STOP_TIMEOUT_S) == 0
    assert not os.path.ismount(mount.point)


def test_a_mount_that_has_ended_is_not_ready(fuse_source: Path) -> None:
    """What answers at its place then is the directory below."""
    wrapper = (*traced("read", "error=ECONNABORTED:when=2"), "-P", "/dev/fuse")
    options = ["--nosplice", "--max-threads=1"]
    result = run([*wrapper, str(PROGRAM), *options, str(fuse_source), str(fuse_source.with_name("mount"))])
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith("userblk-passthrough: ended before it was ready\n")


def test_killed_daemon_leaves_errors_and_a_clean_unmount(fuse: Mount) -> None:
    path = fuse.point / "file"
    path.write_text("text")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fuse.process.kill()
        fuse.process.wait(STOP_TIMEOUT_S)
        with pytest.raises(OSError) as caught:
            os.stat(path)
        # The first request may still be cancelled in a dying ring.
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED)
        wait_until("ENOTCONN", lambda: stat_errno(fuse.point / "other") == errno.ENOTCONN)
    finally:
        with suppress(OSError):  # close(2) asks the daemon
            os.close(descriptor)
    unmount(fuse.point)
    assert not os.path.ismount(fuse.point)


@pytest.fixture
def needs_rings() -> None:
    reason = lacking_for_mode("io-uring")
    if reason:
        pytest.skip(reason)


def test_a_daemon_killed_while_it_asks_its_mount_leaves_nobody(needs_rings: None, fuse_source: Path) -> None:
    """The process that asks must not have a copy of the rings, which are not ready yet: it would wait for itself."""
    point = fuse_source.with_name("mount")
    wrapper = traced("io_uring_enter", "delay_enter=3000000")
    argv = [*wrapper, str(PROGRAM), "--foreground", "--io-uring", str(fuse_source), str(point)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            tasks = Path(f"/proc/{daemon.pid}/task")

            def children() -> list[str]:
                return [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]

            def asks() -> bool:
                places = [place for pid in children() for _, place in threads(int(pid))]
                return any(place.startswith("fuse_") or place == "request_wait_answer" for place in places)

            wait_until("it asks", asks, process=daemon)
            (asker,) = children()
        finally:
            daemon.kill()
    try:
        wait_until("nobody asks", lambda: not Path("/proc", asker).exists(), 20.0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(asker), signal.SIGKILL)
        run(["umount", "--lazy", str(point)])


def test_killed_daemon_does_not_wait_for_itself(fuse_source: Path, fuse_start: FuseStart) -> None:
    """As it did when it had the kernel write its cache before it searched for data."""
    mount = fuse_start("--max-threads=2")
    abort = Path(f"/sys/fs/fuse/connections/{os.minor(mount.point.stat().st_dev)}/abort")
    script = (
        "import os, sys\n"
        "file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "os.ftruncate(file, 1 << 20)\n"
        "os.pwrite(file, b'x' * 4096, 65536)\n"
        "print(flush=True)\n"
        "sys.stdin.readline()\n"
        "try: os.lseek(file, 0, os.SEEK_DATA)\n"
        "except OSError: os.fsync(file)\n"
    )
    argv = [sys.executable, "-c", script, str(mount.point / "file")]
    searcher = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert searcher.stdin is not None and searcher.stdout is not None
    assert searcher.stdout.readline() == b"\n"
    try:
        with frozen(fuse_source):
            searcher.stdin.write(b"\n")
            searcher.stdin.flush()
            wait_until("the cache is being written", lambda: threads_that_wait(mount.process.pid))
            mount.process.kill()
        mount.process.wait(STOP_TIMEOUT_S)
        assert searcher.wait(STOP_TIMEOUT_S) == 1
        assert "\nConnectionAbortedError: " in searcher.communicate()[1].decode()
        assert stat_errno(mount.point / "other") == errno.ENOTCONN
    except subprocess.TimeoutExpired:
        if abort.exists():  # nothing else ends a daemon that waits for itself
            abort.write_text("1")
        raise
    finally:
        searcher.kill()


def test_rings_can_be_filled(needs_rings: None, fuse_start: FuseStart) -> None:
    """With requests that nobody waits for, too: the kernel holds back all but 12 of them by default."""
    mount = fuse_start("--io-uring")
    connections = Path("/sys/fs/fuse/connections")
    mounted = not os.path.ismount(connections)
    if mounted:
        checked(["mount", "-t", "fusectl", "fusectl", str(connections)])
    try:
        limit = connections / str(os.minor(mount.point.stat().st_dev)) / "max_background"
        assert int(limit.read_text()) >= 16 * (os.cpu_count() or 1)
    finally:
        if mounted:
            checked(["umount", str(connections)])
