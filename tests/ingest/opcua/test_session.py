"""What ends an OPC UA session: answers that the library would pass over."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asyncua.common.utils import Buffer
from asyncua.ua import uaerrors

from agent.ingest.errors import SourceLost
from agent.ingest.opcua.decode import Publication
from agent.ingest.opcua.session import Session, _BatchSession, _new_client
from agent.ingest.settings import OpcuaSourceSettings
from tests.ingest.fakes import in_loop

SETTINGS = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"))


class Library:
    """A client of the library whose calls succeed; it keeps what it was given to call for each publication."""

    def __init__(self) -> None:
        self.uaclient = SimpleNamespace(session=self)
        self.take: Any = None

    async def create_subscription(self, _parameters: object, take: object) -> object:
        self.take = take
        return SimpleNamespace(SubscriptionId=1)


async def subscribed() -> tuple[Library, Session, list[Publication]]:
    """A session with its subscription, and what it hands on."""
    library, found = Library(), list[Publication]()
    session = Session(library, SETTINGS)  # type: ignore[arg-type]

    async def on_publication(one: Publication) -> None:
        found.append(one)

    await session.subscribe(on_publication)
    return library, session, found


@in_loop
async def test_a_subscription_that_the_server_ended_ends_the_session() -> None:
    """A bad status change means that no value will come any more; a good one is news and nothing else."""
    library, session, found = await subscribed()
    await library.take(Publication(1, 1, has_data=True, changes=[], status_change=0x002D_0000))
    assert not session.lost.done()
    await library.take(Publication(1, 2, has_data=True, changes=[], status_change=0x800A_0000))
    assert "0x800A0000" in str(session.lost.result())
    assert len(found) == 2


@in_loop
async def test_a_connection_that_the_library_calls_lost_ends_the_session() -> None:
    """What is no publication is the library's word that the connection is gone."""
    library, session, found = await subscribed()
    await library.take(None)
    assert isinstance(session.lost.result(), SourceLost)
    assert not found


@in_loop
async def test_a_publication_that_cannot_be_read_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that cannot be decoded are not passed over in silence: the session is lost, and its items are read
    anew."""
    inner = _new_client(SETTINGS).uaclient.session
    assert isinstance(inner, _BatchSession)
    losses = list[str]()
    inner.on_loss = losses.append

    async def garbage(*_: object, **__: object) -> Buffer:
        return Buffer(b"\x01\x00\x3d\x03" + bytes(24) + b"\xff" * 8)

    monkeypatch.setattr(inner, "_send_request", garbage)
    with pytest.raises(uaerrors.BadNoSubscription):
        await inner.publish([])
    assert len(losses) == 1


@in_loop
async def test_a_publish_that_the_server_gave_up_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is sent."""
    inner = _new_client(SETTINGS).uaclient.session
    assert isinstance(inner, _BatchSession)
    losses = list[str]()
    inner.on_loss = losses.append

    async def late(*_: object, **__: object) -> Buffer:
        raise uaerrors.BadTimeout

    monkeypatch.setattr(inner, "_send_request", late)
    with pytest.raises(uaerrors.BadTimeout):
        await asyncio.wait_for(inner.publish([]), 20)
    assert not losses
