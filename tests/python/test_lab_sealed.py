# SPDX-License-Identifier: BSD-3-Clause
"""What goes into a sealed guest and what comes out of it, without a guest."""

from __future__ import annotations

import filecmp
import hashlib
import io
import json
import mmap
import os
import re
import struct
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, make_plan, write_plan
from userblk.harness.running.hand_over import hand_over
from userblk.lab import LabError, Variant, channel, guest, images, models, rootfs


class Port:
    """What lab/ssd/userblk_channel.c does in the guest."""

    def __init__(self, to: channel.Channel) -> None:
        self.memory = mmap.mmap(to.number, channel.SIZE)
        self.used = 0

    def write(self, port: int, data: bytes) -> None:
        message = struct.pack("<QQ", port, len(data)) + data
        at = channel.MESSAGES + self.used
        self.memory[at : at + len(message)] = message
        self.used += -(-len(message) // 8) * 8
        self.memory[:8] = struct.pack("<Q", self.used)


def test_messages_come_once_and_in_order() -> None:
    with channel.Channel() as ours:
        port = Port(ours)
        assert list(ours.messages()) == []
        large = os.urandom(3 << 20)
        port.write(channel.CONTROL, b"ready\n")
        port.write(channel.FILES, large)
        assert list(ours.messages()) == [(channel.CONTROL, b"ready\n"), (channel.FILES, large)]
        port.write(channel.OUTPUT, b"")
        port.write(channel.ERRORS, b"12345678")
        assert list(ours.messages()) == [(channel.OUTPUT, b""), (channel.ERRORS, b"12345678")]
        assert list(ours.messages()) == []
        # What was read takes no memory.
        assert os.fstat(ours.number).st_blocks * 512 < 1 << 20


def archive(*members: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as files:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            files.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def test_files_come_as_they_were_without_those_given(tmp_path: Path) -> None:
    run, top, kept = tmp_path / "top/a/b/1", tmp_path / "top", tmp_path / "kept"
    (run / "empty").mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    (top / "plan.json").write_text("changed")
    kept.mkdir()
    (kept / "plan.json").write_text("the host's")
    port = tmp_path / "port"
    port.touch()
    hand_over(run, top, port)
    assert not run.exists() and (top / "a/b").is_dir()
    channel.unpack(port.read_bytes(), kept, {"plan.json"})
    assert (kept / "a/b/1/summary.json").read_text() == "{}" and (kept / "a/b/1/empty").is_dir()
    channel.unpack(archive(("plan.json", b"changed")), kept, {"plan.json"})
    assert (kept / "plan.json").read_text() == "the host's"


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_a_guest_cannot_write_elsewhere(name: str, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with pytest.raises(LabError, match="outside of its results"):
        channel.unpack(archive((name, b"")), tmp_path / "kept", set())
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_kept_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for data, directory in ((archive(("a/b", b"")), tmp_path / "file"), (b"no archive" * 100, tmp_path)):
        with pytest.raises(LabError, match="cannot be kept"):
            channel.unpack(data, directory, set())


def test_given_files_are_the_same_whenever_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    first = guest.pack([("plan.json", file)])
    os.utime(file, (1, 1))
    assert guest.pack([("plan.json", file)]) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as files:
        assert [(member.name, member.mtime) for member in files] == [("plan.json", 0)]
    with pytest.raises(LabError, match=r"given=.*nosuch: No such file"):
        guest.pack([("plan.json", tmp_path / "nosuch")])


def test_a_block_does_not_know_the_campaign(tmp_path: Path) -> None:
    """Neither its name, its other systems nor its repetitions: it gives the same results in another campaign."""
    files = []
    for name, systems, repetitions in (("first", ["native"], 1), ("second", ["native", "nbdkit", "tcmu"], 3)):
        plan = make_plan(
            suite=load_suite("bdus-block"),
            profile=load_profile("quick", virtual=True),
            systems=[load_system(system) for system in systems],
            devices=[Device("sata", "$LAB_SATA", "MODELSATA")],
            campaign=name,
            build="build/trixie",
            host="lab",
            emulated=True,
            model="cpu-1",
            seed=1,
            repetitions=repetitions,
        )
        block = next(number for number, entries in plan.blocks() if entries[0].system == "native")
        of_block = plan.of_block(block)
        same = tuple(replace(entry, block=0, index=number, seed=1) for number, entry in enumerate(of_block.entries))
        assert {entry.system for entry in same} == {"native"} and len(same) == 16
        assert [entry.index for entry in of_block.entries] == [e.index for e in plan.entries if e.block == block]
        entries = tuple(sorted(same, key=lambda entry: entry.workload))
        files.append(write_plan(replace(of_block, entries=tuple(replace(e, index=0) for e in entries)), tmp_path, name))
    assert files[0].read_text() == files[1].read_text()


def write_files(top: Path, names: list[str]) -> None:
    for name in names:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"what is in {path.name}")


def names_in(image: Path) -> set[str]:
    """What there is in an image: paths of files and directories."""
    found, left = set(), [""]
    while left:
        above = left.pop()
        argv = ["/usr/sbin/debugfs", "-R", f"ls -p {above or '/'}", str(image)]
        listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        for _, _, mode, _, _, name, *_ in (line.split("/") for line in listed.splitlines() if line.startswith("/")):
            if name not in (".", "..", "lost+found"):
                found.add(f"{above}/{name}")
                left += [f"{above}/{name}"] if mode.startswith("04") else []
    return found


def test_an_image_holds_what_there_is_and_is_made_anew_when_that_changes(tmp_path: Path) -> None:
    top, image = tmp_path / "top", tmp_path / "image.ext4"
    (top / "a").mkdir(parents=True)
    (top / "a/file").write_text("one")
    (top / "link").symlink_to("a/file")
    (top / "b").mkdir()
    os.mkfifo(top / "b/pipe")  # which nobody writes to

    def debugfs(request: str) -> str:
        argv = ["/usr/sbin/debugfs", "-R", request, str(image)]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def content(path: str) -> str:
        return debugfs(f"cat {path}")

    images.make_image(image, top, images.files_below(top))
    assert names_in(image) == {"/a", "/a/file", "/link"} and content("/a/file") == "one"
    number = image.stat().st_ino
    images.make_image(image, top, images.files_below(top))
    assert image.stat().st_ino == number  # nothing has changed
    (top / "a/file").write_text("another")
    images.make_image(image, top, images.files_below(top))
    assert content("/a/file") == "another"
    (top / "a/file").chmod(0o755)
    images.make_image(image, top, images.files_below(top))
    assert "Mode:  0755" in debugfs("stat /a/file")
    with pytest.raises(LabError, match="cannot be made"):
        images.make_image(top / "a/file/image.ext4", top, images.files_below(top))
    assert not (tmp_path / "image.stage").exists()


def test_an_image_has_room_for_many_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a block and an inode, however little there is in it."""
    monkeypatch.setattr(rootfs, "IMAGE_STEP", 1)
    for name in ("a", "b"):
        (tmp_path / "top" / name).mkdir(parents=True)
        for number in range(2500):
            (tmp_path / "top" / name / str(number)).write_text("x")
    image = tmp_path / "image.ext4"
    images.make_image(image, tmp_path / "top", images.files_below(tmp_path / "top"))
    argv = ["/usr/sbin/debugfs", "-R", "ls -p /b", str(image)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.count("/100644/") == 2500


def test_an_image_that_has_room_stays_as_it_is(tmp_path: Path) -> None:
    """In one of less than 512 MiB, mkfs.ext4 expects smaller files."""
    (tmp_path / "top").mkdir()
    (tmp_path / "top/file").write_text("x")

    def inodes(size: int, count: int) -> int:
        rootfs.make_ext4(tmp_path / "top", tmp_path / "image", size, images.WRITTEN, count=count)
        argv = ["/usr/sbin/dumpe2fs", "-h", str(tmp_path / "image")]
        words = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
        return int(words[words.index("count:") + 1])

    for size in (128, 512):
        assert inodes(size, 32768 - 10) == inodes(size, 0) == 32768
        assert inodes(size, 32768) > 32768 + 10  # the first ten are not for files


# What a build has beside its programs; of a user's own, each may be a part of it.
OF_A_BUILD = ["x.p/program.c.o", "program.d", "state", "lock", "build.log", "left-out", "meson-logs/x", "init.d/x"]


@pytest.fixture
def no_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> rootfs.Tree:
    """Images are made below tmp_path, of a checkout there."""
    monkeypatch.setattr(images, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(rootfs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(images, "CHECKOUT", tmp_path / "checkout")
    return rootfs.Tree(Variant(), "6.12", tmp_path, tmp_path / "root.ext4", tmp_path / "vmlinux", tmp_path / "initrd")


def test_a_directory_of_ones_own_comes_whole(no_guest: rootfs.Tree, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    write_files(extra, [*OF_A_BUILD, "module/__pycache__/x.pyc"])
    (extra / "empty/below").mkdir(parents=True)
    there = {f"/{path.relative_to(extra)}" for path in extra.rglob("*")}
    assert names_in(images.directory_image(no_guest, extra, "extra")) == there


def test_each_directory_of_ones_own_has_an_image(no_guest: rootfs.Tree, tmp_path: Path) -> None:
    """Two campaigns in one checkout, each with its own."""
    for name in ("first", "second"):
        write_files(tmp_path / name, [f"of-{name}"])
    first, second = (images.directory_image(no_guest, tmp_path / name, "extra") for name in ("first", "second"))
    assert names_in(first) == {"/of-first"} and names_in(second) == {"/of-second"}
    assert images.directory_image(no_guest, tmp_path / "second/../first", "extra") == first


def test_a_build_comes_without_what_it_writes_about_itself(no_guest: rootfs.Tree, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    parts = set(images.PARTS) - {"Makefile", "lab"}
    wanted = ["Makefile", *(f"{part}/x" for part in parts), "lab/init.d/init", "build/trixie/plugins/null.so"]
    write_files(checkout, [*wanted, "python/__pycache__/x.pyc", *(f"build/trixie/{name}" for name in OF_A_BUILD)])
    made = names_in(images.checkout_image(no_guest))
    assert made == {f"/{path}" for name in wanted for path in (name, *Path(name).parents)} - {"/."}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> rootfs.Tree:
    """One whose root image has been made."""
    monkeypatch.setattr(rootfs, "CACHE", tmp_path)
    work = tmp_path / "trixie-stable"
    work.mkdir()
    for name in ("root.ext4", "vmlinux", "initrd"):
        (work / name).write_bytes(b"abc")
    rootfs.write_made(work, "key", "6.12")
    return rootfs.Tree(Variant(), "6.12", work / "root", work / "root.ext4", work / "vmlinux", work / "initrd")


def test_a_guest_is_known_by_its_images(tree: rootfs.Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "checkout.ext4"

    def checkout_image(_: rootfs.Tree) -> Path:
        (tmp_path / "top").mkdir(exist_ok=True)
        images.make_image(image, tmp_path / "top", images.files_below(tmp_path / "top"))
        return image

    monkeypatch.setattr(images, "checkout_image", checkout_image)
    identity = images.guest_identity(tree)
    # The example of FIPS 180-4.
    assert identity["root_image"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert identity["checkout_image"] == hashlib.sha256(image.read_bytes()).hexdigest() and identity["kernel"] == "6.12"
    for part, file in (
        ("kernel_image", tree.vmlinux),
        ("initrd_image", tree.initrd),
    ):  # the same name may be built again
        file.write_bytes(f"another {part}".encode())
        rootfs.write_made(tree.image.parent, "key", "6.12")
        changed = images.guest_identity(tree)
        assert {name for name in changed if changed[name] != identity[name]} == {part}
        identity = changed
    (tree.image.parent / "made.json").write_text(json.dumps({"image": identity["root_image"]}))  # of an older version
    assert images.guest_identity(tree) == identity
    made = image.with_suffix(".made")
    made.write_text(made.read_text().split()[0])  # as a version that did not say what the image is
    assert images.guest_identity(tree) == identity
    write_files(tmp_path / "top", ["another"])
    assert images.guest_identity(tree)["checkout_image"] != identity["checkout_image"]
    # Another campaign has begun to make it again, and failed.
    monkeypatch.setattr(images, "checkout_image", lambda _: image)
    made.unlink()
    with pytest.raises(LabError, match=r"checkout\.ext4: it went while it was looked at: No such file or directory"):
        images.guest_identity(tree)


def test_a_guest_is_known_while_its_image_is_made_anew(
    tree: rootfs.Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "checkout.ext4"
    monkeypatch.setattr(images, "checkout_image", lambda _: image)
    done: list[dict[str, str]] = []
    with rootfs.locked("checkout"):
        looks = threading.Thread(target=lambda: done.append(images.guest_identity(tree)))
        looks.start()
        looks.join(0.2)
        image.with_suffix(".made").write_text("key digest\n")
    looks.join()
    assert [identity["checkout_image"] for identity in done] == ["digest"]


# A QEMU that says at once that the guest is up, and stays.
FAKE_QEMU = """#!/usr/bin/python3
import re, struct, sys, time
channel = re.search("id=channel,share=on,mem-path=([^,]*)", " ".join(sys.argv))[1]
with open(channel, "r+b") as memory:
    memory.seek(4096)
    memory.write(struct.pack("<QQ", 1, 6) + b"ready\\n\\0\\0")
    memory.seek(0)
    memory.write(struct.pack("<Q", 24))
time.sleep(600)
"""


@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize("name", ["a b", "a:b"])
def test_qemu_has_the_library_that_holds_its_main_loop_back(
    name: str, loads: bool, tree: rootfs.Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the checkout is; ld.so only prints what it could not load, and QEMU empties the file with that."""
    fake, library, image = tmp_path / "qemu-system-x86_64", tmp_path / name / "main_loop.so", tmp_path / "checkout.ext4"
    fake.write_text(FAKE_QEMU)
    fake.chmod(0o755)
    library.parent.mkdir()
    for empty in (library, image, tree.vmlinux, tree.initrd):
        empty.touch()
    if loads:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(models.MAIN_LOOP), "-ldl"], check=True)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(guest, "CACHE", library.parent)
    monkeypatch.setattr(guest, "ensure_modules", lambda _: ([], library))
    monkeypatch.setattr(guest, "checkout_image", lambda _: image)
    with guest.Guest(tree, "icount", guest.Options(("true",), clock="virtual", sealed=True)) as machine:
        if loads:
            machine.wait_ready(60)
            assert str(library) in Path(f"/proc/{machine.process.pid}/maps").read_text()
        else:
            with pytest.raises(LabError, match=f"^QEMU runs without {library}, "):
                machine.wait_ready(60)


