# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk@.service without a systemd: its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

UNIT = Path("ublk/userblk-ublk@.service")


def unit_command(name: str, program: Path) -> list[str]:
    """What the unit of disk 3 runs as ExecStart or ExecStop, with this program as userblk-ublk."""
    (line,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text().replace("\\\n", " "), re.M)
    line = line.replace("@sbindir@/userblk-ublk", str(program.absolute()))
    return shlex.split(line.replace("%i", "3").replace("$$", "$"))
