# SPDX-License-Identifier: BSD-3-Clause
"""TOML tables, read key by key. Every error is one line: "FILE: KEY=VALUE: what is wrong; remedy"."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..machine.paths import CONFIGS


class ConfigError(Exception):
    """Something the user wrote is wrong; one line that says what and what to do."""


class NeedsCheckout(ConfigError):
    """What was asked for works in a checkout only, and userblk is installed."""


class Table:
    """One TOML table while it is read: every key is taken once, what is left over is an error."""

    def __init__(self, file: str, values: Mapping[str, object], prefix: str = "") -> None:
        self.file = file
        self.values = dict(values)
        self.prefix = prefix

    def error(self, key: str, value: object, text: str) -> ConfigError:
        return ConfigError(f"{self.file}: {self.prefix}{key}={value}: {text}")

    def take(self, key: str) -> object:
        if key not in self.values:
            raise ConfigError(f"{self.file}: {self.prefix}{key} is missing; add it")
        return self.values.pop(key)

    def text(self, key: str, allowed: Sequence[str] = ()) -> str:
        value = self.take(key)
        if not isinstance(value, str) or (allowed and value not in allowed):
            raise self.error(key, value, f"must be one of {', '.join(allowed)}" if allowed else "must be a string")
        return value

    def integer(self, key: str, minimum: int) -> int:
        value = self.take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(key, value, f"must be an integer of at least {minimum}")
        return value

    def size(self, key: str, minimum: int) -> int:
        """Bytes: a whole number, or one with fio's suffix, as "64g"."""
        value = self.take(key)
        try:
            size = 0 if value == 0 and value is not False else parse_bytes(value)
        except ValueError:
            raise self.error(key, value, 'must be bytes, as 4096, "4k", "512m" or "64g"') from None
        if size < minimum:
            raise self.error(key, value, f"must be at least {minimum} bytes")
        return size

    def number(self, key: str, minimum: float = 0) -> float:
        value = self.take(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not minimum <= value < math.inf:
            raise self.error(key, value, f"must be a number of at least {minimum:g}")
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self.take(key)
        if not isinstance(value, bool):
            raise self.error(key, value, "must be true or false")
        return value

    def table(self, key: str, optional: bool = False) -> Table:
        value = self.values.pop(key, {}) if optional else self.take(key)
        if not isinstance(value, dict):
            raise self.error(key, value, f"must be a table, written [{key}]")
        return Table(self.file, value, f"{self.prefix}{key}.")

    def array(self, key: str) -> list[object]:
        value = self.take(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, value, "must be a list with at least one value")
        return value

    def texts(self, key: str, optional: bool = False) -> list[str]:
        """A list of strings; of an optional one also without any."""
        if optional and not self.values.get(key):
            self.values.pop(key, None)
            return []
        values = self.array(key)
        for value in values:
            if not isinstance(value, str):
                raise self.error(key, value, "must be a list of strings")
        return [str(value) for value in values]

    def end(self, known: Sequence[str]) -> None:
        for key, value in self.values.items():
            raise self.error(key, value, f"unknown key; known are {', '.join(known)}")


def names(kind: str) -> list[str]:
    """What there is of a kind: "suites", "profiles", "systems" or "hosts"."""
    return sorted(path.stem for path in (CONFIGS / kind).glob("*.toml"))


def description(kind: str, name: str) -> str:
    """What the comment at the top of its file says."""
    lines = []
    for line in (CONFIGS / kind / f"{name}.toml").read_text().splitlines()[1:]:  # the first is the licence
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def read(kind: str, name: str) -> Table:
    """configs/KIND/NAME.toml. Raises ConfigError."""
    path = CONFIGS / kind / f"{name}.toml"
    if name not in names(kind):
        raise ConfigError(f"{kind.removesuffix('s')}={name}: unknown; use one of {', '.join(names(kind))}")
    return read_file(path, name)


def path(name: str) -> Path:
    """configs/NAME.toml."""
    return CONFIGS / f"{name}.toml"


def toml(path: Path) -> Table:
    """A file's top table. Raises ConfigError."""
    file = str(path.relative_to(CONFIGS.parent)) if path.is_relative_to(CONFIGS.parent) else str(path)
    try:
        return Table(file, tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; name a file that can be read") from None


def read_file(path: Path, name: str) -> Table:
    """A file that says that it is called name. Raises ConfigError."""
    table = toml(path)
    if (found := table.text("name")) != name:
        raise table.error("name", found, f"must be the file's name, {name}")
    return table


def parse_block_size(text: str) -> int:
    """Bytes of "4k" or "128k". Raises ValueError."""
    match = re.fullmatch(r"([1-9][0-9]*)([km]?)", text)
    if not match:
        raise ValueError(text)
    size = int(match[1]) << {"": 0, "k": 10, "m": 20}[match[2]]
    if size < 512 or size & (size - 1):
        raise ValueError(text)
    return size


def parse_bytes(value: object) -> int:
    """A whole number, or "64g", "4k". Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"([1-9][0-9]*)([kmg])", str(value))
    if not match:
        raise ValueError(value)
    return int(match[1]) << {"k": 10, "m": 20, "g": 30}[match[2]]


def counts(table: Table, key: str) -> list[int]:
    """A list of whole numbers, each at least 1."""
    found = []
    for count in table.array(key):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise table.error(key, count, "must be an integer of at least 1")
        found.append(count)
    return found


def block_size(table: Table, key: str, value: object) -> int:
    """Bytes of a value of the key."""
    try:
        return parse_block_size(str(value))
    except ValueError:
        raise table.error(key, value, "must be a power of two of at least 512, as in 4k or 128k") from None
