# SPDX-License-Identifier: BSD-3-Clause
"""What all figures share: settings, legends, intervals and files. matplotlib is loaded when something is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .statistics import Interval

DPI = 200
# The same data give the same bytes, with the same matplotlib and whatever the user's settings are.
SETTINGS = {
    "svg.hashsalt": "userblk",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "path.simplify": True,
    "axes.unicode_minus": True,
}
METADATA: dict[str, dict[str, str | None]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def new_figure(width: float, height: float) -> Any:
    """In inches. There are no types for matplotlib's figures."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def half_widths(intervals: Sequence[Interval]) -> list[float] | None:
    """NaN, which is not drawn, where there is no interval: one of width 0 would be an exact value. None without any."""
    widths = [math.nan if interval.half is None else interval.half for interval in intervals]
    return None if all(map(math.isnan, widths)) else widths


def intervals_text(intervals: Iterable[Interval]) -> str:
    """The end of the title of a figure of means: what its intervals are."""
    known = {interval.half is not None for interval in intervals}
    if True not in known:
        return ", single runs"
    return ", 95 % confidence intervals" + " (single runs have none)" * (False in known)


def legend(axes: Iterable[Any], beside: Any) -> None:
    """On the right of some axes, all that any axes have: what one panel lacks may be in another."""
    found: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        beside.legend(found.values(), found.keys(), loc="upper left", bbox_to_anchor=(1.02, 1.0))


def save(figure: Any, paths: Sequence[Path]) -> None:
    """Each file is replaced as a whole."""
    for path in paths:
        kind = path.suffix[1:]
        temporary = path.with_name(f"{path.name}.new")
        try:
            figure.savefig(temporary, format=kind, dpi=DPI, metadata=METADATA[kind])
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)


def write(draw: Callable[..., Any], paths: Sequence[Path]) -> None:
    """Draw a figure and save it, both with our settings."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        save(draw(), paths)
