# SPDX-License-Identifier: BSD-3-Clause
"""The lab's pure parts: apt sources, the cache key, archives, the machine's command line."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from userblk.lab import LabError, Variant, channel, cli, guest, models, rootfs
from userblk.lab.rootfs import Mirror, choose_mirror, parse_sources

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
Enabled: no
URIs: http://disabled.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""

STABLE, BACKPORTS, OLD = Variant(), Variant(kernel="backports"), Variant("bullseye")

ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb-src http://source.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://other.example/tool bookworm stable
deb [trusted=yes] http://mirror.example/debian bookworm main contrib # why
deb http://mirror.example/debian-security bookworm-security main
"""


@pytest.mark.parametrize(("text", "deb822"), [(DEB822, True), (ONE_LINE, False)])
def test_mirror_of_both_formats(text: str, deb822: bool) -> None:
    mirror = choose_mirror(parse_sources(text, deb822), "bookworm")
    assert mirror == Mirror("http://mirror.example/debian", "http://mirror.example/debian-security")


def test_deb822_continuation_lines() -> None:
    text = "Types: deb\nURIs:\n http://a.example\n http://b.example\nSuites: trixie\nComponents: main\n"
    assert [uri for uri, _, _ in parse_sources(text, True)] == ["http://a.example", "http://b.example"]


def test_mirror_without_security_archive() -> None:
    assert choose_mirror([("http://a.example/", "trixie", ["main"])], "trixie") == Mirror("http://a.example", None)


def test_mirror_by_suite_name() -> None:
    sources = [("http://a.example", "stable", ["main"]), ("http://s.example", "stable-security", ["main"])]
    assert choose_mirror(sources, "trixie") == Mirror("http://a.example", "http://s.example")


AZURE = ("https://packages.microsoft.com/repos/azure-cli/", "trixie", ["main"])
GITLAB = ("https://packages.gitlab.com/gitlab/gitlab-ce/debian/", "trixie", ["main"])


@pytest.mark.parametrize("others", [[AZURE], [AZURE, GITLAB]])
@pytest.mark.parametrize("name", ["https://a.example/mirror", "https://deb.debian.org/debian"])
@pytest.mark.parametrize("suite", ["trixie-updates", "trixie-backports"])
def test_repositories_of_third_parties_are_no_mirrors(
    others: list[tuple[str, str, list[str]]], name: str, suite: str
) -> None:
    """azure-cli.sources comes before debian.sources."""
    sources = [*others, (f"{name}/", "trixie", ["main"]), (f"{name}/", suite, ["main"])]
    assert choose_mirror(sources, "trixie") == Mirror(name, None)


def test_a_mirror_without_updates_is_known_by_its_name() -> None:
    debian = ("http://deb.debian.org/debian", "trixie", ["main"])
    assert choose_mirror([AZURE, debian], "trixie") == Mirror("http://deb.debian.org/debian", None)
    assert choose_mirror([AZURE, ("http://a.example", "trixie", ["main"])], "trixie") == Mirror(
        AZURE[0].rstrip("/"), None
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as building in the lab's root does")
@pytest.mark.parametrize("nameservers", ["none", "dangling", "some"])
def test_a_root_is_entered_with_the_name_servers_that_there_are(nameservers: str, tmp_path: Path) -> None:
    """A machine without a network may have no /etc/resolv.conf, or a link to what a service has not made."""
    root, etc = tmp_path / "root", tmp_path / "etc"
    for directory in ("bin", "userblk", "proc", "dev", "tmp", "etc"):
        (root / directory).mkdir(parents=True)
    etc.mkdir()
    shutil.copy(rootfs.BUSYBOX, root / "bin/busybox")
    if nameservers == "dangling":
        (etc / "resolv.conf").symlink_to("/run/nosuch/resolv.conf")
    elif nameservers == "some":
        (etc / "resolv.conf").write_text("nameserver 192.0.2.1\n")
    command = rootfs.in_root(
        replace(TREE, root=root), ["/bin/busybox", "sh", "-c", "/bin/busybox cat /etc/resolv.conf"]
    )
    hidden = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-ec",
        'mount --bind "$0" /etc; exec "$@"',
        str(etc),
    ]
    done = subprocess.run([*hidden, *command], capture_output=True, text=True)
    if nameservers == "some":
        assert (done.returncode, done.stdout) == (0, "nameserver 192.0.2.1\n"), done.stderr
    else:
        assert (done.returncode, done.stderr) == (1, "cat: can't open '/etc/resolv.conf': No such file or directory\n")


