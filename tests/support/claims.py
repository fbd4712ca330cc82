#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""What the pages say that userblk measured about itself, by docs/claims.toml: `make claims`.

A measured number is one in percent or with a unit of time, of a rate or of memory (from 1 MB on: what is smaller is
the size of a block), a number of times, a ratio with its interval, or a table that names a unit at the head of a
column; outside of code. Each one in README.md or docs/ needs an entry that says it, [[claim]] or [[other]]. Where the
raw data of a claim are kept, the texts are made from them, digit by digit: what differs is printed. --measure also
measures a sample of such claims again, within MINUTES, and prints what is further from the kept value than the claim's
tolerance.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = Path("docs/claims.toml")
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = (
    r"(?:%|ns|us|µs|ms|s|seconds?|minutes?|hours?|times|s/GB|[kMG]B/s|[KMG]iB/s|kop/s|IOPS|op/s|operations a second"
    r"|[MG]i?B)"
)
MEASURED = re.compile(
    rf"(?<![\w.\-/])(?:-?{NUMBER}(?:\s(?:to|and)\s-?{NUMBER})?\s?{UNIT}(?![\w/])|\d+\.\d+ \[\d+\.\d+, \d+\.\d+\])"
)
HEAD = re.compile(rf"^\|.*(?:\({UNIT}\)|\| *{UNIT} *\|)", re.MULTILINE)
TABLE = re.compile(r"^\|.*(?:\n\|.*)*", re.MULTILINE)
NEEDED = {"id", "page", "heading", "machine", "command", "tolerance"}
CLAIM_KEYS = NEEDED | {"says", "data", "made", "pick", "check", "text", "measure", "minutes"}
OTHER_KEYS = {"page", "heading", "says", "why"}


def plain(text: str) -> str:
    """A text without code, and without the space that lines are indented and filled with."""
    lines = (re.sub(r"`[^`]*`", "", line) for line in text.splitlines() if not line.startswith("    "))
    return "\n".join(" ".join(line.split()) for line in lines)


@dataclass(frozen=True)
class Section:
    """Section of a page, from one heading to the next; heading "" is what stands before the first.

    own: its text without what docs/make-tables writes.
    """

    page: str
    heading: str
    text: str
    own: str

    def unsaid(self, says: Sequence[str], made: Sequence[str] = ()) -> list[str]:
        """The measured numbers that no phrase has. What a table begins with stands for the table if it is in says."""
        text = plain(self.own)

        def found(phrase: str) -> list[tuple[int, int]]:
            words = (re.escape(word) for word in plain(phrase).split())
            return [match.span() for match in re.finditer(r"\s+".join(words), text)]

        said = [span for phrase in says for span in found(phrase)]
        begins = {begin for begin, _ in said}
        said += [match.span() for match in TABLE.finditer(text) if match.start() in begins]
        said += [span for phrase in made for span in found(phrase)]
        return [
            " ".join(number[0].split())
            for rule in (MEASURED, HEAD)
            for number in rule.finditer(text)
            if not any(begin <= number.start() and number.end() <= end for begin, end in said)
        ]


def sections(page: str, text: str) -> Iterator[Section]:
    heading, lines, own, written = "", list[str](), list[str](), False
    for line in text.splitlines():
        written = line.startswith(("<!-- userblk ", "<!-- table ")) or (written and line != "<!-- end -->")
        if match := re.match(r"#+ (.+)", line):
            yield Section(page, heading, "\n".join(lines), "\n".join(own))
            heading, lines, own = match[1].strip(), [], []
            continue
        lines.append(line)
        if not written:
            own.append(line)
    yield Section(page, heading, "\n".join(lines), "\n".join(own))


def wrong_entries(entries: dict[str, Any], found: Sequence[Section]) -> Iterator[str]:
    """Entries that say too little, or are of a section that is not there."""
    known: dict[tuple[object, object], str] = {}  # two tables of a page may have the same heading
    for one in found:
        known[one.page, one.heading] = f"{known.get((one.page, one.heading), '')} {one.own}"
    for entry in entries.get("claim", []):
        name = entry.get("id", "a claim without id")
        if missing := NEEDED - entry.keys():
            yield f"{name}: {', '.join(sorted(missing))} is missing; add it"
        if unknown := entry.keys() - CLAIM_KEYS:
            yield f"{name}: {', '.join(sorted(unknown))} is unknown; remove it"
        if "data" not in entry and "made" not in entry:
            yield f"{name}: neither data, a file that is kept, nor made, how the raw data are made; add one of them"
        if "data" in entry and not (ROOT / entry["data"]).is_file():
            yield f"{name}: data={entry['data']} is not there"
        if not {"says", "check", "text"} & entry.keys():
            yield f"{name}: no number is of it; add says, check or text"
        if "data" in entry and not {"check", "text"} & entry.keys():
            yield f"{name}: nothing is made from its data; add check or text"
        if "measure" in entry and not {"data", "text", "minutes"} <= entry.keys():
            yield f"{name}: measure needs data, text and minutes; add them"
    for entry in entries.get("other", []):
        if OTHER_KEYS != entry.keys():
            yield f"[[other]] {entry}: has {', '.join(sorted(OTHER_KEYS))}, and no more"
    for entry in (*entries.get("claim", []), *entries.get("other", [])):
        page, heading = entry.get("page"), entry.get("heading")
        if (page, heading) not in known:
            yield f"{page}: has no section {heading!r}, of which an entry is"
            continue
        own = " ".join(plain(known[page, heading]).split())
        for phrase in entry.get("says", []):
            if " ".join(plain(phrase).split()) not in own:
                yield f"{page}: section {heading!r} does not say {phrase!r}; make page and {FILE} agree"


