# SPDX-License-Identifier: BSD-3-Clause
"""Packages by the names of this machine's distribution: configs/packages.csv."""

from __future__ import annotations

import csv
from pathlib import Path

from . import paths

DEBIAN, FEDORA = "debian", "fedora"
NONE = "-"  # of a package that a distribution lacks


def read_table() -> list[dict[str, str]]:
    text = (paths.CONFIGS / "packages.csv").read_text()
    return list(csv.DictReader(line for line in text.splitlines() if line and not line.startswith("#")))


def distribution() -> str:
    """debian or fedora, also for what derives from them."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        lines = []
    known = {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
    names = [known.get("ID", ""), *known.get("ID_LIKE", "").split()]
    return next((name for name in names if name in (DEBIAN, FEDORA)), names[0] or "unknown")


def installing(*packages: str) -> str:
    """What installs packages, given by Debian's names."""
    system = distribution()
    if system == DEBIAN:
        return f"apt-get install {' '.join(packages)}"
    names = {row[DEBIAN]: row[FEDORA] for row in read_table()}
    found = list(dict.fromkeys(names.get(package, NONE) for package in packages))
    if system != FEDORA or NONE in found:
        return f"install what Debian has in {' '.join(packages)}"
    return f"dnf install {' '.join(found)}"
