# SPDX-License-Identifier: BSD-3-Clause
"""One guest: QEMU, the disks it emulates, one command and its output."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import platform
import re
import selectors
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import CACHE, CHECKOUT, LabError
from .channel import CONTROL, ERRORS, FILES, OUTPUT, SIZE, Channel, unpack
from .images import checkout_image, directory_image
from .models import cpu_model, disk_models, ensure_modules, machines_parameter, module_parameter
from .rootfs import QEMU, RUN_TOOLS, Tree, cpio, die_with_parent, locked, require

BOOT_LIMIT = 900.0  # s until the command starts: a few on a machine that does nothing else
# Emulated CPUs now and then trip over code that the kernel patches while it boots ("Oops:
# int3"). The command has not started then, so that a second boot changes nothing.
BOOT_TRIES = 3
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FAILURE = re.compile(r"Kernel panic|Oops|BUG:")  # what a kernel says of its own
TRIAL_LIMIT = 10.0  # s for the trial boot that decides whether KVM is used
ROOT_SPACE = 8192  # MiB of addresses for the root image, which is a memory device
LOOK_S = 0.02  # s between two looks at what a sealed guest says
CONSOLE_TAIL = 80  # lines shown of a guest that died
READY = b"ready\n"  # from the guest, when the command starts
SETUP = "/extra/setup"  # of the user's own, before the command

EXIT_TIMEOUT = 124  # as timeout(1)
EXIT_DIED = 125  # the guest, not the command

MIB = 1 << 20
GIB = 1 << 30

# The CPU of virtual time, the same with each QEMU from 7.2 on: `max` has a family and features of its own in each
# version, for which the kernel takes other paths. Without erms and fsrm it copies by words: a `rep movsb` counts once
# for each byte.
FEATURES = """
    abm acpi adx aes arat avx avx2 bmi1 bmi2 clflushopt clwb cr8legacy f16c fma fsgsbase la57 mmxext monitor movbe
    pclmulqdq pdpe1gb pku popcnt rdrand rdtscp smap smep ss sse4.1 sse4.2 sse4a ssse3 umip vaes xgetbv1 xsave xsaveopt
""".split()
CPU = ",".join(["qemu64-v1", *(f"+{name}" for name in FEATURES), "enforce"])

ACCELERATORS = {
    "kvm": ["-accel", "kvm", "-cpu", "host"],
    "tcg": ["-accel", "tcg,thread=multi", "-cpu", "max"],
    # A nanosecond of the guest's is an instruction, or a moment in which all was idle: that is skipped.
    "icount": ["-accel", "tcg,thread=single", "-cpu", CPU, "-icount", "shift=0,sleep=off"]
    + ["-rtc", "base=2026-01-01,clock=vm"],
}

CLOCKS = ("real", "virtual")

HOST = "10.0.2.2"  # QEMU's user networking has this machine there, and gives the guest 10.0.2.15


@dataclass(frozen=True)
class Options:
    """What the user chooses."""

    command: tuple[str, ...]
    memory: int = 3072  # MiB
    cpus: int = 2
    share: Path | None = None
    extra: Path | None = None
    disk_size: int = 4 * GIB  # bytes, of each disk
    disk_dir: Path | None = None
    timeout: float = 600.0  # s from the start of the command; 0: none
    tty: bool = False
    verbose: bool = False
    network: bool = False  # on which this machine's loopback interface is HOST
    forward: tuple[tuple[int, int], ...] = ()  # ports of that interface, and those of the guest that they lead to
    clock: str = CLOCKS[0]  # virtual: it counts instructions, and the disks are modelled
    seed: int = 1  # in virtual time: of the CPU's random numbers
    sealed: bool = False  # nothing of this machine reaches it while it is up
    given: tuple[tuple[str, Path], ...] = ()  # names below /results of files that a sealed guest has copies of


@dataclass(frozen=True)
class Wiring:
    """File descriptors that QEMU inherits."""

    initrd: int
    console: int
    sata: int
    nvme: int
    ports: tuple[int, ...]  # control, then stdout and stderr, or the terminal
    channel: int = -1  # of a sealed guest, instead of ports
    images: tuple[Path, ...] = ()  # of a sealed guest: the checkout, and the user's own files


class GuestDied(LabError):
    """The guest ended, or did not come up, without the command's exit code."""


