# SPDX-License-Identifier: BSD-3-Clause
"""Which devices are refused: on real loop devices that are really mounted, swap, held and so on."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from holders import KEEP, MAP, UNSHARE, holder, write_table
from loops import LIMIT, MIB, load_module, loop, run
from userblk.harness.machine import blockdev, safety
from userblk.harness.machine.blockdev import BlockDevice, identify, serial_of, wwid_of
from userblk.harness.machine.safety import Refused, check, claimed, confirmation, contents, mounts, recheck
from userblk.harness.running.campaign import host_devices

SIZE = 32 * MIB
CONFIRM = str(SIZE)


def refusal(path: str, confirm: str = CONFIRM, **options: Any) -> str:
    with pytest.raises(Refused) as error:
        check(path, confirm, **options)
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "; " in text and "\n" not in text  # the reason, and what to do about it
    return text


def test_a_free_device_is_accepted_when_confirmed(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        found = check(device, CONFIRM)
        assert (found.size, found.serial, found.disk, found.readonly) == (SIZE, "", Path(device).name, False)
        recheck(found, CONFIRM, None)


def test_unconfirmed_says_what_is_on_it(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        assert "not confirmed; no signature was found on it" in refusal(device, "")
        assert "33554433 is not its size in bytes" in refusal(device, "33554433")
        run("mkfs.ext4", "-q", "-F", "-L", "data", device)
        text = refusal(device, "")
        assert "it holds ext4 data" in text
        assert f"confirm it with its size in bytes, {SIZE}" in text
        check(device, CONFIRM)  # a signature alone is no reason, once confirmed


def test_a_disk_that_was_pulled_out_of_a_btrfs_is_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "BTRFS", tmp_path / "btrfs")
    devices = tmp_path / "btrfs/uuid/devices"
    devices.mkdir(parents=True)
    (devices / "sdz").symlink_to("/sys/devices/none/block/sdz")
    with loop(tmp_path, SIZE) as device:
        check(device, CONFIRM)
        (devices / "loop").symlink_to(Path("/sys/block", Path(device).name))
        assert "belongs to a mounted btrfs" in refusal(device)


def test_commands_past_a_disk_go_to_each_of_its_controllers(tmp_path: Path) -> None:
    """With native multipath its name has the number of their subsystem."""
    subsystem = tmp_path / "nvme-subsys5"
    for name in ("nvme3", "nvme4"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dev").write_text("240:3\n")
    for name in ("nvme3", "nvme4", "nvme5n1"):
        subsystem.mkdir(exist_ok=True)
        (subsystem / name).symlink_to(tmp_path / name)
    for disk, device in (("nvme5n1", subsystem), ("nvme3n1", tmp_path / "nvme3")):
        (tmp_path / disk).mkdir()
        (tmp_path / disk / "device").symlink_to(device)
    assert [path.name for path in safety._past(tmp_path / "nvme5n1")] == ["nvme3", "nvme4"]
    assert [path.name for path in safety._past(tmp_path / "nvme3n1")] == ["nvme3"]


def test_mounted(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        run("mkfs.ext4", "-q", "-F", device)
        where = tmp_path / "with space"
        where.mkdir()
        run("mount", device, str(where))
        try:
            assert f"is mounted at {where}" in refusal(device)
            assert "is mounted" in refusal(device, server=0)
        finally:
            run("umount", str(where))
        check(device, CONFIRM)


def test_mounted_in_another_namespace(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        run("mkfs.ext4", "-q", "-F", device)
        script = f"mount {device} {tmp_path} && echo ready && read line"
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        other = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert other.stdout is not None and other.stdout.readline() == b"ready\n"
            assert f"is mounted at {tmp_path}" in refusal(device)
        finally:
            other.communicate(b"\n", timeout=20)


def test_a_partition_in_use_protects_the_disk(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        write_table(device)
        run("partx", "--add", device)
        first, second = f"{device}p1", f"{device}p2"
        if not Path(first).exists():
            pytest.skip("kernel: no partitions of loop devices")
        run("mkfs.ext4", "-q", "-F", first)
        where = tmp_path / "mount"
        where.mkdir()
        run("mount", first, str(where))
        try:
            assert f"{Path(first).name} is mounted" in refusal(device)
            assert check(second, str(identify(second).size)).disk == Path(device).name
        finally:
            run("umount", str(where))
            run("partx", "--delete", device)


def test_swap(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        run("mkswap", device)
        try:
            run("swapon", device)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"kernel: swapon is refused: {error.stderr.strip()}")
        try:
            assert "is swap" in refusal(device)
        finally:
            run("swapoff", device)


def test_held_by_the_device_mapper(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        name = f"userblk-test-{os.getpid()}"
        table = f"0 {SIZE // 512} linear {device} 0"
        if not shutil.which("dmsetup"):
            pytest.skip("dmsetup is not installed")
        load_module("dm-mod")
        made = subprocess.run(["dmsetup", "create", name, "--table", table], capture_output=True, text=True, timeout=30)
        if made.returncode:
            pytest.skip(f"kernel: no device mapper: {made.stderr.strip().splitlines()[-1]}")
        try:
            assert "is held by dm-" in refusal(device)
        finally:
            run("dmsetup", "remove", name)


def test_below_another_loop_device(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        upper = run("losetup", "--find", "--show", device)
        try:
            assert f"loop device {Path(upper).name} lies on it" in refusal(device)
        finally:
            run("losetup", "--detach", upper)


def test_below_the_disk_of_a_system_of_ours(tmp_path: Path) -> None:
    """Systems loop, dm-linear and the like hold the device by the kernel while its area is prepared."""
    with loop(tmp_path, SIZE) as device:
        ours = run("losetup", "--find", "--show", device)
        try:
            recheck(check(device, CONFIRM, server=0, over=Path(ours).name), CONFIRM, 0, Path(ours).name)
            with pytest.raises(Refused, match="lies on it"):
                check(device, CONFIRM, server=0, over="loop999")
        finally:
            run("losetup", "--detach", ours)


def test_exports_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each file that names one, as the kernel writes it; one of a system of ours is none."""
    monkeypatch.setattr(safety, "CONFIGFS", tmp_path)
    (tmp_path / "disk").mkdir()
    with loop(tmp_path / "disk", SIZE) as device:
        check(device, CONFIRM)
        for file, text in (
            ("nvmet/subsystems/nqn.x/namespaces/1/device_path", f"{device}\n"),
            (
                "target/core/iblock_0/x/info",
                f"Status: ACTIVATED\niBlock device: loop  UDEV PATH: {device}  readonly: 0\n",
            ),
            ("target/core/fileio_0/x/info", f"TCM FILEIO ID: 0        File: {device}  Size: 16777216  Mode: O_DSYNC\n"),
            ("target/core/iblock_0/x/udev_path", f"{device}\n"),
            ("usb_gadget/g/functions/mass_storage.0/lun.0/file", f"{device}\n"),
        ):
            named = tmp_path / file
            named.parent.mkdir(parents=True)
            named.write_text(text)
            with pytest.raises(Refused, match="(NVMe target|SCSI target|USB gadget) exports it"):
                check(device, CONFIRM)
            named.unlink()
            named.parent.rmdir()
        (tmp_path / "block/nvme77n1").mkdir(parents=True)
        number = identify(device).number
        (tmp_path / "block/nvme77n1/dev").write_text(f"{os.major(number)}:{os.minor(number)}\n")
        controller = tmp_path / "nvmet/subsystems/nqn.x/passthru"
        controller.mkdir(parents=True)
        (controller / "device_path").write_text("/dev/nvme77\n")
        check(device, CONFIRM)
        with monkeypatch.context() as patch, pytest.raises(Refused, match="NVMe target exports it"):
            patch.setattr(blockdev, "DISKS", tmp_path / "block")
            check(device, CONFIRM)
        (controller / "device_path").unlink()
        ours = tmp_path / "nvmet/subsystems/nqn.2026-11.org.userblk:device/namespaces/1"
        ours.mkdir(parents=True)
        (ours / "device_path").write_text(f"{device}\n")
        check(device, CONFIRM, server=0, over="nvme9n1")
        with pytest.raises(Refused, match="NVMe target exports it"):
            check(device, CONFIRM)


