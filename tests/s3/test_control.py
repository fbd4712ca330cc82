# SPDX-License-Identifier: BSD-3-Clause
"""The control socket of a server: its owner, its answers while the volume is busy, its end."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from device import ServeS3
from fault_proxy import FaultProxy, Rule, refused
from nbdkit_server import PRELOAD, STOP_TIMEOUT_S, Handle, Nbdkit, nbd, plugin_path
from stamps import BLOCK, number_of, stamped
from tool import PROGRAM, Tool, ask, config_file
from waiting import wait_until

RUN = 13
BLOCKS = 512
MIB = 1 << 20


@pytest.fixture
def control(tmp_path: Path) -> Path:
    return tmp_path / "control"


@pytest.fixture
def tool(serve_s3: ServeS3) -> Tool:
    return Tool(serve_s3)


@contextmanager
def load(handle: Handle) -> Iterator[dict[int, int]]:
    """Writes and flushes all the time; yields the newest flushed number of each block."""
    flushed: dict[int, int] = {}
    stop = threading.Event()
    failed: list[BaseException] = []

    def body() -> None:
        rng, number = random.Random(1), 0
        try:
            while not stop.is_set():
                number += 1
                block = rng.randrange(BLOCKS)
                handle.pwrite(stamped(RUN, block, number), block * BLOCK)
                if number % 4 == 0:
                    handle.flush()
                flushed[block] = number
            handle.flush()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield flushed
    finally:
        stop.set()
        thread.join()
    assert not failed


@pytest.fixture
def public_control() -> Iterator[Path]:
    """In a directory that everybody can reach."""
    with tempfile.TemporaryDirectory(prefix="userblk-s3-", dir="/dev/shm") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory) / "control"


def test_the_socket_is_the_users_own_and_goes_with_the_server(
    serve_s3: ServeS3, tool: Tool, public_control: Path
) -> None:
    server = serve_s3("v", control=str(public_control))
    assert public_control.stat().st_mode & 0o777 == 0o600
    assert tool("info", control=str(public_control))["readonly"] is False
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c"]
    connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    result = subprocess.run(
        [*nobody, connect, str(public_control)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "PermissionError" in result.stderr
    server.stop()
    assert not public_control.exists()


def test_counters_before_and_after_the_first_request(serve_s3: ServeS3, tool: Tool, control: Path) -> None:
    server = serve_s3("v", control=str(control))
    stats = tool("stats", control=str(control))
    assert stats["device_write_requests"] == 0 and stats["store_put_requests"] > 0
    handle = server.connect()
    for block in range(8):
        handle.pwrite(stamped(RUN, block, 1), block * BLOCK)
    handle.flush()
    for block in range(4):
        handle.pread(BLOCK, block * BLOCK)
    handle.pwrite(stamped(RUN, 0, 2), 0)  # acknowledged, and in memory only
    stats = tool("stats", control=str(control))
    assert (stats["device_write_requests"], stats["device_write_bytes"]) == (9, 9 * BLOCK)
    assert (stats["device_read_requests"], stats["device_flush_requests"]) == (4, 1)
    assert stats["device_flush_max_us"] >= stats["device_flush_p99_us"] >= stats["device_flush_p50_us"] > 0
    assert stats["lag_objects"] in (0, 1) and stats["lag_bytes"] == stats["lag_objects"] * BLOCK
    assert stats["log_objects"] >= 1 and stats["map_bytes"] > 0 and stats["live_bytes"] == 8 * BLOCK
    puts, gets = stats["store_put_requests"] + stats["store_list_requests"], stats["store_get_requests"]
    cost = (puts * 0.005 + (gets + stats["store_head_requests"]) * 0.0004) / 1000
    retries = sum(stats[f"store_{kind}_retries"] for kind in ("put", "list", "get", "head"))
    assert retries == 0 and stats["request_cost"] == pytest.approx(cost, abs=2e-6)
    dear = tool("stats", "--price-put=1000", "--price-get=0", control=str(control))
    assert dear["request_cost"] >= puts

    lines = tool.run("stats", "--prometheus", control=str(control)).stdout.splitlines()
    assert 'userblk_s3_device_write_requests{volume="v"} 9' in lines
    assert all(line.startswith("userblk_s3_") and float(line.rsplit(" ", 1)[1]) >= 0 for line in lines)
    table = tool.run("stats", control=str(control)).stdout
    assert any(line.split()[:2] == ["device_write", "9"] for line in table.splitlines())


def test_everything_answers_under_load(serve_s3: ServeS3, tool: Tool, control: Path) -> None:
    server = serve_s3("v", control=str(control), gc_delay="0", batch_size="1M")
    handle = server.connect()
    with load(handle) as written:
        for _ in range(3):
            before = tool("stats", control=str(control))
            assert tool("info", control=str(control))["volume"] == "v"
            checked = tool("check", control=str(control))
            assert checked["damages"] == []

            def answered(before: int = before["device_write_requests"]) -> bool:
                return int(tool("stats", control=str(control))["device_write_requests"]) != before

            wait_until("a write is answered", answered)
            assert not tool("stats", control=str(control))["failed"]
    for block, number in written.items():
        assert number_of(bytes(handle.pread(BLOCK, block * BLOCK)), RUN, block) == number
    server.stop()


def test_check_by_the_server_finds_damage(serve_s3: ServeS3, tool: Tool, control: Path) -> None:
    server = serve_s3("v", control=str(control))
    handle = server.connect()
    handle.pwrite(stamped(RUN, 5, 1), 5 * BLOCK)
    handle.flush()
    key = next(key for key, size in serve_s3.objects("v", "log/").items() if size > 4096)
    serve_s3.store.client().delete_object(Bucket="userblk-test", Key=f"{serve_s3.prefix}/v/{key}")
    result = tool("check", control=str(control), expect=1)
    assert [(d["offset"], d["length"]) for d in result["damages"]] == [(5 * BLOCK, BLOCK)]


def test_server_of_another_volume(tool: Tool, serve_s3: ServeS3, control: Path) -> None:
    """A volume= beside the control= of another one, as a configuration file has it, reaches neither."""
    server = serve_s3("v", control=str(control))
    handle = server.connect()
    handle.pwrite(stamped(RUN, 0, 1), 0)
    serve_s3("w").stop()
    other = Tool(serve_s3, "w")
    for words in (
        ["info"],
        ["stats"],
        ["check"],
        ["gc"],
        ["snapshot", "create", "a"],
        ["resize"],
        ["abort", "--confirm=w"],
        ["delete", "--confirm=w"],
    ):
        said = other.refused(*words, control=str(control), size="128M" if words == ["resize"] else "")
        assert f"control={control}" in said and "/v/" in said and "/w/" in said, words
    handle.flush()
    assert tool("info", control=str(control))["size_bytes"] == 64 << 20
    assert tool("snapshot", "list", control=str(control))["snapshots"] == []
    assert other("check")["damages"] == []


def test_second_server_is_refused_and_the_first_goes_on(serve_s3: ServeS3, control: Path) -> None:
    handle = serve_s3("v", control=str(control)).connect()
    before = serve_s3.objects("v")
    with pytest.raises(AssertionError, match="control=.*a server is listening there"):
        serve_s3("v", control=str(control))
    assert serve_s3.objects("v") == before
    handle.pwrite(stamped(RUN, 0, 1), 0)
    handle.flush()
    assert ask(control, b"userblk-s3 1 info\n")[-1] == "ok"


def test_what_stands_in_the_way(serve_s3: ServeS3, control: Path) -> None:
    """A socket that a killed server left is replaced, anything else is not."""
    serve_s3("v", control=str(control)).kill()
    assert control.is_socket()
    server = serve_s3("v", control=str(control))
    assert ask(control, b"userblk-s3 1 info\n")[-1] == "ok"
    server.stop()
    control.write_text("mine")
    with pytest.raises(AssertionError, match="exists and is not a socket"):
        serve_s3("v", control=str(control))
    assert control.read_text() == "mine"
    with pytest.raises(AssertionError, match="No such file"):
        serve_s3("v", control=str(control.parent / "none" / "control"))
    # Not another one's either, which has taken the place meanwhile.
    control.unlink()
    server = serve_s3("v", control=str(control))
    control.unlink()
    control.write_text("another")
    server.stop()
    assert control.read_text() == "another"


def test_nonsense_is_answered_and_forgotten(serve_s3: ServeS3, control: Path) -> None:
    serve_s3("v", control=str(control))
    for request, last in (
        (b"userblk-s3 2 info\n", "speaks version 1"),
        (b"hello\n", "write userblk-s3 1 REQUEST"),
        (b"userblk-s3 1 \n", "no such request"),
        (b"userblk-s3 1 resize\n", "no such request"),
        (b"userblk-s3 1 info info\n", "no such request"),
        (b"userblk-s3 1 resize 12x\n", "not a number of bytes"),
        (b"\x00\xff" * 90 + b"\n", "write userblk-s3 1 REQUEST"),
        (b"x" * 4095, "too long"),
    ):
        answer = ask(control, request)
        assert answer[-1].startswith("error ") and last in answer[-1], request
    assert ask(control, b"") == []
    assert ask(control, b"userblk-s3 1 in") == []
    # One that says nothing is left alone after a while, and others are answered then.
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(control))
        assert ask(control, b"userblk-s3 1 info\n")[-1] == "ok"


def test_a_server_that_ends_before_it_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "control"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        late = ["strace", "-o", "/dev/null", "-e", "trace=connect", "-e", "inject=connect:delay_exit=300000"]
        store = ["volume=v", "bucket=bucket", "endpoint=http://127.0.0.1:1"]
        argv = [*late, str(PROGRAM), "info", *store, f"control={path}"]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
            server.accept()[0].close()
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, (process.returncode, errors)
    assert errors == f"userblk-s3: control={path}: the server ended before it had answered\n"


def test_one_file_of_parameters_for_server_and_tool(
    serve_s3: ServeS3, tool: Tool, control: Path, tmp_path: Path
) -> None:
    """With it the tool finds out by itself whether the volume is served."""
    config = config_file(tmp_path / "config", tool, control=str(control), create="on", size="64M")
    argv = [str(PROGRAM), "info", "--json", f"config={config}"]

    def served() -> bool:
        result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        return "readonly" in json.loads(result.stdout)

    server = Nbdkit(tmp_path, plugin_path("s3"), f"config={config}")
    serve_s3.servers.append(server)
    assert served()
    server.stop()
    assert not served()


def test_abort_ends_a_server_whose_store_is_gone(
    serve_s3: ServeS3, tool: Tool, proxy: FaultProxy, control: Path
) -> None:
    server = serve_s3("v", through=proxy, control=str(control))
    handle = server.connect()
    handle.pwrite(stamped(RUN, 0, 1), 0)
    handle.flush()
    with proxy.outage():
        handle.pwrite(stamped(RUN, 0, 2), 0)
        handle.shutdown()  # nbdkit itself waits for its clients
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(1.5)
        assert server.process.poll() is None
        stats = tool("stats", control=str(control))
        assert (stats["lag_bytes"], stats["failed"]) == (BLOCK, False)
        assert stats["lag_us"] > 1_000_000
        assert "--confirm" in tool.refused("abort", control=str(control))
        tool("abort", "--confirm=v", control=str(control))
        server.process.wait(STOP_TIMEOUT_S)
    # What was flushed is there.
    assert bytes(serve_s3("v").connect().pread(BLOCK, 0)) == stamped(RUN, 0, 1)


def test_the_end_gives_up_what_a_store_that_is_gone_does_not_take(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    server = serve_s3("v", through=proxy, close_timeout="2")
    handle = server.connect()
    handle.pwrite(stamped(RUN, 0, 1), 0)
    handle.flush()
    with proxy.outage():
        handle.pwrite(stamped(RUN, 0, 2), 0)
        handle.shutdown()
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(STOP_TIMEOUT_S) == 1
    assert f"close-timeout=2: 1 objects of the log with {BLOCK} bytes of writes are not stored" in server.output()
    assert bytes(serve_s3("v").connect().pread(BLOCK, 0)) == stamped(RUN, 0, 1)


def test_the_end_loses_nothing_that_was_flushed(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """Then the store is needed for a checkpoint, and to note the end, of which the next command has to know."""
    server = serve_s3("v", through=proxy, close_timeout="2")
    handle = server.connect()
    for number in range(4):
        handle.pwrite(stamped(RUN, 0, number), 0)
        handle.flush()
    with proxy.outage():
        handle.shutdown()
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(STOP_TIMEOUT_S) == 1
    assert "all data is stored, but not that it was closed; next time use --take-over" in server.output()
    assert bytes(serve_s3("v").connect().pread(BLOCK, 0)) == stamped(RUN, 0, 3)


def test_the_end_waits_for_a_store_that_comes_back(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    server = serve_s3("v", through=proxy, close_timeout="300")
    handle = server.connect()
    with proxy.outage():
        handle.pwrite(stamped(RUN, 0, 1), 0)
        handle.shutdown()
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(2)
        assert server.process.poll() is None
    assert server.process.wait(STOP_TIMEOUT_S) == 0
    assert bytes(serve_s3("v").connect().pread(BLOCK, 0)) == stamped(RUN, 0, 1)


# A program that waits until a time of day waits for an hour more, as if that had been stepped back meanwhile.
STEPPED_CLOCK = """
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int r = (int)syscall(SYS_clock_gettime, clock, t);

	t->tv_sec += clock == CLOCK_REALTIME ? 3600 : 0;
	return r;
}
"""


@pytest.mark.parametrize("stepped", [False, True], ids=["", "stepped clock"])
def test_the_end_of_a_server_with_a_flush_under_way(
    serve_s3: ServeS3, proxy: FaultProxy, tmp_path: Path, stepped: bool
) -> None:
    """nbdkit does not tell the plugin of its end before the flush is answered."""
    wrapper: tuple[str, ...] = ()
    if stepped:
        (tmp_path / "clock.c").write_text(STEPPED_CLOCK)
        library = tmp_path / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c"], check=True)
        wrapper = ("env", f"LD_PRELOAD={PRELOAD}:{library}")
    server = serve_s3("v", through=proxy, wrapper=wrapper, close_timeout="2")
    handle = server.connect()
    with proxy.outage():
        handle.pwrite(stamped(RUN, 0, 1), 0)
        handle.aio_flush()
        with socket.socket(fileno=os.dup(handle.aio_get_fd())) as connection:
            connection.shutdown(socket.SHUT_RDWR)  # nbdkit itself waits for its clients
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(STOP_TIMEOUT_S) == 1
    assert "are not stored" in server.output()


def test_the_end_of_a_server_whose_store_refuses_what_writes_wait_for(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """A store that answers and takes nothing holds up no end, either: access was taken away, for example."""
    server = serve_s3("v", through=proxy, memory="24M", batch_size="1M", close_timeout="2")
    handle = server.connect()
    proxy.add(Rule(refused(403, "AccessDenied"), method="PUT"))
    data = nbd.Buffer.from_bytearray(bytearray(random.Random(RUN).randbytes(MIB)))
    # One waits for memory in the end. With several, nbdkit 1.32 can fail an assertion when their client is gone.
    for number in range(48):
        handle.aio_pwrite(data, number * MIB)
        end = time.monotonic() + 3
        while handle.aio_in_flight() and time.monotonic() < end:
            handle.poll(100)
        if handle.aio_in_flight():
            break
    assert handle.aio_in_flight()
    with socket.socket(fileno=os.dup(handle.aio_get_fd())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
    os.kill(server.pid, signal.SIGTERM)
    assert server.process.wait(STOP_TIMEOUT_S) == 1
    assert "the store has taken nothing for close-timeout=2" in server.output()


def test_the_end_of_a_reader_that_makes_a_clone(
    serve_s3: ServeS3, tool: Tool, proxy: FaultProxy, control: Path
) -> None:
    """It has nothing to store, but the clone's request waits for the store."""
    serve_s3("v").stop()
    tool("snapshot", "create", "s")
    server = serve_s3("v", through=proxy, close_timeout="2", readonly="on", control=str(control))
    with proxy.outage():
        argv = tool.argv("clone", "s", "c", control=str(control))
        clone = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1.0)  # until it waits
        assert clone.poll() is None
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(30.0) == 0  # the request itself gives up after 60 s
        output, error = clone.communicate(timeout=STOP_TIMEOUT_S)
    assert (clone.returncode, output) == (1, ""), error
    assert len(error.splitlines()) == 1, error
    assert not control.exists()
    assert not serve_s3.objects("c")
