# SPDX-License-Identifier: BSD-3-Clause
"""Names of LIO's objects, which stand in a part of the kernel that all programs on a machine share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from userblk.harness.machine import teardown
from userblk.harness.machine.blockdev import BlockDevice
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.machine.teardown import Teardown, module_loaded, start_time
from userblk.harness.model.config import load_system
from userblk.harness.systems import lio, tcmu
from userblk.harness.systems.base import BringUpError, Context
from userblk.harness.systems.lio import TARGET, Backstore, LioError, Lun
from waiting import wait_until


def test_two_processes_have_two_disks_and_what_one_left_is_found_by_its_hba() -> None:
    backstore = Backstore.iblock(Path("/dev/null"))
    own = Lun(backstore)
    assert own.hba == TARGET / "core" / f"iblock_{os.getpid()}" and own.name == f"userblk{os.getpid()}"
    other = Lun(backstore, hba=TARGET / "core/iblock_1")
    assert other.name == "userblk1" and other.port != own.port
    left = Lun(Backstore("", ""), hba=own.hba)
    assert (left.core, left.port, left.name) == (own.core, own.port, own.name)
    assert Lun(backstore, "bench").name == "bench"


def test_a_process_whose_name_is_cut_within_a_letter(tmp_path: Path) -> None:
    """The kernel keeps 15 bytes of a name, which need not be text."""
    program = tmp_path / ("\N{CYRILLIC SMALL LETTER YA}" * 8)
    shutil.copy2("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            wait_until("it runs", lambda: b"\xd1" in Path(f"/proc/{process.pid}/comm").read_bytes())
            assert start_time(process.pid)
            assert lio.daemon_runs() in (False, True)
            assert tcmu._running_daemon(tmp_path / "handler.so") == 0 or lio.daemon_runs()
        finally:
            process.kill()


DAEMON = """
import mmap, sys
from pathlib import Path
with open(sys.argv[1], "rb") as handler:
    mapped = mmap.mmap(handler.fileno(), 0, prot=mmap.PROT_READ)
Path("/proc/self/comm").write_text("tcmu-runner")
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def daemon_with(handler: Path) -> Iterator[int]:
    """The pid of a process that looks like a tcmu-runner which has loaded it."""
    argv = [sys.executable, "-c", DAEMON, str(handler)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin and process.stdout.readline() == b"\n"
        yield process.pid
        process.stdin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_daemon_with_another_build_of_the_handler_is_refused(tmp_path: Path) -> None:
    """Its figures would be those of that build: an installed one, or one that make has replaced since."""
    if lio.daemon_runs():
        pytest.skip("a tcmu-runner of somebody else's runs")
    handler = tmp_path / "handler.so"
    for path in (handler, tmp_path / "installed/handler.so"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"this build" * 1000)
    other = tmp_path / "other/handler.so"
    other.parent.mkdir()
    other.write_bytes(b"that build" * 1000)
    for same in (handler, tmp_path / "installed/handler.so"):
        with daemon_with(same) as pid:
            assert tcmu._running_daemon(handler) == pid
    with daemon_with(other) as pid:
        with pytest.raises(BringUpError, match=rf"\(pid {pid}\) runs with another build of handler.so than {handler};"):
            tcmu._running_daemon(handler)
        with pytest.raises(BringUpError, match=rf"\(pid {pid}\) runs without none.so"):
            tcmu._running_daemon(tmp_path / "none.so")
    with daemon_with(handler) as pid:
        handler.unlink()
        handler.write_bytes(b"next build" * 1000)
        with pytest.raises(BringUpError, match="another build"):
            tcmu._running_daemon(handler)


def test_a_daemon_is_noted_before_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that is killed while it waits would leave it."""
    monkeypatch.setattr(teardown, "RUN", tmp_path / "run")
    monkeypatch.setattr(lio, "load_modules", lambda: None)
    monkeypatch.setattr(lio, "START_LIMIT", 0.2)
    monkeypatch.setattr(lio.TcmuRunner, "_ready", lambda _: False)
    (tmp_path / "tcmu-runner").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "tcmu-runner").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    device = BlockDevice("/dev/none", "none", "none", 0, 0, 512, False, "")
    stack = Teardown()
    with ExitStack() as after:
        context = Context(load_system("tcmu-null"), device, 1 << 20, "b", Recorder(tmp_path / "r"), stack, after)
        with pytest.raises(LioError, match="not ready within 0.2 s"):
            tcmu._start_daemon(context, tmp_path / "handler.so")
    assert [(step, arguments["name"]) for step, arguments in stack.steps] == [("end_process", "tcmu-runner")]
    stack.unwind()


def test_modules_that_are_there_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each modprobe would be a part of the time that suite attach measures."""
    (tmp_path / "modprobe").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    (tmp_path / "modprobe").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(lio, "CONFIGFS", Path("/proc"))
    monkeypatch.setattr(teardown, "built_in", lambda: frozenset(["tcm_loop"]))
    there = next(path.name for path in Path("/sys/module").iterdir())
    assert module_loaded(there) and module_loaded("tcm_loop") and not module_loaded("no_such_module")
    lio.load_modules((there, "tcm_loop"))
    assert not (tmp_path / "calls").exists()
