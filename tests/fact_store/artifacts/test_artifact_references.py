"""Artifacts and the facts that refer to them, in a real store: the artifact comes first and stays as long as the
fact."""

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent import batch
from agent.append_contract import AppendOutcome
from agent.fact_store import FactStore
from agent.fact_store.core.errors import ArtifactMissing, ArtifactRefused
from agent.fact_store.read import reader
from agent.message import Envelope, Fact, Message, canonical_json
from agent.positions import Position
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.making import LIFE, OPERATIONAL, done
from tests.support.received import put_page
from tests.waiting import wait_until

SETTINGS = StoreSettings(commit_interval_ms=0, artifact_orphan_hours=1.0)
BLOB = b"a report" * 1000
DIGEST = "sha256:" + hashlib.sha256(BLOB).hexdigest()


def report(name: str, digest: str = DIGEST, size: int = len(BLOB)) -> Message:
    """A message that refers to an artifact."""
    envelope = Envelope(name, "plant", "*", 1, object_media_type="application/pdf")
    return Message(envelope, Fact(f"batch:{name}", "report_filed", canonical_json({"digest": digest, "size": size})))


def opened(folder: Path, zone: str = "plant") -> FactStore:
    """A store that releases messages as soon as they are confirmed."""
    folder.mkdir(exist_ok=True)
    streams = [StreamSettings(OPERATIONAL, keep_hours=0)]
    return FactStore.open(folder / "facts.db", zone, settings=SETTINGS, streams=streams)


def grow_old(folder: Path) -> None:
    """Make every artifact old."""
    for path in (folder / "artifacts").glob("??/*"):
        os.utime(path, (1000, 1000))


def test_invariant_18_a_referenced_artifact_is_there_and_stays_as_it_is(tmp_path: Path) -> None:
    """A fact that refers to a missing artifact, or to another size, is refused. Once the fact is stored, the bytes
    survive any sweep, and other bytes under the name are refused."""
    with opened(tmp_path) as store:
        for message in (report("a"), report("b", "sha256:" + "0" * 64)):
            with pytest.raises(ArtifactMissing):
                store.appends.append_message(OPERATIONAL, message)
        assert store.artifacts.put_chunk("plant", DIGEST, len(BLOB), 0, BLOB).is_complete
        with pytest.raises(ArtifactMissing, match="8000 bytes, the fact says 8"):
            store.appends.append_message(OPERATIONAL, report("a", size=8))
        assert store.end_offset(OPERATIONAL) == 0
        assert done(store.appends.append_message(OPERATIONAL, report("a"))) == AppendOutcome(1, "applied")
        assert store.artifacts.streams(DIGEST) == [OPERATIONAL]
        grow_old(tmp_path)
        assert [store.artifacts.sweep() for _ in range(2)] == [0, 0], "with its second name, and without"
        with pytest.raises(ArtifactRefused):
            store.artifacts.put_chunk("plant", DIGEST, len(BLOB) + 1, 0, BLOB + b"!")
        assert store.artifacts.put_chunk("plant", DIGEST, len(BLOB), 0, b"x").is_complete
    with opened(tmp_path) as store:
        assert store.artifacts.read_chunk(DIGEST, 0, 10_000) == (len(BLOB), BLOB)


