# SPDX-License-Identifier: BSD-3-Clause
"""Preparing a device and its caches, on real loop devices: what is claimed must have happened."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from loops import MIB, loop
from userblk.harness.machine import prepare
from userblk.harness.machine.blockdev import (
    SAMPLES,
    BlockDevice,
    cached_share,
    discard,
    flush_cache,
    identify,
    is_there,
    queue_attributes,
    serial_of,
    zero_fill,
    zero_samples,
)
from userblk.harness.machine.prepare import PrepareError, drop_caches, fill_area, kept_cached
from userblk.harness.machine.teardown import Teardown
from userblk.harness.observing import environment

SIZE = 16 * MIB


def dirty(path: str) -> None:
    with Path(path).open("r+b") as file:
        file.write(b"x" * SIZE)
    flush_cache(path)


def test_zero_fill_and_its_reading_back(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        dirty(device)
        assert zero_samples(device, SIZE, 1) == 0
        zero_fill(device, SIZE - MIB)
        assert zero_samples(device, SIZE - MIB, 1) == SAMPLES
        with Path(device).open("rb") as file:
            file.seek(SIZE - MIB)
            assert file.read() == b"x" * MIB  # not beyond what was asked for
        assert (tmp_path / "disk0").stat().st_blocks * 512 >= SIZE  # written, not punched


def test_a_fill_that_did_not_happen_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loop(tmp_path, SIZE) as device:
        dirty(device)
        monkeypatch.setattr(prepare, "zero_fill", lambda path, length: None)
        with pytest.raises(PrepareError, match="16 of 16 blocks are not zero"):
            fill_area(identify(device), SIZE, 1)


def test_discard_frees_the_blocks(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        dirty(device)
        if not discard(device, SIZE):
            pytest.skip("kernel: the file system below punches no holes")
        assert (tmp_path / "disk0").stat().st_blocks == 0
        assert zero_samples(device, SIZE, 1) == SAMPLES


def test_the_cache_is_seen_and_dropped(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        found = identify(device)
        with Path(device).open("rb") as held:  # the last close would drop the pages, too
            while held.read(MIB):
                pass
            assert cached_share(device, SIZE) == 1
            figures = drop_caches([found], SIZE)
            assert figures["cached_area_share"] == 0
            assert cached_share(device, SIZE) == 0
            held.seek(0)
            held.read(SIZE // 2)
            assert 0.4 < cached_share(device, SIZE) < 1  # half of it, and what read-ahead adds


def test_pages_that_stay_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loop(tmp_path, SIZE) as device:

        def read_again(path: str) -> None:
            os.pread(fd, SIZE, 0)

        fd = os.open(device, os.O_RDONLY)
        monkeypatch.setattr(prepare, "flush_cache", lambda path: None)
        monkeypatch.setattr(prepare, "VM", tmp_path)  # drop_caches becomes a plain file
        try:
            read_again(device)
            with pytest.raises(PrepareError, match="of the area is still cached"):
                drop_caches([identify(device)], SIZE)
        finally:
            os.close(fd)


def test_dirty_limits_come_back() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    before = prepare.dirty_limits()
    teardown = Teardown()
    prepare.limit_dirty(8 * MIB, 4 * MIB, 0, teardown)
    try:
        during = prepare.dirty_limits()
        assert (during["dirty_bytes"], during["dirty_background_bytes"]) == (8 * MIB, 4 * MIB)
    finally:
        teardown.unwind()
    assert prepare.dirty_limits() == before
    assert not teardown.journal.exists()


def test_a_group_of_version_2_gets_its_limit_as_a_ratio() -> None:
    """The kernel scales bytes down to the group's part of the memory."""
    assert prepare.dirty_settings(8, 4, 0) == {"dirty_background_bytes": 4, "dirty_bytes": 8}
    of_paper = prepare.dirty_settings(858993459, 429496729, 4 << 30)
    assert of_paper == {"dirty_background_ratio": 10, "dirty_ratio": 20}
    assert prepare.dirty_settings(2 * MIB, MIB, 4 << 30) == {"dirty_background_ratio": 1, "dirty_ratio": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_dirty_ratios_come_back() -> None:
    before, teardown = prepare.dirty_limits(), Teardown()
    prepare.limit_dirty(256 * MIB, 128 * MIB, 1024 * MIB, teardown)
    try:
        during = prepare.dirty_limits()
        assert during == {
            "dirty_bytes": 0,
            "dirty_ratio": 25,
            "dirty_background_bytes": 0,
            "dirty_background_ratio": 12,
        }
    finally:
        teardown.unwind()
    assert prepare.dirty_limits() == before


def test_a_file_system_outside_the_group_gets_its_share_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the limit is a ratio, its own would be one of the machine's memory."""
    device = tmp_path.stat().st_dev
    settings = tmp_path / f"{os.major(device)}:{os.minor(device)}"
    settings.mkdir()
    (settings / "max_ratio").write_text("1\n")
    monkeypatch.setattr(prepare, "BDI_SETTINGS", tmp_path)
    monkeypatch.setattr(prepare, "dirty_limits", lambda: {"dirty_bytes": 0, "dirty_ratio": 20})
    assert prepare.unscale_dirty_share(tmp_path, 800 * MIB, 0) == {"dirty_share_bytes": None}  # before Linux 6.3
    (settings / "max_bytes").write_text("0\n")
    assert prepare.unscale_dirty_share(tmp_path, 800 * MIB, 0) == {"dirty_share_bytes": 8 * MIB}
    assert int((settings / "max_bytes").read_text()) == 8 * MIB
    assert prepare.unscale_dirty_share(tmp_path, 800 * MIB, 1600 * MIB) == {"dirty_share_bytes": 16 * MIB}


def test_write_back_is_told_the_rate_of_a_modelled_disk_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is that of the disk below; the device is what is written to. The module of the lab takes both."""
    monkeypatch.setattr(prepare, "WRITE_BACK", tmp_path / "estimate")
    monkeypatch.setattr(prepare, "BLOCK", tmp_path)
    with loop(tmp_path, SIZE) as path:
        device = identify(path)
        assert prepare.settle_write_back([device.path], "labnvme", 16) == {}
        assert not (tmp_path / "estimate").exists()
        (tmp_path / "labnvme").mkdir()
        (tmp_path / "labnvme/write_bytes_per_s").write_text("1724137931\n")
        told = prepare.settle_write_back([device.path], "labnvme", 16)
        assert told == {"write_back_bytes_per_s": 1724137931}
        assert (tmp_path / "estimate").read_text() == f"{path} 1724137931 16"


@pytest.mark.parametrize(
    ("share", "limit", "unscaled", "becomes"),
    [
        (1, 64 * MIB, 858993459, 12),
        (1, 64 * MIB, 64 * MIB, None),  # nothing was scaled
        (1, 0, 858993459, None),  # the kernel's own limit
        (20, 64 * MIB, 858993459, 100),
        (100, 64 * MIB, 858993459, None),  # it may fill all of the limit
        (None, 64 * MIB, 858993459, None),  # it has no settings, as overlayfs
    ],
)
def test_a_share_of_the_dirty_limit_is_that_of_the_unscaled_one(
    share: int | None,
    limit: int,
    unscaled: int,
    becomes: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prepare, "BDI_SETTINGS", tmp_path)
    monkeypatch.setattr(prepare, "dirty_limits", lambda: {"dirty_bytes": limit or 1})
    device = tmp_path.stat().st_dev
    setting = tmp_path / f"{os.major(device)}:{os.minor(device)}/max_ratio"
    if share is not None:
        setting.parent.mkdir()
        setting.write_text(f"{share}\n")
    found = prepare.unscale_dirty_share(tmp_path, limit, unscaled)
    assert found == ({} if becomes is None else {"dirty_share_percent": becomes})
    if becomes is not None:
        assert setting.read_text() == str(becomes)


def test_a_guest_becomes_the_machine_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere there is no such module, and nothing to do."""
    monkeypatch.setattr(prepare, "MACHINE", tmp_path / "machine")
    prepare.become_machine_of("sda")
    assert not (tmp_path / "machine").exists()
    (tmp_path / "machine").write_text("labsata\n")
    prepare.become_machine_of("labnvme")
    assert (tmp_path / "machine").read_text() == "labnvme"


@pytest.mark.parametrize(("written_kib", "area", "zeroes"), [(0, 4, 2), (1000, 1, 1), (2047, 4, 2), (2048, 4, 0)])
def test_a_disk_becomes_known_to_write_back(
    written_kib: int, area: int, zeroes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MiB of its area are written, unless as much has been. The rest keeps its data."""
    monkeypatch.setattr(prepare, "BDI", tmp_path)
    monkeypatch.setattr(prepare, "KNOWN_BYTES", 2 * MIB)
    with loop(tmp_path, SIZE) as path:
        device = identify(path)
        Path(path).write_bytes(b"x" * 5 * MIB)
        stats = tmp_path / f"{os.major(device.number)}:{os.minor(device.number)}" / "stats"
        stats.parent.mkdir()
        stats.write_text(f"BdiDirtied:                 7 kB\nBdiWritten:  {written_kib:13} kB\n")
        prepare.make_known_to_write_back(device, area * MIB)
        with open(path, "rb") as file:
            data = file.read(5 * MIB)
        assert [data[at * MIB : at * MIB + 1] for at in range(5)] == [b"\0"] * zeroes + [b"x"] * (5 - zeroes)


def test_queue_attributes(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as path:
        device: BlockDevice = identify(path)
        values = queue_attributes(device)
        assert values["logical_block_size"] == device.logical_block_size == 512
        assert isinstance(values["max_sectors_kb"], int)
        assert str(values["scheduler"]) in (device.queue / "scheduler").read_text()
        assert "[" not in str(values["scheduler"])


def test_a_kept_program_is_mapped() -> None:
    maps = Path("/proc/self/maps")
    with kept_cached("fio"):
        assert "/bin/fio\n" in maps.read_text()
    assert "/bin/fio\n" not in maps.read_text()
    with pytest.raises(PrepareError, match="no-such-program is not installed"), kept_cached("no-such-program"):
        pass


def test_a_node_whose_disk_is_still_to_come_is_not_there(tmp_path: Path) -> None:
    """The kernel shows a disk in /sys and /dev before it can be opened: ENXIO in between."""
    node = tmp_path / "node"
    os.mknod(node, 0o600 | stat.S_IFBLK, os.makedev(259, (1 << 20) - 1))
    assert node.is_block_device() and not is_there(node)
    (tmp_path / "file").touch()
    assert not is_there(tmp_path / "file") and not is_there(tmp_path / "none") and not is_there("")
    with loop(tmp_path, 1 << 20) as disk:
        assert is_there(disk)


def test_a_serial_that_is_not_text(tmp_path: Path) -> None:
    """Some firmware has any bytes there; nor does what tools print of such a disk end a campaign."""
    for name, data in (("device/serial", b"S\xe9 1\n"), ("device/vpd_pg80", b"\0\x80\0\x04S\xe9 1")):
        file = tmp_path / Path(name).name / name
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
        assert serial_of(tmp_path / Path(name).name) == "S\ufffd 1"
    tool = tmp_path / "smartctl"
    tool.write_text("#!/bin/sh\nprintf 'S\\351 1'\n")
    tool.chmod(0o755)
    assert environment._run(str(tool)) == "S\ufffd 1"
