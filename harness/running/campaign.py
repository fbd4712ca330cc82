# SPDX-License-Identifier: BSD-3-Clause
"""Where a campaign runs, its directory, and the runner as a child process on the host or in the lab."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import IO, Any

from userblk import __version__

from ..machine import paths
from ..machine.blockdev import identify
from ..machine.durable import write_json
from ..machine.safety import check, confirmation, first_confirmation, refuse_twice
from ..machine.subprocesses import WITH_PARENT
from ..machine.teardown import TeardownError, in_words, journal_of, noted, recovers, stale
from ..model.config import VIRTUAL, Suite, SystemConfig, load_parameters
from ..model.parts import ENGINES, KINDS, Engine, Kind
from ..model.plan import Device, Plan, estimate, write_plan
from ..model.tables import ConfigError, NeedsCheckout
from ..observing import environment
from ..stores.servers import new_prefix, read_access
from ..systems import modules
from ..systems.base import kind_of, module_there
from .hand_over import PORT
from .measuring import ENVIRONMENT
from .runner import differences

CLOCKS = (VIRTUAL, "real")  # of the lab's guest
LAB_KERNELS = ("stable", "backports")  # and directories
LAB_DISKS = {"sata": "$LAB_SATA", "nvme": "$LAB_NVME"}
SERIALS = {"virtual": "MODEL", "real": "LAB"}  # and the disk's name in capitals
LAB_BUILD = f"build/{os.environ.get('LAB_RELEASE') or 'trixie'}"
EXTRA_DIRECTORY, KERNEL = "LAB_EXTRA", "LAB_KERNEL"  # of the environment
PAPER = "paper"  # the profile of full size
CONTROL = "native-control"  # the system that is compared with native although there is no difference
LAB_DISK_BYTES = 4 << 30  # the lab's defaults
LAB_CPUS = 2
LAB_HOST = "lab's host:"
LAB_RAM = "$LAB_RAM", str(512 << 20)  # it has no serial: its bytes
LAB_MODEL_MIB = 2048  # what a modelled disk may hold, beside the guest's own memory: a guest uses one of the two
LAB_VIRTUAL_MIB = 3072 + LAB_MODEL_MIB
CAMPAIGN = "campaign.json"  # in its directory: what was asked for, and where it began
LAB_PATIENCE, LAB_START = 5.0, 600.0  # a guest that takes longer hangs: times the estimate; and s
LAB_BUSY = 4.0  # times as long again in virtual time, which is worth as much on a machine that others keep busy
STOP_LIMIT = 180.0  # s that a runner gets to end, once nothing is left that it has to tear down
STEP_LIMIT = 900.0  # s that it gets for each thing: longer than an umount may take
TELL_S = 30.0  # between lines about what is waited for

Event = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where, and why in one line. remote: the host of several."""

    lab: bool
    reason: str
    remote: str = ""


def missing_modules(systems: Sequence[SystemConfig]) -> list[str]:
    """Modules that this kernel lacks for our systems; third-party systems are left out where they cannot run."""
    needed = sorted({module for system in systems if not kind_of(system).foreign for module in modules(system)})
    return [module for module in needed if not module_there(module)]


def check_own_code(suite: Suite, systems: Sequence[SystemConfig], where: str) -> None:
    """The lab's guest and other hosts have no kinds and engines from outside userblk. Raises ConfigError."""
    parts: list[tuple[str, Kind | Engine]] = [(f"system={system.name}", KINDS[system.kind]) for system in systems]
    parts += [(f"suite={suite.name}", ENGINES[workload.engine]) for workload in suite.workloads]
    for what, part in parts:
        file = Path(inspect.getfile(type(part)))
        if not file.is_relative_to(paths.PYTHON_PATH):
            folder = f"harness/{'systems' if isinstance(part, Kind) else 'engines'}"
            remedy = f"copy it into {folder} of a checkout, or measure here"
            raise ConfigError(f"{what}: {file} is not there {where}; {remedy}")


