# SPDX-License-Identifier: BSD-3-Clause
"""
Disks that must not be overwritten, of kinds that only a whole kernel has: each is refused, in one line, and not a byte
of it changes. The others are in tests/python/test_wrong_devices.py.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from guest import LIMIT, MIB, NVME, SATA, run
from refusals import refusal
from userblk.harness.machine import safety
from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.safety import confirmation
from userblk.harness.systems.base import module_there
from userblk.harness.systems.lio import Backstore, Lun
from waiting import wait_until

AREA = 64 * MIB  # of a disk, that is used
LOOKED_AT = 16 * MIB
SECTORS = AREA // 512
CONFIG = Path("/sys/kernel/config")
NQN = "nqn.2026-11.org.userblk:wrong"

# On a free disk, on which it may lay what it likes: which device is wrong, and what has to be unchanged.
Wrong = Callable[[ExitStack, Path], tuple[str, str]]
MATRIX: dict[str, tuple[Wrong, str]] = {}


def wrong(says: str) -> Callable[[Wrong], Wrong]:
    """A row, and what is said of the device once a user has repeated what is asked for."""

    def add(make: Wrong) -> Wrong:
        MATRIX[make.__name__] = make, says
        return make

    return add


def mount(stack: ExitStack, directory: Path, device: str, *options: str) -> None:
    directory.mkdir(exist_ok=True)
    run(["mount", *options, device, directory])
    stack.callback(run, ["umount", directory])


def mapped(stack: ExitStack, name: str, table: str) -> str:
    run(["dmsetup", "create", name, "--table", table])
    stack.callback(run, ["dmsetup", "remove", "--retry", name])
    return "/dev/" + run(["dmsetup", "info", "--columns", "--noheadings", "-o", "blkdevname", name]).strip()


@contextmanager
def scsi_debug(disks: int, *parameters: str) -> Iterator[list[str]]:
    """Disks in memory, in order of their names."""
    before = set(os.listdir("/sys/block"))
    new: list[str] = []

    def there() -> bool:
        new[:] = sorted(name for name in os.listdir("/sys/block") if name.startswith("sd") and name not in before)
        return len(new) == disks and all(Path("/dev", name).is_block_device() for name in new)

    run(["modprobe", "scsi_debug", f"dev_size_mb={AREA // MIB}", "delay=0", *parameters])
    try:
        wait_until("the disks appear", there, LIMIT)
        run(["udevadm", "settle"], expect=None)
        yield [f"/dev/{name}" for name in new]
    finally:
        wait_until(
            "scsi_debug is not in use",
            lambda: not subprocess.run(["modprobe", "-r", "scsi_debug"], capture_output=True).returncode,
            LIMIT,
        )


# ---- layers of the kernel ---------------------------------------------------------------------


@wrong("is held by dm-")
def below_dm_linear(stack: ExitStack, directory: Path) -> tuple[str, str]:
    mapped(stack, "wrong", f"0 {SECTORS} linear {NVME} 0")
    return NVME, NVME


@wrong("is held by dm-")
def below_dm_crypt(stack: ExitStack, directory: Path) -> tuple[str, str]:
    mapped(stack, "wrong", f"0 {SECTORS} crypt aes-xts-plain64 {'0' * 64} 0 {NVME} 0")
    return NVME, NVME


@wrong("is held by dm-")
def one_of_two_stripes(stack: ExitStack, directory: Path) -> tuple[str, str]:
    mapped(stack, "wrong", f"0 {SECTORS} striped 2 128 {SATA} 0 {NVME} 0")
    return NVME, NVME


@wrong("is mounted at")
def mapped_and_mounted_by_the_mapped_name(stack: ExitStack, directory: Path) -> tuple[str, str]:
    path = mapped(stack, "wrong", f"0 {SECTORS} linear {NVME} 0")
    run(["mkfs.ext4", "-q", "-F", path])
    mount(stack, directory / "point", path, "-o", "ro")
    return path, NVME


def array(stack: ExitStack) -> Path:
    """/sys/block/md127/md of an array of two disks, without mdadm: no metadata, so that nothing is on the disks."""
    run(["modprobe", "md_mod"])
    run(["modprobe", "raid1"])
    Path("/sys/module/md_mod/parameters/new_array").write_text("md_wrong")
    (found,) = Path("/sys/block").glob("md*/md")
    stack.callback((found / "array_state").write_text, "clear")
    (found / "metadata_version").write_text("none")
    (found / "level").write_text("raid1")
    (found / "raid_disks").write_text("2")
    (found / "component_size").write_text(str(AREA >> 10))  # KiB
    for slot, disk in enumerate((SATA, NVME)):
        number = identify(disk).number
        (found / "new_dev").write_text(f"{os.major(number)}:{os.minor(number)}")
        member = found / f"dev-{Path(disk).name}"
        (member / "size").write_text(str(AREA >> 10))
        (member / "slot").write_text(str(slot))
    (found / "resync_start").write_text("none")
    (found / "array_state").write_text("active")
    return found


@wrong("is held by md")
def member_of_an_array(stack: ExitStack, directory: Path) -> tuple[str, str]:
    array(stack)
    return NVME, NVME


@wrong("is mounted at")
def array_that_is_mounted(stack: ExitStack, directory: Path) -> tuple[str, str]:
    disk = f"/dev/{array(stack).parts[3]}"
    run(["mkfs.ext4", "-q", "-F", disk])
    mount(stack, directory / "point", disk, "-o", "ro")
    return disk, NVME


@wrong("is swap")
def compressed_memory_as_swap(stack: ExitStack, directory: Path) -> tuple[str, str]:
    run(["modprobe", "zram"])
    Path("/sys/block/zram0/disksize").write_text(str(AREA))
    stack.callback(Path("/sys/block/zram0/reset").write_text, "1")
    run(["mkswap", "/dev/zram0"])
    run(["swapon", "/dev/zram0"])
    stack.callback(run, ["swapoff", "/dev/zram0"])
    return "/dev/zram0", NVME


# ---- file systems that have more than one disk ----------------------------------------------------


@wrong("in use by another program|is open in|is held by|is mounted at")
def journal_of_a_mounted_file_system(stack: ExitStack, directory: Path) -> tuple[str, str]:
    run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "journal_dev", NVME, f"{AREA >> 12}"])
    run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-J", f"device={NVME}", SATA, f"{AREA >> 12}"])
    mount(stack, directory / "point", SATA, "-o", "ro")  # else the journal is written now and then
    return NVME, NVME


@wrong("in use by another program|is open in|is held by|is mounted at")
def log_of_a_mounted_file_system(stack: ExitStack, directory: Path) -> tuple[str, str]:
    run(["mkfs.xfs", "-q", "-f", "-l", f"logdev={NVME},size=64m", "-d", "size=512m", SATA])
    mount(stack, directory / "point", SATA, "-o", f"ro,logdev={NVME}")
    return NVME, NVME


@wrong("it holds jbd")
def journal_of_what_is_not_mounted(stack: ExitStack, directory: Path) -> tuple[str, str]:
    run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "journal_dev", NVME, f"{AREA >> 12}"])
    return NVME, NVME


# ---- what the kernel offers to others -----------------------------------------------------------


@wrong("SCSI target exports it")
def exported_by_lio(stack: ExitStack, directory: Path) -> tuple[str, str]:
    stack.enter_context(Lun(Backstore.iblock(Path(NVME)), "wrong"))
    return NVME, NVME


@wrong("SCSI target exports it|is open in|in use by another program")
def exported_by_lio_as_a_file(stack: ExitStack, directory: Path) -> tuple[str, str]:
    run(["modprobe", "target_core_file"])
    run(["mount", "-t", "configfs", "configfs", CONFIG], expect=None)
    core = CONFIG / "target/core/fileio_77/wrong"
    core.mkdir(parents=True)
    stack.callback(core.parent.rmdir)
    stack.callback(core.rmdir)
    (core / "control").write_text(f"fd_dev_name={NVME},fd_dev_size={AREA}")
    (core / "enable").write_text("1")
    return NVME, NVME


def nvme_target(stack: ExitStack, namespaces: list[str]) -> None:
    """The driver's loop offers them to every host."""
    if not module_there("nvme_loop"):
        pytest.skip("kernel: it has no nvme_loop")
    run(["modprobe", "nvme_loop"])
    run(["mount", "-t", "configfs", "configfs", CONFIG], expect=None)
    subsystem, port = CONFIG / "nvmet/subsystems" / NQN, CONFIG / "nvmet/ports/7"
    subsystem.mkdir()
    stack.callback(subsystem.rmdir)
    (subsystem / "attr_allow_any_host").write_text("1")
    for number, path in enumerate(namespaces, 1):
        namespace = subsystem / f"namespaces/{number}"
        namespace.mkdir()
        stack.callback(namespace.rmdir)
        (namespace / "device_path").write_text(path)
        (namespace / "enable").write_text("1")
        stack.callback((namespace / "enable").write_text, "0")
    port.mkdir()
    stack.callback(port.rmdir)
    (port / "addr_trtype").write_text("loop")
    link = port / "subsystems" / NQN
    link.symlink_to(subsystem)
    stack.callback(link.unlink)


