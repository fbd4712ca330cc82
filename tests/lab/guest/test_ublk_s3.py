# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device as a ublk disk, with its store in the guest too."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LIMIT, MIB, run
from test_systems import read
from test_ublk import Add, add, await_true, disks, finish, info, start_verify, ublk

__all__ = ["add"]  # a fixture

SERVERS = Path("build/s3-servers")
KEY, SECRET, BUCKET = "userblktest", "0123456789abcdef0123456789abcdef", "userblk-test"
MODES = ("workers", "uring")


@pytest.fixture
def parameters(tmp_path: Path) -> Iterator[list[str]]:
    """key=value of a new volume in a store of its own, which is on the other disk."""
    (program,) = SERVERS.glob("versitygw-*/versitygw")
    disk, directory = os.environ["LAB_SATA"], tmp_path / "store"
    run(["mkfs.ext4", "-qF", disk])
    directory.mkdir()
    run(["mount", disk, directory])
    (directory / "data" / BUCKET).mkdir(parents=True)
    credentials = tmp_path / "credentials"
    credentials.write_text(f"access-key-id={KEY}\nsecret-access-key={SECRET}\n")
    credentials.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [program, "--port", f"127.0.0.1:{port}", "--region", "us-east-1", "--quiet", "--keep-alive", "posix"]
    server = subprocess.Popen(
        [*argv, directory / "data"],
        env=os.environ | {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + LIMIT
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < end and server.poll() is None, "the store does not start"
            time.sleep(0.1)
        values = {
            "endpoint": f"http://127.0.0.1:{port}",
            "region": "us-east-1",
            "bucket": BUCKET,
            "credentials": str(credentials),
            "volume": "v",
        }
        yield [f"{key}={value}" for key, value in values.items()]
    finally:
        server.terminate()
        server.wait(LIMIT)
        run(["umount", directory])


@pytest.mark.parametrize("mode", MODES)
def test_data_and_its_return(add: Add, parameters: list[str], mode: str) -> None:
    disk = add(f"--mode={mode}", "s3", *parameters, "create=on", "size=64M")
    queue = Path("/sys/block", Path(disk).name, "queue")
    assert (queue / "write_cache").read_text().strip() == "write back", "flushes would never be sent"
    finish(start_verify(disk, "--bsrange=4k-64k", "--size=8M", "--fdatasync=64"))
    text = read(disk, 0, 8 * MIB)
    assert any(text)
    run(["blkdiscard", "-f", "-o", str(MIB), "-l", str(MIB), disk])
    assert not any(read(disk, MIB, MIB))
    ublk("delete", disk)
    again = add(f"--mode={mode}", "s3", *parameters)
    found = read(again, 0, 8 * MIB)
    assert found[:MIB] == text[:MIB] and found[2 * MIB :] == text[2 * MIB :]
    assert not any(found[MIB : 2 * MIB])


def test_a_killed_server_takes_its_disk_along(add: Add, parameters: list[str]) -> None:
    """What was acknowledged without a flush was in its memory: it must not go on without."""
    disk = add("s3", *parameters, "create=on", "size=64M")
    assert info(disk)["recovery"] == "none"
    run(["dd", "if=/dev/urandom", f"of={disk}", "bs=1M", "count=1", "oflag=direct", "conv=fsync"])
    flushed = read(disk, 0, MIB)
    load = start_verify(disk, "--bsrange=4k-64k", "--offset=1M", "--size=32M")
    os.kill(info(disk)["pid"], signal.SIGKILL)
    assert load.wait(LIMIT) != 0
    await_true("the disk stays", lambda: not Path(disk).exists())
    for one in disks():
        ublk("delete", str(one["number"]))
    assert read(add("s3", *parameters), 0, MIB) == flushed


def test_recovery_is_refused(add: Add, parameters: list[str]) -> None:
    output = ublk("add", "--recovery=reissue", "s3", *parameters, "create=on", "size=64M", expect=2)
    assert "use none" in output
    disk = add("null", "size=64M")
    assert "delete the disk" in ublk("replace", disk, "s3", *parameters, expect=2)