UBUNTU = """\
deb http://archive.ubuntu.com/ubuntu noble main restricted
deb http://archive.ubuntu.com/ubuntu noble-updates main restricted
deb http://security.ubuntu.com/ubuntu noble-security main
"""


@pytest.mark.parametrize("chrome", ["", "deb https://dl.google.com/linux/chrome/deb/ stable main\n"])
def test_the_archive_of_another_distribution_is_no_mirror(
    chrome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ubuntu has suites for its own names, and Debian's may have been added."""
    monkeypatch.setattr(rootfs, "os_release", lambda: {"ID": "ubuntu", "VERSION_CODENAME": "noble"})
    (tmp_path / "sources.list").write_text(f"{chrome}{UBUNTU}deb http://a.example/mirror trixie main\n")
    assert rootfs.machine_mirror(tmp_path) == Mirror("http://a.example/mirror", None)
    (tmp_path / "sources.list").write_text(UBUNTU)
    with pytest.raises(LabError, match=r"^/etc/apt names no Debian archive"):
        rootfs.machine_mirror(tmp_path)


def test_a_list_of_mirrors_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Debian's cloud images."""
    monkeypatch.setattr(rootfs, "os_release", lambda: {"VERSION_CODENAME": "trixie"})
    (tmp_path / "mirrors").mkdir()
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "mirrors/debian.list").write_text("# ours\n\nhttps://one.example/debian/\tpriority:1\nhttps://two\n")
    (tmp_path / "mirrors/security.list").write_text("https://one.example/debian-security\n")
    (tmp_path / "sources.list.d/debian.sources").write_text(
        f"Types: deb\nURIs: mirror+file://{tmp_path}/mirrors/debian.list\nSuites: trixie trixie-updates\n"
        f"Components: main\n\nTypes: deb\nURIs: mirror+file:{tmp_path}/mirrors/security.list\n"
        "Suites: trixie-security\nComponents: main\n"
    )
    mirror = Mirror("https://one.example/debian", "https://one.example/debian-security")
    assert rootfs.machine_mirror(tmp_path) == mirror
    (tmp_path / "mirrors/security.list").unlink()
    with pytest.raises(LabError, match=r"^/etc/apt names mirror\+file:.*/security\.list: No such file or directory$"):
        rootfs.machine_mirror(tmp_path)


