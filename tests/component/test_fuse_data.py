# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: what is read is what was written, however it was written."""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import queue
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from fuse_mount import (
    MODES,
    PROGRAM,
    Mount,
    aligned,
    direct,
    lacking_for_mode,
    pattern,
    sought,
    start,
    traced,
)
from fuse_mount import (
    threads as threads_of,
)
from fuse_sources import on_image, over
from nbdkit_server import RUN_TIMEOUT_S, STOP_TIMEOUT_S, checked, run
from waiting import stop, wait_until

FuseStart = Callable[..., Mount]
MIB = 1 << 20
FIEMAP, EXTENT_DELALLOC = 0xC020660B, 4


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3 * MIB + 17])
def test_written_is_read(size: int, fuse: Mount) -> None:
    data = pattern(size)
    (fuse.point / "file").write_bytes(data)
    assert (fuse.point / "file").read_bytes() == data
    run(["sync", "-f", str(fuse.point)])
    assert (fuse.source / "file").read_bytes() == data
    (fuse.source / "other").write_bytes(data)
    assert (fuse.point / "other").read_bytes() == data


def test_write_only_file_can_be_written_in_part(fuse: Mount) -> None:
    path = fuse.point / "file"
    (fuse.source / "file").write_bytes(b"a" * 10000)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, b"bcd", 5000)
        with pytest.raises(OSError) as caught:
            os.pread(descriptor, 1, 0)
        assert caught.value.errno == errno.EBADF
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"a" * 5000 + b"bcd" + b"a" * 4997


