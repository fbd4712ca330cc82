# SPDX-License-Identifier: BSD-3-Clause
"""A campaign on two hosts over a real sshd, started for the test on this machine, with keys of its own."""

from __future__ import annotations

import errno
import getpass
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import whole as userblk
from loops import MIB, loop
from ssh_server import CONFIG, SSHD, await_login, client, reserved_port, write_config
from userblk.harness.machine import paths, prepare, safety
from userblk.harness.machine.teardown import write_setting
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.hosts import Host, Hosts, load_hosts
from userblk.harness.model.plan import Device, Plan, make_plan, write_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.running import campaign
from userblk.harness.running import hosts as hosts_module
from userblk.harness.running.hosts import MultiHostCampaign, create_all, exit_code_of_all, read_hosts

SIZE = 2048 * MIB  # as much as the profile uses


@contextmanager
def sshd(directory: Path) -> Iterator[list[str]]:
    """The ssh command that reaches it."""
    if not SSHD or os.geteuid() != 0:
        pytest.skip("openssh-server is not installed, or this is not root")
    reserved = reserved_port()
    port = reserved.getsockname()[1]
    write_config(directory, port)
    Path("/run/sshd").mkdir(exist_ok=True)
    with (directory / "sshd.log").open("wb") as log:
        # Both hosts are this machine, which has one campaign at a time otherwise.
        beside = f"SetEnv={safety.BESIDE}=1"
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(directory / CONFIG), "-o", beside], stderr=log)
    ssh = client(directory, "-p", str(port))
    try:
        await_login(ssh, "127.0.0.1", lambda: "" if server.poll() is None else (directory / "sshd.log").read_text())
        yield ssh
    finally:
        server.terminate()
        server.wait()
        reserved.close()


def write_hosts(directory: Path, ssh: list[str], devices: dict[str, str]) -> Path:
    """A file of hosts, which are all this machine; devices by id."""
    user = getpass.getuser()
    names = (f"{user}@127.0.0.1", f"{user}@localhost")  # two names of one machine
    addresses = dict(zip(devices, names, strict=False))
    text = 'name = "two"\n' + f"hosts = {json.dumps(list(addresses.values()))}\n"
    text += f'userblk = "{paths.CHECKOUT}"\ndirectory = "{directory}/there"\nssh = {json.dumps(ssh)}\n'
    for name, device in devices.items():
        text += f'["{addresses[name]}"]\nid = "{name}"\nsata = "{device}"\nconfirm = {{ sata = "{SIZE}" }}\n'
    (directory / "two.toml").write_text(text)
    return directory / "two.toml"


@contextmanager
def dirty_limits_of(profile: str) -> Iterator[None]:
    """
    Each campaign sets its dirty limits for a block of runs, and both are on this machine: where the one's block is
    over during a run of the other, that run is invalid, as it should be. Set beforehand, nothing changes.
    """
    wanted = load_profile(profile)
    before = prepare.dirty_limits()
    write_setting(prepare.VM / "dirty_background_bytes", str(wanted.dirty_background_bytes))
    write_setting(prepare.VM / "dirty_bytes", str(wanted.dirty_bytes))
    try:
        yield
    finally:
        for name, value in before.items():
            if value:
                write_setting(prepare.VM / name, str(value))


