# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: which changes of a file take its capability (setcap(8)) away."""

from __future__ import annotations

import os
import struct

import pytest
from fuse_mount import Mount, bare_mapping

CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)  # cap_net_raw=ep, as setcap(8) sets it


def test_a_store_to_a_mapping_takes_no_capability_away(fuse: Mount) -> None:
    """Nor one that the file had before it was mounted. A write to the source would."""
    path, below = fuse.point / "program", fuse.source / "program"
    below.write_bytes(bytes(4096))
    os.setxattr(below, "security.capability", CAPABILITY)
    with path.open("r+b", buffering=0) as file, bare_mapping(file.fileno(), 4096) as (memory, sync):
        memory[0] = b"x"
        sync()
        os.fsync(file.fileno())
        assert below.read_bytes()[:1] == b"x"
        for top in (path, below):
            assert os.getxattr(top, "security.capability") == CAPABILITY
        file.write(b"y")
        memory[1] = b"y"
        sync()
        os.fsync(file.fileno())
    for top in (path, below):
        assert os.listxattr(top) == []
    assert below.read_bytes()[:2] == b"yy"


def test_a_write_takes_away_what_the_source_got_meanwhile(fuse: Mount) -> None:
    """The kernel does not ask again once it has heard that there is no capability."""
    path, below = fuse.point / "program", fuse.source / "program"

    def write(data: bytes, flags: int) -> None:
        descriptor = os.open(path, os.O_RDWR | flags, 0o755)
        os.pwrite(descriptor, data, 0)
        os.fsync(descriptor)
        os.close(descriptor)

    write(b"good", os.O_CREAT)
    os.setxattr(below, "security.capability", CAPABILITY)
    write(b"EVIL", 0)
    assert below.read_bytes() == b"EVIL"
    assert os.listxattr(below) == []


@pytest.mark.parametrize("store", [False, True], ids=["write", "store"])
def test_a_capability_stays_when_what_was_written_before_arrives(store: bool, fuse: Mount) -> None:
    """As with bsdtar(1), which sets it while it has the file open. A write to the source would take it away."""
    path, below = fuse.point / "program", fuse.source / "program"
    path.write_bytes(bytes(4096))
    with path.open("r+b", buffering=0) as file, bare_mapping(file.fileno(), 4096) as (memory, sync):
        if store:
            memory[0] = b"x"
        else:
            file.write(b"x")
        os.setxattr(path, "security.capability", CAPABILITY)
        sync()
        os.fsync(file.fileno())
    for top in (path, below):
        assert os.getxattr(top, "security.capability") == CAPABILITY
    assert below.read_bytes()[:1] == b"x"
    with path.open("r+b") as again:
        again.write(b"y")
    for top in (path, below):
        assert os.listxattr(top) == []
