# SPDX-License-Identifier: BSD-3-Clause
"""Machines that run a campaign side by side, from configs/hosts/*.toml or a file of the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .tables import ConfigError, Table, read, read_file

SSH = ["ssh", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]  # a host that is gone is, after a minute


@dataclass(frozen=True)
class Host:
    """One machine of a campaign on several. address: for ssh; id: in the results; confirm: per device."""

    id: str
    address: str
    devices: Mapping[str, str]
    confirm: Mapping[str, str]


@dataclass(frozen=True)
class Hosts:
    """Machines that run a campaign side by side. userblk: the checkout, or the prefix it is installed below, on each.

    directory: where each keeps its part of campaigns until it is fetched. ssh: the command and its options.
    """

    name: str
    userblk: str
    directory: str
    ssh: Sequence[str]
    hosts: Sequence[Host]


def _path(table: Table, key: str) -> str:
    """No shell of a host's expands it. Raises ConfigError."""
    path = table.text(key)
    if not path.startswith("/"):
        raise table.error(key, path, "must begin with /, as a path on each host")
    return path


def load_hosts(name: str) -> Hosts:
    """Load configs/hosts/NAME.toml, or the user's own file, which has a / or .toml in its name."""
    own = "/" in name or name.endswith(".toml")
    table = read_file(Path(name).absolute(), Path(name).stem) if own else read("hosts", name)
    found = []
    for address in table.texts("hosts"):
        part = table.table(address, optional=False)
        devices = {key: part.text(key) for key in ("sata", "nvme") if key in part.values}
        if not devices:
            raise ConfigError(f"{table.file}: {address}: names no device; add sata = or nvme =")
        confirm = part.table("confirm")
        host = Host(
            id=part.text("id") if "id" in part.values else re.sub(r"[^a-z0-9.-]", "-", address.split("@")[-1].lower()),
            address=address,
            devices=devices,
            confirm={key: confirm.text(key) for key in devices},
        )
        confirm.end(tuple(devices))
        part.end(("id", "sata", "nvme", "confirm"))
        found.append(host)
    if len({host.id for host in found}) < len(found):
        raise ConfigError(f"{table.file}: hosts: two have the same id; give them different ones with id =")
    hosts = Hosts(
        name=table.file,
        userblk=_path(table, "userblk"),
        directory=_path(table, "directory") if "directory" in table.values else "/var/lib/userblk",
        ssh=table.texts("ssh", optional=True) or SSH,
        hosts=found,
    )
    table.end(("name", "userblk", "directory", "ssh", "hosts"))
    return hosts
