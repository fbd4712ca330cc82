# SPDX-License-Identifier: BSD-3-Clause
"""Tables as a LaTeX document in the paper's layout, with booktabs; each `table*` in it can be used in another."""

from __future__ import annotations

from collections.abc import Sequence

from .render import half_text, legend, shade, sign_text, value_text
from .table import DEVICES, SYSTEMS, Cell, Metric, Table

ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "*": r"\textasteriskcentered{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\"": "''",
}  # fmt: skip
BEGIN = r"""\documentclass{article}
\usepackage[a3paper,landscape,margin=1cm]{geometry}
\usepackage[table]{xcolor}
\usepackage{booktabs}
\usepackage{graphicx}
\pagestyle{empty}
\begin{document}
"""
END = "\\end{document}\n"
NARROW = "4pt"  # between columns, so that rows of the paper's width stay legible


def escape(text: str) -> str:
    """Text as LaTeX prints it; what its fonts lack is a question mark."""
    return "".join(ESCAPES.get(character, character if character.isascii() else "?") for character in text)


def _unit(metric: Metric, native: bool) -> str:
    if not native:
        return "points" if metric.points else r"\%"
    return {"us": r"$\mu$s", "%": r"\%"}.get(metric.unit, escape(metric.unit))


def _value(text: str) -> str:
    """With signs of the same length."""
    return text.replace("-", "$-$").replace("+", "$+$")


def _cell(table: Table, metric: Metric, system: str, cell: Cell, ci: bool) -> str:
    value = value_text(table, metric, system, cell)
    signs = escape(sign_text(table, cell))
    if not value:
        return "--" + signs
    half = half_text(table, metric, system, cell) if ci else ""
    text = _value(value)
    text += rf"{{\scriptsize\,{escape(half)}}}" if half else ""
    text += rf"\textsuperscript{{{signs}}}" if signs else ""
    colours = shade(metric, system, cell)
    if colours is None:
        return text
    text = rf"\textbf{{{text}}}" if colours.bold else text
    background, ink = colours.background[1:].upper(), colours.text[1:].upper()
    return rf"\cellcolor[HTML]{{{background}}}\color[HTML]{{{ink}}}{text}"


def _table(table: Table, ci: bool) -> list[str]:
    count = len(table.systems)
    lines = [
        r"\begin{table*}",
        rf"\caption{{{escape(table.title)}}}",
        r"\centering",
        rf"\setlength{{\tabcolsep}}{{{NARROW}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{ll{'r' * count * len(table.metrics)}}}",
        r"\toprule",
    ]
    groups = [rf"\multicolumn{{{count}}}{{c}}{{{metric.title}}}" for metric in table.metrics]
    lines.append(" & & " + " & ".join(groups) + r" \\")
    rules = [rf"\cmidrule(lr){{{3 + count * at}-{2 + count * (at + 1)}}}" for at in range(len(table.metrics))]
    lines.append(" ".join(rules))
    heads = [SYSTEMS.get(system, system) for _ in table.metrics for system in table.systems]
    lines.append("Device & Workload & " + " & ".join(map(escape, heads)) + r" \\")
    units = [f"({_unit(metric, table.absolute(system))})" for metric in table.metrics for system in table.systems]
    lines += [" & & " + " & ".join(units) + r" \\", r"\midrule"]
    last = ""
    for device, workload in table.rows:
        if last and device != last:
            lines.append(r"\midrule")
        texts = [escape(DEVICES.get(device, device)) if device != last else "", rf"\texttt{{{escape(workload)}}}"]
        last = device
        texts += [
            _cell(table, metric, system, table.cell(device, workload, system, metric), ci)
            for metric in table.metrics
            for system in table.systems
        ]
        lines.append(" & ".join(texts) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}", r"\par\medskip\raggedright\footnotesize"]
    lines += [escape(note) + r"\par" for note in (*table.notes, *legend(table, ci))]
    lines.append(r"\end{table*}")
    return lines


def latex(tables: Sequence[Table], ci: bool = False) -> str:
    """A whole document."""
    body = "\n\\clearpage\n".join("\n".join(_table(table, ci)) for table in tables)
    return f"% SPDX-License-Identifier: BSD-3-Clause\n{BEGIN}{body}\n{END}"
