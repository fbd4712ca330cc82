# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough mounted over a small ext4 of its own, and userblk-fuse-disk on a file: for component tests."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from nbdkit_server import ROOT, STOP_TIMEOUT_S, checked, run
from waiting import wait_until

PROGRAM = ROOT / os.environ.get("USERBLK_FUSE", "build/host/fuse-passthrough/userblk-passthrough")
DISK_PROGRAM = ROOT / os.environ.get("USERBLK_FUSE_DISK", "build/host/fuse-disk/userblk-fuse-disk")
NULLFS_PROGRAM = ROOT / os.environ.get("USERBLK_NULLFS", "build/host/fuse-nullfs/userblk-nullfs")
SUITES = ROOT / "build/deps/bin"
ENABLE_RINGS = Path("/sys/module/fuse/parameters/enable_uring")
RINGS_LOCK = Path("/run/lock/userblk-fuse-rings")
# Set where the program was given a libfuse that has every mode: then only the kernel excuses one.
ALL_MODES = os.environ.get("USERBLK_FUSE_ALL_MODES") == "1"
DISK_BYTES = 4 << 30
GRACE_S = 20.0  # after which a test asks what keeps a daemon from its end
NOBODY = 65534
MS_SYNC = 4
AT_FDCWD = -100
RENAME_EXCHANGE = 2
# The system calls io_setup, io_destroy, io_submit and io_getevents, which glibc does not have.
AIO_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
AIO_WRITE = 1

MODES: dict[str, tuple[str, ...]] = {
    "default": (),
    "no-writeback": ("--no-writeback",),
    "nocache": ("--nocache",),
    "nosplice": ("--nosplice", "--clone-fd"),
    "passthrough": ("--passthrough",),
    "io-uring": ("--io-uring",),
    "io-uring+passthrough": ("--io-uring", "--passthrough"),
}


def libfuse_version() -> tuple[int, ...]:
    """The version of the library that the program runs with; empty when it does not run."""
    if not PROGRAM.exists():
        return ()
    found = re.search(r"libfuse (\d+)\.(\d+)\.(\d+)", run([str(PROGRAM), "--version"]).stdout)
    return tuple(int(part) for part in found.groups()) if found else ()


LIBFUSE = libfuse_version()


def lacking_for_fuse() -> str | None:
    """Why no FUSE test can run here, or None."""
    if os.geteuid() != 0:
        return "a FUSE mount for all users needs root"
    if not LIBFUSE and PROGRAM.exists():
        return f"{PROGRAM} does not run: {run([str(PROGRAM), '--version']).stderr.strip()}"
    if not LIBFUSE:
        return f"{PROGRAM} is not built: install libfuse3-dev and run make fuse-passthrough"
    if not Path("/dev/fuse").exists():
        return "this kernel has no /dev/fuse"
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 is not installed"
    return None


def lacking_for_mode(mode: str) -> str | None:
    """Why this mode cannot run here, or None."""
    version = ".".join(map(str, LIBFUSE))
    library = "this libfuse must have all modes" if ALL_MODES else "libfuse"
    if "passthrough" in mode and LIBFUSE < (3, 17):
        return f"{library}: {mode}: {version} has no kernel passthrough; 3.17 has"
    if "io-uring" in mode and "io-uring" in run([str(PROGRAM), "--io-uring"]).stderr:
        return f"{library}: {mode}: the program was built without liburing"
    kernel = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if "passthrough" in mode and kernel < (6, 9):
        return f"kernel: {mode}: Linux {kernel[0]}.{kernel[1]} has no FUSE passthrough; 6.9 has"
    if "io-uring" in mode:
        with suppress(OSError):
            os.close(os.open("/dev/fuse", os.O_RDWR))  # loads the module
        if not ENABLE_RINGS.exists():
            return f"kernel: {mode}: Linux {kernel[0]}.{kernel[1]} has no FUSE over io_uring; 6.14 has"
    return None


