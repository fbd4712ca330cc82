# SPDX-License-Identifier: BSD-3-Clause
"""From the command line to the end of the server: parameters, errors, help, leftovers."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from nbdkit_server import (
    ROOT,
    SIZE,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Serve,
    checked,
    open_files,
    plugin_path,
    read_pid,
    run,
    run_nbdkit,
)
from waiting import wait_until

PLUGINS = pytest.mark.parametrize("plugin", ["null", "passthrough", "s3"])


def help_lines(plugin: str) -> dict[str, str]:
    """The parameters that --help lists, with the line of each."""
    output = run_nbdkit(plugin_path(plugin), "--help")
    assert output.returncode == 0
    return {match[1]: match[0] for match in re.finditer(r"^    ([a-z-]+)=.*$", output.stdout, re.MULTILINE)}


def manual(plugin: str) -> str:
    return (ROOT / f"plugins/nbdkit-userblk-{plugin}-plugin.1").read_text(encoding="utf-8")


def dumped(plugin: str) -> dict[str, str]:
    output = run_nbdkit(plugin_path(plugin), "--dump-plugin")
    assert output.returncode == 0
    return dict(line.split("=", 1) for line in output.stdout.splitlines())


@PLUGINS
def test_manual_help_and_dump_name_the_same_parameters(plugin: str) -> None:
    text = manual(plugin)
    documented = re.findall(r"^\.It Cm (\S+) Ns = Ns", text, re.MULTILINE)
    dump = dumped(plugin)
    assert sorted(documented) == sorted(dump["userblk_parameters"].split())
    lines = help_lines(plugin)
    assert sorted(documented) == sorted(lines)
    # Each entry also says the same of what is required and of defaults.
    entries = re.split(r"^\.It Cm ", text.split(".Sh PARAMETERS")[1], flags=re.MULTILINE)[1:]
    for entry in entries:
        line = lines[entry.split()[0]]
        assert ("(required)" in line) == ("\nRequired.\n" in entry), line
        default = re.search(r"\(default ([^)]*)\)", line)
        if default:
            assert "default" in entry and re.search(rf"\b{default[1]}\b", entry), line
        for choice in re.findall(r"\b\w+\b", line.split("<")[1].split(">")[0].lower()):
            if "|" in line.split(">")[0]:
                assert re.search(rf"^\.It Cm .*\b{choice}\b", ".It Cm " + entry), line


@PLUGINS
def test_dump_plugin(plugin: str) -> None:
    dump = dumped(plugin)
    assert dump["name"] == f"userblk-{plugin}"
    assert dump["userblk_device"] == plugin
    assert dump["thread_model"] == "parallel"
    assert dump["errno_is_preserved"] == "1"
    main_parameter = {"null": "size", "passthrough": "file", "s3": "volume"}[plugin]
    assert dump["magic_config_key"] == main_parameter
    version = (ROOT / "python/userblk/__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{dump["version"]}"' in version


def refused(*arguments: str) -> list[str]:
    """What nbdkit says to a command line that it must refuse before it serves."""
    result = run_nbdkit("-U", "-", *arguments)
    assert result.returncode == 1, result
    return result.stderr.splitlines()


UNKNOWN = "unknown parameter of passthrough; there are file=, direct=, readonly=, size=, config="
SIZE_SYNTAX = "write digits and perhaps a suffix b, s (512), K, M, G, T, P or E"


@pytest.mark.parametrize(
    ("plugin", "pair", "message"),
    [
        ("null", "size=x", f"size=x: not a size; {SIZE_SYNTAX}"),
        ("null", "size=1000", "size=1000: not a multiple of block-size=512; round it to 1024"),
        ("null", "block-size=1k", "block-size=1k: no such choice; write block-size=512|4096"),
        ("null", "fill=one", "fill=one: no such choice; write fill=zero|none"),
        ("passthrough", "direct=maybe", "direct=maybe: neither on nor off; write on or off"),
        ("passthrough", "readonly=", "readonly=: neither on nor off; write on or off"),
        ("passthrough", "fil=x", f"fil: {UNKNOWN}"),
    ],
)
def test_a_bad_parameter_gets_one_line_and_the_same_from_a_file(
    plugin: str, pair: str, message: str, tmp_path: Path
) -> None:
    assert refused(plugin_path(plugin), pair) == [f"nbdkit: error: {message}"]
    config = tmp_path / "config"
    config.write_text(f"# comment\n\n{pair}\n", encoding="utf-8")
    where = "" if "multiple" in message else f"config={config}: line 3: "
    lines = refused(plugin_path(plugin), f"config={config}")
    assert lines == [f"nbdkit: error: {where}{message}"]


@pytest.mark.usefixtures("exits_after_strerror")
def test_missing_and_repeated_parameters(tmp_path: Path) -> None:
    assert refused(plugin_path("null")) == ["nbdkit: error: size: missing; give size=SIZE, size of the device"]
    lines = refused(plugin_path("passthrough"))
    assert len(lines) == 1 and lines[0].startswith("nbdkit: error: file: missing; give file=")
    assert refused(plugin_path("null"), "size=1M", "size=2M") == ["nbdkit: error: size=2M: given twice; leave one out"]
    config = f"config={tmp_path}/none"
    assert refused(plugin_path("null"), "size=1M", config) == [
        f"nbdkit: error: {config}: No such file or directory; name a readable file of key=value lines"
    ]


def test_parameters_from_a_file_and_the_command_line_wins(serve: Serve, disk: Path, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"file={disk}\nreadonly=on\ndirect=off\n", encoding="utf-8")
    assert serve("passthrough", f"config={config}").connect().is_read_only()
    server = serve("passthrough", f"config={config}", "readonly=off")
    assert not server.connect().is_read_only()


@pytest.mark.usefixtures("exits_after_strerror")
def test_a_mistyped_device_is_seen_from_a_server_that_would_go_to_the_background(
    tmp_path: Path,
) -> None:
    socket, pidfile = tmp_path / "sock", tmp_path / "pid"
    result = run_nbdkit("-U", str(socket), "-P", str(pidfile), plugin_path("passthrough"), "/dev/nope")
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("nbdkit: error: file=/dev/nope: ")
    assert "No such file or directory" in lines[0]
    assert not socket.exists() and not pidfile.exists()


def is_running(pid: int) -> bool:
    """A zombie does not count: init may take its time."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def wait_until_gone(pid: int) -> None:
    wait_until(f"{pid} ends", lambda: not is_running(pid), STOP_TIMEOUT_S)


