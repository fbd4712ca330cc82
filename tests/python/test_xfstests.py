# SPDX-License-Identifier: BSD-3-Clause
"""tests/differential/xfstests.py with a made-up xfstests: what it runs, keeps and compares."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fuse_mount import lacking_for_fuse
from loops import TURN
from nbdkit_server import ROOT
from waiting import wait_until

PROGRAM = ROOT / "tests/differential/xfstests.py"

# 1 passes, unless a device has a name that is a part of others; 2 fails through FUSE; 3 fails everywhere; 4 cannot run.
CHECK = """#!/bin/sh
id -u fsgqa >/dev/null || exit 1
udevadm wait /dev/mapper/none || exit 1
mount -t $FSTYP$FUSE_SUBTYP $MOUNT_OPTIONS $TEST_DEV $TEST_DIR || exit 1
test "$(df -TP $TEST_DIR | awk 'END {print $2}')" = $FSTYP || exit 1
umount $TEST_DIR
for test in "$@"; do
    echo "$test on $FSTYP" >>ran
    printf "$test "
    case $test in
    generic/001) test "$(echo ls_on_scratch test | sed "s,$SCRATCH_DEV,,;s,$TEST_DEV,,")" = "ls_on_scratch test" ;;
    generic/002) test $FSTYP != fuse ;;
    generic/003) false ;;
    generic/004) echo "[not run] no reflink"; continue ;;
    esac && echo "  7s ...  8s" || printf "[failed, exit status 1]- output mismatch (see 1.out.bad)\\n    1s\\n"
done
echo "Ran: $*"
"""


def run(xfstests: Path, record: Path) -> tuple[int, list[str]]:
    """With a `udevadm` that fails, as the real one without a udevd never ends."""
    programs = xfstests.parent / "programs"
    programs.mkdir(exist_ok=True)
    udevadm = programs / "udevadm"
    udevadm.write_text("#!/bin/sh\n[ -e /run/udev/control ]\n")
    udevadm.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    argv = [
        sys.executable,
        str(PROGRAM),
        f"--xfstests={xfstests}",
        f"--record={record}",
    ]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=600, env=os.environ | {"PATH": path}
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_what_native_passes_and_fuse_fails(tmp_path: Path) -> None:
    if lacking := lacking_for_fuse():
        pytest.skip(f"installation: {lacking}")
    xfstests, record = tmp_path / "xfstests", tmp_path / "record"
    (xfstests / "tests/generic").mkdir(parents=True)
    (xfstests / "tests/generic/group.list").write_text(
        "# made up\n001 auto quick\n002 quick rw\n003 quick\n004 quick\n005 auto\n"
    )
    (xfstests / "check").write_text(CHECK)
    (xfstests / "check").chmod(0o755)
    users = Path("/etc/passwd").read_text()
    status, lines = run(xfstests, record)
    assert (status, lines[-3:]) == (
        1,
        [
            "native: 1 failed, 1 passed",
            "fuse: 2 failed, 1 not run, 1 passed",
            "fuse: generic/002 fails, and not natively",
        ],
    )
    assert json.loads((record / "ext4.json").read_text())["fuse"]["generic/004"] == "not run: no reflink"
    ran = (xfstests / "ran").read_text().splitlines()
    assert ran == [f"generic/00{at} on fuse" for at in (1, 2, 3, 4)] + ["generic/002 on ext4", "generic/003 on ext4"]
    assert run(xfstests, record) == (status, lines[-3:])  # nothing is run again
    assert (xfstests / "ran").read_text().splitlines() == ran
    assert Path("/etc/passwd").read_text() == users


def load() -> Any:
    spec = importlib.util.spec_from_file_location("xfstests", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up_check(directory: Path, script: str) -> None:
    program = directory / "check"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)


def test_a_test_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a session of its own, as xfstests gives it, and keeps the output open. The next one has not been run."""
    xfstests = load()
    monkeypatch.setattr(xfstests, "TEST_LIMIT_S", 3.0)
    pid = tmp_path / "pid"
    made_up_check(
        tmp_path,
        f"""echo 'generic/001  1s ...  1s'
printf 'generic/002  9s'
setsid --wait sh -c 'echo $$ >{pid}; exec sleep 1000'
""",
    )
    tests = [f"generic/00{at}" for at in (1, 2, 3)]
    assert list(xfstests.check(tmp_path, tests, {}, tmp_path)) == [
        ("generic/001", "passed"),
        ("generic/002", "failed"),
    ]
    assert "ended after 3 s" in (tmp_path / "generic-001.txt").read_text()
    wait_until("it is gone", lambda: not Path("/proc", pid.read_text().strip()).exists(), 60)


def test_a_result_is_told_when_the_next_test_starts(tmp_path: Path) -> None:
    xfstests = load()
    made_up_check(
        tmp_path, "printf 'generic/001  1s\\ngeneric/002 '\nwhile [ ! -e told ]; do sleep 0.1; done\necho ' 2s'\n"
    )
    found = xfstests.check(tmp_path, ["generic/001", "generic/002"], {}, tmp_path)
    assert next(found) == ("generic/001", "passed")
    (tmp_path / "told").touch()
    assert list(found) == [("generic/002", "passed")]


def test_a_check_that_runs_nothing_has_failed_its_first_test(tmp_path: Path) -> None:
    xfstests = load()
    made_up_check(tmp_path, "echo 'check: failed to mount'\nexit 1\n")
    assert list(xfstests.check(tmp_path, ["generic/001", "generic/002"], {}, tmp_path)) == [("generic/001", "failed")]


def test_others_have_their_turn_between_two_tests(tmp_path: Path) -> None:
    if lacking := lacking_for_fuse():
        pytest.skip(f"installation: {lacking}")
    xfstests = load()
    with xfstests.on_disks(tmp_path, "ext4"):
        # Somebody else may have it, for as long as a campaign or a test of xfstests takes.
        subprocess.run(["flock", "--timeout", "600", str(TURN), "true"], check=True, timeout=660)


@pytest.mark.parametrize(
    ("system", "found", "native", "status"),
    [
        ("fuse", "failed", "failed", 0),
        ("fuse", "failed", "passed", 1),
        ("fuse", "failed", "not run: no reflink", 1),
        ("fuse", "failed", None, 1),
        ("fuse", "not run: no reflink", None, 0),
        ("tcmu", "not run: no reflink", "not run: no fiemap", 0),
        ("tcmu", "not run: no reflink", "passed", 1),
        ("tcmu", "not run: no reflink", None, 1),
    ],
)
def test_what_must_be_as_native(system: str, found: str, native: str | None, status: int) -> None:
    """A comparison that was not made is none that passed."""
    record = {"native": {"generic/001": native} if native else {}, system: {"generic/001": found}}
    assert load().verdict(record, [system]) == status