def test_another_path_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loop(tmp_path, SIZE) as device, loop(tmp_path, SIZE) as other:
        names = [Path(one).name for one in (device, other)]
        monkeypatch.setattr(blockdev, "wwid_of", lambda disk: "naa.5" if disk.name in names else "")
        monkeypatch.setattr(safety, "wwid_of", lambda disk: "naa.5" if disk.name in names else "")
        with pytest.raises(Refused, match=f"{names[1]} is the same disk by another path"):
            check(device, CONFIRM)
        (tmp_path / names[1]).mkdir()
        (tmp_path / names[1] / "hidden").write_text("1\n")
        monkeypatch.setattr(blockdev, "DISKS", tmp_path)
        check(device, CONFIRM)


def test_in_use_by_another_program(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        fd = os.open(device, os.O_RDONLY | os.O_EXCL)
        try:
            assert "is in use by another program" in refusal(device)
            check(device, CONFIRM, server=0)
        finally:
            os.close(fd)


@pytest.mark.parametrize("code", [KEEP, KEEP.replace("O_RDWR", "O_RDONLY"), MAP], ids=["write", "read", "map"])
def test_open_in_another_program(tmp_path: Path, code: str) -> None:
    with loop(tmp_path, SIZE) as device:
        name = Path(device).name
        with holder(code, device) as other:
            comm = Path(f"/proc/{other.pid}/comm").read_text().strip()
            assert f"{name} is open in {comm} (pid {other.pid}); stop it" in refusal(device)
            check(device, CONFIRM, server=0)  # a child of ours
            check(device, CONFIRM, server=other.pid)
        check(device, CONFIRM)


def test_open_in_other_namespaces_under_another_name(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        number = identify(device).number
        node = tmp_path / "other"
        os.mknod(node, 0o600 | stat.S_IFBLK, number)
        code = KEEP.replace("input()", "os.unlink(sys.argv[1]); input()")
        with holder(code, str(node), *UNSHARE):
            assert re.search(rf"{Path(device).name} is open in \S+ \(pid \d+\)", refusal(device))
        check(device, CONFIRM)


def test_open_in_another_program_while_our_server_has_it(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from userblk.harness.machine.safety import check, recheck, Refused\n"
        "found = check(sys.argv[1], sys.argv[2], server=int(sys.argv[3]))\n"
        "recheck(found, sys.argv[2], int(sys.argv[3]))\n"
    )
    with loop(tmp_path, SIZE) as device, holder(KEEP, device) as server:
        argv = [sys.executable, "-c", code, device, CONFIRM, str(server.pid)]  # the holders are not its children
        with holder(KEEP, device) as other:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False)
            assert re.search(rf"is open in \S+ \(pid {other.pid}\); stop it", done.stderr)
        run(*argv)


def test_two_campaigns(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        found = check(device, CONFIRM)
        code = (
            "import sys\n"
            "from userblk.harness.machine.safety import check, claimed, Refused\n"
            "try:\n"
            "    with claimed(check(sys.argv[1], sys.argv[2])): print('claimed')\n"
            "except Refused as error: print(error)\n"
        )

        def other() -> str:
            return run(sys.executable, "-c", code, device, CONFIRM)

        with claimed(found):
            assert f"is in use by another campaign (pid {os.getpid()})" in other()
        assert other() == "claimed"


def test_read_only(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE, "--read-only") as device:
        assert "is read-only" in refusal(device)


def test_no_device(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert "does not exist" in refusal(str(tmp_path / "none"))
    assert "not a block device" in refusal(str(file))
    assert "not a block device" in refusal("/dev/null")


def test_the_root_file_systems_device() -> None:
    for number, places in mounts().items():
        sysfs = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
        if "/" in places and sysfs.exists():
            path = f"/dev/{sysfs.resolve().name}"
            assert re.search("is mounted at|is below", refusal(path, str(identify(path).size)))
            return
    pytest.skip("kernel: the root file system lies on no block device that it shows")


def test_another_device_under_the_same_name(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        found = check(device, CONFIRM)
        os.truncate(tmp_path / "disk0", SIZE // 2)
        run("losetup", "--set-capacity", device)
        with pytest.raises(Refused, match="is not the device that it was"):
            recheck(found, str(SIZE // 2), 0)


def test_another_device_of_the_same_size_under_the_same_name(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        found = check(device, CONFIRM)
        if not found.sequence:
            pytest.skip("kernel: does not count disks")
        (tmp_path / "other").write_bytes(b"")
        os.truncate(tmp_path / "other", SIZE)
        run("losetup", "--detach", device)
        run("losetup", device, str(tmp_path / "other"))
        with pytest.raises(Refused, match="is not the device that it was"):
            recheck(found, CONFIRM, None)


def test_namespaces_that_share_a_serial_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, eui in (("nvme0n1", "eui.01"), ("nvme0n2", "eui.02"), ("sda", "t10.ATA     X")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / ("wwid" if name != "sda" else "device/wwid")).write_text(f"{eui}\n")
        (tmp_path / name / "device/serial").write_text("S1\n" if name != "sda" else "S2\n")
    monkeypatch.setattr(blockdev, "DISKS", tmp_path)

    def disk(name: str) -> BlockDevice:
        path = tmp_path / name
        return BlockDevice(f"/dev/{name}", name, name, 1, SIZE, 512, False, serial_of(path), wwid_of(path))

    first, second = disk("nvme0n1"), disk("nvme0n2")
    assert first.identity == f"wwid=eui.01, serial=S1, size={SIZE}" != second.identity
    assert confirmation(first)[0] == "eui.01" and confirmation(second)[0] == "eui.02"
    assert confirmation(disk("sda")) == ("S2", "serial")
    (tmp_path / "sdac0").mkdir()  # as nvme0c0n1 is, a path of nvme0n1
    (tmp_path / "sdac0/hidden").write_text("1\n")
    (tmp_path / "sdac0/serial").write_text("S2\n")
    assert confirmation(disk("sda")) == ("S2", "serial")


def test_a_serial_that_two_disks_share_confirms_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a wwid, they may change their names at a restart, and each has all that is known of the other."""
    with loop(tmp_path, SIZE) as device, loop(tmp_path, SIZE) as other:
        names = [Path(one).name for one in (device, other)]
        monkeypatch.setattr(blockdev, "serial_of", lambda disk: "S1" if disk.name in names else "")
        with pytest.raises(Refused, match=f"S1 is not its size in bytes.*, {SIZE}$"):
            check(device, "S1", first=True)
        assert check(device, str(SIZE), first=True).serial == ""
        os.truncate(tmp_path / "disk1", SIZE // 2)
        run("losetup", "--set-capacity", other)
        assert check(device, "S1", first=True).serial == "S1"


def test_partitions_are_told_apart(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        write_table(device)
        run("partx", "--add", device)
        first, second = f"{device}p1", f"{device}p2"
        try:
            if not Path(first).exists():
                pytest.skip("kernel: no partitions of loop devices")
            run("mkfs.ext4", "-q", "-F", "-L", "data", second)
            assert (
                identify(first).identity == f"file={tmp_path}/disk0, partuuid=12345678-01, start={MIB}, size={8 * MIB}"
            )
            assert (
                identify(second).identity
                == f"file={tmp_path}/disk0, partuuid=12345678-02, start={10 * MIB}, size={8 * MIB}"
            )
            assert contents(identify(device)) == f"dos, {Path(second).name}: ext4 data"
        finally:
            run("partx", "--delete", device)


def test_a_size_alone_confirms_no_device_that_holds_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loop(tmp_path, SIZE) as device:
        monkeypatch.chdir("/dev")  # from where the campaign is not resumed
        (free,) = host_devices({"sata": Path(device).name}, CONFIRM)
        assert free.path == device
        assert (free.confirm, free.identity) == (CONFIRM, f"file={tmp_path}/disk0, size={SIZE}")
        run("mkfs.ext4", "-q", "-F", "-L", "data", device)
        with pytest.raises(Refused, match=f"it holds ext4 data, .* what it holds, {SIZE},ext4$"):
            host_devices({"sata": device}, CONFIRM)
        (signed,) = host_devices({"sata": device}, f"{SIZE},ext4")
        assert signed.confirm == CONFIRM  # what it holds is lost by the first run


def test_what_cannot_be_looked_at_is_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loop(tmp_path, SIZE) as device:
        found = identify(device)
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(tmp_path))
            assert contents(found) == "something that wipefs does not know"


def test_which_signatures_are_members() -> None:
    for kind in ("LVM2_member", "linux_raid_member", "zfs_member", "bcache", "btrfs"):
        assert safety.Signature("sdb", kind, "", "").member
    assert not any(safety.Signature("sdb", kind, "", "filesystem").member for kind in ("ext4", "gpt", "xfs"))


def test_two_loop_devices_on_one_file(tmp_path: Path) -> None:
    """What is mounted by one of them would be overwritten by the other; parts that do not overlap are two disks."""
    with loop(tmp_path, SIZE) as device:
        half = str(SIZE // 2)
        twin = run("losetup", "--find", "--show", identify(device).file)
        try:
            assert f"{Path(twin).name} lies on the same file" in refusal(device)
        finally:
            run("losetup", "--detach", twin)
        check(device, CONFIRM)
        first = run("losetup", "--find", "--show", "--sizelimit", half, identify(device).file)
        second = run("losetup", "--find", "--show", "--offset", half, identify(device).file)
        try:
            run("losetup", "--detach", device)
            assert check(second, half).size == check(first, half).size == SIZE // 2
        finally:
            run("losetup", "--detach", first)
            run("losetup", "--detach", second)
            run("losetup", device, str(tmp_path / "disk0"))


def test_a_mount_point_that_is_not_text(tmp_path: Path) -> None:
    """A disk of an old machine may be mounted at a name that is not UTF-8."""
    with loop(tmp_path, SIZE) as device:
        run("mkfs.ext4", "-q", "-F", device)
        where = os.fsencode(tmp_path) + b"/caf\xe9"
        os.mkdir(where)
        script = b"mount " + device.encode() + b" '" + where + b"' && echo ready && read line"
        argv: list[str | bytes] = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        other = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert other.stdout is not None and other.stdout.readline() == b"ready\n"
            assert f"is mounted at {os.fsdecode(where)}" in refusal(device)
        finally:
            other.communicate(b"\n", timeout=20)