def test_two_hosts_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "ssh").mkdir()
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    with (
        sshd(tmp_path / "ssh") as ssh,
        loop(tmp_path / "a", SIZE) as first,
        loop(tmp_path / "b", SIZE) as second,
        dirty_limits_of("quick"),
    ):
        text = write_hosts(tmp_path, ssh, {"red": first, "blue": second})
        options = ["--hosts", str(text), "--systems", "native", "--workloads", "seq-write-1th-128k", "--reps", "2"]
        done = userblk("run", *options, "--seed", "5", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        (directory,) = (tmp_path / "results").iterdir()
        found = sorted(directory.glob("*/*/*/*/*/*/summary.json"))
        summaries = [json.loads(path.read_text()) for path in found]
        assert [(one["host"], one["repetition"]) for one in summaries] == [
            ("blue", 1), ("blue", 2), ("red", 1), ("red", 2),
        ]  # fmt: skip
        assert all(one["valid"] for one in summaries)
        assert len({one["seed"] for one in summaries}) == 4  # each host has an order and seeds of its own
        for name in ("red", "blue"):
            assert (directory / "hosts" / name / "events.jsonl").exists()
            assert f"host {name}" in done.stdout  # a table for each, with its own native
        # A run that was lost is made again, on its host only.
        (tmp_path / "there" / directory.name / "blue" / found[0].relative_to(directory).parent / "DONE").unlink()
        events = userblk("resume", str(directory), "--json", cwd=tmp_path)
        assert events.returncode == 0, events.stderr
        ran = [json.loads(line) for line in events.stdout.splitlines()]
        assert [one["host"] for one in ran if one["event"] == "entry-done"] == ["blue"]
        assert {one["skipped"] for one in ran if one["event"] == "start"} == {1, 2}


def test_a_fetch_that_breaks_off_leaves_no_half_of_a_run_as_done(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for run, done in (("red/first", there), ("red/first", here), ("red/second", there), ("red/second", here)):
        (done / run).mkdir(parents=True)
        (done / run / "DONE").touch()
        (done / run / "summary.json").write_bytes(os.urandom(1 << 20))
    packed = tmp_path / "packed"
    with tarfile.open(packed, "w") as tar:
        for name in ("red/first", "red/second"):
            tar.add(there / name, name)
    os.truncate(packed, packed.stat().st_size * 3 // 4)
    host = Host(id="red", address="red", devices={}, confirm={})
    hosts = Hosts(name="two", userblk="/", directory="/", ssh=["sh", "-c", f"cat {packed}"], hosts=[host])
    with pytest.raises((ConfigError, tarfile.TarError)):
        MultiHostCampaign(hosts, here, lambda name, event: None)._fetch(host, "there")
    assert not (here / "red/second/DONE").exists()
    # The other is there as a whole; it counts again when all has come.
    assert (here / "red/first/summary.json").read_bytes() == (there / "red/first/summary.json").read_bytes()


def test_a_fetched_run_is_kept_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there/red/run").mkdir(parents=True)
    for name in ("DONE", "summary.json"):
        (tmp_path / "there/red/run" / name).write_text("{}")
    ssh = ["sh", "-c", f"tar -C '{tmp_path}/there' -cf - ."]
    host = Host(id="red", address="red", devices={}, confirm={})
    hosts = Hosts(name="two", userblk="/", directory="/", ssh=ssh, hosts=[host])
    done = tmp_path / "here/red/run/DONE"
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, done.exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    MultiHostCampaign(hosts, tmp_path / "here", lambda name, event: None)._fetch(host, "there")
    assert ("summary.json", False) in synced and ("run", True) in synced


def a_plan(host: str) -> Plan:
    return make_plan(
        suite=load_suite("bdus-block"), profile=load_profile("quick"), systems=[load_system("native")],
        devices=[Device("sata", "/dev/none", "1")], campaign="c", build="b", host=host, repetitions=1,
    )  # fmt: skip


def test_a_campaign_is_one_of_several_hosts_as_soon_as_it_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill before left one that resume took for a campaign of this machine, with its disks of these names."""
    hosts = load_hosts(str(write_hosts(tmp_path, [], {"red": "/dev/x", "blue": "/dev/x"})))
    there: list[list[str]] = []

    def write(plan: Plan, directory: Path) -> Path:
        there.append(sorted(str(path.relative_to(directory)) for path in directory.rglob("*.json")))
        return write_plan(plan, directory)

    monkeypatch.setattr(campaign, "write_plan", write)
    create_all(hosts, [a_plan("red"), a_plan("blue")], tmp_path / "results", ["userblk"])
    assert there == [["campaign.json", "hosts.json", "hosts/blue/plan.json", "hosts/red/plan.json"]]
    assert hosts == read_hosts(tmp_path / "results/c")


def test_a_campaign_of_several_hosts_that_cannot_be_kept_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: Plan, directory: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(hosts_module, "write_plan", fail)
    hosts = load_hosts(str(write_hosts(tmp_path, [], {"red": "/dev/x"})))
    with pytest.raises(ConfigError, match="No space left on device; name a directory with room"):
        create_all(hosts, [a_plan("red")], tmp_path / "results", ["userblk"])
    assert not list((tmp_path / "results").iterdir())


def test_a_host_that_is_gone_is_noticed(tmp_path: Path) -> None:
    """ssh itself waits for hours."""
    assert "ServerAliveInterval=15" in load_hosts(str(write_hosts(tmp_path, [], {"red": "/dev/x"}))).ssh


def test_a_host_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    text = write_hosts(tmp_path, [sys.executable, "-c", "import sys; sys.exit(255)"], {"red": "/dev/x"})
    done = userblk("plan", "--hosts", str(text), cwd=tmp_path)
    assert done.returncode == 2 and "@127.0.0.1: cannot be reached" in done.stderr


@pytest.mark.parametrize(
    "words", [("--sata", "/dev/y"), ("--nvme", "/dev/y"), ("--devices", "sata"), ("--confirm", "1"), ("--where", "lab")]
)
def test_hosts_name_the_devices(words: tuple[str, str], tmp_path: Path) -> None:
    text = write_hosts(tmp_path, ["ssh"], {"red": "/dev/x"})
    done = userblk("run", "--hosts", str(text), *words, cwd=tmp_path)
    others = "--sata, --nvme, --devices, --confirm and --where"
    assert done.stderr == f"userblk: hosts={text}: it names the devices; leave {others} out\n"
    assert done.returncode == 2 and list(tmp_path.iterdir()) == [text]


def test_hosts_have_no_virtual_time(tmp_path: Path) -> None:
    text = write_hosts(tmp_path, ["ssh"], {"red": "/dev/x"})
    done = userblk("run", "--hosts", str(text), "--clock", "virtual", cwd=tmp_path)
    assert done.stderr == "userblk: clock=virtual: only the lab's guest has it; leave --clock out\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("codes", "together"),
    [
        ((0, 0), 0),
        ((3, 3), 3),
        ((2, 2), 2),
        ((1, 1), 1),
        ((0, 1), 3),
        ((0, 2), 3),
        ((3, 1), 3),
        ((1, 2), 1),
        ((130, 0), 130),
    ],
)
def test_the_exit_code_of_several_hosts(codes: tuple[int, ...], together: int) -> None:
    """3 if a part is valid: hosts that all had some invalid runs, or one that had nothing else, are not all invalid."""
    assert exit_code_of_all(codes) == together


def test_a_file_of_hosts_is_there() -> None:
    assert userblk("plan", "--hosts", "nosuch").returncode == 2
