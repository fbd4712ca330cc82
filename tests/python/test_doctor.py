# SPDX-License-Identifier: BSD-3-Clause
"""What `userblk doctor` says of a device. Apart from the tests of safety, which run in the lab's guest, too."""

from __future__ import annotations

from pathlib import Path

from loops import MIB, loop, run
from userblk.harness.cli import doctor

SIZE = 32 * MIB


def test_a_member_of_something_inactive_is_not_called_free(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        name = Path(device).name
        assert doctor.device_needs(name)[0].met
        with Path(device).open("r+b") as disk:
            disk.write(b"LUKS\xba\xbe\x00\x01" + bytes(160) + b"0af76519-16cd-43dd-8448-eb211c80319c")
        (need,) = doctor.device_needs(name)
        assert not need.met and "it holds crypto_LUKS" in need.fix
        run("mkfs.ext4", "-q", "-F", "-L", "data", device)
        need = doctor.device_needs(name)[0]
        assert need.met and "it holds ext4 data, which is lost, once you confirm" in need.what
