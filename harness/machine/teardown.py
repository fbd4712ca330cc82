# SPDX-License-Identifier: BSD-3-Clause
"""What was brought up, as a stack of undo steps that outlives this process.

Every step is a name and arguments, kept in a journal below /run: the same functions tear down after a
run and, should the runner have been killed with SIGKILL, when the next one starts. Most of what they undo goes with
the machine when that is started again, and its names may then be somebody else's: journals tell of which boot they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .durable import replace
from .interrupt import held

RUN = Path("/run/userblk")
RECOVERING = "recovering"  # there: open in those that tear down what others left
PATIENCE = 60.0  # s that one step may take to show its effect


class TeardownError(Exception):
    """Something is still there; one line a thing."""


UNDO: dict[str, Callable[..., None]] = {}
LASTING: set[str] = set()  # steps whose things are still there once the machine was started again

Step = tuple[str, dict[str, str | int]]


def undo(function: Callable[..., None]) -> Callable[..., None]:
    """Register an undo step. It succeeds when there is nothing to undo; TeardownError: something stays."""
    UNDO[function.__name__] = function
    return function


def lasting(function: Callable[..., None]) -> Callable[..., None]:
    """The same of what a restart of the machine leaves, such as files."""
    LASTING.add(function.__name__)
    return undo(function)


def boot_id() -> str:
    """Another one each time that the machine is started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def holds_within(seconds: float, condition: Callable[[], bool], interval: float = 0.02) -> bool:
    """Poll condition until it holds, at most so long. What it raises ends it, too."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(interval)
    return True


def await_true(what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Poll condition; TeardownError naming what if it stays false."""
    if not holds_within(patience, condition):
        raise TeardownError(f"{what} after {patience:.0f} s")


def start_time(pid: int) -> int:
    """The process's start in clock ticks since boot, 0 if there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def has_threads(pid: int) -> bool:
    """Has a process threads left that hold its files? Its first one may have ended before, which start_time() is of."""
    try:
        return any(int(thread.name) != pid for thread in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False


def group_lives(group: int) -> bool:
    """Has a process group a member that is no zombie, for which nobody may ever wait?"""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended since
            state, _, found, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(found) == group and state not in "ZX":
                return True
    return False


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """What is written below RUN inside. Raises TeardownError if it cannot be, as where that is full."""
    try:
        yield
    except OSError as error:
        raise TeardownError(f"{RUN}: {error.strerror}; make room there, or correct that") from None


def _need_run() -> None:
    """Raises TeardownError if nothing can be kept below RUN."""
    with kept(), contextlib.suppress(PermissionError):
        RUN.mkdir(exist_ok=True)
        RUN.chmod(0o755)  # whatever the umask: servers of other users have files below
    if not os.access(RUN, os.W_OK):
        raise TeardownError(f"{RUN}: cannot be written; run as root")


def journal_of(pid: int) -> Path:
    return RUN / f"journal-{pid}-{start_time(pid)}.json"


def stale() -> Iterator[Path]:
    """The journals of runners that no longer live."""
    for journal in sorted(RUN.glob("journal-*.json")):
        _, pid, started = journal.stem.split("-")
        if start_time(int(pid)) != int(started):
            yield journal


def recovers(pid: int) -> bool:
    """Is a process in recover(), or does it wait there for another one?"""
    lock = RUN / RECOVERING
    with contextlib.suppress(OSError):  # ended
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed since
                if fd.samefile(lock):
                    return True
    return False


def noted(journal: Path) -> tuple[str, list[Step]]:
    """The boot that a journal is of, "" if an older version wrote it, and its steps. Raises TeardownError,
    FileNotFoundError.
    """
    try:
        found = json.loads(journal.read_text())
        boot, steps = (found["boot"], found["steps"]) if isinstance(found, dict) else ("", found)
        return str(boot), [(str(name), dict(arguments)) for name, arguments in steps]
    except FileNotFoundError:
        raise  # its runner has just ended, and left nothing
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TeardownError(
            f"{journal}: cannot be read: {error}; start the machine again, which undoes all but files, and remove it"
        ) from None


def in_words(step: Step) -> str:
    name, arguments = step
    return f"{name} {' '.join(map(str, arguments.values()))}"


class Teardown:
    """A stack of undo steps with a journal of its own."""

    def __init__(self) -> None:
        _need_run()
        self.journal = journal_of(os.getpid())
        self.boot = boot_id()
        self.steps: list[Step] = []

    def push(self, step: str, /, **arguments: str | int) -> None:
        """Note how to undo what comes next (or, inside held(), what was just done)."""
        assert step in UNDO
        with held():
            self.steps.append((step, arguments))
            self._save()

    def new_directory(self, prefix: str, place: Path, step: str = "remove_tree") -> Path:
        """One that the step removes."""
        with held():  # else one might stay of which nothing is noted
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            self.push(step, path=str(path))
        return path

    def push_below(self, device: str, step: str, /, **arguments: str | int) -> None:
        """The same, to be undone once the device is gone, whose removal is noted already; nothing if that is not."""
        assert step in UNDO
        with held():
            for at, (_, noted) in enumerate(self.steps):
                if noted.get("device") == device:
                    self.steps.insert(at, (step, arguments))
                    self._save()
                    return

    def replace(self, noted: str, step: str, /, **arguments: str | int) -> None:
        """In the place of the last step of that name, which knew less."""
        assert step in UNDO
        with held():
            at = max(at for at, (name, _) in enumerate(self.steps) if name == noted)
            self.steps[at] = (step, arguments)
            self._save()

    def mark(self) -> int:
        return len(self.steps)

    def unwind(self, mark: int = 0) -> None:
        """Undo everything since mark, in reverse. All steps are tried; TeardownError says what failed.

        What failed stays noted: the next teardown, or the next campaign, tries it again. So does what was undone, if
        the journal cannot be kept.
        """
        errors = []
        unkept = ""
        with held():
            for at in reversed(range(mark, len(self.steps))):
                name, arguments = self.steps[at]
                try:
                    if name not in UNDO:
                        raise TeardownError("noted by another version of userblk; run that, or undo it by hand")
                    UNDO[name](**arguments)
                except Exception as error:  # the other steps must still be taken
                    errors.append(f"{in_words(self.steps[at])}: {error}")
                    continue
                del self.steps[at]
                try:
                    self._save()
                    unkept = ""
                except TeardownError as error:
                    unkept = str(error)
        errors += [unkept] if unkept else []
        if errors:
            raise TeardownError("; ".join(errors))

    def _save(self) -> None:
        """Raises TeardownError."""
        with kept():
            if not self.steps:
                self.journal.unlink(missing_ok=True)
                return
            replace(self.journal, json.dumps({"boot": self.boot, "steps": self.steps}))


def recover() -> list[str]:
    """Tear down what runners that no longer live left behind; a line for each of them. Raises TeardownError."""
    done, errors = [], []
    with _alone():
        for journal in stale():
            pid = journal.stem.split("-")[1]
            teardown = Teardown()
            teardown.journal = journal
            try:
                boot, steps = noted(journal)
            except FileNotFoundError:
                continue
            except TeardownError as error:
                errors.append(str(error))
                continue
            if earlier := boot not in ("", teardown.boot):
                steps = [step for step in steps if step[0] in LASTING or step[0] not in UNDO]
            teardown.steps = steps
            count = len(steps)
            try:
                teardown.unwind()
                journal.unlink(missing_ok=True)
            except TeardownError as error:
                errors.append(f"{error}; fix that, or remove {journal}")
                continue
            done.append(
                f"tore down {count} things that runner {pid} had left"
                + " before the machine was started again" * earlier
            )
    if errors:
        raise TeardownError("; ".join(errors))
    return done


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Two runners that start at the same time must not tear down the same things."""
    _need_run()
    with contextlib.ExitStack() as stack:
        with kept():
            file = stack.enter_context((RUN / RECOVERING).open("w"))
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- steps that several systems need --------------------------------------------


