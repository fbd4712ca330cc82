# SPDX-License-Identifier: BSD-3-Clause
"""A real sshd for a test, with keys of its own, and the ssh command that reaches it."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from waiting import wait_until

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
CONFIG = "sshd_config"
LIMIT = 300.0  # s


def write_config(directory: Path, port: int, listen: str = "127.0.0.1", seen_at: Path | None = None) -> None:
    """Keys and sshd's configuration in a directory. seen_at: where the server has it."""
    for name in ("host", "user"):
        if not (directory / name).exists():
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(argv, check=True, timeout=LIMIT)
    shutil.copy(directory / "user.pub", directory / "authorized")
    there = seen_at or directory
    options = {
        "Port": port,
        "ListenAddress": listen,
        "HostKey": there / "host",
        "AuthorizedKeysFile": there / "authorized",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "PidFile": "none",
    }
    (directory / CONFIG).write_text("".join(f"{name} {value}\n" for name, value in options.items()))


def client(directory: Path, *options: str) -> list[str]:
    """The command, without an address."""
    argv = ["ssh", "-F", "none", "-i", str(directory / "user"), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]
    argv += ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={directory / 'known'}"]
    return [*argv, "-o", "LogLevel=ERROR", *options]


def await_login(ssh: list[str], address: str, problem: Callable[[], str], patience: float = LIMIT) -> None:
    """Until one may log in. problem(): why that will never be, "" while it may."""

    def logged_in() -> bool:
        if not subprocess.run([*ssh, address, "true"], capture_output=True, timeout=LIMIT, check=False).returncode:
            return True
        found = problem()
        assert not found, found
        return False

    wait_until(f"a login at {address}", logged_in, patience)


def reserved_port() -> socket.socket:
    """A port of 127.0.0.1 that nobody else takes while the socket is open, but those who allow its reuse."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved
