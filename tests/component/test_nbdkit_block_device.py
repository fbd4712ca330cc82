# SPDX-License-Identifier: BSD-3-Clause
"""A real block device below the passthrough plugin: a loop device."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from nbdkit_server import (
    MIB,
    SIZE,
    NbdError,
    Serve,
    checked,
    fio_random_verify,
    nbd,
    open_files,
    plugin_path,
    run,
    run_nbdkit,
)

BOTH_MODES = pytest.mark.parametrize("direct", ["on", "off"])


def refusal(*arguments: str) -> str:
    result = run_nbdkit("-U", "-", plugin_path("passthrough"), *arguments, "--run", "true")
    assert result.returncode == 1, result
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@BOTH_MODES
def test_random_write_and_verify(serve: Serve, loop: str, direct: str) -> None:
    server = serve("passthrough", loop, f"direct={direct}")
    fio_random_verify(server.uri, "--bsrange=512-64k", "--iodepth=8", f"--size={SIZE}")


def test_a_device_is_opened_once_for_all_connections(serve: Serve, loop: str) -> None:
    server = serve("passthrough", loop)
    handles = [server.connect() for _ in range(4)]
    for handle in handles:
        assert handle.get_size() == SIZE
    assert open_files(server.pid).count(loop) == 1


def test_a_second_server_is_refused(serve: Serve, loop: str) -> None:
    serve("passthrough", loop)
    line = refusal(loop)
    assert line.startswith(f"nbdkit: error: file={loop}: ") and "in use" in line
    with pytest.raises(OSError, match="busy"):
        os.open(loop, os.O_RDWR | os.O_EXCL)


def test_readonly_servers_share_a_device(serve: Serve, loop: str) -> None:
    first = serve("passthrough", loop, "readonly=on").connect()
    second = serve("passthrough", loop, "readonly=on").connect()
    assert first.is_read_only() and second.is_read_only()
    assert first.pread(4096, 0) == second.pread(4096, 0) == bytes(4096)


def test_a_mounted_device_is_refused(loop: str, tmp_path: Path) -> None:
    directory = tmp_path / "mounted"
    directory.mkdir()
    checked(["mkfs.ext4", "-q", loop])
    checked(["mount", loop, str(directory)])
    try:
        line = refusal(loop)
        assert line.startswith(f"nbdkit: error: file={loop}: ") and "in use" in line
    finally:
        checked(["umount", str(directory)])


def test_a_served_device_cannot_be_mounted(serve: Serve, loop: str, tmp_path: Path) -> None:
    checked(["mkfs.ext4", "-q", loop])
    server = serve("passthrough", loop)
    server.connect()
    mounted = run(["mount", loop, str(tmp_path)])
    if mounted.returncode == 0:
        checked(["umount", str(tmp_path)])
    assert mounted.returncode != 0
    assert re.search(r"busy|already mounted", mounted.stderr), mounted.stderr


def test_size_of_a_device_is_not_to_be_given(loop: str) -> None:
    line = refusal(loop, "size=16M")
    assert line.startswith("nbdkit: error: size=") and loop in line


@BOTH_MODES
def test_trim_and_zero_reach_the_file_below(serve: Serve, loop: str, disk: Path, direct: str) -> None:
    server = serve("passthrough", loop, f"direct={direct}")
    handle = server.connect()
    handle.pwrite(b"l" * (4 * MIB), 0)
    handle.flush()
    written = disk.stat().st_blocks
    handle.trim(MIB, 0)
    handle.zero(MIB, MIB)
    handle.flush()
    assert handle.pread(3 * MIB, 0) == bytes(2 * MIB) + b"l" * MIB
    assert disk.stat().st_blocks <= written - MIB // 512
    # Less than a sector: nothing beside it changes.
    handle.zero(100, 2 * MIB + 10)
    assert handle.pread(512, 2 * MIB) == b"l" * 10 + bytes(100) + b"l" * 402
    handle.trim(100, 3 * MIB + 10)
    assert handle.pread(10, 3 * MIB) == b"l" * 10
    assert handle.pread(402, 3 * MIB + 110) == b"l" * 402


def test_fast_zero_of_less_than_a_sector_is_refused(serve: Serve, loop: str) -> None:
    """It could only be done by writing zeroes, which is not fast."""
    server = serve("passthrough", loop)
    handle = server.connect()
    handle.pwrite(b"z" * 4096, 0)
    with pytest.raises(NbdError) as error:
        handle.zero(100, 5, nbd.CMD_FLAG_FAST_ZERO)
    assert getattr(error.value, "errno", None) in ("ENOTSUP", "EOPNOTSUPP")
    assert handle.pread(4096, 0) == b"z" * 4096
    server.stop()
    # An answer that the client may expect is no error in the log.
    assert "error" not in server.output()


def test_rotational_is_the_device_s_answer(serve: Serve, loop: str) -> None:
    attribute = Path("/sys/block", Path(loop).name, "queue/rotational")
    handle = serve("passthrough", loop).connect()
    assert handle.is_rotational() == bool(int(attribute.read_text(encoding="ascii")))
