# SPDX-License-Identifier: BSD-3-Clause
"""Systems that the kernel serves, or somebody else's server: a verified disk, and nothing left of it."""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack

import pytest
from guest import MIB, Up, read, run
from userblk.harness.model.config import load_system
from userblk.harness.model.parts import KINDS
from userblk.harness.systems import absent, nvme_tcp
from userblk.harness.systems.base import BringUpError, SystemKind, find_program
from userblk.harness.systems.vduse import NO_DIRECT_IO

NVME = os.environ["LAB_NVME"]


@pytest.mark.parametrize("name", ["loop", "dm-linear", "iblock", "nvme-tcp", "vduse"])
def test_verified_data(up: Up, name: str) -> None:
    system = load_system(name)
    if reasons := absent(system):
        pytest.skip(f"kernel: {'; '.join(reasons)}")
    with ExitStack() as stack:
        try:
            running = stack.enter_context(up(system))
        except BringUpError as error:
            if NO_DIRECT_IO not in str(error):
                raise
            pytest.skip(f"kernel: {error}")
        disk = running.used.path
        assert running.backing is not None and running.problems() == [] and not running.server_died()
        run(
            ["fio", "--name=verify", f"--filename={disk}", "--size=4M", "--rw=randwrite", "--bs=4k", "--direct=1",
             "--ioengine=libaio", "--iodepth=16", "--fsync=64", "--verify=crc32c", "--verify_fatal=1"]
        )  # fmt: skip
        through = read(disk, 0, 4 * MIB)
        assert any(through)
    assert read(NVME, 0, 4 * MIB) == through


def test_nvme_tcp_has_one_client(up: Up) -> None:
    system = load_system("nvme-tcp")
    if reasons := absent(system):
        pytest.skip(f"kernel: {'; '.join(reasons)}")
    with up(system) as running:
        with pytest.raises(OSError):
            nvme_tcp.connect(int(str(running.settings["port"])), uuid.uuid4())
        assert len(list(nvme_tcp.TARGET.glob("hosts/*"))) == 1
    assert not list(nvme_tcp.TARGET.glob("hosts/*"))


def test_programs_are_in_the_packages_that_doctor_names() -> None:
    kinds = (KINDS[name] for name in KINDS.names())
    needed = [pair for kind in kinds if isinstance(kind, SystemKind) for pair in kind.packages.items()]
    for program, packages in needed:
        if find_program(program):
            owners = {line.split(":")[0] for line in run(["dpkg-query", "--search", f"*bin/{program}"]).splitlines()}
            assert owners & set(packages.split()), (program, owners)
    assert "nbdkit" in dict(needed)


def test_vduse_null(up: Up) -> None:
    system = load_system("vduse-null")
    if reasons := absent(system):
        pytest.skip(f"kernel: {'; '.join(reasons)}")
    with up(system) as running:
        assert running.used.size == 256 * MIB and not any(read(running.used.path, 0, MIB))
