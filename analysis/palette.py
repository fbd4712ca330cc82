# SPDX-License-Identifier: BSD-3-Clause
"""Colours that colour-blind eyes tell apart: of systems Okabe's and Ito's, of costs red, of gains blue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .render import badness, ink, mixed
from .table import CONTROL, NATIVE, Metric

COST = (253, 246, 238), (178, 24, 43)  # next to none, total
GAIN = (238, 243, 250), (33, 102, 172)


@dataclass(frozen=True)
class Look:
    """dash: lengths of line and gap in points, () for a solid line. marker: as matplotlib names it."""

    colour: str
    dash: tuple[float, ...]
    marker: str

    @property
    def line(self) -> tuple[int, tuple[float, ...]] | str:
        """As matplotlib's style of a line."""
        return (0, self.dash) if self.dash else "-"


LOOKS = {
    NATIVE: Look("#000000", (), "o"),
    CONTROL: Look("#7f7f7f", (1, 1.5), "o"),
    "nbdkit": Look("#0072b2", (5, 1.5), "s"),
    "tcmu": Look("#d55e00", (3, 1.5), "^"),
    "fuse": Look("#009e73", (1, 1), "D"),
    "ublk-workers": Look("#cc79a7", (6, 1.5, 1, 1.5), "v"),
    "ublk-uring": Look("#56b4e9", (6, 1.5, 1, 1.5, 1, 1.5), "P"),
}
OTHERS = (
    Look("#e69f00", (4, 1), "X"),
    Look("#999933", (2, 1), "<"),
    Look("#882255", (4, 1, 2, 1), ">"),
    Look("#44aa99", (2, 2), "h"),
    Look("#332288", (8, 2), "p"),
    Look("#117733", (5, 1.5, 1, 1.5), "*"),
    Look("#aa4499", (3, 2, 3, 4), "d"),
)


def look(system: str, systems: Sequence[str]) -> Look:
    """The look of one of a table's systems; those without a look of their own take one by their place."""
    if system in LOOKS:
        return LOOKS[system]
    others = [name for name in systems if name not in LOOKS]
    return OTHERS[others.index(system) % len(OTHERS)]


def heat(metric: Metric, difference: float) -> tuple[str, str]:
    """The colours of a heat map's cell and the text on it: red for what costs, blue for a gain, deeper for more."""
    cost, gain = badness(metric, difference), badness(metric, -difference)
    (light, deep), share = (GAIN, gain) if gain > cost else (COST, cost)
    fill = mixed(light, deep, share)
    return fill, ink(fill)
