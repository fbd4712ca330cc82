# SPDX-License-Identifier: BSD-3-Clause
"""What `userblk doctor` says. Apart from the tests of safety, which run in the lab's guest, too."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from loops import MIB, loop, run
from userblk.harness.cli import doctor, host
from userblk.harness.model.config import load_system
from userblk.harness.systems import absent, base
from userblk.lab import Variant, rootfs

SIZE = 32 * MIB


def test_a_member_of_something_inactive_is_not_called_free(tmp_path: Path) -> None:
    with loop(tmp_path, SIZE) as device:
        name = Path(device).name
        assert doctor.device_needs(name)[0].met
        with Path(device).open("r+b") as disk:
            disk.write(b"LUKS\xba\xbe\x00\x01" + bytes(160) + b"0af76519-16cd-43dd-8448-eb211c80319c")
        (need,) = doctor.device_needs(name)
        assert not need.met and "it holds crypto_LUKS" in need.fix
        run("mkfs.ext4", "-q", "-F", "-L", "data", device)
        need = doctor.device_needs(name)[0]
        assert need.met and "it holds ext4 data, which is lost, once you confirm" in need.what


def test_half_a_lab_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that failed or was killed leaves a lock, or a tree without its record."""
    monkeypatch.setattr(rootfs, "CACHE", tmp_path)
    with rootfs.locked(str(Variant())):
        pass
    need = doctor.lab_needs()[-1]
    assert need.what.startswith("root file system in ") and not need.met and need.fix == "lab/build"
    top = tmp_path / str(Variant())
    top.mkdir()
    (top / "initrd").write_bytes(rootfs.BUSYBOX.read_bytes())
    assert not doctor.lab_needs()[-1].met
    (top / "vmlinux").touch()
    (top / "root.ext4").touch()
    rootfs.write_made(top, rootfs.tree_key(Variant(), rootfs.packages_of(Variant())), "6.12")
    assert doctor.lab_needs()[-1].met
    (top / "initrd").unlink()
    assert not doctor.lab_needs()[-1].met


def test_what_the_lab_is_built_with_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootfs, "CACHE", tmp_path)
    monkeypatch.setattr(rootfs, "lacking", lambda tools: {"zstd": tools["zstd"], "/bin/busybox": tools["/bin/busybox"]})
    missing = {need.what: need.fix for need in doctor.lab_needs()[:-1] if not need.met}
    assert missing == {
        "program zstd": "apt-get install zstd",
        "program /bin/busybox": "apt-get install busybox-static",
    }


def vduse_on(release: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What doctor says of system vduse where all that it needs is there."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    for module in (doctor, base):
        monkeypatch.setattr(module, "find_program", lambda _: "/usr/bin/it")
        monkeypatch.setattr(module, "module_there", lambda _: True)
    found = [doctor.Finding(kind, kind, []) for kind in ("base", "lab")]
    found += [doctor.Finding("vduse", "system", doctor.system_needs(load_system("vduse")))]
    monkeypatch.setattr(doctor, "examine", lambda: found)
    host.doctor_command(SimpleNamespace(json=False))  # type: ignore[arg-type]
    return capsys.readouterr().out.splitlines()[2:-1]


def test_a_kernel_that_vduse_fails_with_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, reason = vduse_on("6.12.118+deb13-amd64", monkeypatch, capsys)
    assert verdict.split() == ["MISSING", "system", "vduse"]
    assert reason.strip() == (
        "a kernel other than Linux 6.12.118+deb13-amd64: the kernel does not transfer between a device and VDUSE's"
        " memory; boot another kernel, or use vduse-null"
    )
    (left_out,) = absent(load_system("vduse"))  # and the other systems of suite layers are measured
    assert left_out.startswith("Linux 6.12.118: ") and not absent(load_system("vduse-null"))
    verdict, note = vduse_on("7.3.4", monkeypatch, capsys)
    assert verdict.split() == ["ready", "system", "vduse"]
    assert note.strip().startswith("fails with Linux 6.12.118: ") and note.endswith("; not tried with 7.3.4")
    assert all(not need.told for need in doctor.system_needs(load_system("vduse-null")))
