# SPDX-License-Identifier: BSD-3-Clause
"""A campaign in one file: out, and in again; and files that are not what userblk wrote."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

import pytest
from userblk.harness.model.parts import ENGINES, Engine
from userblk.harness.model.tables import ConfigError
from userblk.harness.running.archive import export, unpack

SUFFIXES = [pytest.param(".tar.gz", id="gzip"), pytest.param(".tar.zst", id="zstd")]


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    directory = tmp_path / "results/20260101-quick"
    run = directory / "lab/sata/bdus-block/native/seq-read-1th-4k/1"
    run.mkdir(parents=True)
    for name in ("campaign.json", "plan.json"):
        (directory / name).write_text("{}")
    (run / "summary.json").write_text('{"valid": true}')
    (run / "DONE").touch()
    (run / "fio.log").write_bytes(os.urandom(300_000))
    return directory


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_out_and_in(campaign: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == ".tar.zst" and not shutil.which("zstd"):
        pytest.skip("zstd is not installed")
    export(campaign, tmp_path / f"a{suffix}")
    directory = unpack(tmp_path / f"a{suffix}", tmp_path / "elsewhere")
    assert directory == tmp_path / "elsewhere" / campaign.name
    assert files(directory) == files(campaign)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == [campaign.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_campaign_is_the_same_file(campaign: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == ".tar.zst" and not shutil.which("zstd"):
        pytest.skip("zstd is not installed")
    export(campaign, tmp_path / f"a{suffix}")
    copy = tmp_path / "copy" / campaign.name
    shutil.copytree(campaign, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    export(copy, tmp_path / f"b{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_nothing_is_overwritten(campaign: Path, tmp_path: Path) -> None:
    export(campaign, tmp_path / "a.tar.gz")
    with pytest.raises(ConfigError, match="exists"):
        export(campaign, tmp_path / "a.tar.gz")
    with pytest.raises(ConfigError, match=r"ends in \.tar\.zst or \.tar\.gz"):
        export(campaign, tmp_path / "a.zip")
    before = files(campaign)
    with pytest.raises(ConfigError, match="exists; import into another"):
        unpack(tmp_path / "a.tar.gz", campaign.parent)
    assert files(campaign) == before and list(campaign.parent.iterdir()) == [campaign]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_was_cut_off(campaign: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == ".tar.zst" and not shutil.which("zstd"):
        pytest.skip("zstd is not installed")
    whole = tmp_path / f"a{suffix}"
    export(campaign, whole)
    data = whole.read_bytes()
    for length in (3, 100, len(data) // 2, len(data) - 5):
        cut = tmp_path / f"cut{suffix}"
        cut.write_bytes(data[:length])
        with pytest.raises(ConfigError):
            unpack(cut, tmp_path / "elsewhere")
        assert not (tmp_path / "elsewhere").exists()


def packed(path: Path, *members: tuple[str, bytes | str | None]) -> Path:
    """A made-up archive: name and content, target of a link, or None for a pipe."""
    with tarfile.open(path, "w:gz") as tar:
        for name in ("c/campaign.json", "c/plan.json"):
            info = tarfile.TarInfo(name)
            info.size = 2
            tar.addfile(info, io.BytesIO(b"{}"))
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
                continue
            info.type = tarfile.FIFOTYPE if content is None else tarfile.SYMTYPE
            info.linkname = content or ""
            tar.addfile(info)
    return path


@pytest.mark.parametrize(
    "member",
    [
        ("../evil", b"x"),
        ("c/../../evil", b"x"),
        ("/tmp/userblk-evil", b"x"),
        ("c/link", "/etc"),
        ("c/link", "../../.."),
        ("c/pipe", None),
        ("other/file", b"x"),
        (".hidden/file", b"x"),
    ],
)
def test_what_leads_elsewhere_is_refused(tmp_path: Path, member: tuple[str, bytes | str | None]) -> None:
    archive = packed(tmp_path / "a.tar.gz", ("c/good", b"x"), member)
    with pytest.raises(ConfigError, match="nothing was unpacked"):
        unpack(archive, tmp_path / "results")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz"]


def test_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ConfigError, match="packed neither"):
        unpack(tmp_path / "text", tmp_path / "results")
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("c/file"), io.BytesIO())
    with pytest.raises(ConfigError, match=r"holds no campaign\.json"):
        unpack(tmp_path / "other.tar.gz", tmp_path / "results")
    with pytest.raises(ConfigError, match="no such file"):
        unpack(tmp_path / "none.tar.gz", tmp_path / "results")


class Strange(Engine):
    name = "strange"
    table_files = ("strange.csv", "more.json")


def test_all_that_tables_are_made_of_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What that is an engine says, also one whose name nothing here knows; a suite may have any."""
    monkeypatch.setitem(ENGINES._all(), "strange", Strange())
    files = ("attach.json", "samples.csv", "strange.csv", "more.json")
    wanted: dict[str, set[str]] = {
        "attach": {"attach.json"}, "failover": {"samples.csv"}, "fio": set(), "strange": {"strange.csv", "more.json"},
        "elsewhere": set(),
    }  # fmt: skip
    directory = tmp_path / "c"
    for engine in wanted:
        run = directory / "lab/nvme" / f"of-{engine}" / "loop/x/1"
        run.mkdir(parents=True)
        (run / "summary.json").write_text(json.dumps({"engine": engine}))
        for file in files:
            (run / file).touch()
    export(directory, tmp_path / "a.tar.gz", only_tables=True)
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        packed = [PurePosixPath(member.name) for member in tar if member.isfile()]
    for engine, names in wanted.items():
        assert {path.name for path in packed if path.parts[3] == f"of-{engine}"} == names | {"summary.json"}
