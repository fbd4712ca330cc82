# SPDX-License-Identifier: BSD-3-Clause
"""bench_create: which moments of the kernel's trace are whose."""

from __future__ import annotations

import pytest
from bench_create import parsed, stages

# A file: its LOOKUP (3 us in the server), then its CREATE; another thread of the server is busy with something else.
TRACE = """\
# tracer: nop
         python3-100   [001] ..... 10.000100: sys_openat(dfd: 0xffffff9c, filename: 0x7f, flags: 0x80041, mode: 0x1a4)
         python3-100   [001] ...1. 10.000105: fuse_request_send: connection 39 req 88 opcode 1 (FUSE_LOOKUP) len 56
  userblk-nullfs-200   [000] ..... 10.000110: sys_read -> 0x38
  userblk-nullfs-200   [000] ..... 10.000113: sys_writev(fd: 5, vec: 0x7f, vlen: 2)
  userblk-nullfs-200   [000] ..... 10.000114: fuse_request_end: connection 39 req 88 len 120 error 0
         python3-100   [001] ...1. 10.000130: fuse_request_send: connection 39 req 90 opcode 35 (FUSE_CREATE) len 90
  userblk-nullfs-201   [000] ..... 10.000131: sys_writev(fd: 5, vec: 0x7f, vlen: 2)
  userblk-nullfs-200   [000] ..... 10.000140: sys_read -> 0x5a
  userblk-nullfs-201   [000] ..... 10.000141: sys_writev(fd: 5, vec: 0x7f, vlen: 2)
  userblk-nullfs-200   [000] ..... 10.000144: sys_writev(fd: 5, vec: 0x7f, vlen: 2)
  userblk-nullfs-200   [000] ..... 10.000146: fuse_request_end: connection 39 req 90 len 160 error 0
         python3-100   [001] ..... 10.000160: sys_openat -> 0x4
"""


def test_stages_of_a_create() -> None:
    (found,) = stages(parsed(TRACE), 100)
    assert found == pytest.approx((30, 10, 4, 2, 14), abs=0.01)


def test_a_file_without_all_moments_is_left_out() -> None:
    assert not stages(parsed(TRACE.replace("sys_read -> 0x5a", "sys_poll -> 0x1")), 100)
    assert not stages(parsed(TRACE.replace("req 90 len 160", "req 92 len 160")), 100)