def without_entry(entries: dict[str, Any], found: Sequence[Section]) -> Iterator[str]:
    """Measured numbers that no entry of their section says."""
    both = (*entries.get("claim", []), *entries.get("other", []))
    for one in found:
        says, made = list[str](), list[str]()
        for entry in both:
            if (entry.get("page"), entry.get("heading")) == (one.page, one.heading):
                says += entry.get("says", [])
                made += (said["text"] for said in entry.get("text", []))
                made += rows(entry) if "check" in entry else []
        for number in dict.fromkeys(one.unsaid(says, made)):
            yield (
                f"{one.page}: section {one.heading!r} has {number!r}, which no entry in {FILE} says; add a [[claim]]"
                " with its command and data, or an [[other]] that says why it is not a measurement"
            )


@cache
def run(argv: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """A command of an entry, once, with this Python and what make has it import."""
    words = [sys.executable if word == "python3" else word for word in argv]
    env = {**os.environ, "PYTHONPATH": "python:tests/support"}
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def rows(claim: dict[str, Any]) -> list[str]:
    """The lines of tables that the check of a claim prints."""
    return [line.strip() for line in run(tuple(claim["check"])).stdout.splitlines() if line.startswith("|")]


def values_of(claim: dict[str, Any], raw: str) -> dict[str, float]:
    """The values in raw data: what the expressions of pick find, or those of a JSON object. Raises ValueError."""
    if "pick" not in claim:
        return {name: float(value) for name, value in json.loads(raw).items()}
    found = {name: re.search(rule, raw, re.MULTILINE) for name, rule in claim["pick"].items()}
    if missing := [name for name, match in found.items() if not match]:
        raise ValueError(f"{claim['id']}: {', '.join(missing)} is not in the data")
    return {name: float(match[1]) for name, match in found.items() if match}


def differing(claim: dict[str, Any], text: str) -> Iterator[str]:
    """What a page says otherwise than the data that are kept. text: of the section."""
    flat = " ".join(text.split())
    values = values_of(claim, (ROOT / claim["data"]).read_text()) if "text" in claim else {}
    for said in claim.get("text", []):
        words = " ".join(said["text"].split())
        if words not in flat:
            yield f"{claim['page']}: {claim['id']}: does not say {words!r}; make page and {FILE} agree"
            continue
        numbers = re.findall(NUMBER, words)
        if len(numbers) != len(said["values"]):
            count = len(said["values"])
            yield f"{claim['id']}: {words!r} has {len(numbers)} numbers, and {count} values; name one for each"
            continue
        for number, name in zip(numbers, said["values"], strict=True):
            value = f"{values[name]:.{len(number.partition('.')[2])}f}"
            if value != number.replace(",", ""):
                kept = f"{claim['data']} has {name} = {value}"
                yield f"{claim['page']}: {claim['id']}: says {number} in {words!r}, where {kept}"
    if "check" in claim:
        done = run(tuple(claim["check"]))
        if done.returncode:
            yield f"{claim['id']}: {shlex.join(claim['check'])}: {(done.stdout + done.stderr).strip()}"
        for line in rows(claim):
            if line not in text:
                yield f"{claim['page']}: {claim['id']}: has no line {line!r}, which its data make"


def told() -> list[str]:
    """All that is wrong, a line each."""
    entries = tomllib.loads((ROOT / FILE).read_text())
    found = [one for page in PAGES for one in sections(page, (ROOT / page).read_text())]
    lines = [*wrong_entries(entries, found)]
    if lines:
        return lines
    lines += without_entry(entries, found)
    for claim in entries["claim"]:
        if "data" in claim:
            text = "\n".join(one.text for one in found if (one.page, one.heading) == (claim["page"], claim["heading"]))
            lines += differing(claim, text)
    return lines


def measure(claims: Sequence[dict[str, Any]], minutes: float, rng: random.Random) -> int:
    """Take the sample again. How many of its claims differ."""
    left, wrong = minutes, 0
    for claim in rng.sample(list(claims), len(claims)):
        if claim["minutes"] > left:
            print(f"{claim['id']}: left out: it takes {claim['minutes']} of {left:.0f} minutes")
            continue
        began = time.monotonic()
        print(f"{claim['id']}: {shlex.join(claim['measure'])}", flush=True)
        done = run(tuple(claim["measure"]))
        left -= (time.monotonic() - began) / 60
        if done.returncode:
            print(f"{claim['id']}: exit code {done.returncode}: {done.stderr.strip()}")
            wrong += 1
            continue
        values, kept = values_of(claim, done.stdout), values_of(claim, (ROOT / claim["data"]).read_text())
        differs = False
        for name in dict.fromkeys(name for said in claim["text"] for name in said["values"]):
            apart = abs(values[name] - kept[name]) / abs(kept[name] or 1)
            verdict = "" if apart <= claim["tolerance"] else f", more than {claim['tolerance']:.0%}"
            differs |= bool(verdict)
            print(f"  {name}: {values[name]:g}, kept {kept[name]:g}: {apart:.1%} apart{verdict}")
        wrong += differs
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--measure", action="store_true", help="also measure a sample of the claims again")
    parser.add_argument("--minutes", type=float, default=30, help="for all of them (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the sample (default: another one each time)")
    args = parser.parse_args()
    lines = told()
    for line in lines:
        print(line)
    wrong = len(lines)
    if args.measure:
        claims = [one for one in tomllib.loads((ROOT / FILE).read_text())["claim"] if "measure" in one]
        wrong += measure(claims, args.minutes, random.Random(args.seed))
    print(f"{wrong} claims differ" if wrong else "all claims hold")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