def choose_place(where: str, named: bool, missing: Sequence[str]) -> Place:
    """where: auto, host or lab. named: the user named devices. Raises ConfigError."""
    lacks = f"this host's kernel has no {', '.join(missing)}"
    if where == "host":
        if not named:
            raise ConfigError("where=host: no device is named; add --sata DEV or --nvme DEV, and --confirm")
        if missing:
            raise ConfigError(f"where=host: {lacks}; install a kernel that has, or use --where lab")
        return Place(False, "as asked")
    if where == "lab":
        if named:
            raise ConfigError("where=lab: the lab has its own disks; leave --sata and --nvme out")
        return Place(True, "as asked")
    if missing:
        ignored = "; the devices that you named are NOT measured" if named else ""
        return Place(True, lacks + ignored)
    if not named:
        return Place(True, "no device is named (--sata, --nvme)")
    return Place(False, "its kernel has what is needed and devices are named")


def place_of_counting(where: str, named: bool) -> Place:
    """Where instructions are counted. Raises ConfigError."""
    if where == "host" or named:
        raise ConfigError(
            "instructions: the lab's emulated CPU counts them, over a disk in memory;"
            " leave --where, --sata, --nvme and --confirm out"
        )
    return Place(True, "its emulated CPU counts instructions")


def store_devices(latencies_ms: Sequence[int], given: Path | None) -> list[Device]:
    """A store that is started for the campaign, once for each latency; or the user's own. Raises ConfigError."""
    if given:
        read_access(given)
        return [Device("store", str(given.absolute()), "", identity=new_prefix())]
    return [Device(f"store-{ms}ms", "", "", ms) for ms in latencies_ms]


def lab_devices(clock: str, count_instructions: bool = False) -> list[Device]:
    """Its SSDs; where instructions are counted a disk in memory, which takes no time of its own."""
    if count_instructions:
        return [Device("ram", *LAB_RAM)]
    return [Device(name, path, f"{SERIALS[clock]}{name.upper()}") for name, path in LAB_DISKS.items()]


def host_devices(
    named: Mapping[str, str], confirm: str, unconfirmed: Callable[[str], None] | None = None
) -> list[Device]:
    """The named devices (id -> path), each with its part of the confirmation. Raises Refused, ConfigError.

    confirm repeats the serials in the order SATA, NVMe; a serial may hold blanks. unconfirmed: where nothing will be
    overwritten, confirm may be empty, and this is called with what it would have to be.
    """
    answers = {}
    for name, path in named.items():
        with contextlib.suppress(OSError):  # check() says what is wrong with it
            answers[name] = first_confirmation(identify(path))[0]
    words = confirm.split()
    if " ".join(answers.values()).split() == words and len(answers) == len(named):
        confirmed = answers
    elif unconfirmed and not words and len(answers) == len(named):
        confirmed = answers
        unconfirmed(" ".join(answers.values()))
    else:
        confirmed = dict(zip(named, words + [""] * len(named), strict=False))
    found = {name: check(path, confirmed[name], first=True) for name, path in named.items()}
    for first, second in combinations(found.values(), 2):
        refuse_twice(first, second)
    if len(words) > len(named) and confirmed is not answers:
        raise ConfigError(f'confirm="{confirm}": more serials than devices; repeat one for each, SATA first')
    return [
        Device(
            name,
            os.path.abspath(named[name]),
            confirmation(device)[0],
            identity=device.identity,
            seen=device.seen,
        )
        for name, device in found.items()
    ]


