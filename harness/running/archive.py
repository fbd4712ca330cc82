# SPDX-License-Identifier: BSD-3-Clause
"""A campaign in one file, to share it: tar, compressed with zstd or gzip, the same bytes for the same campaign.

What comes in from outside is not believed: only plain files and directories below one directory are unpacked, beside
the campaigns first and renamed when all of it is there.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, cast

from ..model.parts import ENGINES, Engine
from ..model.plan import ID
from ..model.tables import ConfigError

SUFFIXES = (".tar.zst", ".tar.gz")
ZSTD_MAGIC, GZIP_MAGIC = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
NEEDED = ("campaign.json", "plan.json")
# What tables and comparisons are made of, whatever the engine.
SUMMARY = "summary.json"
OF_TABLES = (*NEEDED, "environment.json", SUMMARY, "DONE")
TEMPORARY = ".new"
CACHE = "cache"  # what the analysis keeps of raw files
BLOCKS, RAW = "blocks", ("commands", "preparation")  # directories


def _zstd() -> str:
    if path := shutil.which("zstd"):
        return path
    raise ConfigError("zstd is not installed; install it, or use a file that ends in .tar.gz")


@contextmanager
def _compressed(file: Path, packed: IO[bytes]) -> Iterator[IO[bytes]]:
    """What is written to the stream goes into packed, as the file's name says."""
    if file.name.endswith(".tar.gz"):
        # Neither the time nor the file's name in the header.
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream:
            yield cast(IO[bytes], stream)
        return
    argv = [_zstd(), "-q", "-10", "-c"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=packed) as process:
        assert process.stdin
        yield process.stdin
        process.stdin.close()
        if process.wait():
            raise ConfigError(f"output={file}: zstd failed (exit code {process.returncode})")


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """As everybody would pack it; None: left out."""
    if not (member.isfile() or member.isdir()) or member.name.endswith(TEMPORARY):
        return None
    if Path(member.name).parts[1:] == (CACHE,):  # holds for the files here only
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = 0
    member.mode = 0o755 if member.isdir() else 0o644
    return member


@lru_cache
def _of_engine(run: Path) -> tuple[str, ...]:
    """Files of a run that the tables of its engine are made of; none of an engine that is not here."""
    try:
        engine = json.loads((run / SUMMARY).read_text())["engine"]
    except (OSError, ValueError, LookupError, TypeError):
        return ()
    return ENGINES.get(engine, Engine()).table_files


def _of_tables(directory: Path, member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """As _plain(), of a campaign's directory, without files that tables are not made of, and what holds only such."""
    path = PurePosixPath(member.name)
    needless = path.parts[1:2] == (BLOCKS,) or path.name in RAW
    if member.isfile() and path.name not in OF_TABLES:
        needless = needless or path.name not in _of_engine(directory.joinpath(*path.parts[1:-1]))
    return None if needless else _plain(member)


def export(directory: Path, file: Path, only_tables: bool = False, beside: Path | None = None) -> None:
    """Pack a campaign's directory into a new file. only_tables: without raw files. Raises ConfigError.

    beside: a directory whose files go into the campaign's, in place of those of the same name.
    """
    if not file.name.endswith(SUFFIXES):
        raise ConfigError(f"output={file}: name a file that ends in {' or '.join(SUFFIXES)}")
    if file.exists():
        raise ConfigError(f"output={file}: exists; name another file")
    temporary = file.with_name(file.name + TEMPORARY)
    more = sorted(beside.iterdir()) if beside else []
    names = {path.name for path in more}

    def chosen(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = PurePosixPath(member.name).parts
        if parts[1:2] and parts[1] in names:
            return None
        return _of_tables(directory, member) if only_tables else _plain(member)

    try:
        with temporary.open("wb") as packed:
            with (
                _compressed(file, packed) as stream,
                tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                # add() goes into directories in the order of their sorted names.
                tar.add(directory, arcname=directory.name, filter=chosen)
                for path in more:
                    tar.add(path, arcname=f"{directory.name}/{path.name}", filter=_plain)
            packed.flush()
            os.fsync(packed.fileno())
        temporary.rename(file)
    except OSError as error:
        raise ConfigError(f"output={file}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    """Leaving the block reads what is left, so that a file that was cut off is an error. Raises ConfigError."""
    with file.open("rb", buffering=0) as packed:  # zstd must read from where we are
        magic = packed.read(4)
        packed.seek(0)
        if magic.startswith(GZIP_MAGIC):
            with gzip.GzipFile(fileobj=packed) as unpacked:
                stream = cast(IO[bytes], unpacked)
                with tarfile.open(fileobj=stream, mode="r|") as tar:
                    yield tar
                    while stream.read(1 << 20):
                        pass
        elif magic == ZSTD_MAGIC:
            argv = [_zstd(), "-q", "-d", "-c"]
            with subprocess.Popen(argv, stdin=packed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                assert process.stdout
                try:
                    with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
                        yield tar
                        while process.stdout.read(1 << 20):
                            pass
                except BaseException:
                    process.kill()  # it waits to be read
                    raise
                if process.wait():
                    raise ConfigError(f"{file}: zstd cannot unpack it: it is cut off or damaged")
        else:
            raise ConfigError(f"{file}: is packed neither with zstd nor with gzip; name what userblk export wrote")


def checked(source: str, member: tarfile.TarInfo) -> PurePosixPath:
    """The member's path. Raises ConfigError, naming source, unless it is a plain file or directory below."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in member.name or "\0" in member.name:
        raise ConfigError(f"{source}: holds {member.name!r}, a path outside the campaign; nothing was unpacked")
    if not (member.isfile() or member.isdir()):
        raise ConfigError(f"{source}: holds {member.name!r}, which is not a regular file; nothing was unpacked")
    return path


def take_out(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """A checked member, to a path of which nothing is a link."""
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None  # of a plain file
    with source, target.open("wb") as stream:
        shutil.copyfileobj(source, stream)


def unpack(file: Path, results: Path) -> Path:
    """Unpack what export() packed below results, and return the campaign's directory. Raises ConfigError."""
    if not file.is_file():
        problem = "not a file" if file.exists() else "no such file"
        raise ConfigError(f"{file}: {problem}; name what userblk export wrote")
    top = ""
    new = not results.exists()
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".import-", dir=results) as scratch:
            with _opened(file) as tar:
                for member in tar:
                    path = checked(str(file), member)
                    if not ID.fullmatch(path.parts[0]) or (top and path.parts[0] != top):
                        raise ConfigError(f"{file}: holds {member.name!r} beside one campaign; nothing was unpacked")
                    top = path.parts[0]
                    if (results / top).exists():
                        raise ConfigError(f"{results / top}: exists; import into another --results directory")
                    take_out(tar, member, Path(scratch, *path.parts))
            for name in NEEDED:
                if not Path(scratch, top, name).is_file():
                    raise ConfigError(f"{file}: holds no {name}; name what userblk export wrote")
            Path(scratch, top).rename(results / top)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise ConfigError(f"{file}: cannot be unpacked: {error}") from None
    finally:
        if new:
            with suppress(OSError):  # it holds the campaign
                results.rmdir()
    return results / top
