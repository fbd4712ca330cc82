# SPDX-License-Identifier: BSD-3-Clause
"""The configs as they are shipped, and what is said about wrong ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from userblk.harness import config
from userblk.harness.config import ConfigError, load_profile, load_suite, load_system, names, parse_block_size


def test_the_suite_has_the_papers_workloads_in_its_order() -> None:
    suite = load_suite("bdus-block")
    paper = [line.split(",")[1] for line in (config.CONFIGS / "paper/table1.csv").read_text().splitlines()[1:17]]
    assert [workload.id for workload in suite.workloads] == paper
    last = suite.workloads[-1]
    assert (last.rw, last.threads, last.block_size, last.writes) == ("randwrite", 16, 128 << 10, True)


def test_everything_shipped_loads() -> None:
    assert {load_profile(name).name for name in names("profiles")} == {"quick", "paper"}
    systems = {name: load_system(name) for name in names("systems")}
    assert {"native", "nbdkit", "tcmu", "nbdkit-null", "tcmu-null"} <= systems.keys()
    assert [name for name, system in systems.items() if not system.backed] == ["nbdkit-null", "tcmu-null"]
    assert systems["nbdkit"].queue["scheduler"] == "none"


def test_the_paper_profile_is_the_papers() -> None:
    paper = load_profile("paper")
    assert (paper.ramp_s + paper.runtime_s, paper.repetitions, paper.keep_up) == (900, 5, False)
    assert paper.area == {"sata": 64 << 30, "nvme": 256 << 30}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("profiles/quick", "repetitions = 3", "repetitions = 0", "repetitions=0: must be an integer of at least 1"),
        ("profiles/quick", "repetitions = 3", "", "repetitions is missing"),
        ("profiles/quick", "repetitions = 3", "repetitions = 3\nrepetition = 4", "repetition=4: unknown key"),
        ("profiles/quick", "keep_up = true", "keep_up = 1", "keep_up=1: must be true or false"),
        ("profiles/quick", "sata = 2", "sata = 1", "area.sata=1147483648: must be a multiple"),
        ("profiles/quick", 'name = "quick"', 'name = "fast"', "name=fast: must be the file's name, quick"),
        ("profiles/quick", "ramp_s = 1", "ramp_s = ", "not valid TOML"),
        ("suites/bdus-block", '"4k"', '"5k"', "block_sizes=5k: must be a power of two"),
        ("suites/bdus-block", '"read"', '"reed"', "modes.seq-read=reed: must be one of read,"),
        ("suites/bdus-block", "[1, 16]", "[]", "must be a list with at least one value"),
        ("systems/nbdkit", '"passthrough"', '"pass"', "device=pass: must be one of passthrough, null"),
        ("systems/nbdkit", 'scheduler = "none"', 'sheduler = "none"', "queue.sheduler=none: unknown key"),
        ("systems/tcmu", "threads = 16", 'threads = "16"', "threads=16: must be an integer"),
    ],
)
def test_a_wrong_key_is_named(
    file: str, old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(config.CONFIGS, tmp_path / "configs")
    path = tmp_path / f"configs/{file}.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    monkeypatch.setattr(config, "CONFIGS", tmp_path / "configs")
    kind, name = file.split("/")
    load = {"profiles": load_profile, "suites": load_suite, "systems": load_system}[kind]
    with pytest.raises(ConfigError) as error:
        load(name)
    assert str(error.value).startswith(f"configs/{file}.toml: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value).rstrip("\n")


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="system=nbd: unknown; use one of native, nbdkit,"):
        load_system("nbd")
    with pytest.raises(ConfigError, match=r"profile=\.\./x: unknown"):
        load_profile("../x")


def test_block_sizes() -> None:
    assert [parse_block_size(text) for text in ("512", "4k", "128k", "1m")] == [512, 4096, 131072, 1048576]
    for text in ("", "0", "3k", "256", "4K", "-4k"):
        with pytest.raises(ValueError):
            parse_block_size(text)
