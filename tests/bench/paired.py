# SPDX-License-Identifier: BSD-3-Clause
"""What the comparisons in pairs of runs share: ratios with their interval, verdicts, fio's report, results on disk."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """first/second, with its interval; the ends are NaN for fewer than two pairs."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.mean:8.3f}  {'no interval: one pair':<22}"
        interval = f"[{self.low:.3f}, {self.high:.3f}]"
        return f"{self.mean:8.3f}  {interval:<22}"

    def verdict(self, limit: float, slower: float) -> str:
        """ok: surely at least limit; slower: surely below slower; empty without an interval."""
        if math.isnan(self.low):
            return ""
        return "ok" if self.low >= limit else "slower" if self.high < slower else "unclear"


def paired_ratio(pairs: Sequence[tuple[float, float]], confidence: float = 0.95) -> Ratio:
    """Geometric mean of first/second and its Student-t interval (n-1)."""
    from scipy import stats  # not where only measuring is done

    logs = [math.log(first / second) for first, second in pairs]
    n = len(logs)
    mean = math.fsum(logs) / n
    if n < 2:
        return Ratio(math.exp(mean), math.nan, math.nan)
    variance = math.fsum((x - mean) ** 2 for x in logs) / (n - 1)
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * math.sqrt(variance / n)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def is_chosen(name: str, patterns: Sequence[str]) -> bool:
    """
    Whether a cell, PART/PART/..., begins with one of the patterns, by whole parts, taken as text or as
    a regular expression; without patterns all do.
    """
    return not patterns or any(f"{name}/".startswith(f"{p}/") or re.match(p + r"(/|$)", name) for p in patterns)


def run_fio(argv: Sequence[str], name: str, timeout: float | None = None) -> dict[str, Any]:
    """The first job of fio's JSON report. Raises RuntimeError, beginning with name, unless all went well."""
    result = subprocess.run(
        [*argv, "--output-format=json"], capture_output=True, text=True, timeout=timeout, check=False
    )
    if result.returncode != 0:
        raise RuntimeError(f"{name}: {' '.join(argv)}: exit {result.returncode}: {result.stderr.strip()}")
    # fio may print a line before the JSON.
    job: dict[str, Any] = json.loads(result.stdout[result.stdout.index("{") :])["jobs"][0]
    if job["error"] or job["read"]["total_ios"] + job["write"]["total_ios"] <= 0:
        raise RuntimeError(f"{name}: fio reports error {job['error']} or no operation")
    return job


def write_json(path: Path, data: dict[str, Any]) -> None:
    """All of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    partial.rename(path)
