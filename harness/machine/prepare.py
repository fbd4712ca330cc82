# SPDX-License-Identifier: BSD-3-Clause
"""Bring device and caches into the stated state before a run, and read back that they are in it.

The device itself is prepared, past its page cache, also while a system is up on it: servers open it with
O_DIRECT, so that there is no second cache that could go stale, and all systems find the same state.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..observing.environment import meminfo
from . import cpusets
from .blockdev import SAMPLES, BlockDevice, cached_share, discard, flush_cache, opened, zero_fill, zero_samples
from .cpusets import CpusetError
from .teardown import Teardown, TeardownError, restore_setting, settings_put_back, undo, write_setting
from .tuning import cpu_list

VM = Path("/proc/sys/vm")
CPUS = Path("/sys/devices/system/cpu")
IRQS = Path("/proc/irq")
BLOCK = Path("/sys/block")
WRITE_BACK = Path("/sys/module/userblk_writeback/parameters/estimate")  # lab/ssd/userblk_writeback.c
MACHINE = Path("/sys/module/userblk_wakeup/parameters/machine")  # lab/ssd/userblk_wakeup.c
BDI = Path("/sys/kernel/debug/bdi")
BDI_SETTINGS = Path("/sys/class/bdi")
MIB = 1 << 20
KNOWN_BYTES = 256 * MIB
FORGET_S = 30.0
CACHED_LIMIT = 0.01  # share of the area that may still be cached


class PrepareError(Exception):
    """The device or the caches are not in the state that a run needs; one line."""


class DeviceError(Exception):
    """The user's own device failed, with nothing of ours in between; one line."""


@contextmanager
def acting_on(device: BlockDevice) -> Iterator[None]:
    """What fails inside is the device. Raises DeviceError."""
    try:
        yield
    except OSError as error:
        raise DeviceError(f"{device.path}: the device fails: {error.strerror}") from None


def fill_area(device: BlockDevice, area: int, seed: int) -> None:
    """Zero-fill, before reads."""
    with acting_on(device):
        zero_fill(device.path, area)
        zeroes = zero_samples(device.path, area, seed)
    if zeroes != SAMPLES:
        raise PrepareError(f"{device.path}: {SAMPLES - zeroes} of {SAMPLES} blocks are not zero after the zero-fill")


def discard_area(device: BlockDevice, area: int, seed: int) -> dict[str, object]:
    """Discard, before writes. What came of it: a device may be unable to, and need not return zeroes afterwards."""
    with acting_on(device):
        if not discard(device.path, area):
            return {"discarded": False}
        return {"discarded": True, "discarded_zero_samples": zero_samples(device.path, area, seed), "samples": SAMPLES}


def drop_caches(devices: list[BlockDevice], area: int) -> dict[str, object]:
    """Write back and drop all caches. Raises PrepareError if pages of the first device's area, if any, stay."""
    before = meminfo()
    os.sync()
    for device in devices:
        flush_cache(device.path)
    (VM / "drop_caches").write_text("3")
    after = meminfo()
    share = cached_share(devices[0].path, area) if devices else 0.0
    if share > CACHED_LIMIT:
        raise PrepareError(f"{devices[0].path}: {share:.0%} of the area is still cached after dropping caches")
    return {
        "cached_bytes_before": before["Cached"] + before["Buffers"],
        "cached_bytes_after": after["Cached"] + after["Buffers"],
        "cached_area_share": round(share, 4),
    }


def make_known_to_write_back(device: BlockDevice, area: int) -> None:
    """
    Write to a disk that has been written little through the page cache since it came: the kernel lets a disk fill that
    share of the dirty limit that it has of what was written lately, so that the limit would rise during the first run.
    """
    stats = (BDI / f"{os.major(device.number)}:{os.minor(device.number)}" / "stats").read_text()
    written = re.search(r"^BdiWritten: +(\d+) kB$", stats, re.MULTILINE)
    assert written is not None
    if int(written[1]) << 10 >= KNOWN_BYTES:
        return
    zeroes = bytes(MIB)
    with opened(device.path, os.O_WRONLY) as fd:
        for offset in range(0, min(area, KNOWN_BYTES), MIB):
            os.pwrite(fd, zeroes, offset)
        os.fsync(fd)