def create(
    plan: Plan,
    results: Path,
    command: Sequence[str],
    guest: Mapping[str, str] | None = None,
    named: Sequence[str] = (),
    before: Callable[[Path], None] = lambda directory: None,
) -> Path:
    """
    The directory of a new campaign, with plan.json and campaign.json. guest: what the lab's consists of. named: systems
    and workloads that the user asked for by their names. before: writes there what the campaign needs besides; it can
    be resumed once plan.json is there, which comes last. Raises ConfigError.
    """
    directory = results / plan.campaign
    try:
        str(directory).encode()
        with contextlib.suppress(FileExistsError):
            results.mkdir(parents=True)
        directory.mkdir()
    except UnicodeEncodeError:  # which neither fio's job files nor reports could name
        raise ConfigError(f"results={results}: its name is not UTF-8; name another directory") from None
    except FileExistsError:
        raise ConfigError(f"{directory}: exists; wait a second, then try again") from None
    except OSError as error:
        raise ConfigError(f"results={results}: {error.strerror}; name a directory that can be written") from None
    asked: dict[str, object] = {
        "schema": 1,
        "campaign": plan.campaign,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "suite": plan.suite.name,
        "profile": plan.profile.name,
        "systems": list(plan.systems),
        "named": list(named),
        "titles": {name: system.title for name, system in plan.systems.items() if system.title},
        "devices": {device.id: device.path for device in plan.devices.values()},
        "repetitions": plan.profile.repetitions,
        "max_repetitions": plan.profile.max_repetitions,
        "warm_up": f"{plan.profile.ramp_s} s, as asked for" if plan.profile.fixed_warm_up else "found",
        "control": CONTROL in plan.systems,
        "seed": plan.seed,
        "host": plan.host,
        "emulated": plan.emulated,
        "model": plan.model,
        "command": list(command),
        "choices": choices(plan),
        "block_choices": block_choices(plan),
        "parameters": parameters(plan),
        "userblk": environment.source(paths.CHECKOUT) | {"version": __version__},
    }
    if plan.emulated:  # what the guest cannot see
        asked["machine"] = environment.snapshot()
        asked["guest"] = guest
        asked["extra"] = named_extra()
        asked["kernel"] = named_kernel()
    try:
        write_json(directory / CAMPAIGN, asked)
        before(directory)
        write_plan(plan, directory)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise ConfigError(f"results={results}: {error.strerror}; name a directory with room") from None
    return directory


def named_extra() -> str:
    """The directory of the user's own that guests show, "" for none."""
    found = os.environ.get(EXTRA_DIRECTORY, "")
    return os.path.abspath(found) if found else ""


def named_kernel() -> str:
    """The lab's kernel: one of its names, or a directory of the user's own."""
    found = os.environ.get(KERNEL) or LAB_KERNELS[0]
    return found if found in LAB_KERNELS else os.path.abspath(found)


def take_guest(plan: Plan, directory: Path) -> list[str]:
    """
    The campaign goes on with the directory and the kernel that it began with: a line for each where this was not asked
    for. Raises ConfigError.
    """
    file = directory / CAMPAIGN
    if not plan.emulated or not file.exists():
        return []
    try:
        asked = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    return [line for line in (_take_extra(asked), _take_kernel(asked)) if line]


def _take_extra(asked: Mapping[str, Any]) -> str:
    began, now = asked.get("extra"), named_extra()
    if began is None:  # by a version that kept no more than that there was one
        if "extra_image" in (asked.get("guest") or {}) and not now:
            raise ConfigError(f"{EXTRA_DIRECTORY} is not set, but the campaign began with it; set it as it was then")
        return ""
    if now and not began:
        raise ConfigError(f"{EXTRA_DIRECTORY}={now}: the campaign began without it; leave it out")
    if now == began:
        return ""
    if now:
        return f"{EXTRA_DIRECTORY} is {now}; the campaign began with {began}."
    if not Path(began).is_dir():
        raise ConfigError(f"{EXTRA_DIRECTORY} is not set, and {began} of the campaign is gone; set it to where that is")
    os.environ[EXTRA_DIRECTORY] = began
    return f"{EXTRA_DIRECTORY} is {began}, as when the campaign began."