def test_make_in_the_root_has_the_proxies_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else of its environment."""
    monkeypatch.setattr(rootfs, "CACHE", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cli, "ensure_tree", lambda variant: TREE)
    monkeypatch.setattr(cli, "in_root", lambda tree, command: ["sh", "-c", f"env >{tmp_path}/environment; exit 3"])
    for name in ("http_proxy", "HTTPS_PROXY", "no_proxy", "PROXY_OF_MINE"):
        monkeypatch.setenv(name, f"value of {name}")
    assert cli.make_main(["all"]) == 3
    lines = [line for line in (tmp_path / "environment").read_text().splitlines() if "roxy" in line.lower()]
    assert sorted(lines) == [f"{name}=value of {name}" for name in ("HTTPS_PROXY", "http_proxy", "no_proxy")]


@pytest.mark.parametrize(
    "source",
    [("http://a.example", "trixie", ["contrib"]), ("http://a.example", "jammy", ["main"])],
)
def test_no_mirror(source: tuple[str, str, list[str]]) -> None:
    assert choose_mirror([source], "trixie") is None


def test_sources_of_backports_only_for_its_kernel() -> None:
    mirror = Mirror("http://a.example", "http://s.example")
    stable, backports = (rootfs.source_lines(variant, mirror) for variant in (STABLE, BACKPORTS))
    assert "deb http://s.example trixie-security main" in stable
    assert set(backports) - set(stable) == {
        "deb http://a.example trixie-backports main",
        "deb-src http://a.example trixie-backports main",
    }


def test_packages_file() -> None:
    assert rootfs.read_packages("# no\na b # no\n\n c\n") == ["a", "b", "c"]


def test_key_follows_what_goes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    key = rootfs.tree_key(STABLE, ["a", "b"])
    assert key == rootfs.tree_key(STABLE, ["a", "b"])
    assert key != rootfs.tree_key(BACKPORTS, ["a", "b"])
    assert key != rootfs.tree_key(OLD, ["a", "b"])
    assert key != rootfs.tree_key(STABLE, ["a", "c"])
    monkeypatch.setattr(rootfs, "BOOT_MODULES", (("ext4",),))
    assert key != rootfs.tree_key(STABLE, ["a", "b"])


def test_an_old_release_gets_the_python_of_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rootfs.python_recipe(STABLE) == [] and "python3" in rootfs.python_recipe(OLD)[-1]
    key = rootfs.tree_key(OLD, ["a"])
    monkeypatch.setattr(rootfs, "PYTHON", tmp_path / "python3")
    rootfs.PYTHON.write_text("#!/bin/sh\n")
    assert key != rootfs.tree_key(OLD, ["a"])

    root, unpacked = tmp_path / "root", tmp_path / "unpacked"
    (root / "usr/local/bin").mkdir(parents=True)
    for name in ("bin/python3.13", "bin/perl", "lib/python3/dist-packages/x", "lib/x86_64-linux-gnu/libc.so.6"):
        (unpacked / "usr" / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / "usr" / name).write_text(name)
    rootfs.add_python(root, unpacked)
    home = root / rootfs.PYTHON_HOME
    assert sorted(path.name for path in (home / "bin").iterdir()) == ["python3", "python3.13"]
    assert (home / "lib/x86_64-linux-gnu/libc.so.6").exists() and (home / "lib/python3/dist-packages/x").exists()
    assert os.readlink(root / "usr/local/bin/python3") == "/opt/python/usr/bin/python3"


@pytest.mark.parametrize(
    ("release", "kernel", "complaint"),
    [
        ("buster", "stable", "release=buster: must be one of trixie, bullseye"),
        ("trixie", "new", "kernel=new: must be stable, backports or a directory with one of your own"),
        ("bullseye", "backports", "kernel=backports: only trixie has it; leave it out, or release=bullseye"),
    ],
)
def test_a_guest_that_there_is_none_of(release: str, kernel: str, complaint: str) -> None:
    with pytest.raises(LabError, match=f"^{complaint}$"):
        Variant(release, kernel)


def make_kernel(directory: Path, version: str = "5.15.0-own") -> Path:
    """What the lab looks at of a kernel's image, and one module."""
    image = bytearray(2048)
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", image, 0x20E, 0x300)
    text = f"{version} (somebody@somewhere) #1".encode()
    image[0x500 : 0x500 + len(text)] = text
    (directory / "lib/modules" / version / "kernel").mkdir(parents=True)
    (directory / "lib/modules" / version / "kernel/x.ko").write_bytes(b"1")
    (directory / "vmlinuz").write_bytes(bytes(image))
    return directory


def test_a_kernel_of_ones_own(tmp_path: Path) -> None:
    own = Variant("bullseye", str(make_kernel(tmp_path / "k")))
    assert own.own == tmp_path / "k" and str(own).startswith("bullseye-own-")
    assert str(own) != str(Variant("bullseye", str(make_kernel(tmp_path / "l"))))
    assert rootfs.own_kernel(tmp_path / "k") == ("5.15.0-own", own.own / "vmlinuz", own.own / "lib/modules/5.15.0-own")
    key = rootfs.tree_key(own, ["a"])
    assert key == rootfs.tree_key(own, ["a"]) != rootfs.tree_key(OLD, ["a"])
    (tmp_path / "k/lib/modules/5.15.0-own/kernel/x.ko").write_bytes(b"22")
    assert key != rootfs.tree_key(own, ["a"])


