# SPDX-License-Identifier: BSD-3-Clause
"""Read-only images of directories, which a guest maps as memory: it waits for no file of the host's."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from . import CACHE, CHECKOUT, LabError
from .rootfs import Tree, digest, locked, make_ext4

# What of the checkout runs in a guest, beside build/RELEASE.
PARTS = ("Makefile", "bin", "python", "harness", "programs", "analysis", "configs", "lab")
# Not in an image: of the checkout, what Python writes beside its files; of a build, what is no program of it.
CACHES_LEFT_OUT = ("__pycache__",)
SUFFIXES_LEFT_OUT = (".o", ".d", ".ninja", ".p")
# What a build writes about itself, with times in it.
RECORDS_LEFT_OUT = (
    *CACHES_LEFT_OUT,
    "meson-info",
    "meson-logs",
    "meson-private",
    ".ninja_deps",
    ".ninja_log",
    "build.log",
    "compile_commands.json",
    "left-out",
    "lock",
    "setup.log",
    "state",
)
SPARE = 16 << 20  # bytes of an image for what is not contents of files
BLOCK, INODE = 4096, 256  # bytes
WRITTEN = 1  # seconds since 1970: when all files of an image were written, as far as a guest can see


def in_checkout(name: str) -> bool:
    return name not in CACHES_LEFT_OUT


def in_build(name: str) -> bool:
    return name not in RECORDS_LEFT_OUT and not name.endswith(SUFFIXES_LEFT_OUT)


def files_below(top: Path, belongs: Callable[[str], bool] | None = None) -> Iterator[Path]:
    """
    Files and symbolic links, those whose names and directories' names belong to it, in the same order each time.
    Without belongs, all of them and the empty directories. Devices and the like, which the root of a system has,
    cannot be copied: to read one may never end.
    """
    if not top.is_dir():
        yield top
        return
    for directory, names, files in os.walk(top):
        if belongs is None and not names and not files:
            yield Path(directory)
        names[:] = sorted(name for name in names if belongs is None or belongs(name))
        links = [name for name in names if (Path(directory) / name).is_symlink()]
        for name in sorted([*files, *links]):
            path = Path(directory) / name
            if (belongs is None or belongs(name)) and (path.is_symlink() or path.is_file()):
                yield path


def make_image(image: Path, top: Path, found: Iterable[Path]) -> None:
    """
    An image of what was found below a directory, unless it is there and current. The same files give the same image to
    the byte: a guest's page faults depend on where a file is in it. Raises LabError.
    """
    paths = list(found)
    looks = [(str(path), *_look(path)) for path in paths]
    key = hashlib.sha256(repr([str(top), looks]).encode()).hexdigest()
    made = image.with_suffix(".made")
    with locked(image.stem):
        if made.exists() and made.read_text().split()[:-1] == [key] and image.exists():
            return
        stage, new = image.with_suffix(".stage"), image.with_suffix(".new")
        shutil.rmtree(stage, ignore_errors=True)
        try:
            made.unlink(missing_ok=True)
            stage.mkdir(parents=True)
            for path in paths:
                target = stage / path.relative_to(top)
                target.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir() and not path.is_symlink():
                    target.mkdir(exist_ok=True)
                else:
                    shutil.copy2(path, target, follow_symlinks=False)
            new.unlink(missing_ok=True)
            directories = {parent for path in paths for parent in path.relative_to(top).parents}
            sizes = [size for _, size, *_ in looks] + [BLOCK] * len(directories)
            make_ext4(stage, new, room(sizes), WRITTEN, count=len(sizes))
            new.replace(image)  # a guest that has mapped the old one keeps it
            made.write_text(f"{key} {digest(image)}\n")
        except (OSError, subprocess.CalledProcessError) as error:
            raise LabError(f"{image}: cannot be made of {top}: {error}") from None
        finally:
            shutil.rmtree(stage, ignore_errors=True)


def room(sizes: Sequence[int]) -> int:
    """MiB of an image for files of these sizes. A small one takes a block all the same."""
    return (sum(max(1, -(-size // BLOCK)) * BLOCK + INODE for size in sizes) * 5 // 4 + SPARE) >> 20


def _look(path: Path) -> tuple[int, int, int]:
    """What differs when a file has changed: its size in bytes, when it was written, and who may run it."""
    found = path.lstat()
    return found.st_size, found.st_mtime_ns, found.st_mode


def checkout_image(tree: Tree) -> Path:
    """The image of those parts of this checkout that run in the tree's guest. Raises LabError."""
    image = CACHE / f"checkout-{tree.variant.release}.ext4"
    build = CHECKOUT / "build" / tree.variant.release
    found = [path for name in PARTS for path in files_below(CHECKOUT / name, in_checkout)]
    make_image(image, CHECKOUT, found + (list(files_below(build, in_build)) if build.is_dir() else []))
    return image


def guest_identity(tree: Tree, extra: str | None = None) -> dict[str, str]:
    """
    What a sealed guest consists of, besides its plan and the programs of this machine: the version of its kernel and
    the SHA-256 of that and of its images. Where all is the same, so are the instructions that it executes. extra:
    directory of the user's own. Raises LabError.
    """

    def made_of(image: Path) -> str:
        try:
            with locked(image.stem):  # another campaign may be making it again
                return image.with_suffix(".made").read_text().split()[1]
        except OSError as error:
            raise LabError(f"{image}: it went while it was looked at: {error.strerror}; begin again") from None

    made = json.loads((tree.image.parent / "made.json").read_text())
    parts = {"kernel": tree.release, "root_image": made["image"], "checkout_image": made_of(checkout_image(tree))}
    for part, file in (("kernel_image", tree.vmlinux), ("initrd_image", tree.initrd)):
        parts[part] = made.get(file.name) or digest(file)  # an older version did not record it
    return parts | ({"extra_image": made_of(directory_image(tree, Path(extra).resolve(), "extra"))} if extra else {})


def directory_image(tree: Tree, directory: Path, name: str) -> Path:
    """The image of a whole directory, one for each, since campaigns with others may run. Raises LabError."""
    of = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]
    image = CACHE / f"{name}-{of}-{tree.variant.release}.ext4"
    make_image(image, directory, files_below(directory))
    return image
