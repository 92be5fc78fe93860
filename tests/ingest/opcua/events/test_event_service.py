"""The service calls for events, with a session that answers as it likes."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

from asyncua import ua
from asyncua.client.ua_session import UaSession

from agent.ingest import quality
from agent.ingest.opcua.events.event_service import EventItem, EventService
from agent.settings.opcua_address import parse_node_address

SERVER = parse_node_address("i=2253")


class EmptyAnswers:
    """A session that answers every call with an empty list."""

    async def call(self, _requests: Any) -> list[Any]:
        return []

    create_monitored_items = read = call


async def test_a_name_that_is_not_utf8_can_be_recorded() -> None:
    """The library keeps its bytes in a form that no message can hold."""
    answer = ua.DataValue(ua.Variant(ua.QualifiedName("St\udcf6rung"), ua.VariantType.QualifiedName))
    library = cast(UaSession, SimpleNamespace(read=AsyncMock(return_value=[answer])))
    assert await EventService(library).type_names([(SERVER, 0)]) == ["St\ufffdrung"]


async def test_an_answer_without_results_is_a_refusal() -> None:
    """A server that answers without a result for any item costs its events only: each call returns a status."""
    service = EventService(cast(UaSession, EmptyAnswers()))
    assert await service.refresh(1) == quality.BAD_DECODING_ERROR
    item = await service.create_item(1, 1, SERVER, 0, lambda _fields: None, [2787])
    assert item == EventItem(quality.BAD_DECODING_ERROR)
    assert await service.type_names([(SERVER, 0)]) == [""]
