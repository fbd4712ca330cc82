# SPDX-License-Identifier: BSD-3-Clause
"""The kernel's NBD client over its netlink interface: a disk that waits for its server to come back.

nbd-client gives connections to the kernel once; what it cannot do is hand new ones to a disk whose server has
died, which then would be lost. The kernel can (NBD_CMD_RECONFIGURE): until the dead-connection timeout all
requests wait for a new connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from ..observing.netlink import NESTED, Family, attribute
from .base import BringUpError

PATIENCE = 60.0  # s for an answer of the server or of the kernel

# NBD, fixed newstyle
MAGIC, OPTION_MAGIC = b"NBDMAGIC", b"IHAVEOPT"
FIXED_NEWSTYLE, NO_ZEROES = 1, 2
OPTION_EXPORT_NAME = 1

# linux/nbd-netlink.h
CONNECT, RECONFIGURE = 1, 3
INDEX, SIZE, BLOCK_SIZE, TIMEOUT, SERVER_FLAGS, SOCKETS, DEAD_TIMEOUT = 1, 2, 3, 4, 5, 7, 8
SOCKET_ITEM, SOCKET_FD = 1, 1


def open_export(path: Path) -> tuple[socket.socket, int, int]:
    """A connection that is ready for requests, the size in bytes and NBD's flags. Raises OSError, BringUpError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        hello = _receive(connection, 18)
        if hello[:16] != MAGIC + OPTION_MAGIC or not hello[17] & FIXED_NEWSTYLE:
            raise BringUpError(f"{path}: is not a newstyle NBD server")
        client = FIXED_NEWSTYLE | (NO_ZEROES if hello[17] & NO_ZEROES else 0)
        connection.sendall(struct.pack(">I8sII", client, OPTION_MAGIC, OPTION_EXPORT_NAME, 0))
        size, flags = struct.unpack(">QH", _receive(connection, 10))
        if not client & NO_ZEROES:
            _receive(connection, 124)
        connection.settimeout(None)
        return connection, size, flags
    except BaseException:
        connection.close()
        raise


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise BringUpError("the NBD server hung up during the handshake")
        data += part
    return data


def connections_attribute(connections: Sequence[socket.socket]) -> bytes:
    items = b"".join(
        attribute(SOCKET_ITEM | NESTED, attribute(SOCKET_FD, struct.pack("=I", one.fileno()))) for one in connections
    )
    return attribute(SOCKETS | NESTED, items)


def _family() -> Family:
    try:
        return Family("nbd", PATIENCE)
    except OSError as error:
        raise BringUpError(f"the kernel's nbd driver has no netlink interface: {error.strerror or error}") from None


def attach(path: Path, count: int, block_size: int, timeout_s: int, dead_timeout_s: int) -> str:
    """A disk of count connections to the server at path: /dev/nbdN. Raises BringUpError.

    timeout_s: after which a request is sent again, over another connection if its own is dead; dead_timeout_s: for
    which requests wait for a new connection when there is none.
    """
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            connection, size, flags = open_export(path)
            opened.append(connection)
        numbers = ((SIZE, size), (BLOCK_SIZE, block_size), (TIMEOUT, timeout_s), (SERVER_FLAGS, flags))
        body = b"".join(attribute(kind, struct.pack("=Q", value)) for kind, value in numbers)
        body += attribute(DEAD_TIMEOUT, struct.pack("=Q", dead_timeout_s))
        with _family() as nbd:
            answer = nbd.ask(CONNECT, body + connections_attribute(opened))
        (index,) = struct.unpack("=I", answer[INDEX])
    except (OSError, KeyError, struct.error) as error:
        raise BringUpError(f"{path}: cannot be given to the kernel's nbd driver: {error}") from None
    finally:
        for connection in opened:
            connection.close()  # the kernel has its own reference
    return f"/dev/nbd{index}"


def reconnect(device: str, path: Path, count: int) -> None:
    """Give new connections to a disk whose old ones are dead. Raises BringUpError."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            opened.append(open_export(path)[0])
        index = struct.pack("=I", int(device.removeprefix("/dev/nbd")))
        with _family() as nbd:
            nbd.ask(RECONFIGURE, attribute(INDEX, index) + connections_attribute(opened))
    except OSError as error:
        raise BringUpError(f"{device}: cannot be connected again: {error}") from None
    finally:
        for connection in opened:
            connection.close()
