"""An OPC UA source that is connected to nothing, or to a session that the test plays."""

from pathlib import Path
from typing import cast

from agent.ingest.delivery import Delivery
from agent.ingest.gap import TagGap
from agent.ingest.opcua.address import TagPoint
from agent.ingest.opcua.decode import Changes, DataChange, Publication, PublishHeader
from agent.ingest.opcua.poll_source import OpcuaPollSource
from agent.ingest.opcua.session import OpcuaSession
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.opcua.subscriptions.item_plan import ServerLimits
from agent.ingest.opcua.subscriptions.subscription import CallSize, Subscription
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.tags.tag_map import Tag
from agent.message import TagDefinition
from agent.settings.opcua_address import NodeAddress
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.fake_session import FakeSession

S = 1_000_000_000


HEADER = PublishHeader(1, 1, 0, has_data=True)


def tag(number: int, point: TagPoint | None = None, name: str = "", unit: str = "") -> Tag:
    """A tag that every server of these tests has."""
    point = point or TagPoint.of(NodeAddress("urn:x", number))
    return Tag(number, "facts.telemetry", TagDefinition(f"tag:a/{name or number}", unit=unit), SamplingRule(), point)


TAGS = (tag(1), tag(2))


async def made(*tags: Tag, **settings: object) -> tuple[OpcuaSource, FakeStore]:
    """A source of these tags, by default TAGS, that is connected to nothing, with its store; it has a subscription that
    stands for one."""
    tags, store = tags or TAGS, FakeStore()
    recorder = Recorder("plc", "plant-a", store)
    numbers = await recorder.define([tag.definition for tag in tags])
    used = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), **{"buffer_values_max": 1_000, **settings})  # type: ignore[arg-type]
    found = OpcuaSource(used, Delivery("plc", tags, numbers, recorder))
    subscription = Subscription(FakeSession(), used, ServerLimits(), found.clock.now_ns, CallSize(9))  # type: ignore[arg-type]
    subscription.id = 1
    found._subscriptions.session = FakeSession()  # type: ignore[assignment]
    found._subscriptions._all, found._subscriptions._by_id = [subscription], {1: subscription}
    return found, store


async def declare(source: OpcuaSource) -> None:
    """Declare what is lost, as after a reading of the server's clock."""
    await source._declare_losses(cast("OpcuaSession", FakeSession()))
    await source.finish()


async def offer(source: OpcuaSource, *tags: Tag) -> list[int]:
    """Another map, of these tags; their numbers."""
    numbers = await source._delivery.recorder.define([tag.definition for tag in tags])
    source._delivery.offer_map(tags, numbers)
    return numbers


def gaps_of(source: OpcuaSource | OpcuaPollSource) -> list[TagGap]:
    """The gaps that it tells of from now on."""
    gaps: list[TagGap] = []
    source._delivery.on_gap(gaps.append)
    return gaps


def publication(*changes: DataChange) -> Publication:
    """One message with these values."""
    return Publication(Changes.of(changes))


async def take(source: OpcuaSource, *changes: DataChange) -> None:
    """A publication comes."""
    await source._take_publication(cast("OpcuaSession", FakeSession()), HEADER, publication(*changes))
