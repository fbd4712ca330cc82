# SPDX-License-Identifier: BSD-3-Clause
"""Which kinds of system can be measured on this machine, and what the others lack."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from .systems import modules

PROGRAMS = {
    "native": ("fio", "setpriv", "wipefs"),
    "nbdkit": ("nbdkit", "nbd-client"),
    "tcmu": ("tcmu-runner",),
}


def _module_available(name: str) -> bool:
    if Path("/sys/module", name).is_dir():
        return True
    builtin = Path("/lib/modules", platform.release(), "modules.builtin")
    if builtin.exists() and f"/{name}.ko" in builtin.read_text():
        return True
    if not shutil.which("modprobe"):
        return False
    return subprocess.run(["modprobe", "--dry-run", "--quiet", name], check=False, timeout=30).returncode == 0


def missing(kinds: Iterable[str]) -> dict[str, list[str]]:
    """Per kind of system (native, nbdkit, tcmu) what this machine lacks, a line each; none: it can run here."""
    found: dict[str, list[str]] = {}
    for kind in dict.fromkeys(kinds):
        programs = dict.fromkeys(PROGRAMS["native"] + PROGRAMS[kind])
        lacks = [f"program {name} is not installed" for name in programs if not shutil.which(name)]
        lacks += [f"kernel module {name} is not there" for name in modules(kind) if not _module_available(name)]
        if os.geteuid() != 0:
            lacks.append("root is needed")
        found[kind] = lacks
    return found