def no_image(directory: Path) -> None:
    (directory / "vmlinuz").unlink()


def other_image(directory: Path) -> None:
    (directory / "vmlinuz").write_bytes(b"\x7fELF")


def no_modules(directory: Path) -> None:
    (directory / "lib/modules/5.15.0-own").rename(directory / "lib/modules/5.14.0")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (no_image, "cannot read vmlinuz in it: No such file or directory; copy arch/x86/boot/bzImage there"),
        (other_image, "vmlinuz is not a Linux kernel; copy arch/x86/boot/bzImage there"),
        (no_modules, "has no directory lib/modules/5.15.0-own; run make modules_install INSTALL_MOD_PATH="),
    ],
)
@pytest.mark.parametrize("command", ["run", "build"])
def test_what_a_kernel_of_ones_own_lacks(
    command: str,
    spoil: Callable[[Path], None],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = make_kernel(tmp_path / "k")
    spoil(directory)
    monkeypatch.setattr(rootfs, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("LAB_KERNEL", str(directory))
    monkeypatch.setattr(sys, "argv", [f"lab/{command}", *(["true"] if command == "run" else [])])
    with pytest.raises(SystemExit) as ended:
        cli.main(cli.run_main if command == "run" else cli.build_main)
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith(f"lab: kernel={directory}: ") and complaint in line
    assert not (tmp_path / "cache").exists()


def test_a_module_that_the_lab_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "lib/modules/5.15.0-own").mkdir(parents=True)
    subprocess.run(["depmod", "--basedir", str(tmp_path), "5.15.0-own"], check=True, capture_output=True)
    with pytest.raises(LabError, match=r"^Linux 5\.15\.0-own has no virtio_pci, which the lab needs: build it in"):
        rootfs.boot_modules(tmp_path, "5.15.0-own")


def test_virtual_time_needs_the_headers_of_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "CACHE", tmp_path)
    monkeypatch.setattr(rootfs, "CACHE", tmp_path)
    tree = rootfs.Tree(STABLE, "5.15.0-own", tmp_path, tmp_path, tmp_path, tmp_path)
    (tmp_path / "lib/modules/5.15.0-own").mkdir(parents=True)
    build = tmp_path / "lib/modules/5.15.0-own/build"
    (tmp_path / "usr/src/linux-headers").mkdir(parents=True)
    for target in ("/usr/src/linux-headers", "../../../usr/src/linux-headers"):
        build.symlink_to(target)
        assert models.headers(tree).is_dir()
        build.unlink()
    build.symlink_to(tmp_path)  # of this machine
    with pytest.raises(LabError, match=r"^Linux 5\.15\.0-own comes without its headers, .* or use --clock real$"):
        models.ensure_modules(tree)


def test_the_guest_has_what_the_applications_suites_need() -> None:
    listed = (Path(__file__).parents[2] / "configs/packages.csv").read_text().splitlines()
    needed = {line.split(",")[1] for line in listed if line.startswith("apps,")}
    assert len(needed) == 5 and needed <= set(rootfs.packages_of(STABLE)) & set(rootfs.packages_of(OLD))


def test_a_tree_of_another_recipe_or_half_a_tree_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootfs, "CACHE", tmp_path)
    top = tmp_path / "trixie-stable"
    top.mkdir()
    assert rootfs.find_tree(STABLE) is None
    (top / "made.json").write_text('{"key": "other", "release": "6.12"}')
    assert rootfs.find_tree(STABLE) is None
    key = rootfs.tree_key(STABLE, rootfs.packages_of(STABLE))
    (top / "made.json").write_text(f'{{"key": "{key}", "release": "6.12"}}')
    assert rootfs.find_tree(STABLE) is None  # of a version that did not say what its image is
    (top / "made.json").write_text(f'{{"key": "{key}", "release": "6.12", "image": "ab"}}')
    (top / "initrd").write_bytes(b"modules" + rootfs.BUSYBOX.read_bytes() + b"more")
    tree = rootfs.find_tree(STABLE)
    assert tree is not None and tree.release == "6.12"
    # Another busybox on this machine, or none, is not that of the tree.
    monkeypatch.setattr(rootfs, "BUSYBOX", tmp_path / "busybox")
    assert rootfs.find_tree(STABLE) == tree
    rootfs.BUSYBOX.write_bytes(b"another")
    assert rootfs.find_tree(STABLE) == tree
    (top / "initrd").write_bytes(rootfs.cpio([("bin/busybox", stat.S_IFREG, Path("/bin/sh").read_bytes())]))
    assert rootfs.find_tree(STABLE) is None  # its own needs libraries, which are not there
    (top / "initrd").unlink()
    assert rootfs.find_tree(STABLE) is None