def _take_kernel(asked: Mapping[str, Any]) -> str:
    began, now = asked.get("kernel"), named_kernel()
    if began is None or now == began:  # by a version that did not keep it
        return ""
    if os.environ.get(KERNEL) and {began, now} & set(LAB_KERNELS):
        raise ConfigError(f"{KERNEL}={os.environ[KERNEL]}: the campaign began with {began}; leave it out")
    if os.environ.get(KERNEL):
        return f"{KERNEL} is {now}; the campaign began with {began}."  # it may have moved
    if began not in LAB_KERNELS and not Path(began).is_dir():
        raise ConfigError(f"{KERNEL} is not set, and {began} of the campaign is gone; set it to where that is")
    os.environ[KERNEL] = began
    return f"{KERNEL} is {began}, as when the campaign began."


def note_host(plan: Plan, directory: Path) -> list[str]:
    """
    What tells this machine from the one that a campaign in the lab began on, where its speed matters: a line each,
    which become warnings of the campaign. Raises ConfigError.
    """
    asked, kept = directory / CAMPAIGN, directory / ENVIRONMENT
    if not plan.emulated or plan.model or plan.profile.instructions or not asked.exists():
        return []
    try:
        began = json.loads(asked.read_text()).get("machine") or {}
        found = json.loads(kept.read_text()) if kept.exists() else {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory}: cannot be read: {error}") from None
    lines = differences({LAB_HOST: _speed(began)}, {LAB_HOST: _speed(environment.snapshot())}, (LAB_HOST,))
    if lines:
        write_json(kept, found | {"warnings": [*dict.fromkeys([*found.get("warnings", []), *lines])]})
    return lines


def _speed(machine: Mapping[str, Any]) -> dict[str, object]:
    """What a snapshot() says of the machine itself. The kernel keeps a part of the memory, which varies."""
    found = {name: machine[name] for name in ("cpu_model", "cpus") if name in machine}
    return found | {"memory_gib": round(machine["memory_bytes"] / 2**30)} if "memory_bytes" in machine else found


def check_model(plan: Plan, present: str) -> None:
    """Are a simulated plan's models the present ones? Raises ConfigError."""
    if plan.model != present:
        raise ConfigError(
            f"campaign={plan.campaign}: was simulated by {plan.model}; the lab has {present}; run it again, or use a"
            " checkout that has those models"
        )


OF_FIO = "psync, buffered, no fsync"
OF_QUEUES = "the native device's"
OF_WRITE_BACK = "in the state that minutes of writing lead to, set before each run"
OF_GROUPS = ", with control groups v2 as whole percents of the memory"  # the kernel takes no bytes for those


def choices(plan: Plan) -> list[str]:
    """What the paper does not state of the plan's workloads on file systems, what was chosen and why: a line each."""
    if not plan.with_files:
        return []
    lines = []
    of_files = [workload for workload in plan.suite.workloads if ENGINES[workload.engine].parameters]
    for paper in dict.fromkeys(workload.parameters for workload in of_files):
        lines += _choices(plan, paper, [workload.id for workload in of_files if workload.parameters == paper])
    if limits := _dirty_of_files(plan):
        lines.append(f"dirty pages: at most {limits} (the kernel's own is a fifth of the memory)")
    return lines


def _dirty_of_files(plan: Plan) -> str:
    """The limit of dirty pages of workloads on file systems, "" if none is set."""
    files = plan.profile.files
    engines = {ENGINES[workload.engine] for workload in plan.suite.workloads if ENGINES[workload.engine].parameters}
    if not files.dirty_bytes or not any(engine.measures == "devices" for engine in engines):
        return ""
    limits = _dirty_limits(files.dirty_bytes, files.dirty_background_bytes)
    unscaled = files.unscaled_dirty_bytes
    share = f"; FUSE has its share of {unscaled} bytes, the limit of profile paper" if unscaled else ""
    return limits + ("" if plan.emulated else OF_GROUPS) + share