def test_an_artifact_goes_after_its_last_fact(tmp_path: Path) -> None:
    """An artifact is removed when all facts that refer to it are released and its hours are over, not before."""
    with opened(tmp_path) as store:
        store.artifacts.put_chunk("plant", DIGEST, len(BLOB), 0, BLOB)
        done(store.consumers.register("idmz.a", "idmz", OPERATIONAL))
        for name in ("a", "b"):
            done(store.appends.append_message(OPERATIONAL, report(name)))
        done(store.consumers.confirm("idmz.a", 1))
        wait_until(lambda: store.streams()[0].first_offset == 2, "the first message to go")
        grow_old(tmp_path)
        assert store.artifacts.sweep() == 0
        done(store.consumers.confirm("idmz.a", 2))
        wait_until(lambda: store.streams()[0].first_offset == 3, "the second message to go")
        assert store.artifacts.streams(DIGEST) == []
        assert store.artifacts.put_chunk("plant", DIGEST, len(BLOB), 0, b"").is_complete
        assert store.artifacts.sweep() == 0, "who has just put it is about to refer to it"
        grow_old(tmp_path)
        assert store.artifacts.sweep() == 1
        with pytest.raises(ArtifactMissing):
            store.artifacts.read_chunk(DIGEST, 0, 10)
    with closing(sqlite3.connect(tmp_path / "facts.db")) as outside:
        assert outside.execute("SELECT count(*) FROM artifact").fetchone() == (0,), "rows of released facts"


def test_a_young_artifact_waits_for_its_fact(tmp_path: Path) -> None:
    """An artifact without a fact stays for its hours; a fact that is about to refer to it resets its age."""
    with opened(tmp_path) as store:
        store.artifacts.put_chunk("plant", DIGEST, len(BLOB), 0, BLOB)
        assert store.artifacts.sweep() == 0
        grow_old(tmp_path)
        store.artifacts.claim(report("a"))
        assert store.artifacts.sweep() == 0
        grow_old(tmp_path)
        assert store.artifacts.sweep() == 1


def test_received_facts_keep_their_artifacts(tmp_path: Path) -> None:
    """Artifacts of a peer's facts are listed while they are missing, and kept once they are stored."""
    with opened(tmp_path / "plant") as plant, opened(tmp_path / "idmz", "idmz") as idmz:
        plant.artifacts.put_chunk("plant", DIGEST, len(BLOB), 0, BLOB)
        done(plant.appends.append_message(OPERATIONAL, report("a")))
        batches = [batch.parse(stored.sealed) for stored in plant.read(OPERATIONAL, 0, 100, 2**30).batches]
        (missing,) = idmz.artifacts.missing(batches)
        assert (missing.digest, missing.size) == (DIGEST, len(BLOB))
        idmz.artifacts.put_chunk("plant", DIGEST, len(BLOB), 0, BLOB)
        assert idmz.artifacts.missing(batches) == []
        done(put_page(idmz, "plant", OPERATIONAL, batches, [], Position(LIFE, 1)))
        assert idmz.artifacts.streams(DIGEST) == [OPERATIONAL]
        grow_old(tmp_path / "idmz")
        assert idmz.artifacts.sweep() == 0


def test_artifacts_that_are_absent_are_looked_for_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts of one zone may refer to millions of missing artifacts. Their digests are never in memory all at once."""
    monkeypatch.setattr(reader, "ARTIFACTS_AT_ONCE", 2)
    nowhere = [f"sha256:{number:064x}" for number in range(1, 6)]
    link = batch.Link(OPERATIONAL, batch.Origin("plant", LIFE))
    sealed = batch.seal_messages(link, [report(digest[-1], digest) for digest in (*nowhere, DIGEST)])
    with opened(tmp_path, "idmz") as store:
        done(put_page(store, "plant", OPERATIONAL, [sealed], [], Position(LIFE, 6)))
        store.artifacts.put_chunk("plant", DIGEST, len(BLOB), 0, BLOB)
        parts = list[list[str]]()
        some, after = store.artifacts.absent(OPERATIONAL)
        while after is not None:
            parts.append(some)
            some, after = store.artifacts.absent(OPERATIONAL, after)
    assert sorted(digest for part in parts for digest in part) == nowhere
    assert max(map(len, parts)) == 2


def test_a_missing_artifact_is_an_incident(tmp_path: Path) -> None:
    """A fact whose artifact does not come leaves an incident with the artifact's name."""
    with opened(tmp_path) as store:
        store.artifacts.unavailable("north", DIGEST, "unknown there")
        done(store.appends.define([]))
        (incident,) = store.reader.incidents()
        assert (incident.kind, incident.subject) == ("artifact_missing", DIGEST)
