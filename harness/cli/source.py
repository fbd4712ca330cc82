# SPDX-License-Identifier: BSD-3-Clause
"""The source that an installation brings along: the lab builds its guest's programs from it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from ..machine.paths import SHARE
from ..model.tables import ConfigError, NeedsCheckout

ARCHIVE = SHARE / "source.tar.gz"  # packaging/source-archive makes it
CACHE = Path("/var/cache/userblk") if os.geteuid() == 0 else Path.home() / ".cache/userblk"


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


def start_again(need: NeedsCheckout) -> NoReturn:
    """Run the same command by the unpacked source. Raises ConfigError: need, if no source was installed."""
    if not ARCHIVE.is_file():
        raise need
    try:
        place = unpacked(ARCHIVE, CACHE)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"{ARCHIVE}: cannot be unpacked into {CACHE} ({error}); make room there") from None
    os.execv(sys.executable, [sys.executable, str(place / "bin/userblk"), *sys.argv[1:]])