def settle_write_back(written: Iterable[Path | str], disk: str, writers: int) -> dict[str, object]:
    """
    Tell the kernel's write-back to devices and file systems what it would know after minutes of writing by so many
    threads: the rate of the disk below, and each writer's share. Returns what it set; nothing, unless the disk is one
    of the lab's in virtual time, because only there the runs are too short for the kernel to find out.
    """
    rate = BLOCK / disk / "write_bytes_per_s"
    if not rate.exists():
        return {}
    bytes_per_s = int(rate.read_text())
    for path in written:
        WRITE_BACK.write_text(f"{path} {bytes_per_s} {writers}")
    return {"write_back_bytes_per_s": bytes_per_s}


def unscale_dirty_share(mounted: Path, limit: int, unscaled: int) -> dict[str, object]:
    """
    Let a file system that may only fill a share of the dirty limit, as FUSE 1 % (Linux, mm/backing-dev.c), fill that
    share of another limit. limit, unscaled: bytes. With the share of a small limit, a writer sleeps for a tick of the
    kernel's clock after every few hundred KB. Such a file system is in no control group: while the limit is a ratio for
    one, its share is one of the machine's memory, and becomes one of the limit (from Linux 6.3 on). mounted: where it
    is, for one run. Returns what it set.
    """
    device = mounted.stat().st_dev
    settings = BDI_SETTINGS / f"{os.major(device)}:{os.minor(device)}"
    ratio, most = settings / "max_ratio", settings / "max_bytes"
    share = int(ratio.read_text()) if ratio.exists() else 100
    if share == 100 or not limit:
        return {}
    if not dirty_limits()["dirty_bytes"]:
        size = share * max(limit, unscaled) // 100
        if not most.exists():
            return {"dirty_share_bytes": None}
        most.write_text(str(size))
        return {"dirty_share_bytes": size}
    if unscaled <= limit:
        return {}
    percent = min(100, share * unscaled // limit)
    ratio.write_text(str(percent))
    return {"dirty_share_percent": percent}


def forget_writes() -> None:
    """
    Wait until the kernel has forgotten what was written: it halves its counts every 3 s (mm/page-writeback.c), and a
    file system may fill as much of the dirty limit as it has of what was written lately. In virtual time, idle time
    costs next to nothing.
    """
    time.sleep(FORGET_S)


def become_machine_of(disk: str) -> None:
    """In the lab's virtual time, the guest's CPUs become those of the modelled machine that has this disk."""
    if MACHINE.exists():
        MACHINE.write_text(disk)


@contextmanager
def kept_cached(program: str) -> Iterator[None]:
    """Keep a program and its libraries in memory: dropping caches spares what is mapped, so runs start at once."""
    path = shutil.which(program)
    if not path:
        raise PrepareError(f"{program} is not installed; install it")
    libraries = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=60, check=False).stdout
    with ExitStack() as stack:
        for name in [path, *re.findall(r"(/\S+) \(0x", libraries)]:
            with opened(name, os.O_RDONLY) as fd:
                mapping = stack.enter_context(mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ))
            for offset in range(0, len(mapping), mmap.PAGESIZE):
                mapping[offset]  # maps the page
        yield


@undo
def restore_dirty_limit(path: str, value: str) -> None:
    """
    A ratio of 0 is to the kernel no change where it is 0 already, as it is while a number of bytes is the limit:
    something else comes before it.
    """
    if value == "0":
        write_setting(Path(path), "1")
    restore_setting(path, value)


def dirty_settings(dirty: int, background: int, share_of: int) -> dict[str, int]:
    """
    The kernel's settings for dirty limits in bytes. share_of: the memory (bytes) of the control group of version 2 that
    the writers are in; 0: they are in none. Such a group gets the part of a number of bytes that it has of all memory
    (Linux, mm/page-writeback.c, domain_dirty_limits()), but the whole ratio, of its own memory.
    """
    limits = {"dirty_background": background, "dirty": dirty}
    if not share_of:
        return {f"{name}_bytes": value for name, value in limits.items()}
    return {f"{name}_ratio": max(1, round(100 * value / share_of)) for name, value in limits.items()}


