# SPDX-License-Identifier: BSD-3-Clause
"""The lab's root file system: built by mmdebstrap, cached by what goes into it."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from . import CACHE, CHECKOUT, RELEASE, RELEASES, LabError, Variant

PACKAGES_FILE = CHECKOUT / "lab" / "packages.txt"
# What a release needs beside these: for kernel modules of the user's own, as BDUS's is.
MORE_PACKAGES: dict[str, tuple[str, ...]] = {}
# Releases whose Python is too old for the harness (3.11), and whose suites expire since nothing is added to them.
OLD_RELEASES = ("bullseye",)
# The release after it, whose signatures it knows, for source packages that mirrors no longer have of its own.
NEXT_RELEASE = {"bullseye": "bookworm"}
PYTHON_PACKAGES = ("python3", "python3-pytest")
PYTHON_HOME = Path("opt/python/usr")
PYTHON = CHECKOUT / "lab" / "python3"
BUSYBOX = Path("/bin/busybox")

# What stage 1 of the guest's init loads: what the root file system needs, then two groups
# at the same time, while the root is mounted.
BOOT_MODULES = (
    ("virtio_pci", "virtio_pmem", "nd_pmem", "ext4"),
    ("virtio_console", "9pnet_virtio", "9p"),
    ("ahci", "sd_mod", "nvme", "configfs"),
)

# command -> Debian package
BUILD_TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "modprobe": "kmod",
    "unshare": "util-linux",
    "apt-config": "apt",
    "zstd": "zstd",
}
QEMU = "qemu-system-x86_64"
RUN_TOOLS = {QEMU: "qemu-system-x86", str(BUSYBOX): "busybox-static"}

NO_CLUSTER = (
    "mkdir -p $1/etc/postgresql-common/createcluster.d"
    " && echo 'create_main_cluster = off' >$1/etc/postgresql-common/createcluster.d/lab.conf"
)
NO_CERTIFICATE = (
    "rm -f $1/etc/ssl/certs/ssl-cert-snakeoil.pem $1/etc/ssl/private/ssl-cert-snakeoil.key"
    " && chroot $1 find -L /etc/ssl/certs -type l -delete"  # the link by the certificate's hash
)

IMAGE_STEP = 128  # MiB; a guest takes memory devices in such pieces
NOT_FOR_FILES = 10  # inodes
NOT_IN_IMAGE = ("var/lib/apt/lists", "var/cache")  # they differ with the archive's date, and no guest reads them
IMAGE_ID = "6d9c1f6e-2f0e-4f5c-9a57-0c6b7d1d5a10"  # of all, so that directories are read in the same order

APT_SETTINGS = re.compile(r'^(Acquire::(?:https?::Proxy(?:::[^ ]+)?|Check-[A-Za-z-]+)) "(.+)";$')


@dataclass(frozen=True)
class Tree:
    """A finished root file system. Every path exists."""

    variant: Variant
    release: str  # uname -r in the guest
    root: Path  # directory, for chroot
    image: Path  # the same as an ext4 image
    vmlinux: Path  # unpacked: under TCG the kernel takes 2 s to unpack itself
    initrd: Path  # modules and busybox; a run appends its init and command


@dataclass(frozen=True)
class Mirror:
    """Where this machine gets Debian from. security is None when it has no such source."""

    main: str
    security: str | None


# ---- the machine's apt sources ------------------------------------------------


def parse_sources(text: str, deb822: bool) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (URI, suite, components) for every enabled binary source in one apt source file."""
    if not deb822:
        for line in text.splitlines():
            line = line.split("#", 1)[0].strip()
            match = re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s*(.*)$", line)
            if match:
                yield match[1], match[2], match[3].split()
        return
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = fields.get(name, "") + " " + line.strip()
            elif ":" in line:
                key, _, value = line.partition(":")
                name = key.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split():
            continue
        if fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield uri, suite, fields.get("components", "").split()


