# SPDX-License-Identifier: BSD-3-Clause
"""The machine as it is: what a result needs to be understood later, and what may have distorted it.

snapshot() is taken when a campaign begins or is resumed, condition() before every run; what has changed since then, and
what is not as a measurement wants it, becomes lines of text: distortions() for the campaign, changes() for the run.
Standard library only; what cannot be read is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .hardware import full_link, link, numa_nodes, temperature, throttled

PACKAGES = (
    "fio", "nbdkit", "nbd-client", "tcmu-runner", "libfuse3-3", "libfuse3-4", "liburing2", "e2fsprogs", "util-linux",
    "smartmontools", "nvme-cli", "qemu-utils", "qemu-system-x86", "s3backer",
)  # fmt: skip
# How each package manager shows "NAME VERSION" of those that are installed, and of some with a name of its own.
VERSIONS = (
    ("dpkg-query", "-W", "-f", "${Package} ${Version}\n"),
    ("rpm", "-q", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\\n", "nbd", "fuse3-libs", "liburing", "qemu-system-x86-core"),
    ("pacman", "-Q", "nbd", "fuse3", "liburing", "qemu-base"),
)
CPU = Path("/sys/devices/system/cpu")
LOAD_LIMIT = 0.5  # of processes that run, before the first run
HOT = 5.0  # K below the temperature at which a device throttles
PATIENCE = 30  # s for a command
NOT_MEASURED = ("meson-private", "tests")  # of a build's directory


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _run(*argv: str) -> str:
    """A command's output, "" without it. It may fail, and still have printed what is wanted (smartctl does)."""
    if not shutil.which(argv[0], path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        values[name] = int(number) << (10 if unit == "kB" else 0)
    return values


def _versions() -> dict[str, str]:
    """By the first package manager that has any of them."""
    for command in VERSIONS:
        pairs = (line.split() for line in _run(*command, *PACKAGES).splitlines())
        if found := {pair[0]: pair[1] for pair in pairs if len(pair) == 2}:
            return found
    return {}


def _each_cpu(name: str) -> str:
    """What all CPUs have in a file, "a, b" if they differ."""
    found = {_text(path) for path in CPU.glob(f"cpu[0-9]*/{name}")}
    return ", ".join(sorted(found - {""}))


def _turbo() -> str:
    """on, off or "" where the machine does not tell."""
    if no_turbo := _text(CPU / "intel_pstate/no_turbo"):
        return "off" if no_turbo == "1" else "on"
    boost = _text(CPU / "cpufreq/boost")
    return {"1": "on", "0": "off"}.get(boost, "")


def _virtual(cpuinfo: str) -> str:
    """What the machine is a guest of, "" if it is not a guest."""
    if found := _run("systemd-detect-virt").strip():
        return "" if found == "none" else found
    return "hypervisor" if "hypervisor" in cpuinfo else ""


def _frequencies() -> dict[str, str]:
    names = ("scaling_driver", "scaling_min_freq", "scaling_max_freq", "energy_performance_preference")
    return {name: value for name in names if (value := _each_cpu(f"cpufreq/{name}"))}


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _idle_states() -> list[str]:
    return sorted({_text(path) for path in CPU.glob("cpu0/cpuidle/state*/name")})


def snapshot() -> dict[str, object]:
    """What does not change during a campaign."""
    cpuinfo = _text("/proc/cpuinfo")
    lines = cpuinfo.splitlines()
    fields = {name: [] for name in ("model name", "microcode", "physical id")}  # type: dict[str, list[str]]
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in fields:
            fields[name.strip()].append(value.strip())
    vulnerabilities = CPU / "vulnerabilities"
    names = sorted(path.name for path in vulnerabilities.iterdir()) if vulnerabilities.is_dir() else []
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    return {
        "kernel": platform.release(),
        "kernel_version": platform.version(),
        "command_line": _text("/proc/cmdline"),
        "machine": platform.machine(),
        "cpu_model": next(iter(fields["model name"]), ""),
        "microcode": next(iter(fields["microcode"]), ""),
        "cpus": os.cpu_count(),
        "sockets": len(set(fields["physical id"])) or 1,
        "cpus_online": _text(CPU / "online"),
        "cpus_isolated": _text(CPU / "isolated"),
        "numa_nodes": {node.name: _text(node / "cpulist") for node in nodes},
        "governor": _each_cpu("cpufreq/scaling_governor"),
        "frequency": _frequencies(),
        "idle_states": _idle_states(),
        "turbo": _turbo(),
        "smt": _text(CPU / "smt/active"),
        "mitigations": {name: _text(vulnerabilities / name) for name in names},
        "hypervisor": "hypervisor" in cpuinfo,
        "virtual": _virtual(cpuinfo),
        "transparent_hugepages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "aslr": _text("/proc/sys/kernel/randomize_va_space"),
        "clock_source": _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "memory_bytes": meminfo()["MemTotal"],
        "swap_bytes": meminfo()["SwapTotal"],
        "distribution": _distribution(),
        "python": platform.python_version(),
        "packages": _versions(),
        "system": {name: _text(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name", "bios_version")},
    }


def source(checkout: Path | None) -> dict[str, object]:
    """
    The commit that userblk is of, and whether it was changed since; {} without git, and of an unpacked source archive,
    which may lie in a repository of something else.
    """
    if checkout is None:
        return {}
    # git refuses a repository of another user, as root has it.
    git = ("git", "-c", f"safe.directory={checkout}", "-C", str(checkout))
    top = _run(*git, "rev-parse", "--show-toplevel").strip()
    if not top or not os.path.samefile(top, checkout):
        return {}
    commit = _run(*git, "rev-parse", "HEAD").strip()
    changed = _run(*git, "status", "--porcelain").strip()
    return {"commit": commit, "modified": bool(changed)} if commit else {}


def programs(build: Path) -> str:
    """
    The SHA-256 of all programs and plugins below a directory, and of their names: two builds of a commit may differ.
    Those of the build itself and of tests do not count.
    """
    known = hashlib.sha256()
    for path in sorted(build.rglob("*")):
        name = path.relative_to(build)
        if name.parts[0] in NOT_MEASURED or not path.is_file():
            continue
        if path.suffix == ".so" or os.access(path, os.X_OK):
            known.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return known.hexdigest()


# ---- devices -------------------------------------------------------------------------------


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _nested(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def parse_smartctl(text: str) -> dict[str, object]:
    """Firmware, temperature (degrees C), wear (%), bytes written and health from `smartctl --json --all`."""
    try:
        report = json.loads(text)
    except ValueError:
        return {}
    nvme = _nested(report, "nvme_smart_health_information_log")
    table = _nested(report, "ata_smart_attributes", "table")
    attributes = {
        row.get("name", ""): row for row in (table if isinstance(table, list) else []) if isinstance(row, dict)
    }
    written = _number(_nested(nvme, "data_units_written"))
    found: dict[str, object] = {
        "firmware": _nested(report, "firmware_version"),
        "temperature_c": _number(_nested(report, "temperature", "current")),
        "wear_percent": _number(_nested(nvme, "percentage_used")),
        "written_bytes": written * 512_000 if written is not None else None,
        "critical_warning": _number(_nested(nvme, "critical_warning")),
        "healthy": _nested(report, "smart_status", "passed"),
    }
    if row := attributes.get("Total_LBAs_Written"):
        raw = _number(_nested(row, "raw", "value"))
        block = _number(_nested(report, "logical_block_size")) or 512
        found["written_bytes"] = raw * block if raw is not None else None
    for name in ("Wear_Leveling_Count", "Media_Wearout_Indicator", "SSD_Life_Left", "Percent_Lifetime_Remain"):
        value = _number(_nested(attributes.get(name), "value"))  # normalised: 100 is new
        if found["wear_percent"] is None and value is not None:
            found["wear_percent"] = max(0.0, 100 - value)
    return {name: value for name, value in found.items() if value is not None}


def parse_nvme(text: str) -> dict[str, object]:
    """The same from `nvme smart-log --output-format=json`."""
    try:
        report = json.loads(text)
    except ValueError:
        return {}
    kelvin = _number(_nested(report, "temperature"))
    written = _number(_nested(report, "data_units_written"))
    warning = _nested(report, "critical_warning")
    found = {
        "temperature_c": kelvin - 273 if kelvin else None,
        "wear_percent": _number(_nested(report, "percent_used")),
        "written_bytes": written * 512_000 if written is not None else None,
        "critical_warning": _number(_nested(warning, "value") if isinstance(warning, dict) else warning),
    }
    return {name: value for name, value in found.items() if value is not None}


def device_facts(disk: str, root: Path = Path("/")) -> dict[str, object]:
    """Model, firmware, wear, temperature of a whole disk by its kernel name, as far as it and the tools there tell."""
    block = root / "sys/block" / disk / "device"
    facts: dict[str, object] = {"disk": disk}
    for name, files in {
        "vendor": ("vendor",),
        "model": ("model",),
        "firmware": ("rev", "firmware_rev"),
        "numa_node": ("numa_node", "device/numa_node"),
    }.items():
        value = next((text for file in files if (text := _text(block / file))), "")
        if value:
            facts[name] = value
    if "numa_node" not in facts and disk.startswith("nvme") and (nodes := numa_nodes(disk, root)):
        facts["numa_node"] = ", ".join(map(str, nodes))  # of its controllers, which are elsewhere
    if turning := _text(block.parent / "queue/rotational"):
        facts["rotational"] = turning == "1"
    if current := link(disk, root):
        facts["link"] = current
        facts |= {"link_can_be": best} if (best := full_link(disk, root)) else {}
    now, limit = temperature(disk, root)
    facts |= {"temperature_c": now} if now is not None else {}
    facts |= {"temperature_limit_c": limit} if limit is not None else {}
    smart = parse_smartctl(_run("smartctl", "--json", "--all", f"/dev/{disk}"))
    if not smart and disk.startswith("nvme"):
        smart = parse_nvme(_run("nvme", "smart-log", "--output-format=json", f"/dev/{disk}"))
    return facts | smart


def endurance_bytes(facts: Mapping[str, object]) -> float | None:
    """How much a device can take in its life, by what it has taken and how worn it is; None if it does not tell."""
    wear, written = _number(facts.get("wear_percent")), _number(facts.get("written_bytes"))
    return written * 100 / wear if wear and written else None


def failing(facts: Mapping[str, object]) -> str:
    """Why a device should no longer be used, "" if nothing is known against it."""
    if facts.get("critical_warning"):
        return f"it reports critical warning {facts['critical_warning']:.0f} (nvme smart-log shows which)"
    if facts.get("healthy") is False:
        return "its own health check fails (smartctl --all)"
    return ""


def throttling(facts: Mapping[str, object]) -> str:
    """Why a device is slower than it can be, "" if nothing tells that it is."""
    degrees, limit = _number(facts.get("temperature_c")), _number(facts.get("temperature_limit_c"))
    if degrees is None or limit is None or degrees < limit:
        return ""
    return f"it is too hot and throttles ({degrees:.0f} degrees C of {limit:.0f}); let it cool down and resume"


# ---- before every run ------------------------------------------------------------------------


def condition(disks: Mapping[str, str] | None = None) -> dict[str, object]:
    """What may change from run to run. disks: name -> kernel name of whole disks."""
    zones = [_text(path) for path in Path("/sys/class/thermal").glob("thermal_zone*/temp")]
    return {
        "governor": _each_cpu("cpufreq/scaling_governor"),
        "turbo": _turbo(),
        "smt": _text(CPU / "smt/active"),
        "cpus_online": _text(CPU / "online"),
        "transparent_hugepages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "throttled": throttled(),
        "temperature_c": max((float(text) / 1e3 for text in zones if text), default=None),
        "load": os.getloadavg()[0],
        "memory_available_bytes": meminfo()["MemAvailable"],
        "swap_used_bytes": meminfo()["SwapTotal"] - meminfo()["SwapFree"],
        "disks": {name: temperature(disk) for name, disk in (disks or {}).items()},
        "links": {name: link(disk) for name, disk in (disks or {}).items()},
    }


STEADY = ("governor", "turbo", "smt", "cpus_online", "transparent_hugepages")
OF_CPUS = ("smt", "cpus_online")


def changes(before: Mapping[str, object], now: Mapping[str, object], fewer_cpus: bool = False) -> list[str]:
    """
    What is not as it was when the campaign began or was last resumed, or too hot; a line each. fewer_cpus: the run
    wants so.
    """
    keys = [key for key in STEADY if not (fewer_cpus and key in OF_CPUS)]
    lines = [f"changed: {key} is {now[key]} instead of {before[key]}" for key in keys if now[key] != before[key]]
    throttled = int(str(now["throttled"])) - int(str(before["throttled"]))
    if throttled > 0:
        lines.append(
            f"throttled: CPUs were slowed down {throttled} times since the campaign began or was resumed, because they"
            " were too hot"
        )
    swapped = int(str(now["swap_used_bytes"])) - int(str(before["swap_used_bytes"]))
    if swapped > 1 << 20:
        lines.append(f"swap: {swapped >> 20} MiB more are used than at the beginning")
    disks = now["disks"]
    for name, (degrees, limit) in (disks if isinstance(disks, dict) else {}).items():
        if degrees is not None and limit is not None and degrees > limit - HOT:
            lines.append(f"hot: {name} has {degrees:.0f} degrees C and throttles at {limit:.0f}")
    links, at_first = now["links"], before["links"]
    if isinstance(links, dict) and isinstance(at_first, dict):
        for name in links.keys() & at_first.keys():
            if links[name] != at_first[name]:
                lines.append(f"changed: the PCIe link of {name} is {links[name]} instead of {at_first[name]}")
    return lines


def distortions(found: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """What makes all results of a campaign worth less; a line each. found: a snapshot(), now: a condition()."""
    lines = []
    if (governor := found.get("governor")) and governor != "performance":
        lines.append(f"CPU governor is {governor}: clock rates change with load; userblk tune set")
    if found.get("turbo") == "on":
        lines.append("turbo is on: clock rates depend on temperature and on how many CPUs are busy")
    if found.get("smt") == "1":
        lines.append("SMT is on: two threads share a core, so CPU shares are less exact")
    if found.get("virtual"):
        lines.append(f"this machine is a guest ({found['virtual']}): other guests may take its CPU time")
    devices = found.get("devices")
    for name, facts in (devices if isinstance(devices, dict) else {}).items():
        if (current := facts.get("link")) and current != (best := facts.get("link_can_be", current)):
            lines.append(f"the PCIe link of {name} is {current}, and the device can do {best}; use another slot")
    if float(str(now["load"])) > LOAD_LIMIT * (os.cpu_count() or 1):
        lines.append(f"load is {now['load']:.1f} before the first run")
    return lines
