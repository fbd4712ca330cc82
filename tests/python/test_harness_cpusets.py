# SPDX-License-Identifier: BSD-3-Clause
"""CPUs that go off line and come back, with CPU sets of control groups v1."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from userblk.harness.machine import cpusets, prepare, teardown
from userblk.harness.machine.cpusets import CPUS, ONLY_FIRST, CpusetError, to_restore
from userblk.harness.machine.mounts import mounts_of
from userblk.harness.machine.prepare import PrepareError, limit_cpus
from userblk.harness.machine.teardown import Teardown


def a_set(path: Path, cpus: str) -> Path:
    path.mkdir(parents=True)
    (path / CPUS).write_text(f"{cpus}\n")
    return path / CPUS


def test_sets_that_lose_a_cpu_are_restored_from_the_first_on(tmp_path: Path) -> None:
    a_set(tmp_path / "top", "0-3")
    (tmp_path / "top" / ONLY_FIRST).touch()
    outer, inner = a_set(tmp_path / "top/a", "0-3"), a_set(tmp_path / "top/a/b", "1-2")
    a_set(tmp_path / "top/without", "0,2")
    a_set(tmp_path / "top/empty", "")
    assert to_restore({3}, [tmp_path / "top"]) == [(outer, "0-3")]
    assert to_restore({1, 3}, [tmp_path / "top"]) == [(outer, "0-3"), (inner, "1-2")]
    with pytest.raises(CpusetError, match=r"CPUs 1-3 cannot be taken off line: .*/a/b has no others \(1-2\)"):
        to_restore({1, 2, 3}, [tmp_path / "top"])


def test_a_set_that_goes_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_set(tmp_path / "top", "0-3")
    (tmp_path / "top" / ONLY_FIRST).touch()
    a_set(tmp_path / "top/gone", "0-3")
    kept, read = a_set(tmp_path / "top/kept", "0-3"), Path.read_text

    def goes(path: Path) -> str:
        if path.parent.name == "gone":
            path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_text", goes)
    assert to_restore({3}, [tmp_path / "top"]) == [(kept, "0-3")]


def test_in_a_container_whose_parents_are_not_seen_no_cpu_goes(tmp_path: Path) -> None:
    a_set(tmp_path / "top", "0-3")
    with pytest.raises(CpusetError, match="CPUs 3 cannot .* from this container for good; run outside of it"):
        to_restore({3}, [tmp_path / "top"])
    assert to_restore({3}, []) == []


@pytest.fixture
def cpuset() -> Iterator[Path]:
    """A set with all CPUs, of the kernel's."""
    tops = [one.point for one in mounts_of() if one.kind == "cgroup" and "cpuset" in one.options]
    if not tops or os.cpu_count() == 1 or not (Path(tops[0]) / ONLY_FIRST).exists():
        pytest.skip("kernel: no CPU sets of control groups v1, or one CPU")
    path = Path(tops[0], "userblk-test")
    path.mkdir()
    try:
        for name in ("cpuset.mems", CPUS):
            (path / name).write_text((path.parent / name).read_text())
        yield path
    finally:
        path.rmdir()


def test_processes_have_all_cpus_again(cpuset: Path) -> None:
    before = (cpuset / CPUS).read_text()
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            (cpuset / "tasks").write_text(str(process.pid))
            own, stack = os.sched_getaffinity(process.pid), Teardown()
            try:
                limit_cpus(1, stack)
                assert os.sched_getaffinity(process.pid) == {0}
            finally:
                stack.unwind()
            assert os.sched_getaffinity(process.pid) == own
            assert (cpuset / CPUS).read_text() == before
        finally:
            process.kill()


def test_a_set_is_not_left_without_cpus(cpuset: Path) -> None:
    count, stack = os.cpu_count(), Teardown()
    (cpuset / CPUS).write_text("1")
    try:
        with pytest.raises(PrepareError, match=r"has no others \(1\)"):
            limit_cpus(1, stack)
        assert os.cpu_count() == count
    finally:
        stack.unwind()


def test_interrupts_go_to_their_cpus_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of CPUs that were all off line, which the kernel has sent to all CPUs meanwhile."""
    cpus, irqs, order = tmp_path / "cpu", tmp_path / "irq", list[str]()
    for number in range(3):
        (cpus / f"cpu{number}").mkdir(parents=True)
        (cpus / f"cpu{number}/online").write_text("1")
    wanted = {"5": "2", "6": "0-2", "7": "1-2", "8": "1-2", "9": "1", "10": ""}
    for irq, where in wanted.items():
        (irqs / irq).mkdir(parents=True)
        (irqs / irq / "smp_affinity_list").write_text(where)
    monkeypatch.setattr(prepare, "CPUS", cpus)
    monkeypatch.setattr(prepare, "IRQS", irqs)
    monkeypatch.setattr(cpusets, "to_restore", lambda _: [])
    monkeypatch.setattr(teardown, "RUN", tmp_path / "run")
    stack = Teardown()
    limit_cpus(1, stack)
    assert [path.read_text() for path in sorted(cpus.glob("*/online"))] == ["1", "0", "0"]
    for irq in "57":
        (irqs / irq / "smp_affinity_list").write_text("0-2")
    shutil.rmtree(irqs / "9")  # its device has gone
    write_text = Path.write_text

    def write(path: Path, text: str) -> int:
        order.append(f"{path.parent.name}={text}")
        if path.parent.name == "7":
            raise OSError(5, "Input/output error")
        return write_text(path, text)

    monkeypatch.setattr(teardown, "replace", lambda *_: None)
    monkeypatch.setattr(Path, "write_text", write)
    stack.unwind()
    assert order == ["cpu1=1", "cpu2=1", "7=1-2", "5=2"]
    assert (irqs / "5/smp_affinity_list").read_text() == "2" and stack.steps == []
    assert "irq/7/smp_affinity_list was 1-2 and cannot be put back" in capsys.readouterr().err
