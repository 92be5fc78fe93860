"""A file that cannot be used is quarantined and a new store begins; an old copy begins a new epoch; no fact held is
lost."""

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agent.batch import open_messages, parse
from agent.fact_store import FactStore
from agent.fact_store.divergence import witness
from agent.fact_store.divergence.epoch_rules import Witness, restored_because
from agent.fact_store.divergence.quarantine import mark_suspect, quarantine, quarantined_files
from agent.fact_store.divergence.witness import LiveWitness, read_witness, write_witness
from agent.fact_store.log.errors import StoreDamaged, StoreForeign
from agent.pages import Page
from agent.positions import Position
from tests.fact_store.durability.faults import Faults, broken_error
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    LIMIT_S,
    OPERATIONAL,
    TELEMETRY,
    chain_is_whole,
    done,
    failed,
    message,
    parsed,
    samples,
    sealed_in,
    tag,
    values_in,
)
from tests.support.received import chains_in, put_page


def node(folder: Path, zone: str = "plant") -> FactStore:
    """A store as a node opens it."""
    return FactStore.open(folder / "facts.db", zone, settings=AT_ONCE, unattended=True)


def fill(store: FactStore, first: int, count: int = 10) -> None:
    """Some samples."""
    done(store.appends.define([tag(1)]))
    done(store.appends.append_samples(TELEMETRY, samples(count, first)))


def notices(store: FactStore, predicate: str) -> list[dict[str, object]]:
    """The store's operational facts."""
    found = [open_messages(parse(one.sealed)) for one in store.read(OPERATIONAL, 0, EVERYTHING, EVERYTHING).batches]
    facts = [one.fact for messages in found for one in messages]
    return [json.loads(fact.object_json) for fact in facts if fact.predicate == predicate]


def pull(source: FactStore, target: FactStore, offset: int = 0) -> int:
    """Copy a stream from one store to another; returns how many facts were new."""
    page = source.read(TELEMETRY, offset, EVERYTHING, EVERYTHING)
    definitions = chains_in(source)
    position = Position(source.epoch, page.end_offset)
    batches = [one.sealed for one in page.batches]
    return done(put_page(target, source.zone, TELEMETRY, parsed(batches), definitions, position)).stored_facts


@pytest.mark.parametrize("ruin", ["not a database" * 400, None], ids=["no SQLite file", "marked suspect"])
def test_a_file_that_cannot_be_used_is_quarantined(tmp_path: Path, ruin: str | None) -> None:
    """The node opens with a new store and a new epoch, and the old file is kept beside it with its reason. The new
    store reports it once. An opening that is not unattended raises instead."""
    with node(tmp_path) as store:
        fill(store, 1)
        before = store.epoch
    if ruin is None:
        mark_suspect(tmp_path / "facts.db", "database disk image is malformed")
    else:
        (tmp_path / "facts.db").write_text(ruin)
        with pytest.raises(StoreDamaged):
            FactStore.open(tmp_path / "facts.db", "plant")
    for _ in range(2):
        with node(tmp_path) as store:
            assert store.epoch != before
            fill(store, 1)
            (aside,) = quarantined_files(tmp_path / "facts.db")
            (notice,) = notices(store, "store_quarantined")
            assert (notice["file"], notice["bytes"], notice["because"]) == (aside.file, aside.bytes, aside.why)
            assert [one.kind for one in store.incidents()] == ["quarantined"]
            assert store.integrity().quarantined == ((aside.file, aside.bytes),)
    if ruin is None:
        with FactStore.open(tmp_path / aside.file, "plant") as old:
            assert values_in(old) == list(range(1, 11))


def test_a_foreign_store_is_not_quarantined(tmp_path: Path) -> None:
    """The store of another zone is an operator's mistake, and its file is not renamed."""
    with node(tmp_path) as store:
        fill(store, 1)
    with pytest.raises(StoreForeign):
        node(tmp_path, "elsewhere")
    assert not quarantined_files(tmp_path / "facts.db")


def test_an_interrupted_quarantine_is_completed(tmp_path: Path) -> None:
    """After a power cut between two renames, the same name is used and the parts stay together."""
    with node(tmp_path) as store:
        fill(store, 1)
    path = tmp_path / "facts.db"
    (tmp_path / "facts.db.suspect").write_text(json.dumps({"why": "torn", "as": "facts.db.damaged-then"}))
    path.rename(tmp_path / "facts.db.damaged-then")
    with node(tmp_path) as store:
        assert [one.file for one in quarantined_files(path)] == ["facts.db.damaged-then"]
        assert notices(store, "store_quarantined")[0]["because"] == "torn"


