# SPDX-License-Identifier: BSD-3-Clause
"""Files that are whole or not there, also after a loss of power."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path


def sync(path: Path) -> None:
    """Keep a file, or the names in a directory. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, text: str) -> None:
    """Replace the text of the file; a reader finds the old one or the new one, and nothing else. Raises OSError."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.write_text(text)
        sync(temporary)
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def append(path: Path, line: str) -> None:
    """Add a line to a file, all of it or nothing. Raises OSError."""
    data = f"{line}\n".encode()
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def write_json(path: Path, value: object) -> None:
    """The same with a value as JSON."""
    replace(path, json.dumps(value, indent=1) + "\n")


def sync_tree(directory: Path) -> None:
    """All files below a directory, and their names. Raises OSError."""
    for path in (*directory.rglob("*"), directory):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            sync(path)
