# SPDX-License-Identifier: BSD-3-Clause
"""Programs that put load on a device or a file system, and what they report.

A file here, or in userblk/harness/engines/ below another directory of PYTHONPATH, is an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import extend_path

from ..observing.warmup import WarmUp

__path__ = extend_path(__path__, __name__)

LEAST_RUNTIME = 0.5  # s, below which a run says nothing
LEAST_SHARE = 0.5  # of the time of a run that is short, as in the lab's virtual time or where its work is done early


class WorkloadError(Exception):
    """A program's result cannot be read; one line."""


def least_runtime(planned: float) -> float:
    """Seconds below which a run says nothing that should have taken so many."""
    return min(LEAST_RUNTIME, LEAST_SHARE * planned)


@dataclass(frozen=True)
class Result:
    """What was measured after the ramp and the warm-up. problems: reasons for which the run may not be used.

    measured_from: end of the ramp on CLOCK_MONOTONIC, 0 if it is not known; what was measured begins warm_up.cut_s
    later. since_1970: it is on CLOCK_REALTIME, as of a program that tells no other. ramp_s: discarded instead of the
    profile's, as the work was done early. operations: completed in duration_s. metrics and settings: what only this
    kind of workload has.
    """

    throughput_kops: float
    throughput_mbps: float
    latency_us: float
    duration_s: float
    measured_from: float
    operations: float
    warm_up: WarmUp
    version: str
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    ramp_s: float | None = None
    since_1970: bool = False
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)

    def begin(self, ahead: float) -> float:
        """
        measured_from on CLOCK_MONOTONIC. ahead: how far time.time() was before it when the program was started; it may
        have been set since.
        """
        return self.measured_from - ahead if self.since_1970 and self.measured_from else self.measured_from