class BootDied(GuestDied):
    """The guest ended before the command started."""


class BootTimeout(GuestDied):
    """The guest was not up in time; on a machine that is busy it may be later."""


# ---- pure parts ---------------------------------------------------------------


def parse_size(text: str) -> int:
    """Bytes of `4G`, `512M`, `4096`. Raises ValueError."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    shift = units.get(text[-1:].upper(), 0)
    size = int(text[:-1] if shift else text) << shift
    if size < MIB or size % 4096:
        raise ValueError(text)
    return size


def qemu_argv(tree: Tree, accel: str, options: Options, wiring: Wiring) -> list[str]:
    """The command line of the machine."""

    def fd(number: int) -> str:
        return f"/proc/self/fd/{number}"

    cmdline = "console=ttyS0 quiet panic=-1 oops=panic no_timer_check cryptomgr.notests"
    if accel != "kvm":
        cmdline += " mitigations=off"
    if accel == "icount":
        # QEMU's time stamp counter advances by 1 an instruction. The kernel takes it for one of this frequency, sets
        # the APIC's timer by it and knows no other clock: so much faster is the CPU than all that has a time.
        cmdline += f" norandmaps nokaslr tsc_early_khz={cpu_model().instructions_per_us * 1000} tsc=reliable"
        cmdline += " clocksource=tsc hpet=disable pmtmr=0"
        # It would not use the APIC's timer, whose speed does not fit the PIT's, and takes 1.3 s of the CPU to find out.
        cmdline += " nolapic_timer"
    disk = "format=raw,discard=unmap,detect-zeroes=off,cache=unsafe,aio=threads,if=none"
    checkout = str(CHECKOUT).replace(",", ",,")
    argv = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    memory = f"{options.memory}M,maxmem={options.memory + ROOT_SPACE}M"
    argv += ["-machine", "q35,i8042=off", "-smp", str(options.cpus), "-m", memory]
    argv += ACCELERATORS[accel]
    if accel == "icount":
        argv += ["-seed", str(options.seed)]
    argv += ["-kernel", str(tree.vmlinux), "-initrd", fd(wiring.initrd), "-append", cmdline]
    argv += ["-chardev", f"file,id=console,path={fd(wiring.console)}", "-serial", "chardev:console"]

    # Memory, mapped privately: writes vanish, and programs run from it without a page cache,
    # so that dropping the guest's caches does not make the next start of one slow.
    for number, path in enumerate((tree.image, *wiring.images)):
        image = str(path).replace(",", ",,")
        memory = f"memory-backend-file,id=image{number},share=off,mem-path={image},size={path.stat().st_size}"
        argv += ["-object", memory, "-device", f"virtio-pmem-pci,memdev=image{number}"]
    if options.clock == "real":
        argv += ["-drive", f"id=sata,file={fd(wiring.sata)},{disk}"]
        argv += ["-device", "ide-hd,drive=sata,bus=ide.0,rotation_rate=1,serial=LABSATA,model=userblk lab SATA SSD"]
        argv += ["-drive", f"id=nvme,file={fd(wiring.nvme)},{disk}"]
        argv += ["-device", "nvme,drive=nvme,serial=LABNVME"]

    if options.sealed:
        memory = f"memory-backend-file,id=channel,share=on,mem-path={fd(wiring.channel)},size={SIZE}"
        return [*argv, "-object", memory, "-device", "ivshmem-plain,memdev=channel"]

    argv += ["-fsdev", f"local,id=userblk,path={checkout},security_model=none,multidevs=remap,readonly=on"]
    argv += ["-device", "virtio-9p-pci,fsdev=userblk,mount_tag=userblk"]
    if options.share:
        share = str(options.share).replace(",", ",,")
        argv += ["-fsdev", f"local,id=results,path={share},security_model=none,multidevs=remap"]
        argv += ["-device", "virtio-9p-pci,fsdev=results,mount_tag=results"]
    if options.extra:
        extra = str(options.extra).replace(",", ",,")
        argv += ["-fsdev", f"local,id=extra,path={extra},security_model=none,multidevs=remap,readonly=on"]
        argv += ["-device", "virtio-9p-pci,fsdev=extra,mount_tag=extra"]

    if options.network:
        leads = "".join(f",hostfwd=tcp:127.0.0.1:{ours}-:{its}" for ours, its in options.forward)
        argv += ["-netdev", f"user,id=net,ipv6=off{leads}", "-device", "virtio-net-pci,netdev=net,romfile="]

    argv += ["-device", "virtio-serial-pci"]
    for number, port in enumerate(wiring.ports, 1):
        argv += ["-chardev", f"socket,id=port{number},fd={port}"]
        if options.tty and number == 2:
            argv += ["-device", f"virtconsole,chardev=port{number}"]
        else:
            argv += ["-device", f"virtserialport,chardev=port{number},nr={number},name=port{number}"]
    return argv


def guest_files(tree: Tree, accel: str, options: Options, rows: int, columns: int) -> bytes:
    """The part of the initramfs that differs between runs: init, its settings, the command, modules for virtual time.

    Raises LabError.
    """
    modules: list[Path] = []
    ssds = ""
    cpu = cpu_model() if options.clock == "virtual" else None
    if cpu:
        modules, _ = ensure_modules(tree)
        ssds = module_parameter(disk_models(), options.disk_size)
    config = {
        "LAB_CLOCK": options.clock,
        "LAB_SSDS": ssds,
        "LAB_INSTRUCTIONS_PER_US": str(cpu.instructions_per_us) if cpu else "",
        "LAB_MACHINES": machines_parameter(disk_models()) if cpu else "",
        "LAB_ACCEL": accel,
        "LAB_RELEASE": tree.variant.release,
        "LAB_KERNEL": tree.variant.kernel,
        "LAB_RESULTS": "1" if options.share else "0",
        "LAB_SEALED": "1" if options.sealed else "0",
        "LAB_EXTRA": "1" if options.extra else "0",
        "LAB_TTY": "1" if options.tty else "0",
        "LAB_HOST": HOST if options.network else "",
        "LAB_ROWS": str(rows),
        "LAB_COLUMNS": str(columns),
        "TERM": os.environ.get("TERM", "linux") if options.tty else "dumb",
    }
    settings = "".join(f"{name}={shlex.quote(value)}\n" for name, value in config.items())
    command = "cd /userblk\n"
    if options.extra:
        command += f"[ ! -x {SETUP} ] || {SETUP} >&2 || {{ echo lab: {SETUP} failed, code $? >&2; exit 2; }}\n"
    command += "exec " + " ".join(map(shlex.quote, options.command)) + "\n"
    source = Path(__file__).parent / "init.d"
    program, regular = stat.S_IFREG | 0o755, stat.S_IFREG | 0o644
    given = []
    if options.given:
        given.append(("lab/given.tar", regular, pack(options.given)))
    return cpio(
        [
            *given,
            ("init", program, (source / "init").read_bytes()),
            ("lab/main", program, (source / "main").read_bytes()),
            ("lab/config", regular, settings.encode()),
            ("lab/command", regular, os.fsencode(command)),
            *((f"lab/{module.name}", regular, module.read_bytes()) for module in modules),
        ]
    )


def pack(given: Sequence[tuple[str, Path]]) -> bytes:
    """A tar archive of files by these names, the same whenever they were written. Raises LabError."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as files:
        for name, path in given:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise LabError(f"given={path}: {error.strerror}; name a file") from None
            member = tarfile.TarInfo(name)
            member.size = len(content)
            files.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def choose_disk_dir(needed: int, shm_free: int, memory_available: int) -> Path | None:
    """/dev/shm when it and the memory behind it hold needed bytes, else None."""
    return Path("/dev/shm") if shm_free >= needed and memory_available >= needed else None