def test_modules_are_loaded_once_and_before_those_that_need_them() -> None:
    root, first, second = ([Path(name) for name in names] for names in ("abc", "xayc", "xza"))
    groups = rootfs.group_modules([root, first, second])
    assert [[str(path) for path in group] for group in groups] == [["a", "b", "c", "x"], ["y"], ["z"]]


def test_archive_is_what_cpio_reads(tmp_path: Path) -> None:
    entries = [
        ("bin", stat.S_IFDIR | 0o755, b""),
        ("bin/odd", stat.S_IFREG | 0o755, b"12345"),
        ("empty", stat.S_IFREG | 0o644, b""),
        ("last", stat.S_IFREG | 0o600, b"x" * 4096),
    ]
    # Two archives in a row, as the kernel gets them.
    for archive in (rootfs.cpio(entries[:2]), rootfs.cpio(entries[2:])):
        assert len(archive) % 4 == 0
        subprocess.run([rootfs.BUSYBOX, "cpio", "-i"], input=archive, cwd=tmp_path, check=True, capture_output=True)
    for name, mode, data in entries:
        path = tmp_path / name
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(mode)
        assert path.is_dir() or path.read_bytes() == data


@pytest.mark.parametrize("program", [["zstd", "-q", "-c"], ["xz", "--check=crc32", "--x86", "--lzma2", "-c"]])
def test_kernel_is_unpacked(program: list[str]) -> None:
    packed = subprocess.run(program, input=b"\x7fELF kernel", capture_output=True, check=True).stdout
    image = bytearray(1024)
    image[0x1F1] = 1
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 0, len(packed) + 4)
    assert rootfs.unpack_kernel(bytes(image) + packed + struct.pack("<I", 11)) == b"\x7fELF kernel"
    with pytest.raises(LabError, match="compressed with neither zstd nor xz"):
        rootfs.unpack_kernel(bytes(image) + bytes(64))


def test_missing_programs_are_named_once_by_package() -> None:
    with pytest.raises(LabError, match=r"^the lab needs: apt-get install one two$"):
        rootfs.require({"no-such-a": "two", "no-such-b": "one", "no-such-c": "two", "sh": "dash"})


def test_a_busybox_that_needs_libraries_is_not_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of Debian's package busybox: the guest has no libraries when it starts."""
    rootfs.require({str(rootfs.BUSYBOX): "busybox-static"})
    monkeypatch.setattr(rootfs, "BUSYBOX", Path("/bin/sh"))
    with pytest.raises(LabError, match=r"^the lab needs: apt-get install busybox-static$"):
        rootfs.require({"/bin/sh": "busybox-static", "sh": "dash"})


@pytest.mark.parametrize(("text", "size"), [("4G", 4 << 30), ("512m", 512 << 20), ("1048576", 1 << 20)])
def test_size(text: str, size: int) -> None:
    assert guest.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "1.5G", "-4G", "1000000", "512K", "1048577", "4GB"])
def test_wrong_size(text: str) -> None:
    with pytest.raises(ValueError):
        guest.parse_size(text)


@pytest.mark.parametrize(("shm", "memory", "expected"), [(8, 8, True), (7, 8, False), (8, 7, False), (8, -1, False)])
def test_disks_are_in_memory_only_where_it_is_enough(shm: int, memory: int, expected: bool) -> None:
    assert guest.choose_disk_dir(8, shm, memory) == (Path("/dev/shm") if expected else None)


