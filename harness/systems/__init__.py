# SPDX-License-Identifier: BSD-3-Clause
"""Systems: the ways in which a device is offered to the workload. Each is a context manager that always tears down.

A file here, or in userblk/harness/systems/ below another directory of PYTHONPATH, is a kind of system.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pkgutil import extend_path

from ..machine import teardown as steps
from ..machine.blockdev import BlockDevice
from ..machine.subprocesses import Recorder
from ..machine.teardown import Teardown
from ..model.config import SystemConfig
from ..model.parts import KINDS
from .base import BringUpError, Context, Running, kind_of, load_modules

__path__ = extend_path(__path__, __name__)
__all__ = ["Context", "Running", "BringUpError", "absent", "bring_up", "load_modules", "modules", "recover"]


def modules(config: SystemConfig) -> tuple[str, ...]:
    """Kernel modules that a system needs."""
    return kind_of(config).modules(config)


def absent(config: SystemConfig) -> list[str]:
    """Why a third-party system cannot run here, a line each: it is left out then. Ours that cannot is an error."""
    return kind_of(config).absent(config)


def recover() -> list[str]:
    """What teardown.recover() does, with the steps of all kinds of systems."""
    KINDS.names()
    return steps.recover()


@contextmanager
def bring_up(
    config: SystemConfig,
    device: BlockDevice,
    area: int,
    build: str,
    recorder: Recorder,
    teardown: Teardown,
    mountable: bool = False,
    outlives: bool = False,
) -> Iterator[Running]:
    """The system on the device, for the length of the with block. Raises BringUpError, CommandError, TeardownError."""
    mark = teardown.mark()
    try:
        with ExitStack() as after:
            context = Context(config, device, area, build, recorder, teardown, after, mountable, outlives)
            try:
                running = kind_of(config).up(context)
                try:
                    yield running
                finally:
                    running.close()
            finally:
                teardown.unwind(mark)
    finally:
        recorder.save()
