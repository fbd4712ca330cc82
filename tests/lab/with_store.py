#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""with_store.py [OPTION of lab/run...] -- COMMAND [ARG...]: run a command in the lab's guest, with a store on the host.

The command finds the store at $LAB_STORE (host:port), the same through a proxy at $LAB_PROXY, and at $LAB_ORDERS who
takes the proxy away: see Orders.
"""

from __future__ import annotations

import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fault_proxy import FaultProxy, Rule, refused
from servers import BUCKET, Versitygw, started
from userblk.lab.guest import HOST

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def refusal(proxy: FaultProxy) -> Iterator[None]:
    proxy.add(Rule(refused(403, "AccessDenied"), method="PUT"))
    try:
        yield
    finally:
        proxy.clear()


class Orders(socketserver.ThreadingTCPServer):
    """
    Takes a line from each client: outage SECONDS (connections break, new ones are refused), silence SECONDS
    (nothing is answered) or refusal SECONDS (nothing is stored: access denied). Tells it "begun" and "over".
    """

    daemon_threads = True

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(("127.0.0.1", 0), Order)
        self.proxy = proxy
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Order(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Orders)
        what, seconds = self.rfile.readline().decode().split()
        proxy = self.server.proxy
        with refusal(proxy) if what == "refusal" else proxy.outage(silent={"outage": False, "silence": True}[what]):
            self.wfile.write(b"begun\n")
            time.sleep(float(seconds))
        self.wfile.write(b"over\n")


def end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    if "--" not in arguments:
        print("with_store.py: no command; write [OPTION of lab/run...] -- COMMAND [ARG...]", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    split = arguments.index("--")
    with started(Versitygw) as store:
        proxy = FaultProxy(store.address, BUCKET)
        with Orders(proxy) as orders:
            ports = {"STORE": store.address[1], "PROXY": proxy.address[1], "ORDERS": orders.server_address[1]}
            found = [f"LAB_{name}={HOST}:{port}" for name, port in ports.items()]
            argv = [str(ROOT / "lab/run"), "--network", *arguments[:split], "--", "env", *found]
            try:
                return subprocess.run([*argv, *arguments[split + 1 :]], check=False).returncode
            finally:
                orders.shutdown()
                proxy.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