TREE = rootfs.Tree(STABLE, "6.12", Path("/t/root"), Path("/t/a,b.ext4"), Path("/t/vmlinux"), Path("/t/initrd"))
WIRING = guest.Wiring(initrd=3, console=4, sata=5, nvme=6, ports=(7, 8, 9))


def test_command_line_of_the_machine(tmp_path: Path) -> None:
    tree = replace(TREE, image=tmp_path / "a,b.ext4")
    tree.image.write_bytes(bytes(4096))
    options = guest.Options(("true",), memory=777, cpus=5)
    argv = guest.qemu_argv(tree, "tcg", options, WIRING)
    assert argv[argv.index("-m") + 1].startswith("777M,") and argv[argv.index("-smp") + 1] == "5"
    assert argv[argv.index("-accel") + 1] == "tcg,thread=multi"
    root = argv[argv.index("virtio-pmem-pci,memdev=image0") - 2]
    assert f"share=off,mem-path={tmp_path}/a,,b.ext4,size=4096" in root
    assert not any("results" in word for word in argv)
    assert "-netdev" not in argv
    assert any(word.startswith("local,id=userblk") and word.endswith("readonly=on") for word in argv)
    for disk in ("id=sata,file=/proc/self/fd/5", "id=nvme,file=/proc/self/fd/6"):
        (drive,) = (word for word in argv if word.startswith(disk))
        assert "discard=unmap" in drive

    options = replace(options, share=Path("/a,b"), extra=Path("/c,d"), network=True)
    shared = guest.qemu_argv(tree, "kvm", options, WIRING)
    assert shared[shared.index("-netdev") + 1] == "user,id=net,ipv6=off"
    led = guest.qemu_argv(tree, "kvm", replace(options, forward=((2222, 22), (8080, 80))), WIRING)
    forwarded = ",hostfwd=tcp:127.0.0.1:2222-:22,hostfwd=tcp:127.0.0.1:8080-:80"  # and to no other interface
    assert led[led.index("-netdev") + 1] == "user,id=net,ipv6=off" + forwarded
    assert any("id=results,path=/a,,b," in word for word in shared)
    assert any("id=extra,path=/c,,d," in word and word.endswith("readonly=on") for word in shared)
    assert shared[shared.index("-accel") + 1] == "kvm"

    counting = guest.qemu_argv(tree, "icount", options, WIRING)
    assert counting[counting.index("-accel") + 1] == "tcg,thread=single"
    assert counting[counting.index("-icount") + 1] == "shift=0,sleep=off"
    assert counting[counting.index("-cpu") + 1] == guest.CPU
    assert "nokaslr" in counting[counting.index("-append") + 1] and "nokaslr" not in argv[argv.index("-append") + 1]
    virtual = guest.qemu_argv(tree, "icount", replace(options, clock="virtual"), WIRING)
    assert not any("drive=" in word for word in virtual)

    checkout = tmp_path / "checkout.ext4"
    checkout.write_bytes(bytes(8192))
    wiring = replace(WIRING, ports=(), channel=10, images=(checkout,))
    sealed = guest.qemu_argv(tree, "icount", replace(options, clock="virtual", sealed=True, network=False), wiring)
    image = sealed[sealed.index("virtio-pmem-pci,memdev=image1") - 2]
    assert "share=off" in image and image.endswith("checkout.ext4,size=8192")
    assert any("share=on" in word and "fd/10" in word for word in sealed)
    assert not any("9p" in word or "serial-pci" in word or "netdev" in word for word in sealed)  # host devices


class Trial:
    """A guest that ends in one way, and counts how often it was started."""

    def __init__(self, ready: Exception | None, end: Exception | None) -> None:
        self.ready, self.end, self.boots = ready, end, 0

    def __call__(self, *_: object) -> Trial:
        self.boots += 1
        return self

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_ready(self, limit: float) -> None:
        if self.ready:
            raise self.ready

    def relay(self, *_: object) -> None:
        if self.end:
            raise self.end

    def console_text(self) -> str:
        return "[    1.000000] Oops: general protection fault\n"


