# SPDX-License-Identifier: BSD-3-Clause
"""The shortest sequence that still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(calls: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """The fewest of the calls that still fail, as far as leaving some out leads there."""
    rest, size = list(calls), max(1, len(calls) // 2)
    while size:
        start = 0
        while start < len(rest):
            fewer = rest[:start] + rest[start + size :]
            if fails(fewer):
                rest = fewer
            else:
                start += size
        size //= 2
    return rest