@pytest.fixture
def background_socket(tmp_path: Path) -> Iterator[Path]:
    """Where a server may listen that leaves the terminal; whichever does is ended."""
    socket = tmp_path / "sock"
    yield socket
    for pid in map(int, run(["pgrep", "-f", f"nbdkit -U {socket} "]).stdout.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)


def test_background_server_serves_and_ends(disk: Path, background_socket: Path) -> None:
    pidfile = background_socket.with_name("pid")
    # A relative name: the server changes its directory.
    relative = os.path.relpath(disk, ROOT)
    options = ("-U", str(background_socket), "-P", str(pidfile))
    assert run_nbdkit(*options, plugin_path("passthrough"), relative).returncode == 0
    wait_until("the server in the background starts", lambda: read_pid(pidfile) is not None, START_TIMEOUT_S)
    pid = read_pid(pidfile)
    assert pid is not None
    uri = f"nbd+unix:///?socket={background_socket}"
    assert checked(["nbdinfo", "--size", uri]).strip() == str(SIZE)
    assert open_files(pid).count(str(disk)) == 2  # for data, and to learn of losses
    os.kill(pid, signal.SIGTERM)
    wait_until_gone(pid)


def test_kill_leaves_nothing_behind(serve: Serve, loop: str) -> None:
    server = serve("passthrough", loop)
    handle = server.connect()
    handle.pwrite(b"k" * 4096, 0)
    pid = server.pid
    server.kill()
    wait_until_gone(pid)
    # The exclusive claim went with the process.
    os.close(os.open(loop, os.O_RDWR | os.O_EXCL))
    again = serve("passthrough", loop).connect()
    assert again.pread(4096, 0) == b"k" * 4096


def test_captive_server_leaves_nothing_behind(loop: str) -> None:
    result = run_nbdkit("-U", "-", plugin_path("passthrough"), loop, "--run", 'nbdinfo --size "$uri"')
    assert (result.returncode, result.stdout.strip()) == (0, str(SIZE))

    def free() -> bool:
        try:
            os.close(os.open(loop, os.O_RDWR | os.O_EXCL))
        except OSError:  # nbdkit may not wait for the end of its captive
            return False
        return True

    wait_until("nobody has the device open", free, STOP_TIMEOUT_S)