def test_a_guest_may_have_ended_when_its_first_word_is_read() -> None:
    """Its command was short."""
    ended = guest.Guest.__new__(guest.Guest)
    with channel.Channel() as memory, subprocess.Popen(["true"]) as process:
        ended.started, ended.process, ended.channel, ended.share = time.monotonic(), process, memory, None
        ended.main_loop = Path("main_loop.so")
        process.wait()
        Port(memory).write(channel.CONTROL, b"ready\n")
        assert ended.wait_ready(60) < 60


def test_the_same_checkout_gives_the_same_image_to_the_byte(tmp_path: Path) -> None:
    """Whenever and in which order its files were written, and however often it was built."""
    names = [f"{directory}/file{number}" for directory in ("a", "build/trixie", "z") for number in range(20)]
    first, second = tmp_path / "first", tmp_path / "second"
    write_files(first, names)
    write_files(second, [*reversed(names), "build/trixie/.ninja_log", "build/trixie/build.log"])
    (second / "a/file1").read_text()
    for number, path in enumerate(sorted(second.rglob("*"))):
        os.utime(path, (10_000 + number, 20_000 + number))
    for top in (first, second):
        images.make_image(tmp_path / f"{top.name}.ext4", top, images.files_below(top, images.in_build))
    assert filecmp.cmp(tmp_path / "first.ext4", tmp_path / "second.ext4", shallow=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as building the lab does")
def test_the_same_packages_give_the_same_root_image_to_the_byte(tmp_path: Path) -> None:
    """Whatever apt's lists say that day; and files of packages keep their times, to which Python compares."""
    for name, names in (("first", ["usr/lib/new", "etc/made"]), ("second", ["etc/made", "usr/lib/new"])):
        root = tmp_path / name
        write_files(root, ["usr/lib/old", *names, "var/lib/dpkg/info/package.md5sums"])
        write_files(root, [f"var/lib/apt/lists/{name}{number}" for number in range(300 if name == "first" else 1)])
        (root / "var/lib/dpkg/info/package.md5sums").write_text("0  usr/lib/old\n1  usr/lib/new\n")
        os.utime(root / "usr/lib/old", (5_000, 1_000_000))
        os.utime(root / "usr/lib/new", (6_000, 1_000_001))
        rootfs.make_image(root, tmp_path / f"{name}.ext4")
    first = tmp_path / "first.ext4"
    assert filecmp.cmp(first, tmp_path / "second.ext4", shallow=False)
    times = {}
    for file in ("usr/lib/old", "usr/lib/new", "etc/made"):
        argv = ["/usr/sbin/debugfs", "-R", f"stat /{file}", str(first)]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        times[file] = [int(time, 16) for time in re.findall(r"(?:mtime|ctime|atime|crtime): 0x(\w+)", shown)]
    assert times["usr/lib/old"] == [1_000_001, 1_000_001, 1_000_000, 1_000_001]  # mtime is the third
    assert times["usr/lib/new"] == times["etc/made"] == [1_000_001] * 4


def test_compiled_python_follows_the_text_and_not_the_time(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("VALUE = 1\n")
    prefix, top = tmp_path / "prefix", Path(__file__).resolve().parents[2]

    def compile_it() -> dict[str, bytes]:
        argv = [sys.executable, "-m", "userblk.lab.compile_python", "module"]
        env = os.environ | {"PYTHONPYCACHEPREFIX": str(prefix), "PYTHONPATH": f"{top / 'python'}:{tmp_path}"}
        subprocess.run(argv, env=env, check=True)
        return {str(path): path.read_bytes() for path in prefix.rglob("*.pyc")}

    first = compile_it()
    (mine,) = (Path(name) for name in first if Path(name).name.startswith("module."))
    number = mine.stat().st_ino
    os.utime(tmp_path / "module.py", (1, 1))
    (prefix / "gone.pyc").touch()
    assert compile_it() == first and mine.stat().st_ino == number
    (tmp_path / "module.py").write_text("VALUE = 'a_rare_word'\n")
    os.utime(tmp_path / "module.py", (1, 1))
    second = compile_it()
    assert {name for name in first if first[name] != second[name]} == {str(mine)}
    mine.unlink()
    assert compile_it() == second
    # Without the bit that a later format sets on strings which something else in memory has, too.
    assert bytes([ord("Z") | 0x80]) not in second[str(mine)][16:]
