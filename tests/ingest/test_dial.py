"""How sources connect: name servers that do not answer, and hosts with several addresses."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agent.ingest.dial import dial, look_up
from agent.ingest.modbus.line import connection
from agent.ingest.modbus.line.connection import open_connection
from agent.settings.sources import ModbusSourceSettings
from tests.support.virtual_time import run_virtual

DEAD, REFUSED, GOOD = "192.0.2.1", "192.0.2.2", "2001:db8::3"


def test_a_name_server_that_hangs_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """While fifty look-ups hang, the threads that all parts share work, an address needs no look-up, and the loop
    ends."""
    is_over, hanging = threading.Event(), threading.Semaphore(0)
    real = socket.getaddrinfo

    def ask(*words: Any, **more: Any) -> Any:
        if more.get("flags"):
            return real(*words, **more)
        hanging.release()
        is_over.wait()
        raise socket.gaierror

    async def hang() -> list[str]:
        looking = [asyncio.ensure_future(look_up("plc.example", 502)) for _ in range(50)]
        for _ in looking:
            await asyncio.to_thread(hanging.acquire)
        for task in looking:
            task.cancel()
        return await look_up("::1", 502)

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    try:
        assert asyncio.run(hang()) == ["::1"]
    finally:
        is_over.set()


@pytest.mark.parametrize(
    "addresses, seen, taken_s",
    [
        ((GOOD,), GOOD, 0),
        ((DEAD, GOOD), GOOD, 0.5),
        ((REFUSED, DEAD, GOOD), GOOD, 0.5),
        ((DEAD, DEAD, GOOD, GOOD), GOOD, 0.5),
        ((DEAD, REFUSED), ConnectionRefusedError, 0.5),
        ((REFUSED, DEAD), TimeoutError, 1),
    ],
)
def test_each_address_of_a_host_is_tried(
    addresses: tuple[str, ...], seen: object, taken_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is silent takes its share of the time, one that refuses none; the error is that of the last one."""

    async def create_connection(_: object, address: str, port: int) -> str:
        assert port == 502
        if address == DEAD:
            await asyncio.Event().wait()
        if address == REFUSED:
            raise ConnectionRefusedError
        return address

    async def connect() -> tuple[object, float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "create_connection", create_connection)
        begun_s = loop.time()
        try:
            found: object = await dial(asyncio.Protocol, addresses, 502, 1)
        except OSError as error:
            found = type(error)
        return found, loop.time() - begun_s

    assert run_virtual(connect()) == (seen, pytest.approx(taken_s))


def test_a_slow_name_server_takes_no_time_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Modbus device that must answer within a second is connected after a look-up of five."""

    async def slow(_host: str, _port: int) -> list[str]:
        await asyncio.sleep(5)  # tidy: the clock jumps
        return [GOOD]

    async def create_connection(make_protocol: Any, address: str, _: int) -> None:
        assert address == GOOD
        make_protocol().connection_made(mock.Mock(spec=asyncio.Transport))

    async def connect() -> bool:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create_connection)
        settings = ModbusSourceSettings("m", Path("m.csv"), 0, host="plc.example", timeout_ms=1_000)
        return (await open_connection(settings, lambda _: None)).is_open

    monkeypatch.setattr(connection, "look_up", slow)
    assert run_virtual(connect())
