# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device as a disk of the kernel, over nbd and TCMU: file systems, verified data, a store that goes away."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from guest import BUILD, LIMIT, MIB, address, finish, run, start_verify, store_gone
from guest_tcmu import served as served_by_tcmu
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.machine.teardown import Teardown
from userblk.harness.systems.base import await_up, load_modules, scratch
from userblk.harness.systems.nbdkit import connect_kernel, connected
from waiting import wait_until

SIZE = 512 * MIB
KINDS = ("nbd", "tcmu")
FSX = Path("build/deps/bin/fsx").absolute()
FSX_OPERATIONS = 2000
GONE_S = 45  # more than the 30 s after which the kernel by itself gives a request up
PATIENCE_S = 86400  # of clients that have to wait

# What the guide tells users to give nbd-client.
(_line,) = re.findall(r"nbd-client -unix \S+ /dev/nbd0 (-b 4096 .*)", Path("docs/s3.md").read_text())
OPTIONS: list[str] = _line.split()
_marks = itertools.count()

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def serve(tmp_path: Path, s3_volume: list[str]) -> Serve:
    """serve(kind, volume="v", through_proxy=False, options=OPTIONS): the disk, of a volume made by its first server."""
    made: set[str] = set()

    @contextmanager
    def enter(
        kind: str, volume: str = "v", through_proxy: bool = False, options: Sequence[str] = OPTIONS
    ) -> Iterator[str]:
        lines = [*s3_volume, f"prefix={volume}", "gc-delay=5"]
        if through_proxy:
            lines = [line for line in lines if not line.startswith("endpoint=")]
            lines.append(f"endpoint=http://{address('LAB_PROXY')}")
        if volume not in made:
            lines += ["create=on", f"size={SIZE}"]
        made.add(volume)
        config = tmp_path / f"{volume}.conf"
        config.write_text("".join(f"{line}\n" for line in lines))
        if kind == "tcmu":
            with served_by_tcmu(config, SIZE, timeout_s=PATIENCE_S) as (_, disk):
                yield disk
        else:
            with served_by_nbdkit(config, tmp_path / f"{volume}.commands", options) as disk:
                yield disk

    return enter


@contextmanager
def served_by_nbdkit(config: Path, records: Path, options: Sequence[str]) -> Iterator[str]:
    recorder, teardown = Recorder(records), Teardown()
    try:
        load_modules(("nbd",), teardown)
        directory = scratch(teardown)
        socket, ready = directory / "s", directory / "pid"
        argv = ["nbdkit", "-f", "-U", str(socket), "-P", str(ready)]
        server = recorder.spawn([*argv, f"{BUILD}/plugins/s3.so", f"config={config}"], teardown=teardown)
        await_up("nbdkit is not ready", ready.exists, server)
        yield connect_kernel(socket, options, recorder, teardown)
    finally:
        teardown.unwind()


@contextmanager
def mounted(disk: str, mountpoint: Path, *options: str) -> Iterator[None]:
    run(["mount", *options, disk, mountpoint])
    assert mountpoint.is_mount()
    yield
    run(["umount", mountpoint])


def mark_kernel_log() -> str:
    """A line of ours in it; those before it may be dropped at any time."""
    mark = f"userblk: mark {next(_marks)}"
    Path("/dev/kmsg").write_text(f"{mark}\n")
    return mark


def complaints(mark: str) -> list[str]:
    """What the kernel has said since about requests that failed, or connections."""
    return [
        line
        for line in run(["dmesg"]).rpartition(mark)[2].splitlines()
        if re.search(r"error|timed out|timing out|abort|remount", line, re.IGNORECASE)
    ]


