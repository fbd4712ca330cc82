# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: conformance suites of others, with the same result as on the ext4 below."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from fuse_mount import SUITES, Mount
from nbdkit_server import run

PJDFSTEST_CONFIG = """
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.05
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""

# The largest link count is a constant of glibc for file systems that it does not know.
PJDFSTEST_SKIPPED_ONLY_HERE = {"link::link_count_max"}

FSX_CONFIG = Path(__file__).resolve().parents[1] / "fsx.toml"

# stress-ng's file-system stressors but fiemap, which FUSE has not, and those that do not keep to --temp-path:
# fanotify and io open every mount of the machine, and hang when one of them does.
STRESSORS = """
access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fcntl
file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify iomix lease link locka
lockf lockofd mknod open readahead rename seek symlink sync-file touch utime xattr
"""


def need_suite(name: str) -> Path:
    program = SUITES / name
    if not program.exists():
        pytest.skip(f"{name} is not built: make fs-suites (needs cargo 1.85 or later)")
    return program


def pjdfstest(program: Path, directory: Path, config: Path) -> dict[str, str]:
    """The verdict of each test case."""
    directory.mkdir()
    directory.chmod(0o755)
    result = run([str(program), "-c", str(config), "-p", str(directory)], timeout=1200)
    verdicts = dict(re.findall(r"^(\S+::\S+)\s+(ok|FAILED|skipped)\b", result.stdout, re.M))
    assert len(verdicts) > 350, result.stdout + result.stderr
    return verdicts


@pytest.fixture(scope="module")
def below(fuse_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the ext4 below does."""
    config = tmp_path_factory.mktemp("pjdfstest") / "pjdfstest.toml"
    config.write_text(PJDFSTEST_CONFIG)
    directory = fuse_disk / "p"
    try:
        return pjdfstest(need_suite("pjdfstest"), directory, config)
    finally:
        shutil.rmtree(directory)


def test_pjdfstest(below: dict[str, str], fuse: Mount, tmp_path: Path) -> None:
    config = tmp_path / "pjdfstest.toml"
    config.write_text(PJDFSTEST_CONFIG)
    above = pjdfstest(need_suite("pjdfstest"), fuse.point / "p", config)
    assert above.keys() == below.keys()
    worse = {
        case: (below[case], verdict)
        for case, verdict in above.items()
        if below[case] == "ok" and verdict != "ok" and case not in PJDFSTEST_SKIPPED_ONLY_HERE
    }
    assert worse == {}
    assert sum(verdict == "ok" for verdict in below.values()) > 300


@pytest.mark.parametrize("seed", [1, 20261121])
def test_fsx(seed: int, fuse: Mount, tmp_path: Path) -> None:
    program = need_suite("fsx")
    arguments = ["-f", str(FSX_CONFIG), "-N", "3000", "-S", str(seed), "-P", str(tmp_path)]
    result = run([str(program), *arguments, str(fuse.point / "file")], timeout=600)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def test_stress_ng(fuse: Mount) -> None:
    if shutil.which("stress-ng") is None:
        pytest.skip("stress-ng is not installed")
    arguments = ["stress-ng", "--verify", "--timeout", "10", "--temp-path", str(fuse.point)]
    for stressor in STRESSORS.split():
        arguments += [f"--{stressor}", "1", f"--{stressor}-ops", "40"]
    for stressor in ("hdd", "fallocate", "iomix", "readahead", "sync-file"):
        arguments += [f"--{stressor}-bytes", "16M"]
    arguments += ["--copy-file-bytes", "128M"]
    result = run(arguments, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "successful run completed" in result.stdout + result.stderr
    fuse.check()