@undo
def end_process(pid: int, started: int, name: str) -> None:
    """SIGTERM, then SIGKILL, also to the others of the process group that it leads; the holder of its Popen reaps a
    child. started: 0 if it had ended already.
    """
    if not started or start_time(pid) != started:
        return
    with contextlib.suppress(ProcessLookupError):  # ended since
        leads = os.getpgid(pid) == pid
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, PATIENCE)):
            (os.killpg if leads else os.kill)(pid, number)
            if holds_within(patience, lambda: start_time(pid) != started and not (leads and group_lives(pid))):
                return
        raise TeardownError(f"{name} (pid {pid}) does not end")


def made_as(directory: Path) -> int:
    """
    A number that only this directory of sysfs has: one that comes to have its name later, as the next disk of a number
    does, has another. 0: there is none.
    """
    try:
        return directory.stat().st_ino
    except OSError:
        return 0


def read_setting(path: Path) -> str:
    """A sysfs or sysctl value; of a choice such as "none [mq-deadline]" the chosen one."""
    text = path.read_text().strip()
    if "[" in text and "]" in text:
        return text[text.index("[") + 1 : text.index("]")]
    return text


def write_setting(path: Path, value: str) -> None:
    """Write a value and read it back. Raises OSError, also when it did not take."""
    path.write_text(value)
    if (found := read_setting(path)) != value:
        raise OSError(0, f"{path}: is {found} after writing {value}")


@undo
def restore_setting(path: str, value: str) -> None:
    if Path(path).exists():
        write_setting(Path(path), value)


def settings_put_back() -> dict[str, str]:
    """
    What runners have noted to put back, each in the place of what the machine had: value by path. The steps are those
    of any version. Raises TeardownError.
    """
    found: dict[str, str] = {}
    for journal in RUN.glob("journal-*.json"):
        with contextlib.suppress(FileNotFoundError):  # ended since
            boot, steps = noted(journal)
            for _, arguments in steps:
                if {"path", "value"} <= arguments.keys() and boot in ("", boot_id()):
                    found[str(arguments["path"])] = str(arguments["value"])
    return found


@lasting
def remove_tree(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        raise TeardownError("cannot be removed")


@functools.cache
def built_in() -> frozenset[str]:
    """Modules that are a part of the kernel, of which /sys/module has only some."""
    try:
        text = Path("/lib/modules", os.uname().release, "modules.builtin").read_text()
    except OSError:
        return frozenset()
    return frozenset(Path(line).stem.replace("-", "_") for line in text.splitlines())


def module_loaded(name: str) -> bool:
    return Path("/sys/module", name).is_dir() or name in built_in()


@undo
def remove_module(name: str) -> None:
    """And what was loaded on top of it since, such as LIO's own backstores; not if others came to use it."""

    def in_use() -> bool:
        return int(Path("/sys/module", name, "refcnt").read_text()) > 0

    def gone() -> bool:
        holders = Path("/sys/module", name, "holders")
        names = [path.name for path in holders.iterdir()] if holders.is_dir() else []
        if module_loaded(name):
            subprocess.run(["modprobe", "-r", *names, name], capture_output=True, timeout=PATIENCE, check=False)
        return not module_loaded(name)

    try:
        await_true("the module is still loaded", gone, 5.0)
    except TeardownError:
        if not in_use():
            raise