@wrong("NVMe target exports it")
def exported_by_nvmet(stack: ExitStack, directory: Path) -> tuple[str, str]:
    nvme_target(stack, [NVME])
    return NVME, NVME


def namespaces(stack: ExitStack) -> list[str]:
    """Two of one NVMe controller, which have its serial."""
    disks = stack.enter_context(scsi_debug(2, "num_tgts=2"))
    nvme_target(stack, disks)
    before = set(Path("/sys/block").glob("nvme*"))
    with open("/dev/nvme-fabrics", "w") as fabrics:
        fabrics.write(f"transport=loop,nqn={NQN}")
    (controller,) = (f.parent for f in Path("/sys/class/nvme").glob("nvme*/subsysnqn") if f.read_text().strip() == NQN)
    stack.callback((controller / "delete_controller").write_text, "1")
    new: list[str] = []

    def there() -> bool:
        found = set(Path("/sys/block").glob("nvme*")) - before
        new[:] = sorted(f"/dev/{path.name}" for path in found if re.fullmatch(r"nvme\d+n\d+", path.name))
        return len(new) == 2 and all(Path(path).is_block_device() for path in new)

    wait_until("the namespaces appear", there, LIMIT)
    return new


@wrong("is mounted at")
def namespace_that_is_mounted(stack: ExitStack, directory: Path) -> tuple[str, str]:
    one, _ = namespaces(stack)
    run(["mkfs.ext4", "-q", "-F", one])
    mount(stack, directory / "point", one, "-o", "ro")
    return one, one