def _choices(plan: Plan, paper: str, ids: Sequence[str]) -> list[str]:
    """The workloads with these ids, by what is chosen for a paper."""

    def concerned(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for name in ids for pattern in patterns)

    parameters, others = load_parameters(paper)
    lines = []
    for index, parameter in enumerate(parameters):
        after = [later for later in parameters[index + 1 :] if later.variable == parameter.variable]
        matched = [name for name in ids if parameter.concerns(name)]
        names = [name for name in matched if not any(later.concerns(name) for later in after)]
        if not names:
            continue
        whose = ", ".join(parameter.workloads if names == matched else names)
        values = {device: parameter.value(plan.profile.name, device, plan.profile.virtual) for device in plan.devices}
        each = ", ".join(f"{value} on {device}" for device, value in values.items())
        shown = str(next(iter(values.values()))) if len(set(values.values())) == 1 else each
        same = values == {device: parameter.value(PAPER, device) for device in plan.devices}
        full = "" if same else ", scaled from the paper profile's"
        lines.append(f"{parameter.variable} of {whose} is {shown}{full} ({parameter.reason})")
    of_all = (choice for choice in others if concerned(choice.workloads))
    return lines + [f"{choice.what}: {choice.value} ({choice.reason})" for choice in of_all]


def _dirty_limits(dirty: int, background: int) -> str:
    return f"{dirty} bytes, in the background from {background} on" if dirty else "the kernel's own"


def block_choices(plan: Plan) -> list[str]:
    """How what the paper states, or leaves open, of the workloads on block devices is done, for below Table 1."""
    workloads = [workload for workload in plan.suite.workloads if ENGINES[workload.engine].buffered]
    if not workloads:
        return []
    profile = plan.profile
    areas = ", ".join(f"{plan.used_bytes(name)} bytes of {name}" for name in plan.devices)
    limits = dict.fromkeys(_dirty_limits(*profile.dirty_limits(name)) for name in plan.devices)
    grouped = OF_GROUPS if profile.memory_bytes and not plan.emulated else ""
    lines = [
        f"memory: {_memory(plan)} (the paper limited its machines to 4 GiB)",
        f"dirty pages: at most {'; '.join(limits)}{grouped} (the paper does not say)",
        f"discarded before writes: {areas}, whatever part a workload uses (the paper: its partition)",
        f"fio: {OF_FIO} (its defaults; the paper does not say)",
        f"queue settings of each system's device: {OF_QUEUES} (the paper: no I/O scheduler)",
    ]
    if plan.model:
        lines.append(f"write-back: {OF_WRITE_BACK} (the paper: 15 minutes)")
    if threads := _threads(plan):
        listed = ", ".join(f"{name} {count}" for name, count in threads.items())
        lines.append(f"threads: {listed} (the paper: 16, of nbdkit for each of min(16, CPUs) connections)")
    return lines


def _memory(plan: Plan) -> str:
    if plan.emulated:
        return "all of the guest's"
    limit = plan.profile.memory_bytes
    return f"{limit} bytes for fio and its page cache, by a control group" if limit else "all of the machine's"


def _threads(plan: Plan) -> dict[str, int]:
    return {system.name: system.threads for system in plan.systems.values() if KINDS[system.kind].in_paper}


def parameters(plan: Plan) -> dict[str, list[dict[str, str]]]:
    """
    What choices() and block_choices() say, a record for each device, system and workload that it concerns: campaigns
    are compared by what concerns both.
    """
    found: dict[str, list[dict[str, str]]] = {"choices": [], "block_choices": []}

    def note(kind: str, name: str, value: object, **concerned: str) -> None:
        found[kind].append({"name": name, "value": str(value), **concerned})

    of_files = [one for one in plan.suite.workloads if ENGINES[one.engine].parameters] if plan.with_files else []
    known = {paper: load_parameters(paper) for paper in dict.fromkeys(one.parameters for one in of_files)}
    for workload in of_files:
        variables, others = known[workload.parameters]
        last = {one.variable: one for one in variables if one.concerns(workload.id)}
        for device in plan.devices:
            for variable, parameter in last.items():
                value = parameter.value(plan.profile.name, device, plan.profile.virtual)
                note("choices", variable, value, device=device, workload=workload.id)
        for choice in others:
            if any(fnmatchcase(workload.id, pattern) for pattern in choice.workloads):
                note("choices", choice.what, choice.value, workload=workload.id)
    if of_files and (limits := _dirty_of_files(plan)):
        note("choices", "dirty pages", limits)
    if any(ENGINES[workload.engine].buffered for workload in plan.suite.workloads):
        note("block_choices", "memory", _memory(plan))
        for device in plan.devices:
            note("block_choices", "dirty pages", _dirty_limits(*plan.profile.dirty_limits(device)), device=device)
            note("block_choices", "discarded before writes", plan.used_bytes(device), device=device)
        note("block_choices", "fio", OF_FIO)
        note("block_choices", "queue settings", OF_QUEUES)
        if plan.model:
            note("block_choices", "write-back", OF_WRITE_BACK)
        for system, threads in _threads(plan).items():
            note("block_choices", "threads", threads, system=system)
    return found


