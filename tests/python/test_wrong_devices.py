# SPDX-License-Identifier: BSD-3-Clause
"""More than forty devices that must not be overwritten: each is refused, in one line, and not a byte of it changes."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from command_line import userblk
from holders import HOLD, KEEP, MAP, REGISTERED, UNSHARE, holder, write_table
from loops import LIMIT, MIB, loop, run
from refusals import refusal
from userblk.harness.machine import safety
from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.safety import Refused, check, recheck
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, make_plan
from userblk.harness.running.campaign import host_devices
from userblk.harness.running.runner import Runner

SIZE = 64 * MIB  # below that wipefs finds no pool
CONFIRM = str(SIZE)
PAGE = 4096
SWAP = 10 * PAGE  # the smallest; all but the first page of it the kernel may write at any time

Wrong = Callable[[ExitStack, Path, str], "str | tuple[str, str] | None"]  # of a free device: the path, its confirmation
MATRIX: dict[str, tuple[Wrong, str]] = {}


def wrong(says: str) -> Callable[[Wrong], Wrong]:
    """A row: how a device becomes a wrong one, and what is said of it. It is confirmed as it asks to be."""

    def add(make: Wrong) -> Wrong:
        MATRIX[make.__name__] = make, says
        return make

    return add


def make_ext4(device: str, *options: str) -> None:
    """One to which the kernel writes nothing later."""
    run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", *options, device)


def mounted(stack: ExitStack, directory: Path, device: str, *options: str) -> Path:
    make_ext4(device)
    point = directory / "point"
    point.mkdir()
    run("mount", *options, device, str(point))
    stack.callback(run, "umount", str(point))
    return point


def partitions(stack: ExitStack, device: str) -> tuple[str, str]:
    write_table(device)
    run("partx", "--add", device)
    stack.callback(run, "partx", "--delete", device)
    if not Path(f"{device}p1").exists():
        pytest.skip("kernel: no partitions of loop devices")
    return f"{device}p1", f"{device}p2"


def upper(stack: ExitStack, below: str) -> str:
    device = run("losetup", "--find", "--show", below)
    stack.callback(run, "losetup", "--detach", device)
    return device


def swap(stack: ExitStack, path: str) -> None:
    run("mkswap", path, str(SWAP >> 10))
    done = subprocess.run(["swapon", path], capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        pytest.skip(f"kernel: swapon is refused: {done.stderr.strip()}")
    stack.callback(run, "swapoff", path)


def write(device: str, *parts: tuple[int, bytes]) -> None:
    with Path(device).open("r+b") as disk:
        for offset, data in parts:
            disk.seek(offset)
            disk.write(data)


# ---- in use --------------------------------------------------------------------------------


@wrong("is mounted at")
def mounted_ext4(stack: ExitStack, directory: Path, device: str) -> None:
    mounted(stack, directory, device)


@wrong("is mounted at")
def mounted_for_reading(stack: ExitStack, directory: Path, device: str) -> None:
    mounted(stack, directory, device, "-o", "ro")


@wrong("is mounted at")
def mounted_below_another_name(stack: ExitStack, directory: Path, device: str) -> str:
    mounted(stack, directory, device)
    (directory / "name").symlink_to(device)
    return str(directory / "name")


@wrong("is mounted at")
def mounted_through_another_node(stack: ExitStack, directory: Path, device: str) -> None:
    os.mknod(directory / "node", 0o600 | stat.S_IFBLK, identify(device).number)
    make_ext4(device)
    (directory / "point").mkdir()
    run("mount", str(directory / "node"), str(directory / "point"))
    stack.callback(run, "umount", str(directory / "point"))


@wrong("is mounted at|is in use")
def mounted_and_bound_elsewhere(stack: ExitStack, directory: Path, device: str) -> None:
    point = mounted(stack, directory, device)
    (directory / "bound").mkdir()
    run("mount", "--bind", str(point), str(directory / "bound"))
    stack.callback(run, "umount", str(directory / "bound"))


@wrong("is in use by another program")
def unmounted_lazily_but_open(stack: ExitStack, directory: Path, device: str) -> None:
    make_ext4(device)
    (directory / "point").mkdir()
    run("mount", device, str(directory / "point"))
    stack.enter_context((directory / "point/file").open("w"))
    run("umount", "--lazy", str(directory / "point"))


@wrong("is mounted at")
def mounted_in_another_namespace(stack: ExitStack, directory: Path, device: str) -> None:
    make_ext4(device)
    script = f"mount {device} {directory} && echo ready && read line"
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    other = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stack.callback(other.communicate, b"\n", timeout=LIMIT)
    assert other.stdout is not None and other.stdout.readline() == b"ready\n"


@wrong("belongs to a mounted btrfs")
def second_of_a_mounted_btrfs(stack: ExitStack, directory: Path, device: str) -> None:
    """The kernel's list of mounts has the first only."""
    first = stack.enter_context(loop(directory, SIZE))
    run("mkfs.btrfs", "-q", "--mixed", "-d", "single", "-m", "single", first, device)
    (directory / "point").mkdir()
    run("mount", "-t", "btrfs", "-o", f"ro,device={device}", first, str(directory / "point"))
    stack.callback(run, "umount", str(directory / "point"))