def choose_mirror(sources: Iterable[tuple[str, str, list[str]]], codename: str) -> Mirror | None:
    """
    Pick the archive that serves codename (or stable, testing, sid), and its security archive. Third parties have
    suites of these names, too, so that one which has the updates, or a release of the lab, or is named as Debian's,
    comes before others.
    """
    names = (codename, "stable", "testing", "unstable", "sid", RELEASE)
    mains: list[str] = []
    with_updates, of_the_lab = set(), set()
    security = None
    for uri, suite, components in sources:
        if "main" not in components:
            continue
        uri, suite = uri.rstrip("/"), suite.strip("/")
        if suite in names:
            mains.append(uri)
            of_the_lab |= {uri} if suite in RELEASES else set()
        elif suite.removesuffix("-updates") in names or suite.removesuffix("-backports") in names:
            with_updates.add(uri)
        elif suite.removesuffix("-security") in names or suite.endswith("/updates"):
            security = security or uri
    if not mains:
        return None

    def likely(uri: str) -> tuple[bool, bool, bool]:
        return uri in with_updates, uri in of_the_lab, uri.endswith("/debian")

    return Mirror(max(mains, key=likely), security)


def of_list(uri: str) -> str:
    """The first URI in a list of mirrors, as Debian's cloud images have: where the lab is made, that file is not."""
    if not uri.startswith("mirror+file:"):
        return uri
    path = Path(urlsplit(uri).path)
    try:
        lines = [line.split("#", 1)[0].split() for line in path.read_text().splitlines()]
    except OSError as error:
        raise LabError(f"/etc/apt names {uri}: {error.strerror}") from None
    return next((words[0] for words in lines if words), uri)


def machine_mirror(etc: Path = Path("/etc/apt")) -> Mirror:
    """The mirror in /etc/apt. Raises LabError where there is none."""
    sources: list[tuple[str, str, list[str]]] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if path.suffix in (".list", ".sources") and path.is_file():
            found = parse_sources(path.read_text(errors="replace"), path.suffix == ".sources")
            sources += [(of_list(uri), suite, components) for uri, suite, components in found]
    system = os_release()
    # The archive of another distribution serves a release of its own by that name.
    codename = system.get("VERSION_CODENAME", RELEASE) if system.get("ID") == "debian" else RELEASE
    mirror = choose_mirror(sources, codename)
    if mirror is None:
        raise LabError(
            "/etc/apt names no Debian archive with component main: add one, as in"
            f" `deb http://deb.debian.org/debian {RELEASE} main`"
        )
    return mirror


