# SPDX-License-Identifier: BSD-3-Clause
"""Generic netlink, by which some of the kernel's drivers are asked: linux/netlink.h, linux/genetlink.h.

Standard library only.
"""

from __future__ import annotations

import os
import socket
import struct

NESTED = 1 << 15  # flag of an attribute that holds others

_NETLINK_GENERIC = 16
_ERROR, _REQUEST, _ACK = 2, 1, 4
_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_HEADER = struct.Struct("=IHHII")
_COMMAND = struct.Struct("=BBH")


def attribute(kind: int, value: bytes) -> bytes:
    """struct nlattr with its value, padded to 4 bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """The values of a row of attributes by kind."""
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) // 4 * 4 :]
    return found


class Family:
    """A socket to a driver. Use as a context manager, or close() it."""

    def __init__(self, name: str, patience: float) -> None:
        """patience: s, for an answer. Raises OSError, also where the kernel has none of this name."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC)
        try:
            self._socket.settimeout(patience)
            self._socket.bind((0, 0))
            self._number, self._asked = _CONTROL, 0
            answer = self.ask(_GET_FAMILY, attribute(_FAMILY_NAME, name.encode() + b"\0"))
            if _FAMILY_ID not in answer:
                raise OSError(f"the kernel does not report the number of {name}")
            (self._number,) = struct.unpack("=H", answer[_FAMILY_ID])
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, command: int, body: bytes) -> dict[int, bytes]:
        """Send a command with its attributes and return those of the answer. Raises OSError with the kernel's errno."""
        message = _COMMAND.pack(command, 1, 0) + body
        self._asked += 1
        header = _HEADER.pack(_HEADER.size + len(message), self._number, _REQUEST | _ACK, self._asked, 0)
        self._socket.send(header + message)
        answer: dict[int, bytes] = {}
        while True:
            data = self._socket.recv(65536)
            while len(data) >= _HEADER.size:
                length, kind, _, asked, _ = _HEADER.unpack_from(data)
                if asked != self._asked:  # what we have not waited for
                    data = data[(length + 3) // 4 * 4 :]
                    continue
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", data, _HEADER.size)
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return answer
                answer = attributes(data[_HEADER.size + _COMMAND.size : length])
                data = data[(length + 3) // 4 * 4 :]
