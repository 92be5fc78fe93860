"""The checkers of the torture test report each violation, on stores made for it, and report nothing for good stores."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.batch import parse
from agent.fact_store import FactStore, StoreReader
from agent.message import Envelope, Fact, Message
from agent.positions import Position
from tests.fact_store.making import AT_ONCE, EVERYTHING, OPERATIONAL, done, sealed_in
from tests.support.received import put_page
from tests.system.outside import Acknowledged, Seen, _unkept, complaints, last_batch

Told = tuple[dict[str, Path], list[Seen], list[Acknowledged]]


def messages(*numbers: int) -> list[Message]:
    """Messages as the producer writes them."""
    return [
        Message(Envelope(f"plant-{n}", "plant", "idmz", n), Fact("order:line1/77", "step_completed", b'{"n":%d}' % n))
        for n in numbers
    ]


def record(path: Path, *numbers: int) -> list[Acknowledged]:
    """The plant's store with these messages, one batch each; its reader in the zone above has confirmed all."""
    acknowledged = []
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        done(store.consumers.register("idmz.all", "idmz", OPERATIONAL))
        for message in messages(*numbers):
            answer = done(store.appends.append_message(OPERATIONAL, message))
            acknowledged.append(Acknowledged(message.envelope.message_id, message.fact.object_json, answer.offset))
        done(store.consumers.confirm("idmz.all", store.end_offset(OPERATIONAL)))
    return acknowledged


def relay(source: Path, path: Path, leave_out: int = 0) -> None:
    """Another zone's store with the source's facts, without the last so many batches."""
    with FactStore.open(source, "plant", settings=AT_ONCE) as store:
        batches = store.read(OPERATIONAL, 0, EVERYTHING, EVERYTHING).batches
        epoch = store.life
    kept = batches[: len(batches) - leave_out]
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        position = Position(epoch, kept[-1].last_offset)
        done(put_page(store, "plant", OPERATIONAL, [parse(stored.sealed) for stored in kept], [], position))


@pytest.fixture
def good(tmp_path: Path) -> Told:
    """Two zones with the same four messages, and what was seen and acknowledged on the way."""
    paths = {"plant": tmp_path / "plant.db", "idmz": tmp_path / "idmz.db"}
    record(paths["plant"], 1, 2)
    seen = last_batch(paths["plant"], OPERATIONAL)
    assert seen is not None
    acknowledged = record(paths["plant"], 1, 2, 3, 4)
    relay(paths["plant"], paths["idmz"])
    return paths, [seen], acknowledged


def complained(given: Told) -> str:
    """All complaints, in one text."""
    paths, seen, acknowledged = given
    return "\n".join(complaints(paths, [OPERATIONAL], seen, {OPERATIONAL: acknowledged}))


def test_equal_stores_are_no_violation(good: Told) -> None:
    """The same facts in both zones, all acknowledged: no violation."""
    assert len(good[2]) == 4
    assert complained(good) == ""


def a_zone_lacks_a_batch(given: Told) -> None:
    """The zone above lacks the last batch."""
    given[0]["idmz"].unlink()
    relay(given[0]["plant"], given[0]["idmz"], leave_out=1)


def a_message_was_never_stored(given: Told) -> None:
    """Acknowledged, but not stored."""
    given[2].append(Acknowledged("plant-5", b'{"n":5}', 5))


def a_message_lies_elsewhere(given: Told) -> None:
    """Acknowledged at an offset that has another message."""
    given[2][1] = given[2][1]._replace(offset=3)


def a_message_has_changed(given: Told) -> None:
    """The object differs from the acknowledged one."""
    given[2][1] = given[2][1]._replace(object_json=b'{"n":9}')


def two_messages_changed_places(given: Told) -> None:
    """Acknowledged in another order than stored."""
    given[2][1:3] = given[2][2], given[2][1]


def the_plant_was_another_once(given: Told) -> None:
    """Another batch was seen at that place."""
    given[1][0] = given[1][0]._replace(digest=bytes(16))


def not_all_is_confirmed(given: Told) -> None:
    """One message is not confirmed."""
    with FactStore.open(given[0]["plant"], "plant", settings=AT_ONCE) as store:
        done(store.appends.append_message(OPERATIONAL, messages(5)[0]))
    given[0]["idmz"].unlink()
    relay(given[0]["plant"], given[0]["idmz"])


def a_consumer_has_holes(given: Told) -> None:
    """Two more messages; only the second is confirmed."""
    not_all_is_confirmed(given)
    with FactStore.open(given[0]["plant"], "plant", settings=AT_ONCE) as store:
        done(store.appends.append_message(OPERATIONAL, messages(6)[0]))
        done(store.consumers.confirm("idmz.all", 6, 6))


def a_store_has_an_incident(given: Told) -> None:
    """Of any kind."""
    with FactStore.open(given[0]["plant"], "plant", settings=AT_ONCE) as store:
        done(store.note_incident("settings", "node.toml", "a test says so"))


@pytest.mark.parametrize(
    "do, said",
    [
        (a_zone_lacks_a_batch, "idmz: facts.operational is not plant's byte for byte"),
        (a_zone_lacks_a_batch, "idmz: facts.operational does not hold plant-4"),
        (a_message_was_never_stored, "does not hold plant-5"),
        (a_message_lies_elsewhere, "does not hold plant-2 at offset 3"),
        (a_message_has_changed, "does not hold plant-2 at offset 2"),
        (two_messages_changed_places, "not lie in the order"),
        (the_plant_was_another_once, "once had another batch before offset 2"),
        (not_all_is_confirmed, "plant: idmz.all has confirmed to 4"),
        (a_consumer_has_holes, "idmz.all has confirmed to 4 and ((6, 6)"),
        (a_store_has_an_incident, "plant: incident"),
    ],
)
def test_each_violation_is_reported(good: Told, do: Callable[[Told], None], said: str) -> None:
    """Lost, duplicate, changed, unordered and unconfirmed facts and an incident are each reported with their zone."""
    do(good)
    assert said in complained(good)


def test_a_duplicate_message_is_reported(good: Told) -> None:
    """No store accepts the same batch twice, so the checker gets a log that no store has written."""
    with contextlib.closing(StoreReader(good[0]["plant"])) as reader:
        log = sealed_in(reader, OPERATIONAL)
    assert not list(_unkept("here", log, good[2]))
    assert "here holds plant-4 2 times" in list(_unkept("here", [*log, log[-1]], good[2]))