# ---- the machine --------------------------------------------------------------


def memory_file(name: str, *contents: bytes) -> int:
    """A file in memory that vanishes with its last user."""
    number = os.memfd_create(name)
    with os.fdopen(os.dup(number), "wb") as file:
        file.writelines(contents)
    return number


def available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free


def disk_directory(options: Options) -> Path:
    """Where the emulated disks lie; says so when it is not memory. Raises LabError."""
    needed = 2 * options.disk_size
    if options.disk_dir is None:
        shm = Path("/dev/shm")
        free = free_bytes(shm) if shm.is_dir() else 0
        chosen = choose_disk_dir(needed, free, available_memory() - options.memory * MIB)
        if chosen:
            return chosen
        print(f"lab: no room for {needed >> 20} MiB in /dev/shm, disks are in {CACHE}", file=sys.stderr)
    directory = options.disk_dir or CACHE
    if not directory.is_dir():
        raise LabError(f"--disk-dir={directory}: not a directory")
    if free_bytes(directory) < needed:
        raise LabError(
            f"{directory} has {free_bytes(directory) >> 20} MiB free, two disks need {needed >> 20} MiB:"
            " make room, or lower --disk-size"
        )
    return directory


def disk_file(directory: Path, size: int) -> int:
    """A sparse file without a name: it is gone when the machine ends, however it ends."""
    number = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.ftruncate(number, size)
    return number