@dataclass
class Mount:
    """A mounted file system: source below, point above."""

    program: Path
    source: Path
    point: Path
    status: dict[str, str]
    process: subprocess.Popen[bytes]
    errors: Path
    device: str = ""  # as /proc/PID/mountinfo has it

    def check(self) -> None:
        """The mount is a mount, and ours: otherwise a test would test the directory below."""
        found = checked(["findmnt", "--noheadings", "--output", "FSTYPE,MAJ:MIN", str(self.point)])
        kind, self.device = found.split()
        assert kind == f"fuse.{self.program.name}"

    def namespaces(self) -> dict[str, str]:
        """The mount namespaces that have it, and one process of each."""
        found = dict[str, str]()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                lines = (process / "mountinfo").read_text().splitlines()
                if any(f" {self.device} " in line and f" fuse.{self.program.name} " in line for line in lines):
                    command = (process / "cmdline").read_text().replace("\0", " ").strip()
                    found[os.readlink(process / "ns/mnt")] = f"{process.name} {command}"
        return found

    def end(self) -> int:
        """The exit status, of a daemon that has lost its mount."""
        try:
            return self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        # A copy in another namespace, made meanwhile, is rightly served.
        if users := self.namespaces():
            print(f"{self.point} is still mounted in other namespaces: {users}")
            self.process.terminate()
        wait_until(
            f"{self.program.name} ends",
            lambda: self.process.poll() is not None,
            5 * GRACE_S,
            log=lambda: f"mounted in {self.namespaces() or 'no namespace'}; threads {threads(self.process.pid)}",
        )
        return self.process.wait()

    def unmount(self) -> None:
        unmount(self.point)
        status = self.end()
        errors = re.sub(r"^\S+: counters:.*\n", "", self.errors.read_text())
        assert status == 0 and errors == "", f"exit {status}\n{errors}"

    def kill(self) -> None:
        """Leaves nothing behind, whatever state it is in."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(STOP_TIMEOUT_S)
        if os.path.ismount(self.point) or not is_alive(self.point):
            run(["umount", "--lazy", str(self.point)])


def unmount(point: Path) -> None:
    """
    As soon as nobody uses it: killed daemons and their clients let go of their files a little later, and xfs_io(8)
    and the like look at every mount of the machine, also those of another run.
    """
    wait_until(f"umount {point}", lambda: run(["umount", str(point)]).returncode == 0)


def threads(pid: int) -> list[tuple[str, str]]:
    """The names of the threads of a process, and the functions of the kernel that they wait in."""
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # it has ended
            found.append(((thread / "comm").read_text().strip(), (thread / "wchan").read_text()))
    return found


def is_alive(point: Path) -> bool:
    try:
        point.stat()
    except OSError:
        return False
    return True


def parse_status(line: str, program: str = "userblk-passthrough") -> dict[str, str]:
    name, ready, *pairs = line.split()
    assert (name, ready) == (f"{program}:", "ready"), line
    return dict(pair.split("=", 1) for pair in pairs)


def launch(program: Path, source: Path, point: Path, arguments: Sequence[str], wrapper: tuple[str, ...] = ()) -> Mount:
    """Starts a program that mounts itself at point, and waits for its status line."""
    errors = point.with_name(point.name + ".errors")
    # A test in the background of a shell would hand down that they are ignored.
    argv = ["env", "--default-signal=INT,HUP", *wrapper, str(program), *arguments]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    mount = Mount(program, source, point, {}, process, errors)
    try:
        assert line, f"{argv}: exit {process.wait(STOP_TIMEOUT_S)}\n{errors.read_text()}"
        mount.status = parse_status(line, program.name)
        mount.check()
    except BaseException:
        mount.kill()
        raise
    return mount


def start(
    source: Path,
    point: Path,
    *options: str,
    wrapper: tuple[str, ...] = (),
) -> Mount:
    """Mounts source at point. What was asked for must have been granted, and nothing else."""
    arguments = ["--foreground", "-o", "allow_other,dev,suid", *options, str(source), str(point)]
    mount = launch(PROGRAM, source, point, arguments, wrapper)
    try:
        for feature in ("passthrough", "io-uring"):
            if f"--{feature}=auto" in options:
                continue
            asked = f"--{feature}" in options
            reported = f"{feature}: {mount.status}{mount.errors.read_text()}"
            assert mount.status[feature] == ("on" if asked else "off"), reported
    except BaseException:
        mount.kill()
        raise
    return mount


def traced(call: str, injection: str, *paths: str) -> tuple[str, ...]:
    """Before a program: what strace(1) does to its system calls of that name, or to those with one of the paths."""
    strace = ("env", "ASAN_OPTIONS=detect_leaks=0", "strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null")
    where = [f"--trace-path={path}" for path in paths] + ["--quiet=attach,path-resolution"] * bool(paths)
    return (*strace, *where, "-e", f"trace={call}", "-e", f"inject={call}:{injection}")


def threads_that_wait(pid: int) -> int:
    """How many threads of the process wait in the kernel to write to a frozen file system."""
    return sum("percpu_rwsem_wait" in place for _, place in threads(pid))


@contextmanager
def rings_enabled() -> Iterator[None]:
    """
    Until its end the kernel grants FUSE over io_uring, where it has that. The setting is the machine's:
    the last of all processes in here puts back what the first one found.
    """
    if not ENABLE_RINGS.exists():
        yield
        return
    with RINGS_LOCK.open("a+") as users:
        with alone():
            if is_only_user(users) and ENABLE_RINGS.read_text().strip() == "N":
                ENABLE_RINGS.write_text("Y")
                users.write("N")
                users.flush()
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with alone():
                if is_only_user(users):
                    users.seek(0)
                    if users.read():
                        ENABLE_RINGS.write_text("N")
                    users.truncate(0)


@contextmanager
def alone() -> Iterator[None]:
    with RINGS_LOCK.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_only_user(users: TextIO) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def ext4(top: Path = Path("/var/tmp")) -> Iterator[Path]:
    """A directory that every user may enter, on an ext4 of its own, whose image lies in top."""
    directory = Path(tempfile.mkdtemp(prefix="ub-", dir=top))
    directory.chmod(0o755)
    disk, point = directory / "disk", directory / "e"
    point.mkdir()
    try:
        with disk.open("wb") as file:
            file.truncate(DISK_BYTES)
        checked(["mkfs.ext4", "-q", "-N", "65536", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(disk)])
        checked(["mount", "-o", "loop", str(disk), str(point)])
        try:
            yield point
        finally:
            unmount(point)
    finally:
        shutil.rmtree(directory)


@contextmanager
def frozen(source: Path) -> Iterator[None]:
    """Until its end, all writers to the source wait."""
    # It thaws when its input ends, so also when this process is killed.
    freeze = 'fsfreeze --freeze "$1" && echo; read _; fsfreeze --unfreeze "$1"'
    argv = ["sh", "-c", freeze, "sh", str(source)]
    freezer = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert freezer.stdin is not None and freezer.stdout is not None
    try:
        assert freezer.stdout.readline() == b"\n"
        yield
    finally:
        freezer.stdin.close()
        assert freezer.wait(STOP_TIMEOUT_S) == 0


def pattern(size: int, seed: int = 1) -> bytes:
    block = bytes((index * 7 + seed) % 251 for index in range(251 * 16))
    return (block * (size // len(block) + 1))[:size]


def direct(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_DIRECT | flags, 0o600)


def aligned(data: bytes) -> mmap.mmap:
    """Page-aligned memory that holds data."""
    memory = mmap.mmap(-1, max(len(data), 1))
    memory.write(data)
    return memory


def asynchronous_write(descriptor: int, memory: mmap.mmap) -> int:
    """One write of io_submit(2), which the kernel may cut into parts and send all at once. The bytes, or -errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    setup, destroy, submit, get_events = AIO_CALLS[os.uname().machine]
    context, event = ctypes.c_ulong(), (ctypes.c_int64 * 4)()
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    block = ctypes.create_string_buffer(
        struct.pack("=QIIHhIQQqQII", 0, 0, 0, AIO_WRITE, 0, descriptor, address, len(memory), 0, 0, 0, 0), 64
    )

    def call(*arguments: object) -> int:
        result: int = libc.syscall(*arguments)
        assert result >= 0, os.strerror(ctypes.get_errno())
        return result

    call(setup, 1, ctypes.byref(context))
    try:
        assert call(submit, context, ctypes.c_long(1), ctypes.byref(ctypes.pointer(block))) == 1
        assert call(get_events, context, ctypes.c_long(1), ctypes.c_long(1), event, None) == 1
    finally:
        call(destroy, context)
    return int(event[2])


