# SPDX-License-Identifier: BSD-3-Clause
"""userblk-s3 prints whatever a server answers, in the memory that the answer takes."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tool import PROGRAM

# A year of so many digits is in no calendar of the C library.
FAR = 1 << 62


@contextmanager
def server(path: Path, lines: list[str]) -> Iterator[None]:
    """Answers every request with these."""
    answer = "".join(f"{line}\n" for line in ["userblk-s3 1", *lines, "ok"]).encode()

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if not connection.recv(4096):
                    return
                connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()


def ask(path: Path, *words: str, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    argv = [str(PROGRAM), *words, "endpoint=http://127.0.0.1:1", "bucket=abc", "volume=v", f"control={path}"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False, preexec_fn=before)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["info"], f"created_time {FAR}"),
        (["snapshot", "list"], f'snapshot ["s", 1, {FAR}, 4096, 0]'),
    ],
)
def test_a_time_that_no_calendar_has(tmp_path: Path, words: list[str], line: str) -> None:
    path = tmp_path / "control"
    with server(path, [line]):
        shown = ask(path, *words)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert str(FAR) in shown.stdout
        assert str(FAR) in ask(path, *words, "--json").stdout


def test_a_long_list_of_damage(tmp_path: Path) -> None:
    """It takes little more memory than its text."""
    n, path = 200_000, tmp_path / "control"
    lines = [f'damage [{i * 8192}, 4096, "userblk/v/log/00/{i:016x}", "is missing"]' for i in range(n)]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))

    with server(path, [*lines, f"damaged_objects {n}"]):
        shown = ask(path, "check", before=limit)
        assert (shown.returncode, shown.stderr) == (1, "")
        rows = shown.stdout.splitlines()[-n:]
        assert rows[0].split()[:3] == ["0", "4096", "userblk/v/log/00/" + "0" * 16]
        assert rows[-1].split() == [str((n - 1) * 8192), "4096", f"userblk/v/log/00/{n - 1:016x}", "is", "missing"]
        assert len({row.index("userblk/") for row in rows}) == 1
        listed = json.loads(ask(path, "check", "--json", before=limit).stdout)
        assert len(listed["damages"]) == n
