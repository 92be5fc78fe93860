"""Reports to systemd on a real datagram socket: their text, abstract names, and none outside systemd."""

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.health.notify import STATUS_CHARACTERS_MAX, Notifier, watch
from agent.health.watchdog import NS_PER_S, PartProgress
from tests.waiting import LIMIT_S


class ServiceManager:
    """The receiving end, as systemd has it."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.socket.settimeout(LIMIT_S)

    def received(self) -> str:
        """The next datagram."""
        return self.socket.recv(4096).decode()

    def all_received(self) -> list[str]:
        """Every datagram that waits."""
        waiting = []
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(self.socket.recv(4096).decode())
        return waiting


@pytest.fixture
def manager(memory: Path) -> Iterator[tuple[ServiceManager, str]]:
    """A service manager at a path, which has 107 characters at most, and the address to give a service."""
    path = str(memory / "notify")
    manager = ServiceManager(path)
    yield manager, path
    manager.socket.close()


def test_reports_have_systemds_format(manager: tuple[ServiceManager, str]) -> None:
    """Each report is one datagram in the text of systemd's protocol; a long status is cut, and stays one line."""
    systemd, address = manager
    notifier = Notifier(address)
    assert notifier.ready()
    assert notifier.feed()
    assert notifier.status("late: peer\nplant  is away")
    assert notifier.status("x" * 10_000 + "\nREADY=1")
    assert notifier.stopping()
    cut = "STATUS=" + "x" * STATUS_CHARACTERS_MAX
    expected = ["READY=1", "WATCHDOG=1", "STATUS=late: peer plant is away", cut, "STOPPING=1"]
    assert [systemd.received() for _ in range(5)] == expected


def test_an_abstract_name() -> None:
    """A name with @ lies in the abstract space, where containers and user sessions put it."""
    name = f"bsfg-test-{os.getpid()}"
    systemd = ServiceManager("\0" + name)
    assert Notifier("@" + name).ready()
    assert systemd.received() == "READY=1"
    systemd.socket.close()


def test_outside_systemd_nothing_is_sent() -> None:
    """Without an address nothing is sent, and there is no watchdog to feed."""
    notifier = Notifier.from_environment({"WATCHDOG_USEC": "30000000"}, pid=1)
    assert not notifier.ready()
    assert notifier.watchdog_s is None


@pytest.mark.parametrize(
    "environment, watchdog_s",
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "77"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "78"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_of_the_environment(environment: dict[str, str], watchdog_s: float | None) -> None:
    """The watchdog's time is taken when it is meant for this process and is a number."""
    assert Notifier.from_environment({"NOTIFY_SOCKET": "/x", **environment}, pid=77).watchdog_s == watchdog_s


def test_each_absence_of_the_service_manager_is_logged(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with no exception, and again after a datagram has arrived in between."""
    path = memory / "notify"
    notifier = Notifier(str(path))
    assert not any(notifier.feed() for _ in range(5))
    systemd = ServiceManager(str(path))
    assert notifier.feed()
    systemd.socket.close()
    path.unlink()
    assert not notifier.feed()
    assert [record.message for record in caplog.records] == ["service_manager_unreachable"] * 2


def watched(notifier: Notifier, pauses: int, in_second: Callable[[], object]) -> None:
    """Watch a node that is good for so many pauses; in the second one something happens."""
    turns = itertools.count(1)

    async def pause(_: float) -> None:
        turn = next(turns)
        if turn == 2:
            in_second()
        if turn > pauses:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch(notifier, list, lambda: "good", pause=pause))


def test_a_status_that_was_not_received_is_sent_again(manager: tuple[ServiceManager, str], tmp_path: Path) -> None:
    """The service manager shows the present state as soon as it can be reached, and each state once."""
    systemd, address = manager
    notifier = Notifier(str(tmp_path / "gone"))
    watched(notifier, 4, lambda: setattr(notifier, "address", address))
    assert [line for line in systemd.all_received() if line.startswith("STATUS=")] == ["STATUS=good"]


@pytest.mark.parametrize("is_ready", [True, False])
def test_the_watchdog_is_fed_only_while_work_progresses(
    is_ready: bool, manager: tuple[ServiceManager, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Over a virtual half minute: fed while the writer moves and not fed while it stands still; the status says which.
    Only a node that is not ready asks for time, as long as it is fed."""
    systemd, address = manager
    clock_s, commits = 0.0, 0
    notifier = Notifier(address, watchdog_s=30.0)
    notifier.is_ready = is_ready
    received: list[str] = []

    async def pause(seconds: float) -> None:
        nonlocal clock_s, commits
        received.extend(systemd.all_received())
        clock_s += seconds
        commits += clock_s <= 20 or clock_s > 60
        if clock_s > 80:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(
            watch(
                notifier,
                lambda: [PartProgress("writer", commits, True, 15)],
                lambda: "good",
                clock_ns=lambda: int(clock_s * NS_PER_S),
                pause=pause,
            )
        )
    statuses = [line for line in received if line.startswith("STATUS=")]
    assert sum(line.startswith("EXTEND") for line in received) == (0 if is_ready else 6)
    assert statuses == ["STATUS=good", "STATUS=stalled: writer", "STATUS=good"]
    assert received.count("WATCHDOG=1") == 6
    assert [record.message for record in caplog.records] == ["watchdog_withheld", "watchdog_fed_again"]


def test_a_node_that_waits_for_its_broker_asks_for_time(manager: tuple[ServiceManager, str]) -> None:
    """Before it is ready, a node at work extends its start, so that a zone that is cut off is not restarted for it."""
    systemd, address = manager
    notifier = Notifier(address, watchdog_s=30.0)
    watched(notifier, 3, notifier.ready)
    received = systemd.all_received()
    assert received.count("EXTEND_TIMEOUT_USEC=60000000") == 2
    assert received.count("WATCHDOG=1") == 4
    assert received.index("READY=1") > received.index("EXTEND_TIMEOUT_USEC=60000000")
