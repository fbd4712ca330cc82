# SPDX-License-Identifier: BSD-3-Clause
"""userblk-fuse-disk: one of our devices as a regular file, through FUSE. No block device comes of it."""

from __future__ import annotations

from .base import Context, Running, SystemError_, scratch
from .fuse import mount

PROGRAM = "userblk-fuse-disk"


def up(context: Context) -> Running:
    config = context.config
    program = context.library("fuse-disk", PROGRAM)
    file = scratch(context.teardown) / "disk"
    file.touch()
    parameters = context.parameters() | {"size": str(context.area)}
    argv = [str(program), f"--max-threads={config.threads}", *config.options, str(file), config.device]
    argv += [f"{key}={value}" for key, value in parameters.items()]
    daemon, found, problems = mount(argv, file, config.negotiated, context.recorder, context.teardown)
    if (size := file.stat().st_size) != context.area:
        raise SystemError_(f"{file}: has {size} bytes, not {context.area}")
    return Running(
        used=context.device,
        file=file,
        server=daemon.pid,
        server_started=daemon.started,
        settings={"threads": config.threads, "negotiated": found, "options": list(config.options), **parameters},
        problems=problems,
    )