def test_a_restored_store_begins_a_new_epoch(tmp_path: Path) -> None:
    """A store restored from an old copy, with a newer witness, keeps all facts under the old origin and starts own
    sequences and definitions again. Two consumers, one of which had read facts that the copy lacks, end with all facts,
    none twice."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        node(tmp_path / "a") as one,
        node(tmp_path / "b", "idmz") as early,
        FactStore.open(tmp_path / "b" / "late.db", "office", settings=AT_ONCE) as late,
    ):
        fill(one, 1)
        done(one.appends.append_message(OPERATIONAL, message("once")))
        old = one.epoch
        one.close()
        shutil.copy(tmp_path / "a" / "facts.db", tmp_path / "copy")
        with node(tmp_path / "a") as more:
            fill(more, 11)
            assert pull(more, early) == 20
        shutil.copy(tmp_path / "copy", tmp_path / "a" / "facts.db")
        with node(tmp_path / "a") as restored:
            assert restored.epoch != old
            (notice,) = notices(restored, "epoch_began")
            assert notice["previous_epoch"] == old.hex()
            assert "the witness records 20" in str(notice["because"])
            fill(restored, 21)
            assert done(restored.appends.append_message(OPERATIONAL, message("once"))).outcome == "noop_already_applied"
            assert values_in(restored) == [*range(1, 11), *range(21, 31)]
            chain_is_whole(restored)
            assert pull(restored, early) == 10
            assert pull(restored, late) == 20
        assert values_in(early) == list(range(1, 31))
        assert values_in(late) == [*range(1, 11), *range(21, 31)]
        with node(tmp_path / "a") as again:
            assert again.reader.origins()[0].zone == "plant"
            assert len(notices(again, "epoch_began")) == 1


def test_a_peers_claim_changes_nothing(tmp_path: Path) -> None:
    """A peer claims facts that were never written here. The epoch stays, the store continues, and one incident names
    the peer and its claim."""
    with node(tmp_path) as store:
        fill(store, 1)
        epoch = store.epoch
        for claimed in (99, 999):
            store.peer_is_ahead("idmz", f"idmz has read up to {claimed}")
        fill(store, 11)
        assert store.epoch == epoch
        (incident,) = store.incidents()
        assert (incident.kind, incident.subject, incident.count) == ("ahead", "peer idmz", 2)
        assert incident.detail == "idmz has read up to 999"
        assert values_in(store) == list(range(1, 21))


def test_an_epoch_begins_while_the_store_runs(tmp_path: Path) -> None:
    """The store goes on under a new epoch without being closed: tags keep their numbers, subscribers are notified of
    each stream. A later opening finds the same epoch."""
    with node(tmp_path) as store:
        fill(store, 1)
        assert store.read(TELEMETRY, 0, 100, 10**6).batches
        done(store.consumers.register("idmz.facts", "idmz", TELEMETRY))
        heard = list[object]()
        store.on_commit(heard.append)
        old = store.epoch
        now = done(store.begin_epoch("an operator says so"))
        assert store.origin == now
        assert now.epoch != old
        assert {TELEMETRY, OPERATIONAL} <= set(heard[-1])  # type: ignore[call-overload]
        assert done(store.consumers.confirm("idmz.facts", 10, life=store.life)) == 10
        assert done(store.appends.define([tag(1)])) == [1]
        fill(store, 11)
        assert values_in(store) == list(range(1, 21))
        headers = [parse(one).header for one in sealed_in(store)]
        assert [(one.origin.epoch == old, one.first_sequence) for one in headers] == [(True, 1), (False, 1)]
        (incident,) = store.incidents()
        assert (incident.kind, "an operator says so" in incident.detail) == ("epoch", True)
    with node(tmp_path) as store:
        assert store.origin == now
        chain_is_whole(store)


def test_two_proofs_of_one_epoch_begin_one(tmp_path: Path) -> None:
    """Two peers that prove at the same time that a store is an old copy have it begin one epoch, not two; a proof about
    the epoch that has begun then begins another."""
    with node(tmp_path) as store:
        fill(store, 1)
        first, second = (store.begin_epoch(f"{peer} holds more", instead_of=store.epoch) for peer in ("idmz", "dmz2"))
        begun = done(first)
        assert (done(second), store.origin) == (begun, begun)
        (incident,) = store.incidents()
        assert "idmz holds more" in incident.detail
        assert values_in(store) == list(range(1, 11))  # reads go on
        third = done(store.begin_epoch("idmz holds more still", instead_of=begun.epoch))
        assert (third != begun, store.origin) == (True, third)


def test_when_a_store_is_an_old_copy() -> None:
    """A witness with later ends or another life shows an old copy; one that lags, has an earlier epoch of this store,
    or is missing, does not."""
    held = Witness("e2", {"a": 10, "b": 3})
    own = {"e1", "e2"}
    assert restored_because(None, own, held) is None
    assert restored_because(Witness("e2", {"a": 10}), own, held) is None
    assert restored_because(Witness("e1", {"a": 99}), own, held) is None
    found = str(restored_because(Witness("e2", {"a": 11, "c": 1}), own, held))
    assert "a ends at 10, the witness records 11" in found
    assert "c ends at 0" in found, "every stream that is short is named"
    assert "e3" in str(restored_because(Witness("e3", {}), own, held))


def test_the_witness_follows_each_commit(tmp_path: Path) -> None:
    """Ends and new streams are in the witness at once. A damaged line of it is left out. A new epoch
    replaces all lines."""
    path = tmp_path / "facts.db"
    live = LiveWitness(path, Witness("ab" * 16, {"a": 1}))
    live.record("ab" * 16, {"a": 5, "b": 7})
    assert read_witness(path) == Witness("ab" * 16, {"a": 5, "b": 7})
    live.record("cd" * 16, {"b": 8})
    assert read_witness(path) == Witness("cd" * 16, {"a": 5, "b": 8})
    live.record("cd" * 16, {"a": 6})
    live.close()
    live.record("cd" * 16, {"a": 9})
    assert read_witness(path) == Witness("cd" * 16, {"a": 6, "b": 8})
    content = bytearray((tmp_path / "facts.db.witness").read_bytes())
    content[2 * 128 + 80] ^= 1
    (tmp_path / "facts.db.witness").write_bytes(content)
    assert read_witness(path) == Witness("cd" * 16, {"a": 6})


def test_losses_are_shown_for_a_day(tmp_path: Path) -> None:
    """The status names facts that an opening found missing, for a day: later the incident remains."""
    with node(tmp_path) as store:
        store.note("missing", "facts.db", "a new store began").result(LIMIT_S)
        store.note("epoch", "epoch 00", "restored").result(LIMIT_S)
    with closing(sqlite3.connect(tmp_path / "facts.db")) as outside:
        outside.execute("UPDATE incident SET last_unix_ms = last_unix_ms - 86401000 WHERE kind = 'missing'")
        outside.commit()
    with node(tmp_path) as store:
        assert store.integrity().losses == 1
        assert sorted(one.kind for one in store.incidents()) == ["epoch", "missing"]


def test_a_peer_that_names_an_unknown_epoch_leaves_an_incident(tmp_path: Path) -> None:
    """The incident comes once for each peer. An epoch that this store has or had is nothing new."""
    with node(tmp_path) as store:
        fill(store, 1)
        store.peer_names_epoch("idmz", store.epoch.hex())
        for epoch in ("ab", "cd"):
            store.peer_names_epoch("idmz", epoch * 16)
        fill(store, 11)
        (told,) = store.incidents()
        assert (told.kind, told.subject, told.count) == ("former_epoch", "peer idmz", 1)
        assert f"read epoch {'ab' * 16} of this zone" in told.detail


def test_the_scrub_reads_all_batches_and_reports_damage(tmp_path: Path) -> None:
    """A scrub pass over all streams counts batches, finds the damaged one, and starts again; the witness is written at
    the end."""
    with node(tmp_path) as store:
        fill(store, 1)
        fill(store, 11)
        while store._scrubber.step(1):
            pass
        assert store.integrity().batches_verified == 2
        assert store.integrity().last_full_pass_unix_ms is not None
    witness = read_witness(tmp_path / "facts.db")
    assert witness is not None
    assert witness.ends == {TELEMETRY: 20}


def test_the_scrub_passes_over_a_stream_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with an unreadable index does not stop the scrub of the others, and such a pass does not count as
    complete."""
    with node(tmp_path) as store:
        done(store.appends.define([tag(1)]))
        for stream in ("facts.first", "facts.last"):
            done(store.appends.append_samples(stream, samples(1)))
        whole = store._scrubber._read

        def read(stream: str, *asked: int) -> Page:
            if stream == "facts.first":
                raise StoreDamaged("its index is broken")
            return whole(stream, *asked)

        with monkeypatch.context() as broken:
            broken.setattr(store._scrubber, "_read", read)
            with pytest.raises(StoreDamaged):
                store._scrubber.step(1)
            while store._scrubber.step(1):
                pass
        assert store.integrity().batches_verified == 1
        assert store.integrity().last_full_pass_unix_ms is None
        while store._scrubber.step(1):
            pass
        assert store.integrity().last_full_pass_unix_ms is not None