@pytest.mark.parametrize("option", ["--no-writeback", "--passthrough"])
def test_a_close_waits_for_nobody(option: str, fuse_start: FuseStart) -> None:
    """As on ext4: a process with the file open can start another one, which closes its copy, while writes stall."""
    if reason := lacking_for_mode(option.removeprefix("--")):
        pytest.skip(reason)
    mount = fuse_start(option)
    descriptor = os.open(mount.point / "file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"text")
    closer = threading.Thread(target=os.close, args=(descriptor,), daemon=True)
    stop(mount.process.pid)
    try:
        closer.start()
        closer.join(5)
        waits = closer.is_alive()
    finally:
        mount.process.send_signal(signal.SIGCONT)
        closer.join(RUN_TIMEOUT_S)
    assert not waits
    assert (mount.source / "file").read_bytes() == b"text"


def page_faults(mount: Mount) -> int:
    fields = Path(f"/proc/{mount.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[7])


def test_memory_for_copies_is_not_new_for_each_write(fuse_start: FuseStart) -> None:
    """Durable writes go through a copy. New memory for each would fault in each of its pages."""
    if "tsan" in PROGRAM.parent.parent.name:
        pytest.skip("sanitizer: TSan's own memory for each access is new")
    count, pages = 200, 32
    mount = fuse_start("--nosplice", "--no-writeback")
    data = pattern(pages * 4096)
    descriptor = os.open(mount.point / "file", os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    try:
        before = page_faults(mount)
        for _ in range(count):
            assert os.pwrite(descriptor, data, 0) == len(data)
        assert page_faults(mount) - before < count * pages / 4
    finally:
        os.close(descriptor)
    assert (mount.source / "file").read_bytes() == data


def test_mapped_and_written_data_agree(fuse: Mount) -> None:
    path = fuse.point / "file"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        mapped[100:104] = b"maps"
        assert os.pread(file.fileno(), 4, 100) == b"maps"
        os.pwrite(file.fileno(), b"write", 5000)
        assert mapped[5000:5005] == b"write"
        mapped.flush()
    run(["sync", "-f", str(path)])
    below = (fuse.source / "file").read_bytes()
    assert (below[100:104], below[5000:5005], len(below)) == (b"maps", b"write", 8192)


@pytest.mark.parametrize("size", [512, 4096, 65536, MIB])
def test_direct_io(size: int, fuse: Mount) -> None:
    data = pattern(size)
    descriptor = direct(fuse.point / "file", os.O_CREAT)
    try:
        with aligned(data) as memory:
            assert os.pwritev(descriptor, [memory], 8192) == size
        assert (fuse.source / "file").read_bytes()[8192:] == data
        with aligned(bytes(size)) as memory:
            assert os.preadv(descriptor, [memory], 8192) == size
            assert memory[:] == data
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(("options", "call"), [(["--nosplice"], "munmap"), ([], "pipe2")])
def test_reads_share_what_they_need(options: list[str], call: str, tmp_path: Path, fuse_start: FuseStart) -> None:
    """
    A mapping that is made and taken down costs more than the copy of 128 KiB, and so does an unused pipe: libfuse
    wants one that holds the largest request, which takes CAP_SYS_RESOURCE where that is above pipe-max-size.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    strace = ("strace", "-f", "-o", str(trace), "-e", f"trace={call}", "-e", "signal=none")
    mount = fuse_start(*options, wrapper=("env", "ASAN_OPTIONS=detect_leaks=0", *strace))  # which cannot work below it
    size, count = 128 << 10, 64
    (mount.source / "file").write_bytes(pattern(size * count))
    descriptor = direct(mount.point / "file")
    try:
        before = trace.read_text().count(f"{call}(")
        with aligned(bytes(size)) as memory:
            for number in range(count):
                assert os.preadv(descriptor, [memory], number * size) == size
                assert memory[:] == pattern(size * count)[number * size :][:size]
    finally:
        os.close(descriptor)
    assert trace.read_text().count(f"{call}(") - before < count / 4


def test_direct_io_that_is_not_aligned_fails_as_below(fuse: Mount) -> None:
    (fuse.source / "file").write_bytes(bytes(8192))
    results = []
    for top in (fuse.point, fuse.source):
        descriptor = direct(top / "file")
        try:
            with aligned(b"x" * 100) as memory:
                results.append(os.pwritev(descriptor, [memory], 10))
        except OSError as error:
            results.append(-(error.errno or 0))
        finally:
            os.close(descriptor)
    assert results == [-errno.EINVAL, -errno.EINVAL]


def test_cached_tail_is_written_although_the_file_is_open_for_direct_io(fuse: Mount) -> None:
    """The kernel writes back through any open file: also through a direct one."""
    path = fuse.point / "file"
    path.write_bytes(b"a" * 4096)
    descriptor = direct(path)
    try:
        with path.open("ab") as file:
            file.write(b"tail of odd length")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    assert (fuse.source / "file").read_bytes() == b"a" * 4096 + b"tail of odd length"


def test_a_direct_read_of_a_hole_is_not_the_end(fuse: Mount) -> None:
    """The source ends there as long as what follows is in the kernel's cache."""
    path = fuse.point / "file"
    with path.open("w+b", buffering=0) as writer, aligned(bytes(4096)) as memory:
        assert os.pwrite(writer.fileno(), b"x" * 4096, MIB) == 4096
        reader = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            assert os.preadv(reader, [memory], 8192) == 4096 and memory[:] == bytes(4096)
            assert os.preadv(reader, [memory], MIB) == 4096 and memory[:] == b"x" * 4096
        finally:
            os.close(reader)


def test_direct_flag_can_be_turned_off(fuse: Mount) -> None:
    if fuse.status["passthrough"] == "on":
        pytest.skip("kernel: passthrough keeps the flags of open(2)")
    descriptor = direct(fuse.point / "file", os.O_CREAT)
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        assert os.pwrite(descriptor, b"not aligned", 3) == 11
        assert os.pread(descriptor, 11, 3) == b"not aligned"
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    assert (fuse.source / "file").read_bytes() == b"\0\0\0not aligned"


def test_data_and_holes(fuse: Mount) -> None:
    path = fuse.point / "file"
    with path.open("wb", buffering=0) as file:
        file.truncate(4 * MIB)
        os.pwrite(file.fileno(), b"x" * 8192, MIB)
    with path.open("rb") as file:
        descriptor = file.fileno()
        # The daemon learns of the last close(2) a little later.
        wait_until("nobody writes", lambda: sought(descriptor, 0, os.SEEK_DATA) != -errno.EINVAL)
        assert sought(descriptor, 0, os.SEEK_DATA) == MIB
        assert sought(descriptor, MIB, os.SEEK_HOLE) == MIB + 8192
        assert sought(descriptor, 2 * MIB, os.SEEK_DATA) == -errno.ENXIO
        assert sought(descriptor, 2 * MIB, os.SEEK_HOLE) == 2 * MIB
        with path.open("ab"):
            expected = -errno.EINVAL if fuse.status["writeback"] == "on" else MIB
            assert sought(descriptor, 0, os.SEEK_DATA) == expected


def test_new_data_is_never_a_hole(fuse: Mount) -> None:
    """Although it is still in the kernel's cache, by write(2) or in a mapping."""
    path = fuse.point / "from"
    with path.open("w+b", buffering=0) as file:
        file.truncate(4 * MIB)
        os.pwrite(file.fileno(), b"written", MIB)
        with mmap.mmap(file.fileno(), 4 * MIB) as mapped:
            file.close()  # the mapping goes on
            mapped[2 * MIB : 2 * MIB + 6] = b"mapped"
            with path.open("rb") as again:
                assert sought(again.fileno(), 0, os.SEEK_DATA) in (MIB, -errno.EINVAL)
                assert sought(again.fileno(), MIB + MIB // 2, os.SEEK_DATA) in (2 * MIB, -errno.EINVAL)
            checked(["cp", "--sparse=auto", str(path), str(fuse.point / "to")])
    copied = (fuse.point / "to").read_bytes()
    assert (copied[MIB : MIB + 7], copied[2 * MIB : 2 * MIB + 6]) == (b"written", b"mapped")
    assert len(copied) == 4 * MIB


def test_sparse_copy(fuse: Mount) -> None:
    with (fuse.point / "from").open("w+b") as file:
        os.ftruncate(file.fileno(), 16 * MIB)
        os.pwrite(file.fileno(), b"data", 5 * MIB)
    checked(["cp", "--sparse=auto", str(fuse.point / "from"), str(fuse.point / "to")])
    checked(["cmp", str(fuse.point / "from"), str(fuse.point / "to")])
    run(["sync", "-f", str(fuse.point)])
    assert (fuse.source / "to").stat().st_blocks * 512 < MIB


def test_copy_file_range(fuse: Mount) -> None:
    data = pattern(3 * MIB + 5)
    (fuse.point / "from").write_bytes(data)
    with (fuse.point / "from").open("rb") as source, (fuse.point / "to").open("wb") as target:
        left = len(data)
        while left:
            left -= os.copy_file_range(source.fileno(), target.fileno(), left)
    assert (fuse.point / "to").read_bytes() == data


@pytest.mark.parametrize("mode", ["passthrough", "io-uring+passthrough"])
def test_sendfile_from_a_file_that_is_open_to_append(mode: str, fuse_start: FuseStart) -> None:
    """Not with old data, by a descriptor that appends nothing."""
    if reason := lacking_for_mode(mode):
        pytest.skip(reason)
    mount = fuse_start(*MODES[mode])
    (mount.point / "file").write_bytes(b"old" * 1000)
    writer = os.open(mount.point / "file", os.O_RDWR)
    reader = os.open(mount.point / "file", os.O_RDONLY | os.O_APPEND)
    sent = os.memfd_create("sent")
    try:
        for data in (b"old" * 1000, b"new" * 1200):
            os.pwrite(writer, data, 0)
            assert os.sendfile(sent, reader, 0, len(data)) == len(data)
            assert os.pread(sent, len(data), 0) == os.pread(reader, len(data), 0) == data
            os.lseek(sent, 0, os.SEEK_SET)
    finally:
        for descriptor in (writer, reader, sent):
            os.close(descriptor)


def test_a_long_copy_is_many_requests(fuse_default: Mount) -> None:
    """A thread of the daemon, for which others may wait, is not busy with it for seconds."""
    size = 64 * MIB
    data = pattern(size)
    (fuse_default.source / "from").write_bytes(data)
    with (fuse_default.point / "from").open("rb") as source, (fuse_default.point / "to").open("wb") as target:
        assert 0 < os.copy_file_range(source.fileno(), target.fileno(), size) <= 8 * MIB
    checked(["cp", "--reflink=auto", str(fuse_default.point / "from"), str(fuse_default.point / "to")])
    assert (fuse_default.source / "to").read_bytes() == data


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_a_long_copy_of_shared_blocks_is_one_request(kind: str, tmp_path: Path, fuse_source: Path) -> None:
    size = 64 * MIB + 5
    with on_image(kind, tmp_path) as below:
        (below / "from").write_bytes(pattern(size))
        checked(["sync", "-f", str(below)])
        free = os.statvfs(below).f_bavail * os.statvfs(below).f_bsize
        with over(below, fuse_source) as mount:
            with (mount.point / "from").open("rb") as source, (mount.point / "to").open("wb") as target:
                assert os.copy_file_range(source.fileno(), target.fileno(), size) == size
                assert os.copy_file_range(source.fileno(), target.fileno(), 32 * MIB, 0, size + 1) == 8 * MIB
            assert (mount.point / "to").read_bytes() == pattern(size) + b"\0" + pattern(8 * MIB)
        checked(["sync", "-f", str(below)])
        assert free - os.statvfs(below).f_bavail * os.statvfs(below).f_bsize < 16 * MIB


def is_delayed(path: Path) -> bool:
    """Whether its file system has put off where its data, one extent, go on the disk."""
    with path.open("rb") as file:
        answer = fcntl.ioctl(file, FIEMAP, struct.pack("=QQ4I56x", 0, 2**64 - 1, 0, 0, 1, 0))
    (flags,) = struct.unpack_from("=I", answer, 32 + 40)
    return bool(flags & EXTENT_DELALLOC)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["ext4", "btrfs"])
def test_what_replaces_the_data_of_a_file_is_written_at_its_close(
    kind: str, mode: str, tmp_path: Path, fuse_source: Path
) -> None:
    """Without fsync(2), as ext4 and Btrfs do after O_TRUNC, also of a file that was empty by then."""
    if reason := lacking_for_mode(mode):
        pytest.skip(reason)
    source = nullcontext(fuse_source) if kind == "ext4" else on_image(kind, tmp_path)
    with source as below, over(below, fuse_source, *MODES[mode]) as mount:
        (below / "file").write_bytes(b"old" * 3000)
        checked(["sync", "-f", str(below)])
        os.close(os.open(mount.point / "file", os.O_WRONLY | os.O_TRUNC))
        with (mount.point / "file").open("wb") as file:
            file.write(b"new" * 3000)
        # Its file system would do it by itself after half a minute.
        wait_until("the data have their place", lambda: not is_delayed(below / "file"), 10)


def test_truncation_is_seen_by_everybody(fuse: Mount) -> None:
    path = fuse.point / "file"
    path.write_bytes(b"x" * 10000)
    with path.open("rb") as file:
        os.truncate(path, 5000)
        assert len(file.read()) == 5000
        os.truncate(path, 20000)
        assert os.fstat(file.fileno()).st_size == 20000
        assert file.read() == bytes(15000)
    path.open("wb").close()
    assert (fuse.source / "file").stat().st_size == 0


def test_running_program_keeps_its_contents(fuse: Mount) -> None:
    """Each turn used to truncate the file, which killed the program now and then, before ETXTBSY came."""
    program = fuse.point / "program"
    shutil.copy("/bin/sleep", program)
    process = subprocess.Popen([program, "60"])
    try:
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC):
            with pytest.raises(OSError) as caught:
                os.close(os.open(program, flags))
            assert caught.value.errno == errno.ETXTBSY
        assert process.poll() is None
        assert program.read_bytes() == Path("/bin/sleep").read_bytes()
    finally:
        process.kill()
        process.wait()
    os.close(os.open(program, os.O_RDONLY | os.O_TRUNC))  # no process runs it now
    assert (fuse.source / "program").stat().st_size == 0


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_locks_exclude_and_end_with_the_process(kind: str, fuse: Mount) -> None:
    path = fuse.point / "file"
    path.touch()
    script = (
        f"import fcntl, sys\nfile = open(sys.argv[1], 'r+')\nfcntl.{kind}(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\nsys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", script, str(path)]
    lock = getattr(fcntl, kind)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with path.open("r+") as file:
            with pytest.raises(BlockingIOError):
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder.kill()
            holder.wait(STOP_TIMEOUT_S)
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_many_waiting_for_a_lock_do_not_block_the_rest(fuse_start: FuseStart) -> None:
    mount = fuse_start("--max-threads=2")
    path = mount.point / "file"
    path.touch()
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = [subprocess.Popen(["flock", str(path), "true"]) for _ in range(6)]
        try:
            (mount.point / "other").write_text("text")
            assert (mount.point / "other").read_text() == "text"
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
            codes = [process.wait(RUN_TIMEOUT_S) for process in waiting]
    assert codes == [0] * 6


def test_fsync_reaches_the_source(fuse: Mount) -> None:
    with (fuse.point / "file").open("wb", buffering=0) as file:
        file.write(b"data")
        os.fsync(file.fileno())
        assert (fuse.source / "file").read_bytes() == b"data"
        file.write(b" and more")
        os.fdatasync(file.fileno())
        assert (fuse.source / "file").read_bytes() == b"data and more"


def test_waiting_write_does_not_hold_up_its_cpu(fuse_source: Path, fuse_start: FuseStart) -> None:
    """One thread serves all requests of a CPU; it does not wait for the lock of the file below."""
    reason = lacking_for_mode("io-uring")
    if reason:
        pytest.skip(reason)
    mount = fuse_start("--io-uring")
    if mount.status["async-io"] != "on":
        pytest.skip("libfuse: built without custom I/O, it serves io_uring by itself")
    (fuse_source / "file").write_bytes(bytes(4096))
    (fuse_source / "other").write_bytes(b"text")
    below = os.open(fuse_source / "file", os.O_WRONLY | os.O_DIRECT)
    above = os.open(mount.point / "file", os.O_WRONLY | os.O_DIRECT)

    def write(descriptor: int, size: int, offset: int) -> Path:
        """Begins it on the first CPU; returns where its thread says what it waits for."""
        data = mmap.mmap(-1, size)
        begun: queue.Queue[int] = queue.Queue()

        def run() -> None:
            os.sched_setaffinity(0, {0})
            begun.put(threading.get_native_id())
            assert os.pwrite(descriptor, data, offset) == size

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return Path(f"/proc/self/task/{begun.get()}/syscall")

    def still_writes(system_call: Path) -> bool:
        try:
            return system_call.read_text().startswith("18 ")
        except OSError:
            return False  # it has ended

    def served_meanwhile() -> bool:
        os.ftruncate(below, 4096)
        holder = write(below, 256 * MIB, 4096)  # extends the file: it alone has the lock, until all is written
        wait_until("the file is longer or being written", lambda: still_writes(holder) or not threads[-1].is_alive())
        waiter = write(above, 4096, 0)
        time.sleep(0.01)
        os.close(os.open(mount.point / "other", os.O_RDONLY))
        meanwhile = still_writes(waiter)
        while threads:
            threads.pop().join()
        return meanwhile

    threads: list[threading.Thread] = []
    own_cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    try:
        assert any(served_meanwhile() for _ in range(20))
    finally:
        os.sched_setaffinity(0, own_cpus)
        os.close(above)
        os.close(below)


def test_kernel_passthrough_sends_no_data_here(fuse: Mount) -> None:
    """Counted where it happens: in the bytes that the daemon reads and writes."""
    expected = fuse.status["passthrough"] == "off"
    before = daemon_bytes(fuse)
    (fuse.point / "file").write_bytes(bytes(32 * MIB))
    run(["sync", "-f", str(fuse.point)])
    moved = daemon_bytes(fuse) - before
    assert (moved > 16 * MIB) is expected, f"{moved} bytes"


def daemon_bytes(mount: Mount) -> int:
    """write_bytes would count the disk's, wchar the calls', but splice only the former."""
    lines = Path(f"/proc/{mount.process.pid}/io").read_text().splitlines()
    fields = dict(line.split(": ") for line in lines)
    return int(fields["write_bytes"])


@pytest.mark.parametrize("direct_io", [0, 1])
def test_fio_verifies(direct_io: int, fuse: Mount) -> None:
    output = checked(
        [
            "fio",
            "--name=verify",
            f"--directory={fuse.point}",
            "--rw=randrw",
            "--bsrange=4k-64k",
            "--size=8M",
            "--numjobs=2",
            f"--direct={direct_io}",
            "--ioengine=psync",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--randrepeat=1",
            "--verify_state_save=0",
            "--output-format=json",
        ],
    )
    jobs = json.loads(output)["jobs"]
    assert [job["error"] for job in jobs] == [0, 0]
    assert all(job["read"]["total_ios"] > 0 and job["write"]["total_ios"] > 0 for job in jobs)


def test_the_rings_of_one_cpu_sync_16_files_at_once(fuse_source: Path, fuse_start: FuseStart) -> None:
    """In threads of the kernel, which has 4 for each CPU by default."""
    reason = lacking_for_mode("io-uring")
    if reason:
        pytest.skip(reason)
    slow = fuse_start(wrapper=traced("fdatasync", "delay_enter=1000000"))
    point = fuse_source.with_name("rings")
    point.mkdir()
    mount = start(slow.point, point, "--io-uring", "--no-writeback")
    try:
        script = "import os, sys; file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); os.fdatasync(file)"
        cpu = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
        argv = [*cpu, sys.executable, "-c", script]
        writers = [subprocess.Popen([*argv, str(mount.point / str(number))]) for number in range(16)]

        def waiting() -> int:
            names = [name for name, place in threads_of(mount.process.pid) if place == "request_wait_answer"]
            return sum(name.startswith("iou-wrk") for name in names)

        most = 0
        while any(writer.poll() is None for writer in writers):
            most = max(most, waiting())
            time.sleep(0.01)
        assert most == 16
        assert all(writer.wait(STOP_TIMEOUT_S) == 0 for writer in writers)
        mount.unmount()
    finally:
        mount.kill()
