# SPDX-License-Identifier: BSD-3-Clause
"""Processes that hold a device, and partition tables on one."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loops import LIMIT


def write_table(device: str, *partitions: tuple[int, int]) -> None:
    """An MBR with partitions, start and length in sectors, or with two small ones; sfdisk is not everywhere."""
    table = bytearray(512)
    table[440:444] = bytes.fromhex("78563412")
    for number, (start, length) in enumerate(partitions or ((2048, 16384), (20480, 16384))):
        struct.pack_into("<B3xB3xII", table, 446 + 16 * number, 0, 0x83, start, length)
    table[510:] = b"\x55\xaa"
    with Path(device).open("r+b") as disk:
        disk.write(table)


HOLD = "import mmap, os, sys; fd = os.open(sys.argv[1], {flags}); {then}; print('ready', flush=True); input()"
KEEP = HOLD.format(flags="os.O_RDWR", then="pass")
MAP = HOLD.format(flags="os.O_RDWR", then="m = mmap.mmap(fd, 4096); os.close(fd)")
REGISTER = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))  # io_uring_setup
assert ring >= 0, os.strerror(ctypes.get_errno())
assert not libc.syscall(427, ring, 2, ctypes.byref(ctypes.c_int(fd)), 1)  # IORING_REGISTER_FILES
os.close(fd)
"""
REGISTERED = HOLD.format(flags="os.O_RDWR", then=f"exec({REGISTER!r})")
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private", "--"]


@contextmanager
def holder(code: str, device: str, *prefix: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another program that has the device open as code tells."""
    argv = [*prefix, sys.executable, "-c", code, device]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.communicate(b"\n", timeout=LIMIT)