@contextmanager
def bare_mapping(descriptor: int, size: int) -> Iterator[tuple[ctypes.Array[ctypes.c_char], Callable[[], None]]]:
    """A shared mapping, and what syncs it: unlike an mmap.mmap, without a descriptor of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())

    def sync() -> None:
        assert libc.msync(address, size, MS_SYNC) == 0, os.strerror(ctypes.get_errno())

    try:
        yield (ctypes.c_char * size).from_address(address), sync
    finally:
        libc.munmap(address, size)


def renameat2(old: Path, new: Path, flags: int) -> int:
    """Returns 0 or the errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags)
    return ctypes.get_errno() if result == -1 else 0


def stat_errno(path: Path) -> int:
    try:
        path.stat()
    except OSError as error:
        return error.errno or 0
    return 0


def sought(descriptor: int, offset: int, whence: int) -> int:
    """Where lseek(2) ends, or its error, negative."""
    try:
        return os.lseek(descriptor, offset, whence)
    except OSError as error:
        return -(error.errno or 0)


def as_user(uid: int, *argv: str, groups: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command as uid, with the group of the same number and the supplementary groups."""
    return run(
        [
            "setpriv",
            f"--reuid={uid}",
            f"--regid={uid}",
            f"--groups={groups}" if groups else "--clear-groups",
            *argv,
        ]
    )
