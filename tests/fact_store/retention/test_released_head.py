"""The signatures that a store keeps of facts it has released."""

from pathlib import Path

from agent.fact_store import FactStore
from agent.pages import KeptHead, PeerPosition, StoredHead
from agent.settings.store import StreamSettings
from agent.signing.heads import HEAD_BYTES
from tests.fact_store.making import AT_ONCE, TELEMETRY, Elsewhere, done, parsed
from tests.waiting import wait_until


def test_the_last_head_of_what_was_released_is_kept(tmp_path: Path) -> None:
    """A store that has released all facts of a zone still shows their last head, also after a restart. It shows it for
    a sequence that the head covers, and for none behind it. For those a head that is held is shown."""
    mill, heads = Elsewhere("mill"), [bytes([number]) * HEAD_BYTES for number in range(5)]
    for _ in range(5):
        mill.seal(10)
    batches, policy = parsed(mill.sealed), StreamSettings(TELEMETRY, keep_hours=0)

    def put(store: FactStore, first: int, last: int, *signed: int) -> None:
        kept = [KeptHead(number - first, heads[number], is_verified=True) for number in signed]
        position = PeerPosition(mill.origin.epoch, 10 * (last + 1))
        some = batches[first : last + 1]
        done(store.inbound.put_batches("mill", TELEMETRY, some, mill.received(), position, heads=kept))

    def shown(store: FactStore, sequence: int) -> StoredHead | None:
        return store.covering_head(TELEMETRY, mill.origin, sequence)

    path = tmp_path / "idmz.db"
    with FactStore.open(path, "idmz", settings=AT_ONCE, streams=[policy]) as store:
        done(store.consumers.register("cloud.x", "cloud", TELEMETRY, "oldest"))
        put(store, 0, 2, 1, 2)
        done(store.consumers.confirm("cloud.x", 30))
        wait_until(lambda: store.next_head(TELEMETRY, mill.origin, 1) is None, "all to be released")
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        released = StoredHead(30, batches[2].digest, heads[2], None)
        assert [shown(store, sequence) for sequence in (1, 25, 30, 31)] == [released, released, released, None]
        put(store, 3, 4, 4)
        assert shown(store, 5) == released
        found = shown(store, 31)
        assert found is not None
        assert (found.last_sequence, found.digest, found.record) == (50, batches[4].digest, heads[4])


def test_each_range_keeps_the_head_of_its_end(tmp_path: Path) -> None:
    """Facts of two histories of a zone were held with a gap between, and both are released. The end of the first proves
    to its zone that it is an old copy, so the second does not displace it."""
    mill, heads = Elsewhere("mill"), [bytes([number]) * HEAD_BYTES for number in range(6)]
    for _ in range(6):
        mill.seal(10)
    batches, policy = parsed(mill.sealed), StreamSettings(TELEMETRY, keep_hours=0)
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE, streams=[policy]) as store:
        done(store.consumers.register("cloud.x", "cloud", TELEMETRY, "oldest"))
        for end, number in enumerate((0, 1, 3, 4, 5), 1):
            kept = [KeptHead(0, heads[number], is_verified=True)]
            position = PeerPosition(mill.origin.epoch, 10 * end)
            done(store.inbound.put_batches("mill", TELEMETRY, [batches[number]], mill.received(), position, heads=kept))
        done(store.consumers.confirm("cloud.x", 50))
        wait_until(lambda: store.next_head(TELEMETRY, mill.origin, 1) is None, "all to be released")
        shown = {sequence: store.covering_head(TELEMETRY, mill.origin, sequence) for sequence in (5, 20, 21, 40, 60)}
        first, second = (StoredHead(end, batches[at].digest, heads[at], None) for end, at in ((20, 1), (60, 5)))
        assert shown == {5: first, 20: first, 21: second, 40: second, 60: second}


def test_a_head_before_a_sequence_does_not_cover_it(tmp_path: Path) -> None:
    """The end of a zone's facts is released here, and earlier ones arrive later by another path, and are held: the end
    is still proven by the head of its own. Shown the earlier one instead, a zone that is an old copy held that too, and
    never learned what it was."""
    mill, heads = Elsewhere("mill"), [bytes([number]) * HEAD_BYTES for number in range(3)]
    for _ in range(3):
        mill.seal(10)
    batches, policy = parsed(mill.sealed), StreamSettings(TELEMETRY, keep_hours=0)
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE, streams=[policy]) as store:
        done(store.consumers.register("cloud.x", "cloud", TELEMETRY, "oldest"))
        for number in (2, 0):
            kept = [KeptHead(0, heads[number], is_verified=True)]
            position = PeerPosition(mill.origin.epoch, 30)
            done(store.inbound.put_batches("mill", TELEMETRY, [batches[number]], mill.received(), position, heads=kept))
            if number == 2:
                done(store.consumers.confirm("cloud.x", 10))
                wait_until(lambda: store.next_head(TELEMETRY, mill.origin, 1) is None, "all to be released")
        shown = [store.covering_head(TELEMETRY, mill.origin, sequence) for sequence in (5, 11, 30)]
        assert [one and (one.last_sequence, one.record) for one in shown] == [
            (10, heads[0]), (30, heads[2]), (30, heads[2])
        ]  # fmt: skip
        assert store.next_head(TELEMETRY, mill.origin, 11) is None