@wrong("p1 is mounted at")
def partition_mounted(stack: ExitStack, directory: Path, device: str) -> None:
    first, _ = partitions(stack, device)
    mounted(stack, directory, first)


@wrong("is swap")
def swap_disk(stack: ExitStack, directory: Path, device: str) -> None:
    swap(stack, device)


@wrong("p1 is swap")
def swap_partition(stack: ExitStack, directory: Path, device: str) -> None:
    swap(stack, partitions(stack, device)[0])


@wrong("lies on it")
def loop_on_it(stack: ExitStack, directory: Path, device: str) -> None:
    upper(stack, device)


@wrong("lies on it")
def loop_on_its_partition(stack: ExitStack, directory: Path, device: str) -> None:
    upper(stack, partitions(stack, device)[0])


@wrong("lies on it")
def loop_on_the_disk_of_the_partition(stack: ExitStack, directory: Path, device: str) -> tuple[str, str]:
    first, _ = partitions(stack, device)
    upper(stack, device)
    return first, str(identify(first).size)


@wrong("lies on it")
def loop_on_a_loop_on_it(stack: ExitStack, directory: Path, device: str) -> None:
    upper(stack, upper(stack, device))


@wrong("lies on it|is below")
def mounted_loop_on_it(stack: ExitStack, directory: Path, device: str) -> None:
    mounted(stack, directory, upper(stack, device))


def opened_by(code: str, *prefix: str) -> Wrong:
    def make(stack: ExitStack, directory: Path, device: str) -> None:
        stack.enter_context(holder(code, device, *prefix))

    return make


for _name, _code in {
    "open_for_writing": KEEP,
    "open_for_reading": KEEP.replace("O_RDWR", "O_RDONLY"),
    "open_past_the_cache": KEEP.replace("O_RDWR", "O_RDWR | os.O_DIRECT"),
    "mapped_and_closed": MAP,
    "registered_with_io_uring_and_closed": REGISTERED,
    "mapped_for_reading": HOLD.format(
        flags="os.O_RDONLY", then="m = mmap.mmap(fd, 4096, prot=mmap.PROT_READ); os.close(fd)"
    ),
}.items():
    MATRIX[_name] = opened_by(_code), "is open in"
MATRIX["open_in_other_namespaces"] = opened_by(KEEP, *UNSHARE), "is open in"
MATRIX["open_exclusively"] = opened_by(KEEP.replace("O_RDWR", "O_RDWR | os.O_EXCL")), "is open in|is in use"


@wrong("is open in")
def open_as_another_node(stack: ExitStack, directory: Path, device: str) -> None:
    os.mknod(directory / "node", 0o600 | stat.S_IFBLK, identify(device).number)
    stack.enter_context(holder(KEEP, str(directory / "node")))


@wrong("p2 is open in")
def partition_open(stack: ExitStack, directory: Path, device: str) -> None:
    stack.enter_context(holder(KEEP, partitions(stack, device)[1]))


@wrong("is open in")
def disk_of_the_partition_open(stack: ExitStack, directory: Path, device: str) -> tuple[str, str]:
    first, _ = partitions(stack, device)
    stack.enter_context(holder(KEEP, device))
    return first, str(identify(first).size)