def test_a_quarantined_file_is_reported_without_room_for_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk without room for the mark a damaged file is quarantined all the same, the node starts with a new store,
    and both are reported."""
    path = tmp_path / "facts.db"
    node(tmp_path).close()
    path.write_bytes(b"no database" * 1000)
    for module in (sys.modules[quarantine.__module__], witness):
        monkeypatch.setattr(module, "write_json", lambda *_: None)
    with node(tmp_path) as store:
        (aside,) = quarantined_files(path)
        assert [(one.kind, one.subject) for one in store.incidents()] == [("quarantined", aside.file)]
        assert store.integrity().quarantined == ((aside.file, aside.bytes),)


def test_the_newest_quarantined_file_is_reported_also_with_a_wrong_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway with its clock in 1970 gives the file a name before that of an older one. The right one is reported all
    the same."""
    path = tmp_path / "facts.db"
    for now_ns in (1_800_000_000 * 10**9, 3600 * 10**9):
        node(tmp_path).close()
        path.write_bytes(b"no database" * 1000)
        with monkeypatch.context() as clock:
            clock.setattr("agent.fact_store.store.time.time_ns", lambda now_ns=now_ns: now_ns)
            with node(tmp_path) as store:
                (told,) = store.incidents()
    assert told.subject == "facts.db.damaged-19700101T010000Z"
    assert len(quarantined_files(path)) == 2


