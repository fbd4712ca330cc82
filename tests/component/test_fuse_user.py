# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough run by a user who is not root: the same calls work and fail as on the source."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuse_mount import LIBFUSE, MODES, NOBODY, PROGRAM, as_user, launch, parse_status
from loops import mounted
from nbdkit_server import checked, run
from waiting import wait_until

GROUP = 4321
# name: mode, owner and group
FILES = {
    "own": (0o644, NOBODY, NOBODY),
    "program": (0o6755, NOBODY, NOBODY),
    "capable": (0o755, NOBODY, NOBODY),
    "write-only": (0o200, NOBODY, NOBODY),
    "of-others": (0o666, 0, 0),
    "of-the-group": (0o664, 0, GROUP),
    "program-of-others": (0o4777, 0, 0),
    "capable-of-others": (0o777, 0, 0),
}
DIRECTORIES = {"open": 0o755, "no-names": 0o311, "names-only": 0o444}
CAPABLE = ("capable", "capable-of-others")  # before each command
# CAP_NET_RAW, permitted and effective
CAPABILITY = struct.pack("<5I", 0x0200_0001, 1 << 13, 0, 0, 0)
COMMANDS = (
    *(f"{command} {name}" for name in FILES for command in ("truncate --size=2", "touch", "touch --date=@1")),
    *(
        f"dd if=/proc/version of={name} count=1 bs=9 {how} status=none"
        for name in FILES
        for how in ("", "conv=notrunc")
    ),
    *(f"printf more >>{name}" for name in FILES),
    *(f"chgrp {group} {name}" for name in FILES for group in (GROUP, NOBODY)),
    "chown 0 own",
    "mv of-others moved && cat moved && mv moved of-others",
    *(f"ls {name}; ls -l {name}; cat {name}/in; : >{name}/new" for name in DIRECTORIES),
    "umask 0277; dd if=/dev/zero of=new bs=4096 count=1 oflag=direct status=none",
    "umask 0777; : >closed; cat closed",
)


@contextmanager
def device_open_to(uid: int) -> Iterator[None]:
    """/dev/fuse is everybody's where udev(7) runs, and root's elsewhere."""
    before = checked(["getfacl", "--absolute-names", "/dev/fuse"])
    checked(["setfacl", "--modify", f"u:{uid}:rw", "/dev/fuse"])
    try:
        yield
    finally:
        subprocess.run(["setfacl", "--set-file=-", "/dev/fuse"], input=before, text=True, check=True)


def fill(top: Path) -> None:
    for name, mode in DIRECTORIES.items():
        (top / name).mkdir()
        (top / name / "in").write_text("inside")
        os.chown(top / name, NOBODY, NOBODY)
        (top / name).chmod(mode)
    for name, (mode, uid, gid) in FILES.items():
        (top / name).write_text("text of the file")
        os.chown(top / name, uid, gid)
        (top / name).chmod(mode)
    os.chown(top, NOBODY, NOBODY)


def answer(command: str, top: Path) -> str:
    """What a command prints in a directory, and what the files look like after it."""
    script = f'cd "$1"; ({command}) 2>&1; stat --format="%n %A %s %u %g" *; getcap *'
    return as_user(NOBODY, "sh", "-c", script, "sh", str(top), groups=str(GROUP)).stdout