def os_release() -> dict[str, str]:
    pairs = (line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return {key: value.strip('"') for key, value in pairs}


def apt_settings() -> list[str]:
    """The machine's proxy and date-check settings, as apt.conf statements."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    matches = (APT_SETTINGS.match(line) for line in dump.splitlines())
    return [f'{m[1]} "{m[2]}"' for m in matches if m]


# ---- what goes in -----------------------------------------------------------


def read_packages(text: str) -> list[str]:
    return [word for line in text.splitlines() for word in line.split("#", 1)[0].split()]


def packages_of(variant: Variant) -> list[str]:
    return read_packages(PACKAGES_FILE.read_text()) + list(MORE_PACKAGES.get(variant.release, ()))


def recipe(variant: Variant, packages: Sequence[str]) -> list[str]:
    """mmdebstrap's options, all that decides the content except the mirror."""
    argv = ["--mode=root", "--variant=minbase", "--format=directory"]
    argv += ["--include=" + ",".join(packages)]
    argv += ['--aptopt=APT::Install-Recommends "false"', "--dpkgopt=force-unsafe-io"]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{d}/*" for d in ("man", "doc", "locale", "info")]
    # No cluster of PostgreSQL, and no certificate: each would be another one in each root.
    argv += [f"--essential-hook={NO_CLUSTER}", f"--customize-hook={NO_CERTIFICATE}"]
    # The package lists stay: the headers of tcmu-runner come from its source package.
    argv += ["--skip=cleanup/apt/lists"]
    if variant.kernel == "backports":
        pin = "Package: src:linux:any src:linux-signed-amd64:any src:linux-base:any\\n"
        pin += f"Pin: release n={variant.release}-backports\\nPin-Priority: 900\\n"
        argv += [f"--setup-hook=mkdir -p $1/etc/apt/preferences.d && printf '{pin}' >$1/etc/apt/preferences.d/kernel"]
    if variant.release in OLD_RELEASES:
        # Later releases come with /bin and the like as links to /usr.
        links = "for d in bin sbin lib lib64; do mkdir -p $1/usr/$d && ln -s usr/$d $1/$d; done"
        argv += ['--aptopt=Acquire::Check-Valid-Until "false"', f"--setup-hook={links}"]
    return argv


def python_recipe(variant: Variant) -> list[str]:
    """The same for the Python of the default release, unpacked only; nothing where the release has one for us."""
    if variant.release not in OLD_RELEASES:
        return []
    return ["--mode=root", "--variant=extract", "--format=directory", "--include=" + ",".join(PYTHON_PACKAGES)]


def source_lines(variant: Variant, mirror: Mirror) -> list[str]:
    release = variant.release
    suites = [(mirror.main, release), (mirror.main, f"{release}-updates")]
    if mirror.security:
        suites.append((mirror.security, f"{release}-security"))
    if variant.kernel == "backports":
        suites.append((mirror.main, f"{release}-backports"))
    lines = [f"{kind} {uri} {suite} main" for uri, suite in suites for kind in ("deb", "deb-src")]
    if following := NEXT_RELEASE.get(release):
        lines.append(f"deb-src {mirror.main} {following} main")
    return lines


def tree_key(variant: Variant, packages: Sequence[str]) -> str:
    """Changes when the tree must be rebuilt. Raises LabError."""
    parts: list[object] = [variant.release, recipe(variant, packages), BOOT_MODULES, NOT_IN_IMAGE]
    if variant.own:
        _, image, modules = own_kernel(variant.own)
        files = sorted(path for path in (image, *modules.rglob("*")) if path.is_file() and not path.is_symlink())
        parts += [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    if python := python_recipe(variant):
        parts += [python, PYTHON.read_text()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


# ---- cpio -------------------------------------------------------------------


def cpio(entries: Iterable[tuple[str, int, bytes]]) -> bytes:
    """A newc archive of (path, mode with file type, content), as the kernel takes for an initramfs."""
    out = io.BytesIO()
    for inode, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        path = os.fsencode(name) + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        out.write(b"070701" + b"".join(b"%08x" % field for field in fields) + path)
        out.write(bytes(-out.tell() % 4) + data)
        out.write(bytes(-out.tell() % 4))
    return out.getvalue()


def group_modules(groups: Sequence[Sequence[Path]]) -> list[list[Path]]:
    """Each module once: in its group, or in the first where several groups need it."""
    first, *others = (list(dict.fromkeys(group)) for group in groups)
    count = Counter(path for group in others for path in group)
    first += [path for path in count if count[path] > 1 and path not in first]
    return [first, *([path for path in group if path not in first] for group in others)]


def boot_modules(root: Path, release: str) -> list[list[Path]]:
    """Files of BOOT_MODULES and what they depend on, each group in the order of loading."""
    groups = []
    for names in BOOT_MODULES:
        group: list[Path] = []
        for name in names:
            argv = ["modprobe", "-d", str(root), "-S", release, "--show-depends", name]
            shown = subprocess.run(argv, capture_output=True, text=True, check=False)
            if shown.returncode:
                raise LabError(f"Linux {release} has no {name}, which the lab needs: build it in, or as a module")
            group += [Path(line.split()[1]) for line in shown.stdout.splitlines() if line.startswith("insmod ")]
        groups.append(group)
    return group_modules(groups)


def make_initrd(root: Path, release: str) -> bytes:
    directory, program, regular = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFREG | 0o644
    entries = [(name, directory, b"") for name in ("bin", "dev", "proc", "sys", "root", "modules", "lab")]
    entries.append(("bin/busybox", program, BUSYBOX.read_bytes()))
    for number, group in enumerate(boot_modules(root, release)):
        order = b""
        for path in group:
            data = path.read_bytes()
            name = path.name
            if name.endswith(".xz"):
                name, data = name.removesuffix(".xz"), lzma.decompress(data)
            elif name.endswith(".zst"):
                name, data = name.removesuffix(".zst"), unpack_zstd(data)
            entries.append((f"modules/{name}", regular, data))
            order += os.fsencode(name) + b"\n"
        entries.append((f"modules/order{number}", regular, order))
    return cpio(entries)


def unpack_zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=True).stdout


def unpack_kernel(vmlinuz: bytes) -> bytes:
    """The ELF image in a bzImage, for QEMU to start directly (Documentation/arch/x86/boot.rst,
    setup_sects, payload_offset and payload_length)."""
    start = (vmlinuz[0x1F1] + 1) * 512
    offset, length = struct.unpack_from("<II", vmlinuz, 0x248)
    payload = vmlinuz[start + offset : start + offset + length - 4]  # the last 4 bytes are its size
    if vmlinuz[0x202:0x206] == b"HdrS":
        if payload.startswith(b"\xfd7zXZ\0"):
            return lzma.decompress(payload)
        if payload.startswith(b"\x28\xb5\x2f\xfd"):
            return unpack_zstd(payload)
    raise LabError("the kernel is compressed with neither zstd nor xz; build it with CONFIG_KERNEL_ZSTD=y")


def own_kernel(directory: Path) -> tuple[str, Path, Path]:
    """Version, image and modules of the user's own kernel. Raises LabError."""
    image, remedy = directory / "vmlinuz", "copy arch/x86/boot/bzImage there"
    try:
        head = image.read_bytes()[:0x10000]
    except OSError as error:
        raise LabError(f"kernel={directory}: cannot read {image.name} in it: {error.strerror}; {remedy}") from None
    if head[0x202:0x206] != b"HdrS":
        raise LabError(f"kernel={directory}: {image.name} is not a Linux kernel; {remedy}")
    # The pointer to the version's text, less 512 (Documentation/arch/x86/boot.rst, kernel_version).
    (at,) = struct.unpack_from("<H", head, 0x20E)
    version = head[at + 512 :].split(b"\0", 1)[0].split(b" ", 1)[0].decode(errors="replace")
    modules = directory / "lib/modules" / version
    if not version or not modules.is_dir():
        raise LabError(
            f"kernel={directory}: has no directory lib/modules/{version};"
            f" run make modules_install INSTALL_MOD_PATH={directory}"
        )
    return version, image, modules


# ---- build ------------------------------------------------------------------


def die_with_parent() -> None:
    """In the child: SIGKILL when this process ends, even by SIGKILL."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def needs_libraries(program: bytes) -> bool:
    """Does an ELF program name a dynamic linker?"""
    PT_INTERP = 3
    if not program.startswith(b"\x7fELF"):
        return False
    (at,), (size, count) = struct.unpack_from("<Q", program, 0x20), struct.unpack_from("<HH", program, 0x36)
    return any(struct.unpack_from("<I", program, at + size * number)[0] == PT_INTERP for number in range(count))


def lacking(tools: dict[str, str]) -> dict[str, str]:
    """Those of the commands, with their packages, that this machine does not have; busybox counts if it is static."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

    def there(tool: str) -> bool:
        found = shutil.which(tool, path=path)
        return bool(found) and not (tool == str(BUSYBOX) and needs_libraries(BUSYBOX.read_bytes()))

    return {tool: package for tool, package in tools.items() if not there(tool)}


def require(tools: dict[str, str]) -> None:
    """Raise LabError naming the packages of the commands that this machine lacks."""
    if missing := sorted(set(lacking(tools).values())):
        raise LabError(f"the lab needs: apt-get install {' '.join(missing)}")


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time; the others wait."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def in_root(tree: Tree, command: Sequence[str]) -> list[str]:
    """The command line of a command in the root file system, by chroot, with the checkout at /userblk."""
    argv = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--", "sh"]
    return [*argv, str(CHECKOUT / "lab/enter.sh"), str(tree.root), str(CHECKOUT), *command]


def find_tree(variant: Variant) -> Tree | None:
    """The cached tree, if it is complete and made of what the recipe says now, with a busybox that can start."""
    top = CACHE / str(variant)
    try:
        made = json.loads((top / "made.json").read_text())
        initrd = (top / "initrd").read_bytes()
    except (OSError, ValueError):
        return None
    if made.get("key") != tree_key(variant, packages_of(variant)) or "image" not in made:
        return None
    if needs_libraries(initrd[initrd.find(b"\x7fELF") :]):  # the first program in it is busybox
        return None
    return Tree(variant, made["release"], top / "root", top / "root.ext4", top / "vmlinux", top / "initrd")


def ensure_tree(variant: Variant) -> Tree:
    """The cached tree, built first where needed. Raises LabError."""
    if variant.own:
        own_kernel(variant.own)  # before anything is made
    tree = find_tree(variant)
    if tree is None:
        with locked(str(variant)):
            tree = find_tree(variant) or (build_own_tree if variant.own else build_tree)(variant)
    return tree


def mmdebstrap(options: Sequence[str], release: str, root: Path, sources: Sequence[str], log: Path) -> None:
    """Make root of a release. Raises LabError with the end of what mmdebstrap wrote."""
    # Process and mount namespaces of its own: whatever ends us ends all that it started.
    argv = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "--"]
    argv += ["mmdebstrap", *options, *(f"--aptopt={s}" for s in apt_settings()), release, str(root), *sources]
    # INITRD=No: Debian's hook would spend half a minute on an initrd that nobody boots.
    env = os.environ | {"INITRD": "No", "DEBIAN_FRONTEND": "noninteractive"}
    with open(log, "wb") as file:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, preexec_fn=die_with_parent
        )
    if done.returncode != 0:
        kept = CACHE / "mmdebstrap.log"
        log.replace(kept)
        tail = "\n".join(kept.read_text(errors="replace").splitlines()[-12:])
        raise LabError(f"mmdebstrap failed with exit code {done.returncode}, see {kept}:\n{tail}")


def add_python(root: Path, unpacked: Path) -> None:
    """The Python of an unpacked root with all its libraries, beside the release's own; python3 in PATH is that one."""
    home = root / PYTHON_HOME
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    for path in unpacked.glob("usr/bin/python3.*"):
        path.rename(home / "bin" / path.name)
    for path in unpacked.glob("usr/lib/*"):
        if path.name.startswith("python3") or path.name.endswith("-linux-gnu"):
            path.rename(home / "lib" / path.name)
    shutil.copy(PYTHON, home / "bin/python3")
    (root / "usr/local/bin/python3").symlink_to(f"/{PYTHON_HOME}/bin/python3")


def build_tree(variant: Variant) -> Tree:
    """Build under a temporary name, then rename: an interrupted build never looks complete."""
    require(BUILD_TOOLS | RUN_TOOLS)
    if os.geteuid() != 0:
        raise LabError("building the lab's root file system needs root: run `lab/build` as root once")
    mirror = machine_mirror()
    packages = packages_of(variant)
    began = time.monotonic()
    what = f"the {variant.release} root file system with the {variant.kernel} kernel"
    print(f"lab: building {what}", file=sys.stderr, flush=True)

    work = CACHE / f"{variant}.new"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        root, log = work / "root", work / "mmdebstrap.log"
        mmdebstrap(recipe(variant, packages), variant.release, root, source_lines(variant, mirror), log)
        if options := python_recipe(variant):
            mmdebstrap(options, RELEASE, work / "python", source_lines(Variant(), mirror), work / "python.log")
            add_python(root, work / "python")
            shutil.rmtree(work / "python")
        (release,) = (path.name for path in (root / "usr/lib/modules").iterdir())
        for mount_point in ("userblk", "results", "extra"):
            (root / mount_point).mkdir()
        (root / "etc/target").mkdir(exist_ok=True)  # target_core_mod looks for it when it loads
        (root / "etc/hostname").write_text("lab\n")
        (root / "etc/resolv.conf").write_text("")  # not this machine's
        (root / "etc/hosts").write_text("127.0.0.1 localhost lab\n")

        kernels = [root / f"boot/vmlinuz-{release}", root / f"usr/lib/modules/{release}/vmlinuz"]
        packed = next(path for path in kernels if path.is_file()).read_bytes()
        (work / "vmlinux").write_bytes(unpack_kernel(packed))
        (work / "initrd").write_bytes(make_initrd(root, release))
        make_image(root, work / "root.ext4")
        write_made(work, tree_key(variant, packages), release)
        put_in_place(variant, work)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    print(f"lab: built in {time.monotonic() - began:.0f} s: kernel {release}", file=sys.stderr, flush=True)
    tree = find_tree(variant)
    assert tree is not None
    return tree


def build_own_tree(variant: Variant) -> Tree:
    """The release's own tree with the user's kernel and its modules instead. Raises LabError."""
    assert variant.own
    require(RUN_TOOLS)  # one of which goes into the initrd
    release, image, modules = own_kernel(variant.own)
    base = ensure_tree(Variant(variant.release))
    if os.geteuid() != 0:
        raise LabError("the root file system of a kernel of your own needs root: run `lab/build` as root once")
    print(f"lab: building the {variant.release} root file system with Linux {release}", file=sys.stderr, flush=True)
    work = CACHE / f"{variant}.new"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        root = work / "root"
        # By hard links: nothing writes into files of a root.
        subprocess.run(["cp", "--archive", "--link", str(base.root), str(root)], check=True)
        shutil.rmtree(root / "usr/lib/modules")
        shutil.copytree(modules, root / "usr/lib/modules" / release, symlinks=True)
        subprocess.run(["depmod", "--basedir", str(root), release], check=True)
        shutil.copyfile(image, work / "vmlinux")  # packed: not each can be started directly
        (work / "initrd").write_bytes(make_initrd(root, release))
        make_image(root, work / "root.ext4")
        write_made(work, tree_key(variant, packages_of(variant)), release)
        put_in_place(variant, work)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(work, ignore_errors=True)
        raise LabError(f"kernel={variant.own}: {error.cmd[0]} failed with exit code {error.returncode}") from None
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    tree = find_tree(variant)
    assert tree is not None
    return tree


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_made(work: Path, key: str, release: str) -> None:
    """Record what a tree and its image were made from. This file is written last, so a tree that has it is complete."""
    files = {"image": "root.ext4", "vmlinux": "vmlinux", "initrd": "initrd"}
    made = {"key": key, "release": release} | {name: digest(work / file) for name, file in files.items()}
    (work / "made.json").write_text(json.dumps(made) + "\n")


def put_in_place(variant: Variant, work: Path) -> None:
    """The old tree may be in use; programs that have it open keep what they have."""
    top = CACHE / str(variant)
    if not top.exists():
        work.rename(top)
        return
    old = CACHE / f"{variant}.old"
    shutil.rmtree(old, ignore_errors=True)
    top.rename(old)
    work.rename(top)
    shutil.rmtree(old)


# In a shell: hides DIRECTORY... behind empty ones, written at $0, in this mount namespace; then runs what follows --.
HIDE = """
while [ "$1" != -- ]; do
	mount -t tmpfs -o mode=755 empty "$1"
	touch -d "@$0" "$1"
	shift
done
shift
exec "$@"
"""


def newest_of_packages(root: Path) -> int:
    """When the newest file that a package brought was written, in seconds since 1970."""
    info = root / "var/lib/dpkg/info"
    listed = (line.partition("  ")[2] for sums in info.glob("*.md5sums") for line in sums.read_text().splitlines())
    found = (root / name for name in listed)
    return max((int(path.lstat().st_mtime) for path in found if path.is_file()), default=0)


def make_image(root: Path, image: Path) -> None:
    """
    An image with room for half as much again, without apt's lists and caches. The same packages give the same image
    to the byte. Raises CalledProcessError.
    """
    left_out = [str(path) for path in map(root.joinpath, NOT_IN_IMAGE) if path.is_dir()]
    argv = ["du", "-sm", *(f"--exclude={path}" for path in left_out), str(root)]
    used = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    # Files that were written when the packages were installed become as old as the newest in them. Python compares
    # times of files with those in its compiled ones, so all others keep theirs.
    make_ext4(root, image, int(used.split()[0]) * 3 // 2 + 256, newest_of_packages(root), left_out)


def expected_files(size: int) -> int:
    """For how many files mkfs.ext4 makes an image of size MiB if it is not told."""
    bytes_per_file = 4096 if size < 512 else 16384
    return (size << 20) // bytes_per_file - NOT_FOR_FILES


def make_ext4(top: Path, image: Path, size: int, newest: int, hidden: Sequence[str] = (), count: int = 0) -> None:
    """
    An ext4 file system of size MiB or a little more that holds what is below top; sparse. No file in it was written
    after newest (seconds since 1970), which top's files are changed for, too; directories in hidden are empty in it.
    count: of files and directories, if they may be smaller than mkfs.ext4 expects. Raises CalledProcessError.
    """
    for directory, names, files in os.walk(top):
        for path in (directory, *(os.path.join(directory, name) for name in (*names, *files))):
            os.utime(path, (newest, min(newest, int(os.lstat(path).st_mtime))), follow_symlinks=False)
    size = -(-size // IMAGE_STEP) * IMAGE_STEP
    # A guest maps it (DAX), for which blocks must be pages.
    argv = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal", "-U", IMAGE_ID]
    if count > expected_files(size):
        argv += ["-N", str(count * 5 // 4)]
    argv += ["-E", f"lazy_itable_init=0,hash_seed={IMAGE_ID}", "-d", str(top), str(image), f"{size}M"]
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    env = os.environ | {"PATH": path, "LC_ALL": "C", "E2FSPROGS_FAKE_TIME": str(newest)}
    if hidden:
        shell = ["sh", "-ec", HIDE, str(newest), *hidden, "--"]
        argv = ["unshare", "--mount", "--propagation", "private", "--", *shell, *argv]
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True, env=env)
    # When an inode was changed, and when it was read by mkfs.ext4, cannot be set before.
    looks = subprocess.run(["dumpe2fs", "-h", str(image)], capture_output=True, text=True, check=True, env=env).stdout
    counts = dict(re.findall(r"^(Inode count|Free inodes):\s+(\d+)", looks, re.MULTILINE))
    used = range(1, int(counts["Inode count"]) - int(counts["Free inodes"]) + 1)
    times = "".join(f"set_inode_field <{i}> {time} @{newest:#x}\n" for i in used for time in ("ctime", "atime"))
    argv = ["debugfs", "-w", "-f", "/dev/stdin", str(image)]
    subprocess.run(argv, input=times, text=True, capture_output=True, check=True, env=env)
