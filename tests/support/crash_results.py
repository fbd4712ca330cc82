# SPDX-License-Identifier: BSD-3-Clause
"""What the volumes of crash.py went through: kept in a file, counted, and summed up."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CRASHES_PER_VOLUME = 10


@dataclass
class Result:
    """What one volume went through."""

    volume: int
    crashes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    writes: int = 0
    lost: int = 0  # acknowledged writes that were gone, as they may
    failure: str | None = None

    def json(self) -> str:
        return json.dumps({**self.__dict__, "kinds": dict(self.kinds)})

    @classmethod
    def from_json(cls, line: str) -> Result:
        result = cls(**json.loads(line))
        result.kinds = Counter(result.kinds)
        return result


@dataclass
class Record:
    """The results of volumes in a file: a line for seed and build, one for each volume."""

    path: Path | None
    seed: int
    build: str

    def read(self) -> dict[int, Result]:
        """
        Those that passed, and need not be done again, by this very build. A line that was cut short counts for nothing.
        """
        if self.path is None or not self.path.exists():
            return {}
        header, *lines = self.path.read_text(encoding="utf-8").split("\n")
        seed, _, build = header.partition(" ")
        if seed != str(self.seed):
            raise SystemExit(f"--results={self.path}: is of seed {seed}; give --seed {seed} or another file")
        if build != self.build:
            print(f"--results={self.path}: is of another build; all is done again", file=sys.stderr)
            return {}
        results = map(Result.from_json, lines[:-1])
        return {result.volume: result for result in results if result.failure is None}

    def write(self, results: Iterable[Result]) -> None:
        """All of them, in place of what is there."""
        if self.path is None:
            return
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(
            "".join(f"{line}\n" for line in (f"{self.seed} {self.build}", *(r.json() for r in results))),
            encoding="utf-8",
        )
        new.replace(self.path)

    def add(self, result: Result) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(result.json() + "\n")


def never_reached(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """The named points that no crash was at."""
    return [name for name in names if not any(result.kinds[name] for result in results)]


def points_done(results: Iterable[Result]) -> int:
    """Crashes, of which a volume that fails, or cannot go on without what was taken, has fewer than planned."""
    return sum(CRASHES_PER_VOLUME if result.failure else result.crashes for result in results)


def summary(results: Sequence[Result], points: int, names: Sequence[str]) -> str:
    crashes = sum(result.crashes for result in results)
    kinds = sum((result.kinds for result in results), Counter[str]())
    lines = [
        f"{crashes} crashes of {len(results)} volumes, {sum(r.writes for r in results)} writes,"
        f" {sum(r.lost for r in results)} that were acknowledged but not flushed were lost"
    ]
    lines += [f"  {count:6} {kind}" for kind, count in sorted(kinds.items())]
    lines += [f"FAILED {result.failure}" for result in results if result.failure]
    left = points - points_done(results)
    if left > 0:
        lines.append(f"{left} of {points} are left: run it again with the same --results")
    elif never := never_reached(results, names):
        lines.append(f"FAILED never reached: {', '.join(never)}; give more --points")
    failed = sum(result.failure is not None for result in results)
    lines.append(f"{crashes} passed, {failed} failed")
    return "\n".join(lines)


def crashes_wanted(results: Sequence[Result], points: int, names: Sequence[str]) -> int:
    """More than points, but not forever, while there is a name that no crash was at: chance ends a volume's way."""
    return points if points_done(results) < points or not never_reached(results, names) else points * 3 // 2
