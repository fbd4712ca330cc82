# SPDX-License-Identifier: BSD-3-Clause
"""A real nbdkit on a Unix socket, for the component tests and the benchmark of the plugins."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PLUGIN_DIR = ROOT / os.environ.get("USERBLK_PLUGIN_DIR", "plugins")
# Libraries that nbdkit, itself built without sanitizers, must have loaded before the plugin.
PRELOAD = os.environ.get("USERBLK_PRELOAD", "")
# A limit for what takes a second or some: the machine may be slow, or busy.
START_TIMEOUT_S = STOP_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 300.0
MIB = 1 << 20
SIZE = 8 * MIB  # of a disk
COMPONENTS = ("nbdkit", "fio", "nbdinfo", "nbdcopy", "strace", "mkfs.ext4", "mandoc", "pgrep")

Handle: TypeAlias = Any  # nbd.NBD: libnbd has no types

try:
    nbd: Any = importlib.import_module("nbd")
    NbdError: type[Exception] = nbd.Error
except ImportError:
    nbd = None
    NbdError = Exception


def missing_components() -> list[str]:
    """Names what these tests need and this machine lacks."""
    missing = [name for name in COMPONENTS if shutil.which(name) is None]
    if nbd is None:
        missing.append("python3-libnbd")
    return missing


def plugin_path(name: str) -> str:
    return str(PLUGIN_DIR / f"{name}.so")


def environment() -> dict[str, str]:
    """The environment of an nbdkit that may load a sanitized plugin."""
    env = dict(os.environ)
    if PRELOAD:
        env["LD_PRELOAD"] = PRELOAD
        # nbdkit itself leaves a few allocations behind at exit; leaks of ours are
        # looked for by the unit tests, which are all our own code.
        env["ASAN_OPTIONS"] = "detect_leaks=0"
    return env


def run(argv: list[str], timeout: float = RUN_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and returns its output; it is not checked."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)


def run_nbdkit(*arguments: str, timeout: float = START_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Runs an nbdkit that is expected to end by itself."""
    return subprocess.run(
        ["nbdkit", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=ROOT,
        env=environment(),
    )


def checked(argv: list[str], timeout: float = RUN_TIMEOUT_S) -> str:
    """Runs a command that must succeed and returns its standard output."""
    result = run(argv, timeout)
    assert result.returncode == 0, f"{argv}: exit {result.returncode}\n{result.stderr}"
    return result.stdout


def read_pid(pidfile: Path) -> int | None:
    """The process id that nbdkit wrote when it was ready to serve; None before that."""
    try:
        text = pidfile.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    return int(text) if text.endswith("\n") else None


def open_files(pid: int) -> list[str]:
    """What a process has open, some of which it may just be closing."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return found


def fio_random_verify(uri: str, *options: str) -> None:
    """Writes at random through the server, then reads back and compares checksums."""
    argv = ["fio", "--name=verify", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite"]
    checked([*argv, "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", *options])


class Nbdkit:
    """A server in the foreground, of any plugin. Ends with stop(), which is safe to repeat."""

    def __init__(
        self,
        directory: Path,
        plugin: str,
        *parameters: str,
        options: tuple[str, ...] = (),
        wrapper: tuple[str, ...] = (),
    ) -> None:
        self.socket = directory / "nbd.sock"
        self.pidfile = directory / "nbdkit.pid"
        self.log = directory / "nbdkit.log"
        self._handles: list[Handle] = []
        self._gone = False  # by stop() or kill()
        argv = [*wrapper, "nbdkit", "-f", "-U", str(self.socket), "-P", str(self.pidfile)]
        argv += [*options, plugin, *parameters]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment(),
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self) -> None:
        wait_until(
            "nbdkit is ready", lambda: read_pid(self.pidfile) is not None, START_TIMEOUT_S,
            process=self.process, log=self.output,
        )  # fmt: skip

    @property
    def uri(self) -> str:
        return f"nbd+unix:///?socket={self.socket}"

    @property
    def pid(self) -> int:
        """nbdkit's own process, also when it runs below a wrapper."""
        pid = read_pid(self.pidfile)
        assert pid is not None
        return pid

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def connect(self) -> Handle:
        """A libnbd handle that sends any request unchecked, so that the server has to check it."""
        handle = nbd.NBD()
        handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
        handle.set_strict_mode(0)
        handle.connect_unix(str(self.socket))
        self._handles.append(handle)
        return handle

    def counters(self) -> dict[str, int]:
        """The counters that the plugin prints when it ends: call after stop()."""
        line = re.search(r"^\S+: counters:(.*)$", self.output(), re.MULTILINE)
        assert line, f"no line of counters in {self.output()!r}"
        return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line[1])}

    def stop(self, expect: int | None = 0) -> int:
        """Ends the server as a user would; fails unless this is its exit status (None: any), which is returned.

        Does nothing to one that was ended here before.
        """
        if self._gone:
            return self.process.wait()
        for handle in self._handles:
            if handle.aio_is_ready():  # not one whose server is gone
                handle.shutdown()
        self._handles.clear()
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._gone = True
        self._check_output()
        assert expect in (status, None), f"exit status {status} instead of {expect}: {self.output()}"
        return status

    def kill(self) -> None:
        """Ends the server's whole process group at once; fails if the server has crashed before."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait(STOP_TIMEOUT_S)
        self._handles.clear()
        self._gone = True
        self._check_output()
        assert status >= 0 or status == -signal.SIGKILL, f"{signal.Signals(-status).name}: {self.output()}"

    def _check_output(self) -> None:
        text = self.output()
        assert "AddressSanitizer" not in text and "runtime error" not in text, text


Serve = Callable[..., Nbdkit]
