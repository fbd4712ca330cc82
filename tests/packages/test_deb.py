# SPDX-License-Identifier: BSD-3-Clause
"""The Debian packages: built, judged by lintian, installed into a bare Debian, used, and removed without a trace."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from userblk.lab import rootfs

NAMES = ["userblk", "nbdkit-userblk-plugins", "tcmu-userblk-handlers", "userblk-fuse", "userblk-ublk"]


@pytest.fixture(scope="module")
def packages() -> list[Path]:
    done = subprocess.run(["packaging/make-deb"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [path for path in sorted(Path("build/deb").glob("*.deb")) if "-dbgsym_" not in path.name]
    assert sorted(path.name.split("_")[0] for path in found) == sorted(NAMES)
    return found


@pytest.fixture(scope="module")
def root(packages: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bare Debian of this machine's release with the packages below /userblk."""
    top = tmp_path_factory.mktemp("deb")
    root = top / "root"
    release = rootfs.os_release()["VERSION_CODENAME"]
    mirror = rootfs.machine_mirror()
    sources = [f"deb {mirror.main} {release} main", f"deb {mirror.main} {release}-updates main"]
    if mirror.security:
        sources.append(f"deb {mirror.security} {release}-security main")
    options = ["--mode=root", "--variant=apt", '--aptopt=APT::Install-Recommends "false"', "--skip=cleanup/apt/lists"]
    rootfs.mmdebstrap(options, release, root, sources, top / "log")
    (root / "userblk").mkdir()
    yield root
    subprocess.run(["rm", "-rf", "--one-file-system", str(top)], check=True)


def _within(root: Path, *argv: str) -> str:
    """Run argv in root; its output."""
    enter = ["unshare", "--mount", "--pid", "--fork", "sh", "lab/enter.sh", str(root), str(Path.cwd() / "build/deb")]
    done = subprocess.run([*enter, *argv], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(root: Path) -> set[str]:
    """All that is in root but what apt itself keeps."""
    kept = ("var/", "etc/ld.so.cache", "run/", "tmp/", "etc/resolv.conf", "userblk")
    found = (str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink())
    return {name for name in found if not name.startswith(kept)}


def test_packages_install_work_and_leave_nothing(root: Path, packages: list[Path]) -> None:
    others = ["fuse3", "libnbd-bin", "fio", "tcmu-runner", "nbdkit", "nbd-client"]
    _within(root, "apt-get", "install", "-y", "-qq", *others)
    files = [f"/userblk/{path.name}" for path in packages]
    # What they depend on comes first, so that what is left afterwards is theirs alone.
    simulated = _within(root, "apt-get", "install", "-s", *files)
    needs = [line.split()[1] for line in simulated.splitlines() if line.startswith("Inst ")]
    _within(root, "apt-get", "install", "-y", "-qq", *[name for name in needs if name not in NAMES])
    before = _files(root)
    _within(root, "apt-get", "install", "-y", "-qq", *files)
    assert len(_files(root) - before) > 100
    (tree,) = (path for path in Path("build/deb").iterdir() if (path / "debian").is_dir())
    assert "minimal-run: passed" in _within(root, f"/userblk/{tree.name}/debian/tests/minimal-run")
    _within(root, "apt-get", "purge", "-y", "-qq", *NAMES)
    left = {name for name in _files(root) - before if "__pycache__" not in name or "userblk" in name}
    assert not left