class Guest:
    """A running machine. Use as a context manager: it never outlives the block."""

    def __init__(self, tree: Tree, accel: str, options: Options) -> None:
        require(RUN_TOOLS)
        self.stack = ExitStack()
        self.accel = accel
        self.started = time.monotonic()
        size = shutil.get_terminal_size()
        extra = guest_files(tree, accel, options, size.lines, size.columns)
        directory = disk_directory(options) if options.clock == "real" else CACHE
        space = options.disk_size if options.clock == "real" else 0
        self.share, self.given = options.share, frozenset(name for name, _ in options.given)
        images = []
        if options.sealed:
            images.append(checkout_image(tree))
            if options.extra:
                images.append(directory_image(tree, options.extra, "extra"))
        try:
            initrd = self.keep(memory_file("initrd", tree.initrd.read_bytes(), extra))
            self.console = self.keep(memory_file("console"))
            sata = self.keep(disk_file(directory, space))
            nvme = self.keep(disk_file(directory, space))
            self.channel = self.stack.enter_context(Channel()) if options.sealed else None
            pairs = [] if self.channel else [socket.socketpair() for _ in range(2 if options.tty else 3)]
            self.ports = [self.stack.enter_context(ours) for ours, _ in pairs]
            theirs = [other.detach() for _, other in pairs]
            channel = self.channel.number if self.channel else -1
            wiring = Wiring(initrd, self.console, sata, nvme, tuple(theirs), channel, tuple(images))
            argv = qemu_argv(tree, accel, options, wiring)
            env, inherited = dict(os.environ), [initrd, self.console, sata, nvme, *theirs]
            if self.channel:
                self.main_loop = ensure_modules(tree)[1]
                number = self.keep(os.open(self.main_loop, os.O_RDONLY))
                # ld.so splits it at blanks and colons, and a path may have both.
                env["LD_PRELOAD"] = f"/proc/self/fd/{number}"
                inherited += [channel, number]
            try:
                self.process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self.console,
                    env=env,
                    pass_fds=inherited,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            finally:
                for number in theirs:
                    os.close(number)
            self.stack.callback(self.kill)
        except BaseException:
            self.stack.close()
            raise

    def keep(self, number: int) -> int:
        self.stack.callback(os.close, number)
        return number

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def console_text(self) -> str:
        data = os.pread(self.console, os.fstat(self.console).st_size, 0)
        return data.decode(errors="replace").replace("\r\n", "\n")

    def wait_ready(self, limit: float) -> float:
        """Seconds until the command started. Raises GuestDied."""
        if self.channel:
            self.first_word(limit)
            return time.monotonic() - self.started
        control = self.ports[0]
        control.settimeout(limit)
        message = b""
        try:
            # No more than that: a short command may have ended meanwhile.
            while part := control.recv(len(READY) - len(message)):
                message += part
        except TimeoutError:
            raise BootTimeout(f"the guest did not boot within {limit:.0f} s") from None
        except ConnectionError:
            pass
        if message != READY:
            raise BootDied("the guest died while it booted")
        return time.monotonic() - self.started

    def first_word(self, limit: float) -> None:
        """Wait for what a sealed guest says before its command. Raises LabError."""
        while time.monotonic() < self.started + limit:
            dead = self.process.poll() is not None
            for _ in self.heard():
                if not dead:
                    self.check_main_loop()
                return
            if dead:
                raise BootDied("the guest died while it booted")
            time.sleep(LOOK_S)
        raise BootTimeout(f"the guest did not boot within {limit:.0f} s")

    def check_main_loop(self) -> None:
        """ld.so goes on without a library that it cannot load. Raises LabError."""
        mapped = Path(f"/proc/{self.process.pid}/maps").read_bytes()
        if mapped and os.fsencode(self.main_loop.name) not in mapped:  # one that has just ended has nothing mapped
            raise LabError(
                f"QEMU runs without {self.main_loop}, so that each run would be another: this machine's C library may"
                " be older than the guest's; use a later system, or leave out --sealed"
            )

    def heard(self) -> Iterator[tuple[int, bytes]]:
        """Messages of a sealed guest; its files are kept as they come. Raises LabError."""
        assert self.channel is not None
        for port, data in self.channel.messages():
            if port != FILES:
                yield port, data
            elif self.share:
                unpack(data, self.share, self.given)

    def listen(self, limit: float) -> int:
        """As relay(), to a sealed guest, whose output goes to ours."""
        deadline = time.monotonic() + limit if limit else math.inf
        while time.monotonic() < deadline:
            dead = self.process.poll() is not None
            for port, data in self.heard():
                if port == CONTROL:
                    return int(data.split()[-1])
                write_all({OUTPUT: 1, ERRORS: 2}[port], data)
            if dead:
                raise GuestDied("the guest died before the command ended")
            time.sleep(LOOK_S)
        raise TimeoutError

    def relay(self, limit: float, routes: dict[int, int], source: int | None) -> int:
        """Move bytes until the exit code comes; returns it. routes: port index -> our descriptor."""
        deadline = time.monotonic() + limit if limit else None
        code: int | None = None
        control = b""
        with selectors.DefaultSelector() as selector:
            for port in self.ports:
                port.setblocking(True)
            selector.register(self.ports[0], selectors.EVENT_READ, None)
            for index, target in routes.items():
                selector.register(self.ports[index], selectors.EVENT_READ, target)
            if source is not None:
                selector.register(source, selectors.EVENT_READ, "source")
            alive = True
            while alive and code is None:
                left = deadline - time.monotonic() if deadline else None
                if left is not None and left <= 0:
                    raise TimeoutError
                for key, _ in selector.select(left):
                    if key.data == "source":
                        data = os.read(key.fd, 65536)
                        if data:
                            self.ports[1].sendall(data)
                        else:
                            selector.unregister(key.fd)
                        continue
                    data = read_port(key.fd)
                    if not data:
                        alive = False
                    elif key.data is None:
                        control += data
                        if control.endswith(b"\n"):
                            code = int(control.split()[-1])
                    else:
                        write_all(key.data, data)
        # What the machine has sent is in the sockets, all of it, once it is gone.
        self.kill()
        for index, target in routes.items():
            while data := read_port(self.ports[index].fileno()):
                write_all(target, data)
        if code is None:
            raise GuestDied("the guest died before the command ended")
        return code


