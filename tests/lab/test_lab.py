# SPDX-License-Identifier: BSD-3-Clause
"""lab/run from the host: real boots, what comes out of them and what they leave behind."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
RUN = str(CHECKOUT / "lab/run")

LIMIT = 900.0  # s for one guest; the machine may be busy
STREAM = 10 << 20

pytestmark = pytest.mark.skipif(
    not shutil.which("qemu-system-x86_64"), reason="no QEMU; run: apt-get install qemu-system-x86"
)

# What the guest does in the one long boot. It speaks with the host through /results.
SCRIPT = r"""
echo first
echo "arguments: $#|$1|$2|$3" >&2
until [ -e /results/go ]; do sleep 0.1; done
{
    nproc
    sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo
    cat /sys/block/${LAB_SATA#/dev/}/queue/rotational /sys/block/${LAB_NVME#/dev/}/queue/rotational
    blockdev --getsize64 "$LAB_SATA" "$LAB_NVME"
    for module in nbd target_core_user tcm_loop ublk_drv null_blk brd fuse; do
        modprobe $module && echo "$module loads"
    done
    touch /userblk/written 2>&1 || echo "the checkout is read-only"
} >/results/facts
for disk in "$LAB_SATA" "$LAB_NVME"; do
    dd if=/dev/urandom of="$disk" bs=1M count=32 oflag=direct status=none || exit 1
done
mv /results/facts /results/written
until [ -e /results/discard ]; do sleep 0.1; done
for disk in "$LAB_SATA" "$LAB_NVME"; do blkdiscard "$disk" || exit 1; done
touch /results/discarded
until [ -e /results/finish ]; do sleep 0.1; done
head -c 10485760 /dev/urandom >/tmp/stream
sha256sum </tmp/stream >/results/sum
cat /tmp/stream
cat /tmp/stream >/results/copy
exit 37
"""


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return []
    return [n for child in map(int, children) for n in (child, *descendants(child))]


def qemu_of(process: subprocess.Popen[bytes]) -> int:
    """The QEMU that lab/run has started."""

    found: list[int] = []

    def find() -> list[int]:
        for pid in descendants(process.pid):
            with suppress(OSError):  # it has ended
                if Path(f"/proc/{pid}/comm").read_text().startswith("qemu-system"):
                    found.append(pid)
        return found

    wait_until("lab/run starts QEMU", find, LIMIT, process=process)
    return found[0]


def gone(pid: int) -> bool:
    """Ended, whether or not somebody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def lab(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([RUN, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def disk_blocks(qemu: int) -> list[int]:
    """Bytes that the two disks' nameless files occupy."""
    found: dict[int, int] = {}
    for link in Path(f"/proc/{qemu}/fd").iterdir():
        with suppress(FileNotFoundError):  # one that was open for a moment, for the guest
            if "/#" in os.readlink(link) and "(deleted)" in os.readlink(link):
                status = link.stat()
                if status.st_size == 64 << 20:
                    found[status.st_ino] = status.st_blocks * 512
    return sorted(found.values())


def test_one_guest_from_boot_to_exit_code(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(SCRIPT)
    options = ["--share", str(tmp_path), "--memory", "1024", "--cpus", "1", "--disk-size", "64M"]
    words = ["a b", 'it\'s "so" $HOME *', ""]
    with lab(*options, "--timeout", f"{LIMIT:.0f}", "--", "sh", "/results/script", *words) as process:
        assert process.stdout and process.stderr
        # Live: the guest waits for us, so that its first words come before its end.
        assert process.stdout.readline() == b"first\n"
        line = process.stderr.readline()
        while line.startswith(b"lab"):  # a boot that died and was repeated
            line = process.stderr.readline()
        assert line == b'arguments: 3|a b|it\'s "so" $HOME *|\n'
        (tmp_path / "go").touch()

        qemu = qemu_of(process)
        wait_until("the guest writes its facts", (tmp_path / "written").exists, LIMIT)
        facts = (tmp_path / "written").read_text().splitlines()
        assert facts[0] == "1", "CPUs"
        assert 800 << 10 < int(facts[1]) <= 1024 << 10, "memory"
        assert facts[2:4] == ["0", "0"], "the disks rotate"
        assert facts[4:6] == [str(64 << 20)] * 2, "size of the disks"
        loaded = ["nbd", "target_core_user", "tcm_loop", "ublk_drv", "null_blk", "brd", "fuse"]
        assert [f"{name} loads" for name in loaded] == facts[6:13]
        assert facts[-1] == "the checkout is read-only"

        assert [size >= 32 << 20 for size in disk_blocks(qemu)] == [True, True]
        (tmp_path / "discard").touch()
        wait_until("blkdiscard ends", (tmp_path / "discarded").exists, LIMIT)
        assert [size < 1 << 20 for size in disk_blocks(qemu)] == [True, True], "discard frees the host's memory"

        (tmp_path / "finish").touch()
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 37, err
        assert err == b""
        digest = (tmp_path / "sum").read_text().split()[0]
        assert len(out) == STREAM and hashlib.sha256(out).hexdigest() == digest
        copy = (tmp_path / "copy").read_bytes()
        assert len(copy) == STREAM and hashlib.sha256(copy).hexdigest() == digest
        assert gone(qemu)


def test_files_of_the_users_own(tmp_path: Path) -> None:
    """Built against the root file system, set up in the guest before the command, which is not run if that fails."""
    build, setup = tmp_path / "build", tmp_path / "setup"
    build.write_text("#!/bin/sh\n. /etc/os-release\necho $VERSION_CODENAME >/extra/codename\n")
    setup.write_text("#!/bin/sh\nset -e\necho setting up\ninstall -D /extra/codename /opt/own/codename\n")
    for program in (build, setup):
        program.chmod(0o755)
    make = [str(CHECKOUT / "lab/make-in-root"), "--extra", str(tmp_path), "help"]
    subprocess.run(make, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT)
    with lab("--extra", str(tmp_path), "--", "sh", "-c", "cat /opt/own/codename; touch /extra/x") as process:
        out, err = process.communicate(timeout=LIMIT)
    assert out == b"trixie\n" and process.returncode == 1
    assert b"setting up" in err and b"Read-only file system" in err
    (tmp_path / "codename").unlink()
    with lab("--extra", str(tmp_path), "--", "echo", "run") as process:
        out, err = process.communicate(timeout=LIMIT)
    assert out == b"" and process.returncode == 2 and b"lab: /extra/setup failed, code 1\n" in err


def test_a_hang_and_a_panic_in_two_guests_at_once(tmp_path: Path) -> None:
    disks = ("--disk-dir", str(tmp_path), "--disk-size", "64M")
    crash = "echo before the crash; sleep 1; echo c >/proc/sysrq-trigger"
    with (
        lab(*disks, "--timeout", "3", "--", "sleep", "1000") as hung,
        lab(*disks, "--", "sh", "-c", crash) as crashed,
    ):
        pids = [qemu_of(hung), qemu_of(crashed)]
        out, err = crashed.communicate(timeout=LIMIT)
        assert crashed.returncode == 125 and out == b"before the crash\n"
        lines = err.decode().splitlines()
        assert "the guest died before the command ended; console log: " in lines[-1]
        assert any("Kernel panic - not syncing: sysrq triggered crash" in line for line in lines), err.decode()

        _, err_hung = hung.communicate(timeout=LIMIT)
        assert hung.returncode == 124
        last = err_hung.decode().splitlines()[-1]
        assert "the command did not end within 3 s; console log: " in last
        assert all(map(gone, pids))
    logs = {Path(line.rsplit("console log: ", 1)[1]) for line in (lines[-1], last)}
    for path in logs:
        path.unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_guest_ends_with_lab_run(number: signal.Signals, tmp_path: Path) -> None:
    with lab("--disk-dir", str(tmp_path), "--", "sleep", "1000") as process:
        qemu = qemu_of(process)
        process.send_signal(number)
        process.communicate(timeout=LIMIT)
        assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
        wait_until("QEMU ends", lambda: gone(qemu), LIMIT)
    assert list(tmp_path.iterdir()) == []
    assert not (CHECKOUT / f"build/lab/console-{process.pid}.log").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--foo"], "unrecognized arguments: --foo"),
        ([], "COMMAND is missing"),
        (["--memory", "64", "true"], "--memory=64: must be at least 512 (MiB)"),
        (["--cpus", "0", "true"], "--cpus=0: must be at least 1"),
        (["--share", "/nowhere", "true"], "--share: /nowhere: not a directory"),
        (["--extra", "/nowhere", "true"], "--extra: /nowhere: not a directory"),
        (["--release", "buster", "true"], "--release: invalid choice: 'buster'"),
        (["--disk-size", "5x", "true"], "--disk-size: 5x: must be at least 1M"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], complaint: str) -> None:
    done = subprocess.run([RUN, *words], capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"lab/run: .*\n", done.stderr) and complaint in done.stderr


def test_missing_programs_are_named_by_package(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, RUN, "true"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=LIMIT
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lab: the lab needs: apt-get install qemu-system-x86\n"
