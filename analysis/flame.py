# SPDX-License-Identifier: BSD-3-Clause
"""Flame graphs as SVG: how a whole is made up of paths, and by how much each part differs from another whole's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from userblk.harness.observing import perf
from userblk.harness.observing.instructions import Place

from .palette import COST, GAIN
from .render import mixed
from .summaries import SAMPLING
from .table import DEVICES, NATIVE, SYSTEMS, ordered

FLAMES = "flames"

WIDTH, ROW, LETTER = 1200, 17, 6.6  # pixels
LEAST = 0.4  # pixels: what is narrower is not drawn
TOP = 44  # of title and scale


Paths = Mapping[tuple[str, ...], float]  # from the outermost part to the innermost


@dataclass
class Node:
    """A part: everything whose path begins as its own does."""

    name: str
    value: float = 0.0
    parts: dict[str, Node] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((part.depth() for part in self.parts.values()), default=0)


def tree(paths: Paths) -> Node:
    """A tree of values by path, from the outermost part to the innermost."""
    root = Node("all", sum(paths.values()))
    for path, value in paths.items():
        node = root
        for name in path:
            node = node.parts.setdefault(name, Node(name))
            node.value += value
    return root


def _rectangles(
    node: Node, other: Node | None, left: float, level: int, scale: float, colour: Callable[[Node, Node | None], str]
) -> list[str]:
    """The rectangles of a part and all within it. other: that part of the tree compared with, or None."""
    width = node.value * scale
    if width < LEAST:
        return []
    was = "" if other is None else f", {node.value - other.value:+,.0f}"
    name = escape(node.name)
    shown = name if len(node.name) * LETTER < width - 4 else escape(node.name[: max(0, int((width - 4) / LETTER))])
    top = TOP + level * ROW
    found = [
        f'<g><title>{name}: {node.value:,.0f}{was}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}"'
        f' height="{ROW - 1}" fill="{colour(node, other)}"/><text x="{left + 2:.1f}" y="{top + 12}">{shown}</text></g>'
    ]
    for part in sorted(node.parts.values(), key=lambda one: -one.value):
        beside = None if other is None else other.parts.get(part.name, Node(part.name))
        found += _rectangles(part, beside, left, level + 1, scale, colour)
        left += part.value * scale
    return found


def _of_name(node: Node, other: Node | None) -> str:
    """The same for a function wherever it stands: a warm tone."""
    number = sum(ord(letter) * (place + 7) for place, letter in enumerate(node.name))
    return f"#{205 + number % 50:02x}{120 + number % 110:02x}{40 + number % 50:02x}"


def _of_difference(node: Node, other: Node | None) -> str:
    """Red where there is more than in the other, blue where there is less, deeper for a larger share of itself."""
    was = other.value if other else 0.0
    light, deep = COST if node.value >= was else GAIN
    return mixed(light, deep, min(1.0, abs(node.value - was) / max(node.value, was, 1e-9)))


def svg(title: str, paths: Paths, unit: str, other: Paths | None = None) -> str:
    """A graph of the paths, the outermost on top. unit: of their values. other: colours tell the difference to it."""
    root = tree(paths)
    height = TOP + root.depth() * ROW + 10
    scale = (WIDTH - 20) / root.value if root.value else 0.0
    drawn = _rectangles(
        root, tree(other) if other is not None else None, 10.0, 0, scale, _of_difference if other else _of_name
    )
    legend = f"width: {unit}" + ("; red: more, blue: less than native" if other else "")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            ' font-family="monospace" font-size="11">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="10" y="18" font-size="14">{escape(title)}</text><text x="10" y="35">{escape(legend)}</text>',
            *drawn,
            "</svg>\n",
        ]
    )


def draw(directory: Path, title: str, systems: Mapping[str, Paths], unit: str) -> list[str]:
    """A graph of each system, and of each but native one that tells the difference to it; the names of the files."""
    of_native = systems.get(NATIVE)
    names = []
    for system, paths in systems.items():
        graphs: dict[str, Paths | None] = {f"{system}.svg": None}
        if of_native is not None and system != NATIVE:
            graphs[f"{system}-against-native.svg"] = of_native
        for name, other in graphs.items():
            (directory / name).write_text(svg(f"{SYSTEMS.get(system, system)}, {title}", paths, unit, other))
            names.append(name)
    return names


@dataclass(frozen=True)
class Cell:
    """The graphs of one workload on one device. graphs: title of the system, and the file below the figures."""

    title: str
    graphs: tuple[tuple[str, str], ...]


def write_flames(directory: Path, figures: Path, words: str) -> list[Cell]:
    """
    The graphs of all that perf looked at in a campaign, into FLAMES below figures. words: what titles say of a campaign
    in the lab. Other programs are left out, and files that cannot be read, and those of invalid runs.
    """
    found: dict[tuple[str, ...], dict[str, tuple[Paths, str]]] = {}
    for file in sorted(directory.glob(f"*/*/*/*/*/{SAMPLING}/{perf.FILE}")):
        host, device, suite, system, workload = file.parent.relative_to(directory).parts[:5]
        with suppress(OSError, ValueError, LookupError):
            if json.loads((file.parent / "summary.json").read_text())["valid"]:
                paths, unit = perf.read(file)
                own = {path: value for path, value in paths.items() if path[0] != Place.OTHERS.value}
                found.setdefault((host, device, suite, workload), {})[system] = own, unit
    cells = []
    for key, systems in sorted(found.items()):
        host, device, suite, workload = key
        place = Path(FLAMES, "-".join(key))
        (figures / place).mkdir(parents=True, exist_ok=True)
        title = ", ".join(filter(None, (f"{DEVICES.get(device, device)} {workload}", suite, f"host {host}", words)))
        graphs = []
        for unit in dict.fromkeys(unit for _, unit in systems.values()):
            alike = {name: systems[name][0] for name in ordered(systems, SYSTEMS) if systems[name][1] == unit}
            for name in draw(figures / place, title, alike, f"{unit} an operation"):
                system, _, _ = name.removesuffix(".svg").partition(f"-against-{NATIVE}")
                label = SYSTEMS.get(system, system)
                graphs.append((label if name == f"{system}.svg" else f"{label} beside native", str(place / name)))
        cells.append(Cell(title, tuple(graphs)))
    return cells
