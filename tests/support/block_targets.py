# SPDX-License-Identifier: BSD-3-Clause
"""Ways to a block device: NBD, system calls on a disk or a file, SCSI commands."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blocks import SECTOR, Batch, Request

ANSWER_LIMIT_MS = 120_000
BLKDISCARD, BLKZEROOUT = 0x1277, 0x127F
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE = 1, 2, 16
SG_IO = 0x2285
SG_DXFER_NONE, SG_DXFER_TO_DEV, SG_DXFER_FROM_DEV = -1, -2, -3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class NbdTarget:
    """libnbd: all of a batch on their way before the first answer, in turn on several connections."""

    def __init__(self, nbd: Any, handles: list[Any]) -> None:
        self.nbd = nbd
        self.handles = handles

    def begin(self) -> None:
        pass

    def _send(self, handle: Any, request: Request) -> tuple[int, Any]:
        nbd = self.nbd
        fua = nbd.CMD_FLAG_FUA if request.fua else 0
        if request.op == "read":
            buffer = nbd.Buffer(request.length)
            return handle.aio_pread(buffer, request.offset), buffer
        if request.op == "write":
            buffer = nbd.Buffer.from_bytearray(bytearray(request.data()))
            return handle.aio_pwrite(buffer, request.offset, flags=fua), buffer
        if request.op == "trim":
            return handle.aio_trim(request.length, request.offset, flags=fua), None
        if request.op == "zero":
            flags = fua | (0 if request.may_trim else nbd.CMD_FLAG_NO_HOLE)
            flags |= nbd.CMD_FLAG_FAST_ZERO if request.fast else 0
            return handle.aio_zero(request.length, request.offset, flags=flags), None
        return handle.aio_flush(), None

    def perform(self, batch: Batch) -> list[bytes]:
        sent = []
        for number, request in enumerate(batch):
            handle = self.handles[number % len(self.handles)]
            try:
                sent.append((handle, *self._send(handle, request), request))
            except self.nbd.Error as error:
                raise OSError(error.errnum or errno.EIO, f"{request}: {error}") from error
        failure: OSError | None = None
        found: list[bytes] = []
        for handle, cookie, buffer, request in sent:
            try:
                while not handle.aio_command_completed(cookie):
                    if handle.poll(ANSWER_LIMIT_MS) == 0:
                        raise OSError(errno.ETIMEDOUT, f"{request}: no answer")
            except self.nbd.Error as error:
                if request.fast and error.errnum in (errno.ENOTSUP, errno.EOPNOTSUPP):
                    found.append(b"")
                    continue
                failure = failure or OSError(error.errnum or errno.EIO, f"{request}: {error}")
            found.append(bytes(buffer.to_bytearray()) if request.op == "read" and not failure else b"")
        if failure:
            raise failure
        return found


class ThreadedTarget:
    """One that has a system call for each request: a thread makes each of a batch."""

    def __init__(self, at_once: int) -> None:
        self.threads = ThreadPoolExecutor(at_once)

    def begin(self) -> None:
        pass

    def one(self, request: Request) -> bytes:
        raise NotImplementedError

    def perform(self, batch: Batch) -> list[bytes]:
        return list(self.threads.map(self.one, batch))


def _allocate(fd: int, mode: int, request: Request) -> None:
    if _libc.fallocate(fd, mode, request.offset, request.length) < 0:
        raise OSError(ctypes.get_errno(), f"fallocate: {os.strerror(ctypes.get_errno())}")


class FileTarget(ThreadedTarget):
    """A file, or a disk past the page cache."""

    def __init__(self, path: str | Path, at_once: int, *, direct: bool, disk: bool) -> None:
        super().__init__(at_once)
        self.disk = disk
        # Linux before 6.12 sends nbd no zeroes, and fallocate() on a disk does not write them itself.
        self.zeroes = disk and int(Path("/sys/block", Path(path).name, "queue/write_zeroes_max_bytes").read_text()) > 0
        self.fd = os.open(path, os.O_RDWR | (os.O_DIRECT if direct else 0))

    def close(self) -> None:
        self.threads.shutdown()
        os.close(self.fd)

    def one(self, request: Request) -> bytes:
        if request.op == "read":
            memory = mmap.mmap(-1, request.length)  # page-aligned
            done = os.preadv(self.fd, [memory], request.offset)
            return memory[:done]
        if request.op == "write":
            memory = mmap.mmap(-1, request.length)
            memory[:] = request.data()
            done = os.pwritev(self.fd, [memory], request.offset, os.RWF_DSYNC if request.fua else 0)
            if done != request.length:
                raise OSError(errno.EIO, f"only {done} bytes written")
        elif request.op == "flush":
            os.fsync(self.fd)
        else:
            self._change(request)
            if request.fua:
                os.fsync(self.fd)  # no system call has it
        return b""

    def _change(self, request: Request) -> None:
        punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        if not self.disk:
            _allocate(self.fd, punch if request.op == "trim" or request.may_trim else FALLOC_FL_ZERO_RANGE, request)
        elif request.op == "zero" and request.may_trim and self.zeroes:
            _allocate(self.fd, punch, request)  # may unmap
        else:
            operation = BLKDISCARD if request.op == "trim" else BLKZEROOUT
            fcntl.ioctl(self.fd, operation, struct.pack("QQ", request.offset, request.length))


class SgTarget(ThreadedTarget):
    """SCSI commands, by SG_IO: the short forms too, where they reach."""

    def __init__(self, path: str, at_once: int) -> None:
        super().__init__(at_once)
        self.fd = os.open(path, os.O_RDWR)

    def close(self) -> None:
        self.threads.shutdown()
        os.close(self.fd)

    def command(self, cdb: bytes, data: bytes = b"", answer: int = 0) -> bytes:
        """Sends data, or gets an answer of so many bytes. Raises OSError with status and sense."""
        memory = mmap.mmap(-1, max(len(data), answer, 1))
        memory[: len(data)] = data
        sense, cdb_memory = ctypes.create_string_buffer(64), ctypes.create_string_buffer(cdb, len(cdb))
        direction = SG_DXFER_TO_DEV if data else SG_DXFER_FROM_DEV if answer else SG_DXFER_NONE
        view = ctypes.c_char.from_buffer(memory)
        header = bytearray(
            struct.pack(
                "iiBBHIPPPIIiPBBBBHHiII4x", ord("S"), direction, len(cdb), 64, 0, len(data) or answer,
                ctypes.addressof(view), ctypes.addressof(cdb_memory), ctypes.addressof(sense), ANSWER_LIMIT_MS, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 0,
            )
        )  # fmt: skip
        fcntl.ioctl(self.fd, SG_IO, header)
        del view
        status, host, driver = header[64], *struct.unpack_from("HH", header, 68)
        if status or host or driver & 0xF:
            raise OSError(errno.EIO, f"status {status}, host {host}, driver {driver}, sense {sense.raw[:18].hex()}")
        return memory[:answer]

    def one(self, request: Request) -> bytes:
        lba, blocks = request.offset // SECTOR, request.length // SECTOR
        short = blocks < 1 << 16 and request.tag % 2
        if request.op == "read":
            return self.command(_cdb(0x28, 0x88, 0, lba, blocks, bool(short)), answer=request.length)
        if request.op == "write":
            self.command(_cdb(0x2A, 0x8A, 0, lba, blocks, bool(short)), request.data())
        elif request.op == "flush":
            self.command(bytes((0x35, *bytes(9))))
        elif request.op == "trim":
            descriptors = struct.pack(">HH4xQI4x", 22, 16, lba, blocks)
            self.command(bytes((0x42, *bytes(6))) + struct.pack(">HB", len(descriptors), 0), descriptors)
        else:
            unmap = 0x08 if request.may_trim else 0
            self.command(_cdb(0x41, 0x93, unmap, lba, blocks, bool(short)), bytes(SECTOR))
        if request.fua:  # which tcmu-runner does not announce
            self.command(bytes((0x35, *bytes(9))))
        return b""


def _cdb(short_code: int, long_code: int, flags: int, lba: int, blocks: int, short: bool) -> bytes:
    if short:
        return struct.pack(">BBIBHB", short_code, flags, lba, 0, blocks, 0)
    return struct.pack(">BBQIBB", long_code, flags, lba, blocks, 0, 0)