def test_a_witness_that_cannot_be_written_begins_one_epoch_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A witness with an unknown epoch begins a new epoch once, also on a disk where the new witness cannot be
    written."""
    node(tmp_path).close()
    write_witness(tmp_path / "facts.db", Witness("ab" * 16, {}))
    monkeypatch.setattr(witness, "write_file", lambda *_: None)
    epochs = list[bytes]()
    for _ in range(3):
        with node(tmp_path) as store:
            epochs.append(store.epoch)
            assert [one.kind for one in store.incidents()] == ["epoch"]
    assert len(set(epochs)) == 1


def test_a_quarantined_file_keeps_its_write_ahead_log(tmp_path: Path) -> None:
    """A file is quarantined with its -wal: commits that SQLite has not checkpointed can still be read."""
    alive, dead = tmp_path / "alive", tmp_path / "dead"
    alive.mkdir()
    dead.mkdir()
    with node(alive) as store:
        fill(store, 1)
        for part in ("", "-wal"):  # as a process that was killed leaves them
            shutil.copy(alive / f"facts.db{part}", dead)
    mark_suspect(dead / "facts.db", "database disk image is malformed")
    with node(dead):
        (aside,) = quarantined_files(dead / "facts.db")
    with FactStore.open(dead / aside.file, "plant") as old:
        assert values_in(old) == list(range(1, 11))


def test_files_set_aside_in_one_second_have_two_names(tmp_path: Path) -> None:
    """A file quarantined in the same second does not replace the first."""
    path = tmp_path / "facts.db"
    for why in ("first", "second"):
        path.write_text(why)
        quarantine(path, why, 1_000)
    assert [(tmp_path / one.file).read_text() for one in quarantined_files(path)] == ["first", "second"]


def test_damage_met_while_writing_sets_the_file_aside(tmp_path: Path) -> None:
    """A node whose commit met a malformed page quarantines the file when it starts again, and begins a new store."""
    faults = Faults()
    with FactStore.open(
        tmp_path / "facts.db", "plant", settings=AT_ONCE, connect_to=faults.connect, unattended=True
    ) as store:
        faults.arm("COMMIT", 1, broken_error)
        assert isinstance(failed(store.appends.define([tag(1)])), StoreDamaged)
        assert isinstance(store.ended.exception(LIMIT_S), StoreDamaged)
    with node(tmp_path) as store:
        (aside,) = quarantined_files(tmp_path / "facts.db")
        assert "malformed" in aside.why
