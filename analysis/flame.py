# SPDX-License-Identifier: BSD-3-Clause
"""Flame graphs as SVG: how a whole is made up of paths, and by how much each part differs from another whole's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape

from .palette import COST, GAIN
from .render import mixed

WIDTH, ROW, LETTER = 1200, 17, 6.6  # pixels
LEAST = 0.4  # pixels: what is narrower is not drawn
TOP = 44  # of title and scale


@dataclass
class Node:
    """A part: everything whose path begins as its own does."""

    name: str
    value: float = 0.0
    parts: dict[str, Node] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((part.depth() for part in self.parts.values()), default=0)


def tree(paths: Mapping[tuple[str, ...], float]) -> Node:
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


def svg(
    title: str, paths: Mapping[tuple[str, ...], float], other: Mapping[tuple[str, ...], float] | None = None
) -> str:
    """A graph of the paths, the outermost on top. other: colours tell the difference to it."""
    root = tree(paths)
    height = TOP + root.depth() * ROW + 10
    scale = (WIDTH - 20) / root.value if root.value else 0.0
    drawn = _rectangles(
        root, tree(other) if other is not None else None, 10.0, 0, scale, _of_difference if other else _of_name
    )
    legend = "width: instructions a request" + ("; red: more, blue: less than native" if other else "")
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
