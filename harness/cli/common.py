# SPDX-License-Identifier: BSD-3-Clause
"""What the commands share."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..machine.packages import installing
from ..model.tables import ConfigError

EXIT_USAGE = 2
EXIT_SIGNAL = 128  # and the signal's number: 130 after Ctrl-C

log = logging.getLogger("userblk")


class Add(Protocol):
    """Adds a command to the parser: its name, what it does in half a sentence, and what carries it out."""

    def __call__(
        self, name: str, text: str, command: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser: ...


@contextmanager
def lab_errors() -> Iterator[None]:
    """Raises ConfigError for an error of the lab, which only a checkout has."""
    from userblk.lab import LabError

    try:
        yield
    except LabError as error:
        raise ConfigError(f"where=lab: {error}") from None


OPTIONAL = {"jinja2": "python3-jinja2", "matplotlib": "python3-matplotlib"}  # modules, and Debian's packages


@contextmanager
def optional_packages() -> Iterator[None]:
    """Raises ConfigError where one of those is needed that only reports and figures need."""
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module not in OPTIONAL:
            raise
        remedy = f"run: {installing(OPTIONAL[module])}"
        raise ConfigError(f"{module}: is not installed, and reports need it; {remedy}") from None


def say(text: str) -> None:
    """To people, whatever standard output is used for; --log-level warning silences it."""
    log.info("%s", text)


def output_fails() -> str:
    """What keeps standard output from taking more, after an OSError that may be of it; "" if nothing does."""
    try:
        print(flush=True)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def print_json(value: object) -> None:
    print(json.dumps(value, indent=1))


def list_of(option: str, text: str | None) -> list[str] | None:
    """The words of a list separated by commas or blanks. Raises ConfigError if there are none."""
    if text is None:
        return None
    words = text.replace(",", " ").split()
    if not words:
        raise ConfigError(f"{option}={text}: names none; name one or more, separated by commas, or leave it out")
    return words


def count(least: int, most: int) -> Callable[[str], int]:
    """The type of options that count."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text}: must be a whole number from {least} to {most}")
        return int(text)

    return parse


def show_bytes(number: float) -> str:
    return f"{number / 1e9:,.1f} GB"


def add_json(parser: argparse.ArgumentParser, what: str = "print JSON on standard output") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="directory that holds all campaigns (default: results)",
    )


def how_to_resume(directory: Path) -> str:
    return f"Continue with: userblk resume {directory}"


def find_campaign(name: str, results: Path, papers: Sequence[str] = ()) -> Path:
    """
    The directory of a campaign, given as a path or by name below results. papers: what else is taken. Raises
    ConfigError.
    """
    remedy = "name a campaign's directory" + (f", or a paper: {', '.join(papers)}" if papers else "")
    try:
        for directory in (Path(name), results / name):
            if (directory / "plan.json").is_file():
                return directory.absolute()
    except OSError as error:  # another user's, for example
        raise ConfigError(f"campaign={name}: {error.strerror}; {remedy}") from None
    raise ConfigError(f"campaign={name}: no plan.json in it, nor in {results / name}; {remedy}")


def write_file(path: Path, text: str) -> None:
    """Replace a file as a whole; what is no regular file, such as /dev/null, is written to. Raises ConfigError."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        place = path.resolve()  # a link stays one
        temporary = place.with_name(place.name + ".new")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.rename(place)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"output={path}: {error.strerror}; name a file that can be written") from None
