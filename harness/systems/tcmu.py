# SPDX-License-Identifier: BSD-3-Clause
"""tcmu-runner with one of our handlers, and a SCSI disk on the loopback fabric."""

from __future__ import annotations

import filecmp
from pathlib import Path

from ..machine.blockdev import identify
from ..machine.subprocesses import Process
from ..machine.teardown import start_time, write_setting
from ..model.parts import KINDS
from .base import BringUpError, Context, Running, Served, expect_size, set_queue, settle
from .lio import MODULES, Backstore, LioError, Lun, TcmuRunner

HANDLER = "handler"  # mode: the handler's own threads answer, else tcmu-runner's


def _running_daemon(handler: Path) -> int:
    """
    pid of the tcmu-runner that runs already, 0 if none does. Raises BringUpError if it lacks our handler, or has
    another build of it.
    """
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or (entry / "comm").read_text(errors="replace") != "tcmu-runner\n":
                continue
            loaded = _mapped(entry, handler.name)
            same = loaded is not None and filecmp.cmp(loaded, handler, shallow=False)
        except OSError:
            continue  # it has just ended
        if loaded is None:
            raise BringUpError(
                f"tcmu-runner (pid {entry.name}) runs without {handler.name};"
                " stop it (systemctl stop tcmu-runner), or install the handlers and restart it"
            )
        if not same:
            raise BringUpError(
                f"tcmu-runner (pid {entry.name}) runs with another build of {handler.name} than {handler};"
                " stop it (systemctl stop tcmu-runner), or install that build and restart it"
            )
        return int(entry.name)
    return 0


def _mapped(process: Path, name: str) -> Path | None:
    """What is in the file of this name that a process has mapped, even if another one has its place since."""
    for line in (process / "maps").read_text(errors="replace").splitlines():
        addresses, _, _, _, _, *path = line.split(maxsplit=5)
        if path and Path(path[0].removesuffix(" (deleted)")).name == name:
            first, last = (int(end, 16) for end in addresses.split("-"))
            return process / "map_files" / f"{first:x}-{last:x}"
    return None


def _start_daemon(context: Context, handler: Path) -> TcmuRunner:
    """A tcmu-runner of our own; its log is kept with the block."""

    recorded: list[Process] = []

    def note(runner: TcmuRunner) -> None:
        process = context.recorder.adopt(runner.argv, runner.process)
        context.teardown.push("end_process", pid=process.pid, started=process.started, name="tcmu-runner")
        recorded.append(process)

    threads = None if context.config.mode == HANDLER else context.config.threads
    runner = context.after.enter_context(TcmuRunner(handler.parent, threads=threads, note=note))
    context.after.callback(lambda: recorded[0].errors.write_text(runner.log))
    return runner


def up(context: Context) -> Running:
    config, device, teardown = context.config, context.device, context.teardown
    handler = context.library("tcmu-handlers", f"handler_userblk_{config.device}.so")
    parameters = context.parameters()
    size = device.size if config.uses_device else context.area
    settings: dict[str, object] = {"connections": 1, "timeout_s": config.timeout_s, **parameters}
    subtype = f"userblk_{config.device}"
    if config.mode == HANDLER:
        subtype = f"userblk_threads_{config.device}"
        settings["mode"] = config.mode
        parameters["threads"] = str(config.threads)
    try:
        running = _running_daemon(handler)
        known = config.mode == HANDLER or not running
        settings["threads"] = config.threads if known else "as the running tcmu-runner has it"
        server = running or _start_daemon(context, handler).process.pid
        backstore = Backstore.user(
            subtype,
            ";".join(f"{key}={value}" for key, value in parameters.items()),
            size,
            block_size=device.logical_block_size,
            max_bytes=int((device.queue / "max_sectors_kb").read_text()) * 1024,
            timeout_s=config.timeout_s,
        )
        lun = Lun(backstore)
        teardown.push("remove_lun", hba=str(lun.hba))
        lun.__enter__()  # left by remove_lun, which also works when this process was killed
    except LioError as error:
        raise BringUpError(str(error)) from None
    settle()
    used = identify(str(lun.disk))
    expect_size(used, size, device)
    write_setting(used.queue.parent / "device/timeout", str(config.timeout_s))
    set_queue(context, used)

    def fail_io() -> None:
        # Else commands are sent again and again. The kernel wants the newline.
        (used.queue.parent / "device/state").write_text("offline\n")
        lun.fail_commands()

    def restart() -> int:
        """The new daemon finds the disk, and has the kernel send again what was in the ring."""
        try:
            pid = _start_daemon(context, handler).process.pid
        except LioError as error:
            raise BringUpError(str(error)) from None
        teardown.push("remove_lun", hba=str(lun.hba))  # before the daemon's end
        return pid

    return Running(
        used=used,
        backing=device if config.uses_device else None,
        server=server,
        server_started=start_time(server),
        settings=settings,
        fail_io=fail_io,
        restart=restart if context.outlives and not running else None,
    )


class Tcmu(Served):
    name = "tcmu"
    needs = MODULES
    packages = {"tcmu-runner": "tcmu-runner"}
    made = "handlers", "tcmu-handlers/handler_userblk_{device}.so"
    in_paper = True
    modes = (HANDLER,)
    default_mode = True
    events = ("kill",)

    def up(self, context: Context) -> Running:
        return up(context)


KINDS.add(Tcmu())
