# SPDX-License-Identifier: BSD-3-Clause
"""A user's own configuration of a system, with a mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from userblk.harness.model import tables
from userblk.harness.model.config import load_system
from userblk.harness.model.tables import ConfigError


def complaint(kind: str, text: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line about the system of that kind that has these lines. Fails if it is accepted."""
    (directory / "systems").mkdir()
    (directory / "systems/mine.toml").write_text(f'name = "mine"\nkind = "{kind}"\n{text}\n')
    monkeypatch.setattr(tables, "CONFIGS", directory)
    with pytest.raises(ConfigError) as caught:
        load_system("mine")
    line = str(caught.value)
    assert "\n" not in line
    return line
