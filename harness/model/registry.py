# SPDX-License-Identifier: BSD-3-Clause
"""What registers itself: a file in a folder makes an object and adds it, and no list of them stands anywhere."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    name: str


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """Objects by name. The modules of the packages are imported when the first is asked for."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        self._found: dict[str, T] = {}
        self._complete = False

    def add(self, one: T) -> T:
        self._found[one.name] = one
        return one

    def _all(self) -> dict[str, T]:
        if not self._complete:
            for package in map(import_module, self._packages):
                for module in pkgutil.iter_modules(package.__path__):
                    import_module(f"{package.__name__}.{module.name}")
            self._complete = True
        return self._found

    def names(self) -> list[str]:
        return sorted(self._all())

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def get(self, name: str, otherwise: T) -> T:
        return self._all().get(name, otherwise)
