# SPDX-License-Identifier: BSD-3-Clause
"""The programs in C: their manual pages and their completion say what --help says. What is not built is left out."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from loops import LIMIT
from ublk_unit import UNIT, unit_command
from userblk.harness.machine import paths

assert paths.CHECKOUT is not None
TOP = paths.CHECKOUT
PAGES = [
    TOP / name
    for name in (
        "buse/userblk-buse.8",
        "fuse-disk/userblk-fuse-disk.1",
        "fuse-nullfs/userblk-nullfs.1",
        "fuse-passthrough/userblk-passthrough.1",
        "harness/flow/userblk-flow.1",
        "harness/kv/userblk-kv.1",
        "harness/openloop/userblk-openloop.1",
        "harness/ops/userblk-ops.1",
        "ublk/userblk-ublk.8",
        "userblk-s3/userblk-s3.1",
    )
]
BUILT = [page for page in PAGES if any(paths.HOST_BUILD.glob(f"*/{page.stem}"))]


def program(page: Path) -> Path:
    (found,) = paths.HOST_BUILD.glob(f"*/{page.stem}")
    return found


def options(page: Path) -> set[str]:
    """What its --help explains, at the beginning of a line."""
    done = subprocess.run([program(page), "--help"], capture_output=True, text=True, timeout=LIMIT)
    return set(re.findall(r"^ +(?:-\w, )?--([a-z][a-z-]*)", done.stdout, re.M))


def test_one_is_built() -> None:
    assert any(page.stem == "userblk-flow" for page in BUILT)


def test_manuals_say_what_help_says() -> None:
    """In the same words, of options and of devices' parameters: packaging/manual has put them there."""
    argv = [str(TOP / "packaging/manual"), "--check", str(paths.HOST_BUILD)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_another_word_in_a_manual_is_found_and_mended(tmp_path: Path) -> None:
    page = tmp_path / "userblk-flow.1"
    right = (TOP / "harness/flow/userblk-flow.1").read_text()
    page.write_text(right.replace("Check the file and end.", "Look at the file and end."))
    argv = [str(TOP / "packaging/manual"), "--check", str(paths.HOST_BUILD), str(page)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == f"{page}: differs from --help; run: make manuals\n"
    subprocess.run([word for word in argv if word != "--check"], check=True, capture_output=True)
    assert page.read_text() == right


@pytest.mark.parametrize("page", BUILT, ids=lambda page: page.stem)
def test_the_manual_has_the_options_of_help(page: Path) -> None:
    text = page.read_text()
    section = text[text.index(".Sh OPTIONS") if ".Sh OPTIONS" in text else 0 :]
    assert options(page) - {"help", "version"} <= set(re.findall(r"Fl -([a-z][a-z-]*)", section))


@pytest.mark.parametrize("page", BUILT, ids=lambda page: page.stem)
@pytest.mark.parametrize("word", ["--nosuch", "-x"])
def test_an_unknown_option_is_one_line(page: Path, word: str) -> None:
    done = subprocess.run([program(page), word], capture_output=True, text=True, timeout=LIMIT)
    assert done.stderr == f"{page.stem}: {word}: no such option; see {page.stem} --help\n"
    assert (done.returncode, done.stdout) == (2, "")


def test_the_open_loop_names_what_is_wrong(tmp_path: Path) -> None:
    if not (found := next(paths.HOST_BUILD.glob("*/userblk-openloop"), None)):
        pytest.skip("installation: userblk-openloop is not built")
    cases: list[tuple[list[str], str]] = [
        ([], "FILE: missing"),
        (["f", "--bs", "4096", "--size", "8192", "--rate", "1", "--runtime", "1"], "--json: missing"),
        (["f", "--bs"], "--bs: needs a value"),
    ]
    for words, says in cases:
        done = subprocess.run([found, *words], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
        assert done.stderr == f"userblk-openloop: {says}; see userblk-openloop --help\n"
        assert done.returncode == 2
    asked = ["--size", "8192", "--rate", "1", "--runtime", "1", "--json", "j", "none"]
    (tmp_path / "file").write_bytes(bytes(4096))
    for words, says in (
        (["--bs", "3"], "--bs=3: must be a whole number from 512 to 16777216"),
        (["--bs", "512", *asked], "none: No such file or directory; name a block device or file that exists"),
        (["--bs", "512", *asked[:-1], "."], ".: neither a block device nor a regular file; name one"),
        (["--bs", "512", "--rw=randwrite", *asked[:-1], "file"], "--size=8192: file has 4096 bytes; use at most these"),
    ):
        done = subprocess.run([found, *words], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
        assert (done.returncode, done.stderr) == (2, f"userblk-openloop: {says}\n")


def test_ublk_loads_the_libraries_of_s3_with_it() -> None:
    if not (found := next(paths.HOST_BUILD.glob("*/userblk-ublk"), None)):
        pytest.skip("installation: userblk-ublk is not built")
    done = subprocess.run(["ldd", found], capture_output=True, text=True, timeout=LIMIT)
    assert "liburing" in done.stdout and "libcurl" not in done.stdout
    for words, reported in ((["s3"], "volume: missing"), (["nix"], "name one of null, passthrough, s3")):
        done = subprocess.run([found, "add", *words], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 2 and reported in done.stderr


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_ublk_says_what_it_could_not_print(word: str) -> None:
    """A part of a list with exit code 0 would be taken for all."""
    if not (found := next(paths.HOST_BUILD.glob("*/userblk-ublk"), None)):
        pytest.skip("installation: userblk-ublk is not built")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([found, word], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    assert done.returncode == 1
    assert done.stderr == "userblk-ublk: cannot write the answer: No space left on device\n"


def test_no_limit_ends_the_stop_of_the_unit_early() -> None:
    """systemd applies one of a job to stops, too, and then takes the network from a disk that is being written back."""
    unit = (TOP / UNIT).read_text()
    assert re.findall(r"^Job.*Timeout.*=", unit, re.M) == []
    # A start that goes on until there is a server would keep logins and other mounts waiting without such a limit.
    assert "\nStartLimitIntervalSec=0\n" in unit and "\nRestartMode=" not in unit


def _program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "state, runs",
    [
        ("dead pid=-1 recovery=reissue", ["delete 3", "add --foreground --number=3 null"]),
        ("dead pid=-1 recovery=none", ["delete 3", "add --foreground --number=3 null"]),
        ("waiting pid=-1 recovery=reissue: dead", ["recover --foreground 3"]),
        ("", ["add --foreground --number=3 null"]),
    ],
    ids=["dead", "dead without recovery", "waiting", "none"],
)
def test_the_unit_starts_with_what_is_there(tmp_path: Path, state: str, runs: list[str]) -> None:
    """The kernel gives no server to a disk that is dead, whatever it was added with."""
    (tmp_path / "state").write_text(f"/dev/ublkb3 {state}\n" if state else "")
    program = _program(
        tmp_path / "userblk-ublk",
        f"""cd {tmp_path}
case $1 in
info) cat state; test -s state; exit ;;
delete) : >state ;;
esac
echo "$*" >>runs""",
    )
    words = unit_command("ExecStart", program)
    assert words.pop() == "$USERBLK_DISK"
    subprocess.run([*words, "null"], check=True, timeout=LIMIT)
    assert (tmp_path / "runs").read_text().splitlines() == runs


def test_the_unit_leaves_arrays_alone(tmp_path: Path) -> None:
    """An array may have its other disks elsewhere, and go on without this one."""
    holders = tmp_path / "ublkb3/holders"
    holders.mkdir(parents=True)
    for name in ("dm-0", "md127"):
        (holders / name).touch()
    _program(tmp_path / "blkdeactivate", f'echo "$*" >>{tmp_path}/runs')
    for name in ("findmnt", "sleep"):
        _program(tmp_path / name, "exit 1")
    server = subprocess.Popen(["/bin/sleep", str(LIMIT)])
    try:
        words = [word.replace("/sys/block", str(tmp_path)) for word in unit_command("ExecStop", Path("none"))]
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MAINPID": str(server.pid)}
        subprocess.run(words, env=environment, timeout=LIMIT, check=False)
    finally:
        server.kill()
        server.wait()
    assert (tmp_path / "runs").read_text() == "-u /dev/dm-0\n"


@pytest.mark.parametrize("end", ["before", "meanwhile", "its number is another's"])
def test_the_unit_leaves_a_disk_without_server_alone(tmp_path: Path, end: str) -> None:
    """Its unmount would hang, and with it the unit's restart of the server. Here it is mounted forever."""
    server = subprocess.Popen(["/bin/sleep", str(LIMIT)])
    # One that is not waited for stays as a zombie.
    ended = f"kill -KILL {server.pid}; while test -e /proc/{server.pid}/exe; do /bin/sleep 0.01; done"
    if end == "before":
        subprocess.run(["sh", "-c", ended], check=True)
    elif end != "meanwhile":
        ended = f"echo 1 >{tmp_path}/began"
        (tmp_path / "began").write_text("0\n")
        _program(tmp_path / "cut", f"cat {tmp_path}/began")
    for name in ("findmnt", "swapoff", "sleep", "blkdeactivate"):
        _program(tmp_path / name, f"echo {name} >>{tmp_path}/runs")
    _program(tmp_path / "umount", f"echo umount >>{tmp_path}/runs; {ended}; exit 1")
    (tmp_path / "runs").touch()
    try:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MAINPID": str(server.pid)}
        words = unit_command("ExecStop", _program(tmp_path / "userblk-ublk", "echo '/dev/ublkb3 live '"))
        subprocess.run(words, env=environment, timeout=LIMIT, check=True)
        assert (server.poll() is None) == (end == "its number is another's")
    finally:
        server.kill()
        server.wait()
    assert (tmp_path / "runs").read_text().split() == ["findmnt", "umount", "sleep"] * (end != "before")


def test_an_oom_kill_is_no_stop_of_the_unit() -> None:
    """By default systemd would run ExecStop= on a disk without server, instead of starting another one."""
    assert "\nOOMPolicy=continue\n" in (TOP / UNIT).read_text()


@pytest.mark.parametrize(
    "words", [["userblk-buse"], ["userblk-ublk", "add", "--foreground"]], ids=lambda words: words[0]
)
def test_a_message_that_nobody_reads_does_not_kill_a_server(words: list[str]) -> None:
    """Its disk would end with it, and with what is not written back yet."""
    if not (found := next(paths.HOST_BUILD.glob(f"*/{words[0]}"), None)):
        pytest.skip(f"installation: {words[0]} is not built")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        argv = [str(found), *words[1:], "passthrough", "/no/such"]
        done = subprocess.run(argv, stdout=writer, stderr=writer, timeout=LIMIT)
    finally:
        os.close(writer)
    assert done.returncode in (1, 2)


@pytest.mark.parametrize("page", BUILT, ids=lambda page: page.stem)
def test_completion_knows_them(page: Path, tmp_path: Path) -> None:
    script = f". {TOP}/packaging/completion/userblk-programs; COMP_WORDS=(x --) COMP_CWORD=1"
    script += f'; _userblk_program {program(page)}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")
    assert {word.strip("-=") for word in done.stdout.split()} == options(page)