def limit_dirty(dirty: int, background: int, share_of: int, teardown: Teardown) -> None:
    """
    Set the kernel's dirty limits to so many bytes until teardown; 0: leave them. share_of: as dirty_settings() has it.
    Another campaign may have set its own and be over first or last: both put back what the machine had before either
    of them.
    """
    if not dirty:
        return
    for setting, value in dirty_settings(dirty, background, share_of).items():
        name = setting.rpartition("_")[0]
        size, ratio = VM / f"{name}_bytes", VM / f"{name}_ratio"
        old = size if size.read_text().strip() != "0" else ratio  # setting one of the two zeroes the other
        value_now = old.read_text().strip()  # before we read what others noted: they note it before they set it
        noted = settings_put_back()
        path = next((str(setting) for setting in (size, ratio) if str(setting) in noted), str(old))
        teardown.push(restore_dirty_limit.__name__, path=path, value=noted.get(path, value_now))
        write_setting(VM / setting, str(value))


def dirty_limits() -> dict[str, int]:
    names = ("dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio")
    return {name: int((VM / name).read_text()) for name in names}


@undo
def restore_interrupt(path: str, value: str) -> None:
    """To its CPUs, where the kernel allows that: of some it decides itself, which holds up no other campaign."""
    file = Path(path)
    try:
        if file.exists() and cpu_list(file.read_text().strip()) != cpu_list(value):
            file.write_text(value)
    except (OSError, ValueError) as error:
        print(f"userblk: {path} was {value} and cannot be put back: {error}", file=sys.stderr)


def _interrupts_of(leaving: Collection[int]) -> Iterator[tuple[Path, str]]:
    """What goes to these CPUs alone, and where that stands: the kernel sends it to all once they are off line, and
    leaves it there when they are back.
    """
    for path in sorted(IRQS.glob("[0-9]*/smp_affinity_list")):
        with suppress(OSError, ValueError):  # gone, or none is named
            cpus = path.read_text().strip()
            if cpu_list(cpus) <= set(leaving):
                yield path, cpus


def limit_cpus(count: int, teardown: Teardown) -> None:
    """Leave so many CPUs on line, the first ones; 0: all of them. Raises PrepareError."""
    online = [path for path in sorted(CPUS.glob("cpu[0-9]*"), key=_number) if _online(path)]
    if count > len(online):
        raise PrepareError(f"{count} CPUs are needed, but {len(online)} are on line")
    leaving = online[count:] if count else []
    try:
        sets = cpusets.to_restore({_number(path) for path in leaving}) if leaving else []
    except CpusetError as error:
        raise PrepareError(str(error)) from None
    for path, cpus in reversed(sets):  # what is pushed first comes last
        teardown.push("restore_setting", path=str(path), value=cpus)
    for path, cpus in _interrupts_of({_number(path) for path in leaving}):
        teardown.push(restore_interrupt.__name__, path=str(path), value=cpus)
    for path in reversed(leaving):
        setting = path / "online"
        if not setting.exists():
            raise PrepareError(f"{path.name} cannot be taken off line")
        teardown.push("restore_setting", path=str(setting), value="1")
        write_setting(setting, "0")


def cpus_on_line() -> set[int]:
    """As limit_cpus() counts them."""
    return {_number(path) for path in CPUS.glob("cpu[0-9]*") if _online(path)}


def cpus_to_come() -> set[int]:
    """CPUs that an earlier campaign left off line: each one puts them on line first."""
    noted: dict[str, str] = {}
    with suppress(TeardownError):  # which the campaign says
        noted = settings_put_back()
    files = [Path(path) for path, value in noted.items() if value == "1"]
    cpus = [file.parent for file in files if file.name == "online" and file.parent.parent == CPUS and file.exists()]
    return {_number(cpu) for cpu in cpus if not _online(cpu)}


def _number(cpu: Path) -> int:
    return int(cpu.name.removeprefix("cpu"))


def _online(cpu: Path) -> bool:
    """The first one often cannot be taken off line, and then does not say that it is on."""
    setting = cpu / "online"
    return not setting.exists() or setting.read_text().strip() == "1"