@wrong("is in use by another campaign")
def used_by_another_campaign(stack: ExitStack, directory: Path, device: str) -> None:
    code = (
        "import sys; from userblk.harness.machine.safety import check, claimed\n"
        "with claimed(check(sys.argv[1], sys.argv[2])): print('ready', flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, device, CONFIRM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    stack.callback(other.communicate, b"\n", timeout=LIMIT)
    assert other.stdout is not None and other.stdout.readline() == b"ready\n"


# ---- no device, or none that can be written ---------------------------------------------------


@wrong("is read-only")
def read_only(stack: ExitStack, directory: Path, device: str) -> None:
    run("blockdev", "--setro", device)
    stack.callback(run, "blockdev", "--setrw", device)  # else its next user would have it so


@wrong("has no medium|No such device")
def without_a_medium(stack: ExitStack, directory: Path, device: str) -> str:
    free = run("losetup", "--find")
    return free


@wrong("does not exist")
def nothing(stack: ExitStack, directory: Path, device: str) -> str:
    return str(directory / "none")


@wrong("does not exist")
def dangling_link(stack: ExitStack, directory: Path, device: str) -> str:
    (directory / "link").symlink_to(directory / "none")
    return str(directory / "link")


@wrong("not a block device")
def file(stack: ExitStack, directory: Path, device: str) -> str:
    (directory / "file").write_bytes(bytes(4096))
    return str(directory / "file")


@wrong("not a block device")
def link_to_a_file(stack: ExitStack, directory: Path, device: str) -> str:
    (directory / "link").symlink_to(file(stack, directory, device))  # type: ignore[arg-type]
    return str(directory / "link")


@wrong("not a block device")
def folder(stack: ExitStack, directory: Path, device: str) -> str:
    return str(directory)


@wrong("not a block device")
def terminal(stack: ExitStack, directory: Path, device: str) -> str:
    return "/dev/zero"


@wrong("not a block device")
def pipe(stack: ExitStack, directory: Path, device: str) -> str:
    os.mkfifo(directory / "pipe")
    return str(directory / "pipe")


@wrong("not a block device")
def unix_socket(stack: ExitStack, directory: Path, device: str) -> str:
    here = os.open(directory, os.O_RDONLY)  # a socket's path is short
    stack.callback(os.close, here)
    stack.enter_context(socket.socket(socket.AF_UNIX)).bind(f"/proc/self/fd/{here}/s")
    return str(directory / "s")


@wrong("No such file|cannot be opened|No such device|does not exist")
def node_of_no_device(stack: ExitStack, directory: Path, device: str) -> str:
    os.mknod(directory / "node", 0o600 | stat.S_IFBLK, os.makedev(240, 77))
    return str(directory / "node")


# ---- not the one that was meant -----------------------------------------------------------------


@wrong("not confirmed")
def unconfirmed(stack: ExitStack, directory: Path, device: str) -> tuple[str, str]:
    return device, ""


@wrong("is not its size")
def confirmed_as_another(stack: ExitStack, directory: Path, device: str) -> tuple[str, str]:
    return device, str(SIZE + 512)


@wrong("is not its size")
def partition_confirmed_as_its_disk(stack: ExitStack, directory: Path, device: str) -> tuple[str, str]:
    return partitions(stack, device)[0], CONFIRM


@wrong("it holds ext4 photos")
def file_system_confirmed_by_its_size(stack: ExitStack, directory: Path, device: str) -> tuple[str, str]:
    make_ext4(device, "-L", "photos")
    return device, CONFIRM


@wrong("p2: ext4")
def partition_with_files_confirmed_by_size(stack: ExitStack, directory: Path, device: str) -> tuple[str, str]:
    make_ext4(partitions(stack, device)[1])
    return device, CONFIRM


# ---- members of what is not in use now -----------------------------------------------------------


def lvm() -> tuple[int, bytes]:
    body = struct.pack("<I8s", 32, b"LVM2 001") + b"0" * 32 + bytes(512 - 20 - 12 - 32)
    crc = zlib.crc32(body, 0xF597A6CF ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
    return 512, struct.pack("<8sQI", b"LABELONE", 1, crc) + body


def raid() -> tuple[int, bytes]:
    block = bytearray(256)
    struct.pack_into("<II", block, 0, 0xA92B4EFC, 1)
    struct.pack_into("<Q", block, 144, 8)  # where it is, in sectors
    total = sum(struct.unpack("<64I", bytes(block)))
    struct.pack_into("<I", block, 216, ((total & 0xFFFFFFFF) + (total >> 32)) & 0xFFFFFFFF)
    return 4096, bytes(block)


def crc(data: bytes, polynomial: int, bits: int) -> int:
    """With the register full of ones at both ends. polynomial: reflected for CRC-32C, else as it is."""
    full = (1 << bits) - 1
    value = full
    for byte in data:
        if bits == 32:
            value ^= byte
            for _ in range(8):
                value = value >> 1 ^ (polynomial if value & 1 else 0)
        else:
            value ^= byte << bits - 8
            for _ in range(8):
                value = (value << 1 ^ (polynomial if value >> bits - 1 else 0)) & full
    return value ^ full


def bcache() -> tuple[int, bytes]:
    body = struct.pack("<QQ16s16s", 8, 0, bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81"), b"x" * 16)
    body = body.ljust(200, b"\0")  # up to the journal's buckets, of which there are none
    return 4096, struct.pack("<Q", crc(body, 0x42F0E1EBA9EA3693, 64)) + body


def btrfs() -> tuple[int, bytes]:
    """One of two devices of a file system."""
    block = bytearray(4096)
    struct.pack_into("<16sQQ8sQ", block, 32, b"u" * 16, 65536, 1, b"_BHRfS_M", 1)
    struct.pack_into("<QQQQ", block, 112, SIZE, 4096, 6, 2)
    struct.pack_into("<IIII", block, 144, 4096, 16384, 16384, 4096)
    struct.pack_into("<I", block, 0, crc(bytes(block[32:]), 0x82F63B78, 32))
    return 65536, bytes(block)


def zfs() -> list[tuple[int, bytes]]:
    """Four uberblocks of a pool's first label."""
    ring, block = 128 << 10, 1 << 10
    return [(ring + n * block, struct.pack("<QQQQQ", 0xBAB10C, 5000, n + 1, 1, 1_700_000_000)) for n in range(4)]


MEMBERS: dict[str, list[tuple[int, bytes]]] = {
    "LVM2_member": [lvm()],
    "linux_raid_member": [raid()],
    "bcache": [bcache()],
    "btrfs": [btrfs()],
    "zfs_member": zfs(),
    "crypto_LUKS": [(0, b"LUKS\xba\xbe\x00\x01" + bytes(160) + b"0af76519-16cd-43dd-8448-eb211c80319c")],
    "ceph_bluestore": [(0, b"bluestore block device\n")],
    "DM_verity_hash": [(0, b"verity\0\0" + struct.pack("<I", 1))],
    "DM_snapshot_cow": [(0, b"SnAp")],
}


def member(parts: list[tuple[int, bytes]]) -> Wrong:
    def make(stack: ExitStack, directory: Path, device: str) -> None:
        write(device, *parts)

    return make


for _name, _parts in MEMBERS.items():
    MATRIX[f"member_{_name}"] = member(_parts), f"it holds {_name}"


@wrong("it holds crypto_LUKS")
def member_whose_label_is_not_text(stack: ExitStack, directory: Path, device: str) -> None:
    """wipefs hands such a label on as it is."""
    write(device, (0, struct.pack(">6sHQQ48s", b"LUKS\xba\xbe", 2, 16384, 1, b"donn\xe9es")))


@wrong("what it holds cannot be seen")
def looked_at_without_wipefs(stack: ExitStack, directory: Path, device: str) -> None:
    stack.enter_context(pytest.MonkeyPatch.context()).setenv("PATH", str(directory))


@wrong("what it holds cannot be seen")
def looked_at_by_a_wipefs_that_fails(stack: ExitStack, directory: Path, device: str) -> None:
    (directory / "wipefs").write_text("#!/bin/sh\nexit 1\n")
    (directory / "wipefs").chmod(0o755)
    stack.enter_context(pytest.MonkeyPatch.context()).setenv("PATH", str(directory), prepend=":")


def runner_on(devices: list[Device], directory: Path) -> Runner:
    """The runner of a campaign of the smallest area."""
    profile = dataclasses.replace(load_profile("quick"), area={device.id: MIB for device in devices})
    plan = make_plan(
        suite=load_suite("bdus-block"), profile=profile, systems=[load_system("native")], devices=devices,
        campaign="c", build="b", host="here", repetitions=1,
    )  # fmt: skip
    directory.mkdir()
    return Runner(plan, directory)


# ---- the matrix --------------------------------------------------------------------------------


def digest(disk: Path) -> bytes:
    """What is on it, without the places to which the kernel swaps."""
    data = bytearray(disk.read_bytes())
    for header in re.finditer(b"SWAPSPACE2", data):
        data[header.end() : header.end() + SWAP - PAGE] = bytes(SWAP - PAGE)
    return hashlib.sha256(data).digest()


@contextmanager
def unchanged(directory: Path) -> Iterator[None]:
    """The disk below it has the same bytes afterwards."""
    before = digest(directory / "disk0")
    yield
    assert digest(directory / "disk0") == before


def test_what_the_kernel_swaps_is_no_change(tmp_path: Path) -> None:
    disk = tmp_path / "disk0"
    disk.write_bytes(bytes(2 * SWAP))
    run("mkswap", str(disk), str(SWAP >> 10))
    with unchanged(tmp_path):
        write(str(disk), (PAGE, b"x" * (SWAP - PAGE)))
    for offset in (0, PAGE - 1, SWAP, 2 * SWAP - 1):
        with pytest.raises(AssertionError), unchanged(tmp_path):
            write(str(disk), (offset, b"y"))


@pytest.mark.parametrize("name", MATRIX)
def test_wrong_devices_are_refused_and_not_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "OPEN_PATIENCE", 0.3)
    make, says = MATRIX[name]
    (tmp_path / "disk").mkdir()
    (tmp_path / "else").mkdir()
    with loop(tmp_path / "disk", SIZE) as device, ExitStack() as stack:
        made = make(stack, tmp_path / "else", device)
        path, confirm = made if isinstance(made, tuple) else (made or device, None)
        os.sync()
        with unchanged(tmp_path / "disk"):
            text = refusal(path, confirm)
        assert re.search(says, text), text


@pytest.mark.parametrize("option", ["--dry-run", "--json"])
def test_one_that_is_too_small_is_refused_before_anything_is_made(option: str, tmp_path: Path) -> None:
    words = ("run", "--where", "host", "--systems", "native", "--confirm", CONFIRM, option)
    with loop(tmp_path, SIZE) as device, unchanged(tmp_path):
        done = userblk(*words, "--sata", device, cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"userblk: {device}: has {SIZE} bytes, but profile quick uses ") and "name a larger" in line
    assert not (tmp_path / "results").exists()


def test_the_plan_of_what_is_lost_can_be_read_before_it_is_confirmed(tmp_path: Path) -> None:
    """It says what to confirm, and the campaign still asks for it."""
    words = ("run", "--where", "host", "--systems", "native", "--workloads", "rand-read-1th-4k", "--sata")
    with loop(tmp_path, 64 << 30) as device:
        planned = userblk(*words, device, "--dry-run", cwd=tmp_path)
        started = userblk(*words, device, cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert f'with --confirm "{64 << 30}"' in planned.stderr
    assert "whose contents are LOST" in planned.stdout
    assert started.returncode == 2 and "not confirmed" in started.stderr
    assert not (tmp_path / "results").exists()


def test_one_device_named_twice(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device, unchanged(tmp_path):
        (tmp_path / "other").symlink_to(device)
        with pytest.raises(Refused, match="named for two devices"):
            host_devices({"sata": device, "nvme": str(tmp_path / "other")}, f"{CONFIRM} {CONFIRM}")


@pytest.mark.parametrize("whole_first", [True, False])
def test_a_disk_and_its_partition(tmp_path: Path, whole_first: bool) -> None:
    """Both before a campaign, and by its runner; two partitions of one disk are two devices."""
    with loop(tmp_path, SIZE) as device, ExitStack() as stack:
        first, second = partitions(stack, device)
        confirm = {one: str(identify(one).size) for one in (device, first, second)}
        confirm[device] += ",dos"
        pair = (device, second) if whole_first else (second, device)
        says = "named for two devices, .*the same disk; name two different ones"
        with unchanged(tmp_path):
            with pytest.raises(Refused, match=says):
                host_devices(dict(zip(("sata", "nvme"), pair, strict=True)), " ".join(confirm[one] for one in pair))
            devices = [Device(str(number), one, confirm[one]) for number, one in enumerate(pair)]
            with pytest.raises(Refused, match=says), ExitStack() as claims:
                runner_on(devices, tmp_path / "c1").check_devices(claims)
            devices = [Device(str(number), one, confirm[one]) for number, one in enumerate((first, second))]
            with ExitStack() as claims:
                runner_on(devices, tmp_path / "c2").check_devices(claims)
            found = host_devices({"sata": first, "nvme": second}, f"{confirm[first]} {confirm[second]}")
        assert [one.path for one in found] == [first, second]


def test_devices_of_equal_size_swapped_between_plan_and_resume(tmp_path: Path) -> None:
    """Loop devices have no serial: what is behind the name changes, as it does when cables are changed."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with loop(tmp_path / "a", SIZE) as device:
        planned = check(device, CONFIRM)
        if not planned.sequence:
            pytest.skip("kernel: does not count disks")
        (tmp_path / "b/disk0").write_bytes(os.urandom(4096))
        os.truncate(tmp_path / "b/disk0", SIZE)
        run("losetup", "--detach", device)
        run("losetup", device, str(tmp_path / "b/disk0"))
        with unchanged(tmp_path / "b"), pytest.raises(Refused, match="is not the device that it was"):
            recheck(planned, CONFIRM, None)


def test_there_are_at_least_forty() -> None:
    assert len(MATRIX) + 2 >= 40
