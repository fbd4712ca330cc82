# SPDX-License-Identifier: BSD-3-Clause
"""The tutorial, for the tests that do what it says."""

from __future__ import annotations

import re
from pathlib import Path

TUTORIAL = Path(__file__).resolve().parents[2] / "docs/tutorial.md"


def lessons() -> list[str]:
    return re.findall(r"^## (.*)$", TUTORIAL.read_text(), re.M)


def lesson(title: str) -> list[str]:
    """The indented lines of one lesson, in order: commands, and what files hold."""
    text = TUTORIAL.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    return [line[4:] for line in text.splitlines() if line.startswith("    ")]