def lab_release(plan: Plan) -> list[str]:
    """The option of the lab's commands: also when the plan is resumed, its guest is the one that it was made for."""
    return ["--release", Path(plan.build).name]


def prepare_lab(plan: Plan) -> None:
    """Build the root file system and the programs for the guest, where not current. Raises ConfigError."""
    if paths.CHECKOUT is None:
        raise NeedsCheckout("where=lab: the lab needs a checkout of userblk; run bin/userblk there")
    argv = [str(paths.CHECKOUT / "lab/make-in-root"), *lab_release(plan), "all"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            process.terminate()  # it undoes its mounts
            raise
    if process.returncode:
        sys.stderr.write(output)
        raise ConfigError(f"where=lab: lab/make-in-root failed (exit code {process.returncode}); see above")


def guest_mib(plan: Plan) -> int:
    """Memory of a guest that runs the plan; 0: the lab's own choice."""
    if plan.suite.engine.lab_mib:
        return plan.suite.engine.lab_mib
    if plan.with_files:  # which no control group limits there
        return (plan.profile.files.memory_bytes >> 20) + (LAB_MODEL_MIB if plan.model else 0)
    return LAB_VIRTUAL_MIB if plan.model else 0


def runner_argv(plan: Plan, directory: Path, sealed: Path | None = None, module: str = "") -> list[str]:
    """
    The runner's command line, which ends with its parent. sealed: the file of a plan of one block, for a guest that
    nothing of this machine reaches. module: another runner.
    """
    module = module or plan.suite.engine.runner
    if not plan.emulated:  # SIGTERM makes it tear down
        return [*WITH_PARENT, sys.executable, "-m", module, str(directory / "plan.json")]
    assert paths.CHECKOUT is not None  # prepare_lab() has said so
    size = max(0 if plan.model else LAB_DISK_BYTES, *(plan.used_bytes(name) for name in plan.devices))
    runs = plan.profile.max_repetitions / plan.profile.repetitions
    expected = estimate(plan).seconds * (1 if sealed else runs)
    limit = (LAB_PATIENCE * expected + LAB_START) * (LAB_BUSY if plan.model else 1)
    lab = [str(paths.CHECKOUT / "lab/run"), *lab_release(plan)]
    lab += ["--share", str(directory), "--timeout", f"{limit:.0f}"]
    lab += ["--clock", "virtual" if plan.model or plan.profile.instructions else "real"]
    if mib := guest_mib(plan):
        lab += ["--memory", str(mib)]
    if sealed:
        lab += ["--seed", str(plan.entries[0].seed), "--sealed", "--given", f"plan.json={sealed}"]
    lab += ["--disk-size", f"{-(-size >> 30)}G", "--", "env", "PYTHONPATH=/userblk/python"]
    words = ["--hand-over", str(PORT)] if sealed else []
    return [*WITH_PARENT, *lab, "python3", "-m", module, *words, "/results/plan.json"]


class RunnerProcess:
    """The runner as a child, in a session of its own so that only we decide when it is interrupted.

    until_eof: it runs elsewhere, where no signal reaches it, and ends when its standard input does.
    """

    def __init__(self, argv: Sequence[str], until_eof: bool = False) -> None:
        self._until_eof = until_eof
        found = os.pathsep.join(filter(None, (str(paths.PYTHON_PATH), os.environ.get("PYTHONPATH"))))
        env = dict(os.environ, PYTHONPATH=found, PYTHONUNBUFFERED="1")
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if until_eof else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,
        )
        self._lines: queue.Queue[tuple[str, str] | None] = queue.Queue()
        self._over = threading.Event()  # end() has waited for it
        self.killed = False  # by end(): what it runs elsewhere may still be there
        assert self._process.stdout and self._process.stderr
        self._threads = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("event", self._process.stdout), ("text", self._process.stderr))
        ]
        self._open = len(self._threads)
        for thread in self._threads:
            thread.start()

    def _read(self, name: str, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put((name, line.rstrip("\n")))
        self._lines.put(None)

    def events(self, tick: float) -> Iterator[Event | None]:
        """
        What the runner says, and None at least every tick seconds. Text that is no event is a note. One thread at a
        time reads; another one may call end() meanwhile.
        """
        while self._open:
            try:
                item = self._lines.get(timeout=tick)
            except queue.Empty:
                if self._over.is_set():
                    return  # a process that it left holds the streams open
                yield None
                continue
            if item is None:
                self._open -= 1
                continue
            yield _event(*item)

    def wait(self) -> int:
        """Its exit code; as shells have it, if a signal ended it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def stop(self, tell: Callable[[str], None]) -> None:
        """The same as end(), for the thread that reads the events: tell also gets the notes that are left."""
        try:
            self.end(tell)
        finally:
            for event in self.events(0.0):  # such as what could not be torn down
                if event and event["event"] == "note":
                    tell(event["text"])

    def end(self, tell: Callable[[str], None]) -> None:
        """
        Have it tear everything down, and wait for that; kill it only if it does not get on. tell: what is waited for,
        and what a killed one leaves. What the runner itself says is left to events().
        """
        try:
            self._end(tell)
        finally:
            for thread in self._threads:
                thread.join(1.0)
            self._over.set()

    def _end(self, tell: Callable[[str], None]) -> None:
        journal = journal_of(self._process.pid)
        if self._until_eof and self._process.stdin:
            self._process.stdin.close()
        elif self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)  # SIGINT has Python say where it was, before the runner listens
        left, since = self._left(journal), time.monotonic()
        told = since
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
                return
            now, before = time.monotonic(), left
            left = self._left(journal)
            if left != before:
                since = now
            if now - since > (STEP_LIMIT if left else STOP_LIMIT):
                break
            if left and now - told > TELL_S:
                tell(f"Still tearing down, {len(left)} things to go: {left[-1]}")
                told = now
        self.killed = True
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._until_eof:
            tell("the connection was closed; the runner there goes on tearing down, and its results are not fetched")
            return
        tell(f"Process {self._process.pid} got no further within {now - since:.0f} s, and was killed.")
        if left:
            where = f"{journal} notes what it left" if journal.exists() else f"{journal.parent} notes what is left"
            tell(f"{where}: {'; '.join(reversed(left))}. userblk resume tears that down first.")

    def _left(self, journal: Path) -> list[str]:
        """What the runner has still to tear down: its own things, or before these come those of earlier ones."""
        found = _noted(journal)
        if not found and recovers(self._process.pid):
            found = [line for other in stale() for line in _noted(other)]
        return found


def _event(name: str, line: str) -> Event:
    """What a line on one of the runner's streams says; text that is no event is a note."""
    with contextlib.suppress(ValueError):
        event = json.loads(line) if name == "event" else None
        if isinstance(event, dict) and "event" in event:
            return event
    return {"event": "note", "time": time.time(), "text": line}


def _noted(journal: Path) -> list[str]:
    """What a runner has noted to tear down."""
    with contextlib.suppress(FileNotFoundError, TeardownError):
        return [in_words(step) for step in noted(journal)[1]]
    return []
