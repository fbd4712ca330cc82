# SPDX-License-Identifier: BSD-3-Clause
"""The FUSE file system, and a device as a file, on the guest's own kernel, with Debian's own libfuse."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fuse_mount import stat_errno
from guest import BUILD, LIMIT, RELEASE, Up, run
from userblk.harness.model.config import load_system
from waiting import wait_until

PROGRAM = Path(BUILD, "fuse-passthrough/userblk-passthrough").resolve()
MODES = {"default": (), "nocache": ("--nocache",), "passthrough": ("--passthrough",)}

Start = Callable[..., tuple[subprocess.Popen[str], dict[str, str]]]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A directory on an ext4 of the emulated NVMe disk."""
    disk, point = os.environ["LAB_NVME"], tmp_path / "ext4"
    point.mkdir()
    run(["mkfs.ext4", "-q", "-F", disk])
    run(["mount", disk, point])
    try:
        (point / "source").mkdir()
        yield point / "source"
    finally:
        run(["umount", point])
    run(["fsck.ext4", "-f", "-n", disk])


@pytest.fixture
def start(source: Path, mountpoint: Path) -> Iterator[Start]:
    """start(OPTION...): mounts source at mountpoint; the process, and what its status line says."""
    run(["modprobe", "fuse"])
    processes: list[subprocess.Popen[str]] = []

    def begin(*options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
        argv = [str(PROGRAM), "--foreground", "-o", "allow_other", *options, str(source), str(mountpoint)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        processes.append(process)
        assert process.stdout
        line = process.stdout.readline()
        if RELEASE == "bullseye" and "was built with libfuse" in line:
            pytest.skip(f"libfuse: {line.strip()}")
        words = line.split()
        assert words[:2] == ["userblk-passthrough:", "ready"], words
        assert run(["findmnt", "-no", "FSTYPE", mountpoint]).strip() == "fuse.userblk-passthrough"
        return process, dict(word.split("=", 1) for word in words[2:])

    yield begin
    for process in processes:
        process.kill()
        process.wait(LIMIT)
        if mountpoint.is_mount():
            run(["umount", "--lazy", mountpoint])


def unmount(process: subprocess.Popen[str], mountpoint: Path) -> None:
    run(["umount", mountpoint])
    assert process.wait(LIMIT) == 0
    assert process.stdout and process.stdout.read() == "", "it complained"


def check_data(process: subprocess.Popen[str], source: Path, mountpoint: Path) -> None:
    """Verified above; the same below, after the unmount."""
    for direct in (0, 1):
        run(
            ["fio", "--name=verify", f"--directory={mountpoint}", "--size=1M", "--rw=randwrite", "--bs=4k",
             f"--direct={direct}", "--ioengine=psync", "--numjobs=2", "--thread", "--verify=crc32c",
             "--verify_fatal=1", "--verify_state_save=0"]
        )  # fmt: skip
    names = sorted(os.listdir(mountpoint))
    assert names == ["verify.0.0", "verify.1.0"]
    above = [(mountpoint / name).read_bytes() for name in names]
    unmount(process, mountpoint)
    assert [(source / name).read_bytes() for name in names] == above


@pytest.mark.parametrize("mode", MODES)
def test_status_verified_data_and_clean_unmount(mode: str, start: Start, source: Path, mountpoint: Path) -> None:
    process, status = start(*MODES[mode])
    version = run(["pkg-config", "--modversion", "fuse3"]).strip()
    assert status["libfuse"] == version
    assert status["passthrough"] == ("on" if mode == "passthrough" else "off")
    assert status["writeback"] == ("on" if mode == "default" else "off")
    assert (status["io-uring"], status["handles"], status["ownership"]) == ("off", "on", "caller")
    check_data(process, source, mountpoint)


def test_io_uring_is_granted_or_refused_by_the_kernel(start: Start, source: Path, mountpoint: Path) -> None:
    """It says which; data is right either way."""
    switch = Path("/sys/module/fuse/parameters/enable_uring")
    if switch.exists():  # since Linux 6.14, and off
        switch.write_text("Y")
    process, status = start("--io-uring")
    assert status["io-uring"] == ("on" if switch.exists() else "refused")
    check_data(process, source, mountpoint)


def stuck() -> list[str]:
    """Threads in uninterruptible sleep."""
    found = []
    for path in Path("/proc").glob("[0-9]*/task/*"):
        with suppress(OSError):
            if (path / "stat").read_text().rpartition(")")[2].split()[0] == "D":
                found.append(f"{path.name} {(path / 'comm').read_text().strip()}")
    return found


@pytest.mark.parametrize("mode", MODES)
def test_killed_daemon(mode: str, start: Start, mountpoint: Path) -> None:
    """New requests get ENOTCONN, those under way an error and no hang, and the unmount is clean."""
    process, _ = start(*MODES[mode])
    load = subprocess.Popen(
        ["fio", "--name=load", f"--directory={mountpoint}", "--size=1M", "--rw=randrw", "--bs=4k", "--ioengine=psync",
         "--fsync=8", "--numjobs=4", "--thread", "--time_based", "--runtime=100"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_until("fio has made its files", lambda: len(os.listdir(mountpoint)) >= 4, LIMIT, process=load)
        process.kill()
        process.wait(LIMIT)
        wait_until("ENOTCONN", lambda: stat_errno(mountpoint / "new") == errno.ENOTCONN, LIMIT)
        if mode != "passthrough":  # open files are the kernel's own there, until they are closed
            output, _ = load.communicate(timeout=LIMIT)
            assert load.returncode != 0, output
    finally:
        load.kill()
        load.wait(LIMIT)
    run(["umount", mountpoint])
    assert not mountpoint.is_mount()
    wait_until("no process hangs", lambda: not stuck(), LIMIT, log=lambda: str(stuck()))


def test_a_null_device_as_a_file(up: Up) -> None:
    """As suite buse-null measures it: what it needs was granted."""
    if RELEASE == "bullseye":
        pytest.skip("libfuse: userblk-fuse-disk needs 3.12")
    with up(load_system("fuse-null")) as running:
        assert running.problems() == []
        for mode in ("read", "write"):
            run(
                ["fio", "--name=null", f"--filename={running.target}", f"--rw={mode}", "--bs=64k", "--direct=1",
                 "--ioengine=io_uring", "--iodepth=16", "--numjobs=2", "--thread", "--allow_file_create=0",
                 "--number_ios=200", "--end_fsync=1"]
            )  # fmt: skip
        os.kill(running.server, signal.SIGKILL)
        wait_until("ENOTCONN", lambda: stat_errno(Path(running.target)) == errno.ENOTCONN, LIMIT)


def test_only_who_may_changes_inode_flags(start: Start, source: Path, mountpoint: Path) -> None:
    """Linux before 5.13 asks nobody."""
    start()
    path = mountpoint / "file"
    path.touch()

    def chattr(uid: int, flag: str) -> str:
        # In the directory, to which others find no way.
        argv = ["setpriv", f"--reuid={uid}", "--clear-groups", "chattr", flag, "file"]
        subprocess.run(argv, cwd=mountpoint, stderr=subprocess.DEVNULL, timeout=LIMIT, check=False)
        return run(["lsattr", source / "file"]).split()[0]

    for flag in ("+d", "+i", "+a"):
        assert flag[1] not in chattr(1000, flag), "of somebody else's file"
    os.chown(path, 1000, 1000)
    assert "i" not in chattr(1000, "+i"), "which only root may"
    assert "d" in chattr(1000, "+d")
    assert "i" in chattr(0, "+i")
    chattr(0, "-i")


def test_what_is_appended_beside_an_earlier_writer_is_kept(start: Start, source: Path, mountpoint: Path) -> None:
    """Before Linux 6.6, a write past the cache leaves a page there, which is stored over it later."""
    start()
    with (mountpoint / "log").open("ab", buffering=0) as first:
        run(["chattr", "+a", mountpoint / "log"])
        first.write(b"one\n")
        with (mountpoint / "log").open("ab", buffering=0) as late:
            late.write(b"two\n")
        assert (mountpoint / "log").read_bytes() == b"one\ntwo\n"
    run(["chattr", "-a", source / "log"])
    assert (source / "log").read_bytes() == b"one\ntwo\n"