def test_root_of_a_user_namespace(fuse_source: Path) -> None:
    """There is no other user in it; and the kernel passes nothing through for its root."""
    point, user = (
        fuse_source.with_name("mount"),
        ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    )
    namespace = (*user, "unshare", "--map-root-user", "--mount")
    if run([*namespace, "true"]).returncode != 0:
        pytest.skip("kernel: users have no user namespaces")
    for path in (fuse_source, point):
        os.chown(path, NOBODY, NOBODY)
    script = '"$0" "$@" && echo text >"$MOUNT/file" && stat --format="%u %s" "$MOUNT/file" && umount "$MOUNT"'
    with device_open_to(NOBODY):
        for option, granted in (("--passthrough=auto", "off"), ("--passthrough", "refused"), ("--nosplice", "off")):
            if "passthrough" in option and LIBFUSE < (3, 17):
                continue
            argv = ["env", f"MOUNT={point}", "sh", "-c", script, str(PROGRAM), option, str(fuse_source), str(point)]
            result = run([*namespace, *argv])
            status, _, answer = result.stdout.partition("\n")
            assert (result.stderr, answer) == ("", "0 5\n")
            assert parse_status(status)["passthrough"] == granted
            assert (fuse_source / "file").stat().st_uid == NOBODY


RANGE = 100_000  # the first of the users of a namespace
FILES_OF_SOME = {
    "of-others": (0o666, 0, 0),
    "program-of-others": (0o4777, 0, 0),
    "own": (0o644, RANGE, RANGE),
    "of-a-group": (0o664, RANGE, GROUP),
    "of-a-user": (0o4777, RANGE + 5, RANGE + 5),
}
COMMANDS_OF_SOME = (
    *(f"echo text >{name}" for name in FILES_OF_SOME),
    *(f"echo more >>{name}" for name in FILES_OF_SOME),
    *(f"truncate --size=2 {name}" for name in FILES_OF_SOME),
    *(
        f"mv {name} moved; dd if=/proc/version of=moved bs=9 count=1 conv=notrunc,fsync status=none; mv moved {name}"
        for name in FILES_OF_SOME
    ),
    *(f"chmod u+s {name}; chmod 4711 {name}; chmod 640 {name}" for name in FILES_OF_SOME),
    *(f"touch --date=@1 {name}; stat --format=%Y {name} | grep --line-regexp 1" for name in FILES_OF_SOME),
)


@contextmanager
def namespace_of(users: str) -> Iterator[tuple[str, ...]]:
    """What a command begins with to run as root of a user namespace that has these users and groups."""
    if run(["unshare", "--user", "--mount", "true"]).returncode != 0:
        pytest.skip("kernel: no user namespaces")
    with subprocess.Popen(["unshare", "--user", "--mount", "cat"], stdin=subprocess.PIPE) as holder:
        try:
            own, place = os.readlink("/proc/self/ns/mnt"), Path(f"/proc/{holder.pid}")
            wait_until("it is in its namespaces", lambda: os.readlink(place / "ns/mnt") != own)
            for name in ("uid_map", "gid_map"):
                (place / name).write_text(users)
            yield ("nsenter", f"--target={holder.pid}", "--user", "--mount", "--setuid=0", "--setgid=0")
        finally:
            assert holder.stdin is not None
            holder.stdin.close()


@pytest.mark.parametrize("mode", ["default", "no-writeback"])
def test_root_of_a_user_namespace_with_other_users(mode: str, fuse_source: Path) -> None:
    """It has no rights over the files of users that are not in the namespace, and others for what they may do."""
    native, point = fuse_source.with_name("native"), fuse_source.with_name("mount")
    native.mkdir()
    for top in (native, fuse_source):
        for name, (permissions, uid, gid) in FILES_OF_SOME.items():
            (top / name).write_text("text of the file")
            os.chown(top / name, uid, gid)
            (top / name).chmod(permissions)
    for top in (native, fuse_source, point):
        os.chown(top, RANGE, RANGE)
    looks = """
        "$PROGRAM" $OPTIONS "$SOURCE" "$POINT" >"$POINT.status" && for command in "$@"; do
            for top in "$NATIVE" "$POINT"; do
                cd "$top"
                found=$(sh -c "$command" 2>&1; stat --format="%n %A %s %u %g" *)
                [ "$top" = "$POINT" ] && [ "$found" != "$before" ] && echo "$command: $found, not: $before"
                before=$found
            done
        done
        cd / && umount "$POINT"
    """
    variables = {"SOURCE": str(fuse_source), "NATIVE": str(native), "POINT": str(point)}
    variables |= {"PROGRAM": str(PROGRAM), "OPTIONS": " ".join(MODES[mode])}
    Path(f"{point}.status").touch()
    Path(f"{point}.status").chmod(0o666)
    with device_open_to(RANGE), namespace_of(f"0 {RANGE} 65536") as namespace:
        argv = ["env", *(f"{name}={value}" for name, value in variables.items()), "sh", "-c", looks, "sh"]
        result = run([*namespace, *argv, *COMMANDS_OF_SOME])
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert parse_status(Path(f"{point}.status").read_text())["ownership"] == "caller"