@pytest.mark.parametrize(
    ("ready", "end", "accel", "boots"),
    [
        (None, None, "kvm", 1),
        (guest.BootDied("it died"), None, "tcg", 1),
        (None, guest.GuestDied("it died"), "tcg", 1),
        (guest.BootTimeout("it is slow"), None, "tcg", 2),
        (None, TimeoutError(), "tcg", 2),
    ],
)
def test_a_trial_boot_is_kept_where_time_ran_out_until_the_next_boot(
    ready: Exception | None,
    end: Exception | None,
    accel: str,
    boots: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine it may be slow; where KVM does not work at all, it is no use to wait for it each time."""
    trial = Trial(ready, end)
    monkeypatch.setattr(rootfs, "CACHE", tmp_path)
    monkeypatch.setattr(guest, "CACHE", tmp_path)
    monkeypatch.setattr(guest, "Guest", trial)
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(guest, "BOOT_ID", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("one\n")
    assert [guest.choose_accel(TREE) for _ in range(2)] == [accel] * 2 and trial.boots == 1
    (tmp_path / "boot_id").write_text("two\n")
    assert guest.choose_accel(TREE) == accel and trial.boots == boots


@pytest.mark.parametrize(("says", "boots"), [("", 2), ("qemu: Cannot allocate memory", 2), ("Kernel panic - not", 1)])
def test_that_kvm_does_not_work_is_kept_if_the_kernel_said_so(
    says: str, boots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """QEMU may find no memory, or KVM in use, in a moment only."""
    tree = replace(TREE, **{name: tmp_path / name for name in ("image", "vmlinux", "initrd")})
    for path in (tree.image, tree.vmlinux, tree.initrd):
        path.touch()
    fake, started = tmp_path / "qemu-system-x86_64", tmp_path / "started"
    fake.write_text(f"#!/bin/sh\necho >>{started}\necho '{says}' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(rootfs, "CACHE", tmp_path)
    monkeypatch.setattr(guest, "CACHE", tmp_path)
    monkeypatch.setattr(guest, "BOOT_ID", tmp_path / "boot_id")
    monkeypatch.setattr(os, "access", lambda *_: True)
    for boot in ("one", "one", "two"):
        (tmp_path / "boot_id").write_text(boot)
        assert guest.choose_accel(tree) == "tcg"
    assert len(started.read_text()) == boots
    assert f"delete {tmp_path}/accel.json" in capsys.readouterr().err
    fake.write_text(fake.read_text() + "# of another version\n")
    assert guest.choose_accel(tree) == "tcg" and len(started.read_text()) == boots + 1


@pytest.mark.parametrize("sealed", [False, True])
def test_a_guest_that_is_slow_to_boot_has_not_died(sealed: bool) -> None:
    slow = guest.Guest.__new__(guest.Guest)
    slow.started = time.monotonic()
    ours, theirs = socket.socketpair()
    with ours, theirs, channel.Channel() as memory, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        slow.process, slow.ports, slow.channel = process, [ours], memory if sealed else None
        with pytest.raises(guest.BootTimeout, match="did not boot within 0 s"):
            slow.wait_ready(0.1)


def test_a_command_may_end_before_this_machine_looks() -> None:
    short = guest.Guest.__new__(guest.Guest)
    short.started, short.channel = time.monotonic(), None
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        short.process, short.ports = process, [ours]
        theirs.sendall(b"ready\nexit 3\n")
        short.wait_ready(10)
        assert short.relay(10, {}, None) == 3


def test_the_virtual_cpu_is_the_same_with_each_qemu() -> None:
    """A model with a version, and features that this QEMU emulates: what it lacks would be left out silently."""
    name, *features, last = guest.CPU.split(",")
    assert name == "qemu64-v1" and last == "enforce" and {"+erms", "+fsrm"}.isdisjoint(features)
    argv = ["qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "q35", "-accel", "tcg", "-S"]
    argv += ["-monitor", "stdio", "-cpu"]
    for cpu, code in ((guest.CPU, 0), (guest.CPU.replace(",enforce", ",+avx512f,enforce"), 1)):
        done = subprocess.run([*argv, cpu], input="quit\n", capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sealed"], "does not go with --clock real"),
        (["--sealed", "--clock", "virtual", "--network"], "does not go with --network"),
        (["--clock", "virtual", "--given", "a=/etc/passwd"], "needs --sealed"),
        (["--given", "/etc/passwd"], "must be NAME=FILE"),
        (["--given", "../a=/etc/passwd"], "must be NAME=FILE"),
        (["--given", "a=/nosuch"], "/nosuch is no file"),
        (["--forward", "2222:22"], "needs --network"),
        (["--network", "--forward", "2222"], "must be PORT:PORT"),
        (["--network", "--forward", "2222:70000"], "must be PORT:PORT"),
    ],
)
def test_what_a_guest_cannot_have_gets_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.run_main([*arguments, "--", "true"])
    assert raised.value.code == 2 and says in capsys.readouterr().err.splitlines()[-1]


# ---- models ---------------------------------------------------------------------------------


def test_models_tell_the_module_all_it_wants() -> None:
    source = (models.SOURCES / "userblk_ssd.c").read_text()
    known = set(re.findall(r'^\t\t{"(\w+)", &', source, re.MULTILINE))
    sata, nvme = models.disk_models()
    assert known == {"bytes", *models.NUMBERS}
    words = models.module_parameter([sata, nvme], 1 << 29)
    assert words.startswith("name=labsata serial=MODELSATA bytes=536870912 ") and words.count(";") == 1
    machines = models.machines_parameter([sata, nvme])
    assert machines == "labsata 4 2,20,100,400,500 2,10,33,133,166;labnvme 72 2,20,600 2,10,133"
    assert models.model_names() == f"cpu-{models.cpu_model().version} {sata} {nvme}"


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("sata", "read_ns = ", "read_nanoseconds = ", "read_n"),
        ("nvme", "depth = 1023", "depth = 'many'", "depth=many: must be a whole number"),
        ("cpu", "instructions_per_us = ", "instructions_per_us = 3 # ", "must be from 100 to 20000"),
        ("cpu", "version = ", "version = ]", "cpu.toml: "),
        ("nvme", "exit_us = [2, ", "exit_us = [", "must have 3 numbers, as residency_us has"),
        ("nvme", "exit_us = [", "exit_us = [-1, ", "must be a list of whole numbers"),
        ("nvme", "residency_us = [2, 20,", "residency_us = [20, 2,", "must rise"),
        ("nvme", "residency_us = [", "residency_us = [] # ", "must have 1 to 8 numbers"),
        ("sata", "cpus = 4", "cpus = 0", "cpus=0: must be an even number from 2 to 128"),
        ("sata", "cpus = 4", "cpus = 3", "cpus=3: must be an even number from 2 to 128"),
        ("nvme", "cpus = 72", "cpus = 130", "cpus=130: must be an even number from 2 to 128"),
    ],
)
def test_a_bad_model_gets_one_line(
    file: str, old: str, new: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in models.MODELS.glob("*.toml"):
        text = path.read_text()
        assert path.stem != file or old in text
        (tmp_path / path.name).write_text(text.replace(old, new) if path.stem == file else text)
    monkeypatch.setattr(models, "MODELS", tmp_path)
    with pytest.raises(LabError, match=says):
        models.model_names()


def test_arguments_reach_the_shell_of_the_guest_whole(tmp_path: Path) -> None:
    words = ("printf", "%s\n", "a b", "it's", '"$HOME"', "", "new\nline")
    archive = guest.guest_files(TREE, "tcg", guest.Options(words), 25, 80)
    subprocess.run([rootfs.BUSYBOX, "cpio", "-id"], input=archive, cwd=tmp_path, check=True, capture_output=True)
    command = (tmp_path / "lab/command").read_text().replace("cd /userblk\n", "")
    shown = subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout
    assert os.fsdecode(shown).split("\n") == [*words[2:6], "new", "line", ""]
    config = (tmp_path / "lab/config").read_text().splitlines()
    assert "LAB_ACCEL=tcg" in config and "LAB_RESULTS=0" in config and "LAB_HOST=''" in config
    assert "LAB_RELEASE=trixie" in config
