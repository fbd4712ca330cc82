# SPDX-License-Identifier: BSD-3-Clause
"""docs/make-tables: what it draws, which --check leaves out."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.running import archive

DOCS = CONFIGS.parent / "docs"


@pytest.mark.parametrize("name", ["attach", "table1"])
def test_the_figure_of_a_campaign_is_drawn(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    loader = SourceFileLoader("make_tables", str(DOCS / "make-tables"))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    campaign = archive.unpack(DOCS / f"data/{name}.tar.gz", tmp_path / "results")
    monkeypatch.setattr(module, "DATA", tmp_path)
    module.draw(name, campaign)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
