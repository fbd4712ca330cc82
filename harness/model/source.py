# SPDX-License-Identifier: BSD-3-Clause
"""The source that an installation brings along, which the lab and suite s3's own store are built from."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..machine.paths import SHARE
from .tables import ConfigError

ARCHIVE = SHARE / "source.tar.gz"  # packaging/source-archive makes it
CACHE = Path("/var/cache/userblk") if os.geteuid() == 0 else Path("~/.cache/userblk")


def unpacked(archive: Path, cache: Path) -> Path:
    """The directory below cache with the files of archive, which are all there. Raises OSError, CalledProcessError."""
    place = cache / hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    if place.is_dir():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="new-", dir=cache))
    try:
        new.chmod(0o755)
        subprocess.run(["tar", "-xzf", archive, "-C", new], check=True, capture_output=True)
        new.rename(place)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        if not place.is_dir():  # else another userblk was faster
            raise
    return place


def unpack() -> Path | None:
    """Where that source is, unpacked; None: there is none. Raises ConfigError."""
    if not ARCHIVE.is_file():
        return None
    try:
        return unpacked(ARCHIVE, CACHE.expanduser())
    except RuntimeError:
        raise ConfigError(f"{CACHE}: you have no home directory to unpack {ARCHIVE} into; set HOME") from None
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"{ARCHIVE}: cannot be unpacked into {CACHE} ({error}); make room there") from None