@pytest.mark.parametrize(
    ("kind", "tree", "at_least"),
    [
        ("nbd", "include/linux", 500),
        pytest.param("nbd", "include", 3000, marks=pytest.mark.long),
        pytest.param("tcmu", "include", 3000, marks=pytest.mark.long),
    ],
)
def test_a_tree_of_files(serve: Serve, mountpoint: Path, tmp_path: Path, kind: str, tree: str, at_least: int) -> None:
    """mkfs, mount, untar, umount, fsck; and another server shows the same."""
    archive = tmp_path / "tree.tar"
    run(["tar", "-C", "/usr", "-cf", archive, tree])
    assert len(run(["tar", "-tf", archive]).splitlines()) > at_least
    mark = mark_kernel_log()
    with serve(kind) as disk:
        run(["mkfs.ext4", "-qF", disk])
        with mounted(disk, mountpoint):
            run(["tar", "-C", mountpoint, "-xf", archive])
            run(["fstrim", mountpoint])
        run(["e2fsck", "-fn", disk])
    with serve(kind) as disk:
        run(["e2fsck", "-fn", disk])
        with mounted(disk, mountpoint, "-o", "ro"):
            run(["tar", "-C", mountpoint, "--compare", "-f", archive])
    assert complaints(mark) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_verify(serve: Serve, mountpoint: Path, kind: str) -> None:
    """On the disk, with many requests at once, and on a file system, with many flushes."""
    with serve(kind) as disk:
        finish(start_verify(disk, "--bsrange=4k-256k", "--size=96M", "--fdatasync=256", "--iodepth=32"))
        run(["mkfs.ext4", "-qF", disk])
        with mounted(disk, mountpoint):
            run(
                ["fio", "--name=verify", f"--directory={mountpoint}", "--size=16M", "--rw=randwrite",
                 "--bsrange=1k-64k", "--ioengine=psync", "--numjobs=4", "--thread", "--fsync=32", "--verify=crc32c",
                 "--verify_fatal=1"]
            )  # fmt: skip
        run(["e2fsck", "-fn", disk])


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_fsx(serve: Serve, mountpoint: Path, tmp_path: Path, kind: str) -> None:
    assert FSX.exists(), "run: make fs-suites"
    with serve(kind) as disk:
        run(["mkfs.ext4", "-qF", disk])
        with mounted(disk, mountpoint):
            options = ["-f", "tests/fsx.toml", "-N", str(FSX_OPERATIONS), "-S", "20261121", "-P", str(tmp_path)]
            run([FSX, *options, mountpoint / "file"])
        run(["e2fsck", "-fn", disk])


@pytest.mark.long
@pytest.mark.parametrize("what", ["outage", "silence"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_store_goes_and_comes(serve: Serve, mountpoint: Path, kind: str, what: str) -> None:
    """Requests wait; no connection is given up, nobody gets an error, and the file system goes on."""
    mark = mark_kernel_log()
    with serve(kind, through_proxy=True) as disk:
        run(["mkfs.ext4", "-qF", disk])
        with mounted(disk, mountpoint):
            load = start_load(mountpoint)
            try:
                with store_gone(what, GONE_S):
                    time.sleep(GONE_S - 5)
                    assert load.poll() is None, "it waits for no flush"
                finish(load)
            finally:
                load.kill()
            (mountpoint / "file").write_text("written afterwards")
        run(["e2fsck", "-fn", disk])
    assert complaints(mark) == []


def start_load(directory: Path) -> subprocess.Popen[str]:
    """fio that writes a file with many flushes and verifies it, once it has begun."""
    load = subprocess.Popen(
        ["fio", "--name=verify", f"--directory={directory}", "--size=8M", "--rw=randwrite", "--bsrange=4k-64k",
         "--rate_iops=100", "--ioengine=psync", "--fsync=8", "--verify=crc32c", "--verify_fatal=1"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until(
        "fio writes", lambda: any(path.stat().st_blocks for path in directory.glob("verify*")), LIMIT, process=load
    )
    return load


@pytest.mark.long
def test_a_timeout_must_be_given(serve: Serve) -> None:
    """Without, the kernel's client gives up those of several connections that are slow, and sends again."""
    where = OPTIONS.index("-timeout")
    without = OPTIONS[:where] + OPTIONS[where + 2 :]
    with ExitStack() as stack:
        good = stack.enter_context(serve("nbd", "good", through_proxy=True))
        bad = stack.enter_context(serve("nbd", "bad", through_proxy=True, options=without))
        mark = mark_kernel_log()
        loads = [start_verify(disk, "--bsrange=64k-64k", "--size=32M", "--fdatasync=8") for disk in (good, bad)]
        try:
            with store_gone("outage", GONE_S):
                time.sleep(GONE_S - 5)
            finish(loads[0])
        finally:
            for load in loads:
                load.send_signal(signal.SIGINT)
                load.wait(LIMIT)
        assert connected(good)
        reported = complaints(mark)
        assert any(f"{Path(bad).name}:" in line and "timed out" in line for line in reported), reported
        assert not any(f"{Path(good).name}:" in line for line in reported), reported