@pytest.mark.parametrize(("option", "granted"), [("--passthrough=auto", "off"), ("--passthrough", "refused")])
def test_root_of_a_user_namespace_with_all_users(option: str, granted: str, fuse_source: Path) -> None:
    """The kernel passes nothing through for it either."""
    if LIBFUSE < (3, 17):
        pytest.skip("libfuse: kernel passthrough needs 3.17")
    point = fuse_source.with_name("mount")
    script = '"$0" "$@" && echo text >"$POINT/file" && cat "$POINT/file" && umount "$POINT"'
    argv = ["env", f"POINT={point}", "sh", "-c", script, str(PROGRAM), option, str(fuse_source), str(point)]
    with namespace_of("0 0 4294967295") as namespace:
        result = run([*namespace, *argv])
    status, _, answer = result.stdout.partition("\n")
    assert (result.stderr, answer) == ("", "text\n")
    assert parse_status(status)["passthrough"] == granted


@pytest.mark.parametrize("mode", ["default", "no-writeback"])
def test_an_empty_file_of_others_that_is_replaced_is_seen_in_the_time(mode: str, fuse_source: Path) -> None:
    """Only its owner sets a time, so it is opened again. Over tmpfs, truncate(2) does not change the time."""
    if shutil.which("fusermount3") is None or shutil.which("setfacl") is None:
        pytest.skip("fuse3 or acl is not installed")
    below, point = fuse_source.with_name("below"), fuse_source.with_name("mount")
    os.chown(point, NOBODY, NOBODY)
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    with mounted(below, "tmpfs"), device_open_to(NOBODY):
        (below / "file").touch()
        (below / "file").chmod(0o666)
        os.utime(below / "file", (1, 1))
        mount = launch(PROGRAM, below, point, ["--foreground", *MODES[mode], str(below), str(point)], user)
        try:
            assert as_user(NOBODY, "sh", "-c", ": >$0", str(point / "file")).stderr == ""
            assert (below / "file").stat().st_mtime > 1
            mount.unmount()
        finally:
            mount.kill()


@pytest.mark.parametrize("mode", ["default", "no-writeback"])
def test_a_user_mounts_a_directory(mode: str, fuse_source: Path) -> None:
    if shutil.which("fusermount3") is None or shutil.which("setfacl") is None or shutil.which("getcap") is None:
        pytest.skip("fuse3, acl or libcap2-bin is not installed")
    native, point = fuse_source.with_name("native"), fuse_source.with_name("mount")
    native.mkdir()
    for top in (native, fuse_source):
        fill(top)
    os.chown(point, NOBODY, NOBODY)
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={GROUP}")
    with device_open_to(NOBODY):
        mount = launch(PROGRAM, fuse_source, point, ["--foreground", *MODES[mode], str(fuse_source), str(point)], user)
    try:
        assert mount.status["ownership"] == "daemon"
        for command in COMMANDS:
            for top in (native, fuse_source):
                for name in CAPABLE:
                    os.setxattr(top / name, "security.capability", CAPABILITY)
            assert (command, answer(command, point)) == (command, answer(command, native))
        mount.unmount()
    finally:
        mount.kill()
    for name in os.listdir(native):
        if (native / name).is_file():
            assert (fuse_source / name).read_bytes() == (native / name).read_bytes(), name