# ---- nodes and paths --------------------------------------------------------------------------


def opened_by_another(stack: ExitStack, node: str) -> None:
    argv = ["sh", "-c", f"exec 3<>{node}; echo ready; read line"]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stack.callback(child.communicate)
    assert child.stdout and child.stdout.readline()


@wrong("is open in")
def open_as_a_generic_scsi_device(stack: ExitStack, directory: Path) -> tuple[str, str]:
    run(["modprobe", "sg"])
    (name,) = os.listdir(f"/sys/block/{Path(SATA).name}/device/scsi_generic")
    opened_by_another(stack, f"/dev/{name}")
    return SATA, SATA


@wrong("is open in")
def open_as_a_generic_nvme_namespace(stack: ExitStack, directory: Path) -> tuple[str, str]:
    node = Path("/dev", Path(NVME).name.replace("nvme", "ng"))
    if not node.exists():
        pytest.skip("kernel: it has no generic devices of NVMe namespaces")
    opened_by_another(stack, str(node))
    return NVME, NVME


@wrong("is the same disk by another path")
def one_of_two_paths_to_a_disk(stack: ExitStack, directory: Path) -> tuple[str, str]:
    one, _ = stack.enter_context(scsi_debug(2, "add_host=2", "vpd_use_hostno=0"))
    return one, one


@wrong("is read-only")
def write_protected(stack: ExitStack, directory: Path) -> tuple[str, str]:
    (path,) = stack.enter_context(scsi_debug(1, "wp=1"))
    return path, path


# ---- LVM ----------------------------------------------------------------------------------------

LVM = ("--config", "activation { udev_sync=0 udev_rules=0 }", "--quiet", "--quiet", "--yes")  # no udev waits here


def logical_volume(stack: ExitStack) -> str:
    """An active one, of a real volume group on the NVMe disk."""
    run(["pvcreate", *LVM, "-ff", NVME])
    run(["vgcreate", *LVM, "wrong", NVME])
    stack.callback(run, ["vgremove", *LVM, "--force", "wrong"])
    run(["lvcreate", *LVM, "--extents", "8", "--wipesignatures", "n", "--zero", "n", "--name", "volume", "wrong"])
    return "/dev/" + run(["dmsetup", "info", "--columns", "--noheadings", "-o", "blkdevname", "wrong-volume"]).strip()


@wrong("is held by dm-")
def physical_volume(stack: ExitStack, directory: Path) -> tuple[str, str]:
    logical_volume(stack)
    return NVME, NVME


@wrong("LVM2_member")
def physical_volume_of_an_inactive_group(stack: ExitStack, directory: Path) -> tuple[str, str]:
    logical_volume(stack)
    run(["vgchange", *LVM, "--activate", "n", "wrong"])
    return NVME, NVME


@wrong("is mounted at")
def logical_volume_that_is_mounted(stack: ExitStack, directory: Path) -> tuple[str, str]:
    volume = logical_volume(stack)
    run(["mkfs.ext4", "-q", "-F", volume])
    mount(stack, directory / "point", volume, "-o", "ro")
    return volume, NVME


@pytest.mark.parametrize("name", MATRIX)
def test_wrong_disks_are_refused_and_not_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "OPEN_PATIENCE", 0.3)
    make, says = MATRIX[name]
    for disk in (SATA, NVME):
        run(["wipefs", "--all", "--quiet", disk])
    with ExitStack() as stack:
        path, looked_at = make(stack, tmp_path)
        os.sync()
        before = content(looked_at)
        text = refusal(path)
        same = content(looked_at) == before
    assert same and re.search(says, text), text


def content(disk: str) -> bytes:
    """What is on the disk, not in its cache."""
    run(["blockdev", "--flushbufs", disk])
    with open(disk, "rb") as file:
        return file.read(LOOKED_AT)


def test_two_namespaces_of_one_controller_are_told_apart(tmp_path: Path) -> None:
    """They have one serial: what has to be repeated is the name of the namespace, and the other one's is refused."""
    with ExitStack() as stack:
        one, other = namespaces(stack)
        answers = [confirmation(identify(path)) for path in (one, other)]
        assert answers[0][0] != answers[1][0] and all(what.startswith("wwid") for _, what in answers), answers
        assert "is not its wwid" in refusal(one, answers[1][0])
        assert "is not its wwid" in refusal(one, identify(one).serial)