def read_port(number: int) -> bytes:
    try:
        return os.read(number, 1 << 18)
    except ConnectionError:
        return b""


def write_all(number: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]


# ---- the accelerator -------------------------------------------------------------


def choose_accel(tree: Tree) -> str:
    """
    "kvm" where a trial boot with it reached user space, else "tcg". The verdict is cached. One that may have a passing
    reason (time ran out on a busy machine, QEMU found no memory) counts until the machine's next boot.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    found = shutil.which(QEMU)
    qemu = (os.stat(found).st_size, os.stat(found).st_mtime_ns) if found else ()  # another version is another file
    key = hashlib.sha256(f"{platform.release()} {cpu} {tree.release} {qemu}".encode()).hexdigest()[:16]
    path = CACHE / "accel.json"
    with locked("accel"):
        try:
            verdicts = json.loads(path.read_text())
        except (OSError, ValueError):
            verdicts = {}
        until_boot = f"{key} {BOOT_ID.read_text().strip()}"
        accel = verdicts.get(key, verdicts.get(until_boot))
        if accel is None:
            verdict, complaint = trial_boot(tree)
            if complaint:
                print(f"lab: {complaint}; delete {path} to try KVM again", file=sys.stderr)
            accel = verdict or "tcg"
            verdicts[key if verdict else until_boot] = accel
            new = path.with_suffix(".new")
            new.write_text(json.dumps(verdicts) + "\n")
            new.replace(path)
        return str(accel)


def trial_boot(tree: Tree) -> tuple[str, str]:
    """The verdict, "" if there is none that lasts; and what went wrong."""
    options = Options(("true",), memory=1024, disk_size=MIB * 64)
    with Guest(tree, "kvm", options) as guest:
        try:
            guest.wait_ready(TRIAL_LIMIT)
            guest.relay(TRIAL_LIMIT, {}, None)
        except (BootTimeout, TimeoutError):
            return "", f"a trial boot with KVM took more than {TRIAL_LIMIT:.0f} s: TCG until this machine boots again"
        except GuestDied:
            if FAILURE.search(guest.console_text()):
                return "tcg", "the guest's kernel failed in a trial boot with KVM: TCG from now on"
            return "", "a trial boot with KVM did not reach user space: TCG until this machine boots again"
    return "kvm", ""


# ---- one command ------------------------------------------------------------------


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Our terminal hands every key to the guest's."""
    if not sys.stdin.isatty():
        yield
        return
    saved = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)


