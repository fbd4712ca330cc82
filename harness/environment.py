# SPDX-License-Identifier: BSD-3-Clause
"""The machine as it is: what a result needs to be understood later."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

PACKAGES = ("fio", "nbdkit", "nbd-client", "tcmu-runner", "e2fsprogs")


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        values[name] = int(number) << (10 if unit == "kB" else 0)
    return values


def _versions() -> dict[str, str]:
    try:
        result = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PACKAGES],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,  # a package that is not there is no error
        )
    except OSError:
        return {}
    pairs = (line.split() for line in result.stdout.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def snapshot() -> dict[str, object]:
    """What does not change during a campaign."""
    lines = _text("/proc/cpuinfo").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    vulnerabilities = Path("/sys/devices/system/cpu/vulnerabilities")
    names = sorted(path.name for path in vulnerabilities.iterdir()) if vulnerabilities.is_dir() else []
    return {
        "kernel": platform.release(),
        "kernel_version": platform.version(),
        "command_line": _text("/proc/cmdline"),
        "machine": platform.machine(),
        "cpu_model": models[0] if models else "",
        "cpus": os.cpu_count(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "smt": _text("/sys/devices/system/cpu/smt/active"),
        "mitigations": {name: _text(str(vulnerabilities / name)) for name in names},
        "hypervisor": "hypervisor" in _text("/proc/cpuinfo"),
        "transparent_hugepages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "memory_bytes": meminfo()["MemTotal"],
        "distribution": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "python": platform.python_version(),
        "packages": _versions(),
    }
