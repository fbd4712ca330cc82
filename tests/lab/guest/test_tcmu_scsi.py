# SPDX-License-Identifier: BSD-3-Clause
"""SCSI commands to a TCMU disk that no file system sends, resize, and targetcli."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from guest import LIMIT, MIB, RELEASE, Up, config, mapped, read, run, suspended
from userblk.harness.systems import Running
from waiting import wait_until

NVME = os.environ["LAB_NVME"]
BLOCK = 512
SLOW = 64 * 1024
CORE = Path("/sys/kernel/config/target/core")
ILLEGAL_REQUEST = 5  # exit codes of sg3_utils
INVALID_PARAMETER = 19 if RELEASE != "bullseye" else ILLEGAL_REQUEST
OUT_OF_RANGE = 22
INVALID_OPCODE = 9
MISCOMPARE = 14
LENGTHS_KNOWN = RELEASE != "bullseye"  # tcmu-runner 1.5.2 does not tell its handlers where the ring is


@pytest.fixture(params=["", "handler"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def running(up: Up, mode: str) -> Iterator[Running]:
    with up(config("tcmu", mode=mode)) as running:
        yield running
        assert not running.server_died(), "a command ended tcmu-runner"


def fill(disk: str, length: int) -> bytes:
    data = bytes(index * 7 % 251 + 1 for index in range(BLOCK)) * (length // BLOCK)
    fd = os.open(disk, os.O_WRONLY)
    try:
        assert os.pwrite(fd, data, 0) == length
        os.fsync(fd)
    finally:
        os.close(fd)
    return data


def write_same(disk: str, block: Path | str, lba: int, count: int, *options: str, expect: int = 0) -> None:
    run(
        ["sg_write_same", f"--lba={lba}", f"--num={count}", f"--in={block}", f"--xferlen={BLOCK}", *options, disk],
        expect=expect,
    )


def test_write_same(running: Running, tmp_path: Path) -> None:
    disk = running.used.path
    pattern = tmp_path / "pattern"
    pattern.write_bytes(b"\xa5" * BLOCK)
    expected = bytearray(fill(disk, 8 * MIB))

    def check() -> None:
        found = read(disk, 0, 8 * MIB)
        differ = [at // BLOCK for at in range(0, 8 * MIB, BLOCK) if found[at : at + BLOCK] != expected[at : at + BLOCK]]
        assert not differ  # pytest takes forever to show how 8 MiB of bytes differ

    # Odd addresses and lengths, with UNMAP and without, by the 10 and the 16 byte command.
    for lba, count, options in (
        (1, 1, "--10"),
        (3, 5, "--16"),
        (11, 7, "--10 --unmap"),
        (23, 1, "--16 --unmap"),
        (2048, 4096, "--16 --unmap"),
    ):
        write_same(disk, "/dev/zero", lba, count, *options.split())
        expected[lba * BLOCK : (lba + count) * BLOCK] = bytes(count * BLOCK)
        check()
    for lba, count, options in ((5, 3, ""), (31, 2100, "--16"), (8000, 9, "--16 --unmap")):
        write_same(disk, pattern, lba, count, *options.split())
        expected[lba * BLOCK : (lba + count) * BLOCK] = b"\xa5" * (count * BLOCK)
        check()
    # Past the end, and what the runner would do wrong: LBDATA.
    write_same(disk, "/dev/zero", running.used.size // BLOCK - 1, 2, "--16", expect=OUT_OF_RANGE)
    write_same(disk, "/dev/zero", 0, 1, "--10", "--lbdata", expect=ILLEGAL_REQUEST)
    check()


def test_unmap(running: Running) -> None:
    disk = running.used.path
    expected = bytearray(fill(disk, MIB))
    for lba, count in ((1, 1), (3, 5), (64, 128), (1001, 7)):
        run(["sg_unmap", f"--lba={lba}", f"--num={count}", "--force", disk])
        found = read(disk, lba * BLOCK, count * BLOCK)
        # Advisory: each block is as before or deallocated, which reads as zeroes on this device.
        for block in range(count):
            part = slice(block * BLOCK, (block + 1) * BLOCK)
            assert found[part] in (expected[:BLOCK], bytes(BLOCK))
        expected[lba * BLOCK : (lba + count) * BLOCK] = found
        assert read(disk, 0, MIB) == expected
    # A range of the emulated device's granularity or more really goes.
    assert not any(expected[64 * BLOCK : 192 * BLOCK])
    run(["sg_unmap", f"--lba={running.used.size // BLOCK}", "--num=1", "--force", disk], expect=OUT_OF_RANGE)


def test_compare_and_write(running: Running, tmp_path: Path) -> None:
    disk = running.used.path
    expected = bytearray(fill(disk, MIB))
    new = b"\x5a" * BLOCK
    both = tmp_path / "both"
    argv = ["sg_compare_and_write", "--lba=7", "--num=1", f"--xferlen={2 * BLOCK}", f"--in={both}"]
    both.write_bytes(bytes(expected[7 * BLOCK : 8 * BLOCK]) + new)
    run([*argv, disk])
    expected[7 * BLOCK : 8 * BLOCK] = new
    assert read(disk, 0, MIB) == expected
    # What is compared is no longer there.
    run([*argv, disk], expect=MISCOMPARE)
    assert read(disk, 0, MIB) == expected
    both.write_bytes(new + b"\x11" * BLOCK)
    run([*argv, "--fua", disk], expect=ILLEGAL_REQUEST)  # is not announced
    assert read(disk, 0, MIB) == expected
    run([*argv, disk])
    expected[7 * BLOCK : 8 * BLOCK] = b"\x11" * BLOCK
    assert read(disk, 0, MIB) == expected


def test_other_commands(running: Running, tmp_path: Path) -> None:
    disk = running.used.path
    expected = fill(disk, MIB)
    # tcmu-runner has no VERIFY; FORMAT UNIT is refused, since it would lose errors.
    assert "Invalid opcode" in run(["sg_verify", "--lba=0", "--count=4", disk], expect=INVALID_OPCODE)
    assert "Invalid" in run(["sg_raw", disk, "04", "00", "00", "00", "00", "00"], expect=None)
    run(["sg_sync", disk])
    run(["sg_readcap", "--16", disk])
    # WRITE AND VERIFY(16) of one block; FUA in WRITE(10) is not announced, and refused.
    block = tmp_path / "block"
    block.write_bytes(b"\x33" * BLOCK)
    run(["sg_write_verify", "--16", "--lba=9", "--num=1", f"--ilen={BLOCK}", f"--in={block}", disk])
    fua = ["2a", "08", "00", "00", "00", "0b", "00", "00", "01", "00"]
    assert "Illegal Request" in run(["sg_raw", "-s", str(BLOCK), "-i", block, disk, *fua], expect=None)
    assert read(disk, 0, MIB) == expected[: 9 * BLOCK] + b"\x33" * BLOCK + expected[10 * BLOCK :]
    limits = run(["sg_vpd", "--page=bl", disk])
    assert "Unmap granularity alignment valid: true" in limits or "Unmap granularity alignment: 0" in limits, limits


def test_answers_are_as_long_as_they_say(running: Running) -> None:
    """The kernel tells the initiator how much of its memory was filled; with none beside it, a command knows that."""
    disk = running.used.path
    for evpd, page, length in (("00", "00", 96), ("01", "00", 10), ("01", "b0", 64), ("01", "b1", 64), ("01", "b2", 8)):
        length = length if LENGTHS_KNOWN else 255
        assert f"Received {length} bytes" in run(["sg_raw", "-r", "255", disk, "12", evpd, page, "00", "ff", "00"])
        assert "Received 7 bytes" in run(["sg_raw", "-r", "7", disk, "12", evpd, page, "00", "07", "00"])
    limits = run(["sg_vpd", "--page=bl", disk])
    assert "Maximum write same length: 0x8000" in limits, limits
    assert re.search(r"Maximum unmap LBA count: (0x100000|1048576)\b", limits), limits  # by version of sg_vpd
    versions = run(["sg_inq", "--descriptors", disk])
    assert "SPC-3 (no version claimed)" in versions and "SBC-3 (no version claimed)" in versions, versions
    write_same(disk, "/dev/zero", 0, 32769, "--16", expect=ILLEGAL_REQUEST)


def read_slowly(disk: str, output: Path) -> bytes:
    """SLOW bytes in one command, as far as the device has so many: the block layer would read the others again."""
    run(["sg_raw", "-o", output, "-r", str(SLOW), disk, *f"28 00 00 00 00 00 00 00 {SLOW // BLOCK:02x} 00".split()])
    return output.read_bytes()


@contextmanager
def read_under_way(disk: str, below: str, output: Path) -> Iterator[Future[bytes]]:
    """A read that stays in the ring until the block's end, since the device mapper's disk below is suspended."""
    with ThreadPoolExecutor(1) as pool, suspended(below):
        slow = pool.submit(read_slowly, disk, output)
        busy = Path("/sys/block", Path(disk).name, "device/device_busy")
        wait_until("the read has begun", lambda: busy.read_text().strip() == "1", LIMIT)
        yield slow
        assert not slow.done()


def test_inquiries_beside_a_slow_command(up: Up, mode: str, tmp_path: Path) -> None:
    """Each gets its own answer, and the whole of its memory: a length would be that of whichever command ends next."""
    answer = tmp_path / "answer"
    sectors = int(Path("/sys/block", Path(NVME).name, "size").read_text())
    with (
        mapped("slow", f"0 {sectors} linear {NVME} 0") as below,
        up(config("tcmu", mode=mode, direct="on"), below) as running,
    ):
        disk = running.used.path
        expected = fill(disk, MIB)
        for evpd, page, length in (("00", "00", 96), ("01", "b0", 64)):
            inquiry: list[str | Path] = ["sg_raw", "-o", answer, "-r", "255", disk, "12", evpd, page, "00", "ff", "00"]
            run(inquiry)
            alone = answer.read_bytes()
            with read_under_way(disk, "slow", tmp_path / "slow") as slow:
                run(inquiry)
            assert answer.read_bytes() == alone.ljust(255, b"\0")
            assert len(alone) == (length if LENGTHS_KNOWN else 255)
            data = slow.result()
            assert len(data) == SLOW and data == expected[:SLOW]
        assert not running.server_died()


def test_copies_with_a_list_identifier(running: Running, tmp_path: Path) -> None:
    disk, page, parameters = running.used.path, tmp_path / "page", tmp_path / "parameters"
    expected = fill(disk, MIB)
    write_same(disk, "/dev/zero", 4096, 24, "--16")  # behind what is filled
    run(["sg_raw", "-r", "255", "-o", page, disk, "12", "01", "83", "00", "ff", "00"])
    designators = page.read_bytes()[4:]
    while designators[1] & 0x0F != 3:  # NAA
        designators = designators[4 + designators[3] :]
    device = bytes([0xE4, 0, 0, 0]) + designators[:20] + (BLOCK).to_bytes(8, "big")
    devices = device * (2 if RELEASE == "bullseye" else 1)  # tcmu-runner 1.5.2 reads two, whatever their length is
    for usage, status, at in ((0, 0, 4096), (2, 0, 4104), (1, INVALID_PARAMETER, 4112)):
        segment = struct.pack(">BBHHHHHQQ", 2, 0, 24, 0, 0, 0, 8, 0, at)
        header = struct.pack(">BBHIII", 7, usage << 3, len(devices), 0, len(segment), 0)
        parameters.write_bytes(header + devices + segment)
        length = f"{parameters.stat().st_size:02x}"
        given = ["-s", str(parameters.stat().st_size), "-i", str(parameters)]
        run(["sg_raw", *given, disk, "83", *["00"] * 12, length, "00", "00"], expect=status)
        assert (read(disk, at * BLOCK, 8 * BLOCK) == expected[: 8 * BLOCK]) == (status == 0)


def test_resize(running: Running) -> None:
    disk, size = running.used.path, running.used.size
    (core,) = CORE.glob("user_*/userblk*")

    def resize(to: int) -> None:
        (core / "attrib/dev_size").write_text(str(to))

    def seen() -> int:
        run(["sg_turs", disk], expect=None)  # takes the unit attention
        (running.used.queue.parent / "device/rescan").write_text("1")
        return int((running.used.queue.parent / "size").read_text()) * BLOCK

    resize(size // 2)
    assert seen() == size // 2
    last = size // 2 // BLOCK
    run(["sg_dd", f"if={disk}", "of=/dev/null", "bs=512", f"skip={last - 1}", "count=1", "blk_sgio=1"])
    resize(size)
    assert seen() == size
    run(["sg_dd", f"if={disk}", "of=/dev/null", "bs=512", f"skip={size // BLOCK - 1}", "count=1", "blk_sgio=1"])
    with pytest.raises(OSError):
        resize(size + MIB)
    assert seen() == size
    # Without a write cache each write is durable when it is answered. Byte 2 has the WCE bit.
    assert "08 12 04 00" in run(["sg_modes", "--page=8", disk])
    (core / "attrib/emulate_write_cache").write_text("0")
    assert "08 12 00 00" in run(["sg_modes", "--page=8", disk])
    expected = fill(disk, MIB)
    assert read(disk, 0, MIB) == expected


TARGETCLI = "set global auto_save_on_exit=false\n"


def targetcli(*lines: str) -> str:
    return run(["targetcli"], stdin=TARGETCLI + "".join(f"{line}\n" for line in lines) + "exit\n", expect=None)


@pytest.fixture
def bus() -> Iterator[None]:
    """The system bus, through which targetcli talks to tcmu-runner."""
    socket = Path("/run/dbus/system_bus_socket")
    if socket.exists():
        yield
        return
    socket.parent.mkdir(exist_ok=True)
    daemon = subprocess.Popen(
        ["dbus-daemon", "--system", "--nofork", "--nopidfile"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until("the system bus is there", socket.exists, LIMIT, process=daemon)
        yield
    finally:
        daemon.terminate()
        daemon.wait(LIMIT)
        socket.unlink(missing_ok=True)


@pytest.mark.parametrize("mode", ["", pytest.param("handler", marks=pytest.mark.long)], indirect=True)
def test_targetcli(bus: None, mode: str, running: Running) -> None:
    """The way of the manual page, on the second disk, while the harness's LUN is there."""
    sata = os.environ["LAB_SATA"]
    size = int(Path("/sys/block", Path(sata).name, "size").read_text()) * BLOCK
    plugin = "user:userblk_threads_passthrough" if mode else "user:userblk_passthrough"
    create = f"/backstores/{plugin} create name=lab size={size} hw_max_sectors=1024 cfgstring="
    bad = targetcli(f"{create}{sata};direct=perhaps", f"{create}/dev/nothing")
    assert "direct=perhaps" in bad, bad
    assert "file=/dev/nothing: No such file" in bad, bad
    assert not list(CORE.glob("user_*/lab")), bad

    own = ";threads=3" if mode else ""
    before = {path.name for path in Path("/sys/block").iterdir()}
    wwn = "naa.5001405aabbccdde"
    good = targetcli(
        f"{create}{sata};direct=on{own}",
        f"/loopback create {wwn}",
        f"/loopback/{wwn}/luns create /backstores/{plugin}/lab",
    )
    try:
        new = {path.name for path in Path("/sys/block").iterdir()} - before
        assert len(new) == 1, good
        (disk,) = new
        assert Path("/sys/block", disk, "queue/max_sectors_kb").read_text().strip() == "512"
        expected = fill(f"/dev/{disk}", MIB)
        assert read(f"/dev/{disk}", 0, MIB) == expected
    finally:
        gone = targetcli(f"/loopback delete {wwn}", f"/backstores/{plugin} delete lab")
    assert not Path("/sys/block", disk).exists(), gone
    assert not list(CORE.glob("user_*/lab")), gone
    assert read(sata, 0, MIB) == expected
