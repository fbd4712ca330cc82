# SPDX-License-Identifier: BSD-3-Clause
"""The guest is the one that was asked for: its kernel, the servers of its release, and a Python for the harness."""

from __future__ import annotations

import os
import re
import sys

from guest import RELEASE, run

# Kernel, nbdkit, tcmu-runner, and the release's own Python.
VERSIONS = {
    "bullseye": (r"5\.10\.", r"1\.24\.", r"1\.5\.2", "3.9"),
    "trixie": (r"[67]\.", r"1\.42\.", r"1\.5\.4", "3.13"),
}
PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def test_versions() -> None:
    kernel, nbdkit, runner, python = VERSIONS[RELEASE]
    assert re.match(kernel, os.uname().release)
    assert re.search(nbdkit, run(["nbdkit", "--version"]))
    assert re.search(runner, run(["dpkg-query", "-Wf", "${Version}", "tcmu-runner"]))
    assert run(["/usr/bin/python3", "-c", PRINT_VERSION]).strip() == python


def test_python_is_new_enough_and_hands_on_nothing_of_its_own() -> None:
    assert sys.version_info >= (3, 11)
    assert run([sys.executable, "-c", PRINT_VERSION]).strip() == ".".join(map(str, sys.version_info[:2]))
    assert run(["sh", "-c", "readlink -f /proc/$$/exe && ldd /bin/sh"]).count("/opt/python") == 0
    assert "LD_LIBRARY_PATH" not in os.environ and "PYTHONHOME" not in os.environ