def report(guest: Guest, message: str) -> None:
    """Keep the console and show its end."""
    path = CACHE / f"console-{os.getpid()}.log"
    text = guest.console_text()
    path.write_text(text)
    lines = text.splitlines()[-CONSOLE_TAIL:]
    for line in lines:
        print(f"lab| {line}", file=sys.stderr)
    print(f"lab: {message}; console log: {path}", file=sys.stderr)


def run(tree: Tree, options: Options) -> int:
    """Boot, run the command with its output on ours, return its exit code."""
    accel = "icount" if options.clock == "virtual" else choose_accel(tree)
    for left in reversed(range(BOOT_TRIES)):
        try:
            return run_once(tree, accel, options)
        except BootDied:
            if left:
                print("lab: starting it again", file=sys.stderr)
    return EXIT_DIED


def run_once(tree: Tree, accel: str, options: Options) -> int:
    """One boot. Raises BootDied, reported, when the command did not start."""
    with Guest(tree, accel, options) as guest:
        try:
            seconds = guest.wait_ready(BOOT_LIMIT)
            if options.verbose:
                print(f"lab: {tree.release} booted in {seconds:.1f} s ({accel})", file=sys.stderr)
            if options.tty:
                with raw_terminal():
                    return guest.relay(options.timeout, {1: 1}, 0)
            if options.sealed:
                return guest.listen(options.timeout)
            return guest.relay(options.timeout, {1: 1, 2: 2}, None)
        except TimeoutError:
            guest.kill()
            report(guest, f"the command did not end within {options.timeout:g} s")
            return EXIT_TIMEOUT
        except GuestDied as died:
            guest.kill()
            report(guest, str(died))
            if isinstance(died, BootDied):
                raise
            return EXIT_DIED
