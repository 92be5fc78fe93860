"""The signers that a node trusts, changed while it runs: the files that [signing] names are replaced as an operator
does it."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from errno import EACCES
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.errors import StoreBusy
from agent.fact_store import FactStore
from agent.file_watch import WatchTimes
from agent.node.trust import TrustFiles
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.signing import OriginSettings, SigningSettings
from agent.signing.keys import SigningError, ZoneSigner
from agent.signing.messages import MessagePlace, sign_request, split_request
from tests.fact_store.durability.faults import Faults, full_error
from tests.fact_store.making import IN_MEMORY
from tests.signing.signers import Made, make, signing_key
from tests.waiting import LIMIT_S, wait_until_async

EAGER = WatchTimes(settle_s=0.01, settle_max_s=0.1, reread_s=0.2)
LIFE: dict[str, Any] = {"begins": datetime(2020, 1, 1, tzinfo=UTC), "ends": datetime(2100, 1, 1, tzinfo=UTC)}
FIRST, SECOND = (make("facts authority", is_ca=True, **LIFE) for _ in range(2))
PLANT, NEW = make("plant", FIRST, **LIFE), make("plant", SECOND, **LIFE)
PLACE = MessagePlace("idmz", "plant", "i", b"c" * 16)


class Files:
    """The files of a node of idmz that demands signatures of the plant, and the node's judge."""

    def __init__(self, folder: Path, store: FactStore) -> None:
        self.authorities, self.compromised = folder / "facts-ca.pem", folder / "compromised.toml"
        self.authorities.write_bytes(FIRST.pem)
        signing = SigningSettings(facts_ca_file=self.authorities, compromised_file=self.compromised)
        settings = NodeSettings(
            IdentitySettings("idmz", folder), signing=signing, origin=(OriginSettings("plant", "required"),)
        )
        self.store = store
        self.trust = TrustFiles(settings, store, EAGER)
        self.trust.read(is_start=True)

    def trusts(self, made: Made) -> bool:
        """Whether a request signed with this key of the plant is accepted."""
        _, proof = split_request(sign_request(ZoneSigner(signing_key(made), made.der), PLACE, b"{}"))
        return self.trust.judge.messages.refuses_request(PLACE, b"{}", proof, is_writing=True) is None

    def replace(self, file: Path, data: bytes) -> None:
        """Replace a file in one step, as an editor does."""
        new = file.with_suffix(".new")
        new.write_bytes(data)
        new.replace(file)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch as a node does."""
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            watching = group.create_task(self.trust.run())
            yield
            watching.cancel()


@contextlib.asynccontextmanager
async def played(folder: Path) -> AsyncIterator[Files]:
    """Run a scenario while the files are watched."""
    with FactStore.open(folder / "facts.db", "idmz", settings=IN_MEMORY) as store:
        files = Files(folder, store)
        async with files.watched():
            yield files


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    """The records of an event."""
    return [record for record in caplog.records if record.message == event]


async def test_pins_and_rules_are_taken_over_by_a_reload(tmp_path: Path) -> None:
    """A renewed pinned certificate counts from then on, and the former one no longer; a zone whose rule was removed
    need not sign; an unusable file changes nothing."""
    async with played(tmp_path) as files:

        def pinned(made: Made, rule: Any = "required", authority: Path | None = None) -> NodeSettings:
            signing = SigningSettings(facts_ca_file=authority, compromised_file=files.compromised)
            origin = OriginSettings("plant", rule, (made.sha256.hex(),))
            return NodeSettings(IdentitySettings("idmz", tmp_path), signing=signing, origin=(origin,))

        files.trust.reconfigure(pinned(PLANT))
        assert (files.trusts(PLANT), files.trusts(NEW)) == (True, False)
        files.trust.reconfigure(pinned(NEW))
        assert (files.trusts(PLANT), files.trusts(NEW)) == (False, True)
        files.trust.reconfigure(pinned(PLANT, authority=tmp_path / "absent.pem"))
        assert (files.trusts(PLANT), files.trusts(NEW)) == (False, True)
        other = PLACE._replace(asking_node="mill")
        assert files.trust.judge.messages.refuses_request(other, b"{}", None, is_writing=True) is None
        mill = NodeSettings(IdentitySettings("idmz", tmp_path), origin=(OriginSettings("mill", "required"),))
        files.trust.reconfigure(mill)
        assert files.trust.judge.messages.refuses_request(other, b"{}", None, is_writing=True) == "mill did not sign it"


async def test_a_compromised_key_is_refused_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The command of certificates.md writes the list. Seconds later nothing that the key signs is accepted, the store
    has the list, and one log line says so. The other signers stay trusted."""
    caplog.set_level("INFO", "agent.node")
    certificate = tmp_path / "plant.pem"
    certificate.write_bytes(PLANT.pem)
    other = make("plant", FIRST, **LIFE)
    async with played(tmp_path) as files:
        assert files.trusts(PLANT)
        words = ["pki", "signer", "compromise", str(certificate), "--since", "2021-01-01T00:00:00+00:00"]
        done = await asyncio.to_thread(CliRunner().invoke, bsfg, [*words, "--file", str(files.compromised)])
        assert done.exit_code == 0, done.output
        await wait_until_async(lambda: not files.trusts(PLANT), "the key to be refused")
        assert files.trusts(other)
        (line,) = logged(caplog, "signers_taken_over")
        assert (line.authorities, line.compromised) == (1, 1)


@pytest.mark.parametrize("is_start", [True, False])
async def test_a_store_on_a_full_disk_gets_the_compromised_keys_later(tmp_path: Path, *, is_start: bool) -> None:
    """The list is in the store, for readers of its file, although the first commit of it found no room."""
    faults = Faults()
    listed = b'[[compromised]]\nkey_id = "0011223344556677"\nsince = 2026-11-22T10:00:00Z\n'

    def in_store() -> list[Any]:
        with contextlib.closing(sqlite3.connect(tmp_path / "facts.db")) as outside:
            return outside.execute("SELECT hex(key_id), since_unix_ms FROM compromised").fetchall()

    with FactStore.open(tmp_path / "facts.db", "idmz", settings=IN_MEMORY, connect_to=faults.connect) as store:
        if is_start:
            (tmp_path / "compromised.toml").write_bytes(listed)
            faults.arm("COMMIT", 1, full_error)
        files = Files(tmp_path, store)
        async with files.watched():
            if not is_start:
                await asyncio.wrap_future(store.note_incident("test", "x", "everything before is recorded"))
                faults.arm("COMMIT", 1, full_error)
                files.replace(files.compromised, listed)
            await wait_until_async(in_store, "the list in the store")
        assert in_store() == [("0011223344556677", 1_795_341_600_000)]


async def test_a_busy_store_gets_the_compromised_keys_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has no room for the call that sets the list: the next look at the unchanged file sets it."""
    with FactStore.open(tmp_path / "facts.db", "idmz", settings=IN_MEMORY) as store:
        files, set_compromised, given = Files(tmp_path, store), store.set_compromised, list[Any]()

        def busy_at_first(since_ms: Any) -> Any:
            given.append(since_ms)
            if len(given) == 1:
                raise StoreBusy("too much work waits for the disk")
            return set_compromised(since_ms)

        monkeypatch.setattr(store, "set_compromised", busy_at_first)
        files.replace(
            files.compromised, b"[[compromised]]\nkey_id = '0011223344556677'\nsince = 2026-11-22T10:00:00Z\n"
        )
        with pytest.raises(StoreBusy):
            files.trust.read()
        files.trust.read()
        files.trust.read()
        assert len(given) == 2
        assert given[0] == given[1] != {}


async def test_another_authority_is_trusted_without_a_restart(tmp_path: Path) -> None:
    """With a second facts authority added, the keys of both zones are trusted. After the first authority is removed,
    its signers are no longer trusted, also those that were trusted before."""
    async with played(tmp_path) as files:
        assert (files.trusts(PLANT), files.trusts(NEW)) == (True, False)
        files.replace(files.authorities, FIRST.pem + SECOND.pem)
        await wait_until_async(lambda: files.trusts(NEW), "the new authority")
        assert files.trusts(PLANT)
        files.replace(files.authorities, SECOND.pem)
        await wait_until_async(lambda: not files.trusts(PLANT), "the old authority to be forgotten")
        assert files.trusts(NEW)


@pytest.mark.parametrize(
    "case", ["no certificate", "an authority for nothing", "no file", "list no TOML", "list gone", "closed"]
)
async def test_files_that_cannot_be_used_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Trusted signers stay trusted, and compromised keys stay compromised. The reason is logged and recorded once, and
    the next good file is used. "closed": the folder may not be entered any more."""
    closed, stat = set[Path](), os.stat

    def checked_stat(path: Any, **how: Any) -> Any:
        if path in closed:
            raise PermissionError(EACCES, "Permission denied")
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", checked_stat)
    listed = b'[[compromised]]\nkey_id = "0011223344556677"\nsince = 2026-11-22T10:00:00Z\n'
    async with played(tmp_path) as files:
        files.replace(files.compromised, listed)
        await wait_until_async(lambda: files.trust._trust.compromised_since_ms, "the list")
        match case:
            case "no certificate":
                files.replace(files.authorities, b"-----BEGIN CERTI")
            case "an authority for nothing":
                files.replace(files.authorities, make("plant", **LIFE).pem)
            case "no file":
                files.authorities.unlink()
            case "list no TOML":
                files.replace(files.compromised, listed + b"[[comp")
            case "list gone":
                files.compromised.unlink()
            case "closed":
                closed.add(files.compromised)
                files.replace(files.compromised, b"")
        await wait_until_async(lambda: logged(caplog, "signers_not_read"), "the reason")
        await asyncio.wrap_future(files.store.note_incident("test", "x", "everything before is recorded"))
        assert files.trusts(PLANT)
        assert len(files.trust._trust.compromised_since_ms) == 1
        (line,) = logged(caplog, "signers_not_read")
        assert line.in_force == "the previous signers stay trusted"
        (incident,) = [incident for incident in files.store.reader.incidents() if incident.kind == "signing"]
        assert incident.count == 1
        closed.clear()
        files.replace(files.compromised, listed)
        files.replace(files.authorities, SECOND.pem)
        await wait_until_async(lambda: files.trusts(NEW), "the good files")


async def test_a_start_without_usable_files_trusts_no_signer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node starts, logs the reason, and trusts no signer until the file is there."""

    async def scenario(files: Files) -> None:
        files.authorities.unlink()
        again = TrustFiles(files.trust._settings, files.store, EAGER)
        again.read(is_start=True)
        (line,) = logged(caplog, "signers_not_read")
        assert line.in_force == "no signer is trusted"
        files.trust = again
        assert not files.trusts(PLANT)
        files.replace(files.authorities, FIRST.pem)
        again.read()
        assert files.trusts(PLANT)

    with FactStore.open(tmp_path / "facts.db", "idmz", settings=IN_MEMORY) as store:
        await scenario(Files(tmp_path, store))


@pytest.mark.parametrize("case", ["good", "compromised", "expired"])
async def test_only_a_key_that_others_believe_is_taken_over(tmp_path: Path, case: str) -> None:
    """A reload to a compromised key, or to an expired certificate, is refused: receivers would
    decline what it signs. A good key signs facts and is known as our own, and taking it over twice is once."""
    ends = datetime(2021, 1, 1, tzinfo=UTC) if case == "expired" else LIFE["ends"]
    made = make("idmz", FIRST, begins=LIFE["begins"], ends=ends)
    signer = ZoneSigner(signing_key(made), made.der)
    files = {name: tmp_path / name for name in ("s.key", "s.pem", "compromised.toml")}
    files["s.key"].touch(mode=0o600)
    files["s.key"].write_bytes(made.key_pem)
    files["s.pem"].write_bytes(made.pem)
    if case == "compromised":
        entry = f'[[compromised]]\nkey_id = "{signer.key_id.hex()}"\nsince = 2021-01-01T00:00:00Z\n'
        files["compromised.toml"].write_text(entry)
    before = NodeSettings(IdentitySettings("idmz", tmp_path))
    after = replace(before, signing=SigningSettings(files["s.key"], files["s.pem"], None, files["compromised.toml"]))
    with FactStore.open(tmp_path / "facts.db", "idmz", settings=IN_MEMORY) as store:
        trust = TrustFiles(before, store, EAGER)
        if case != "good":
            with pytest.raises(SigningError, match="is compromised" if case == "compromised" else "cannot be used now"):
                trust.check(after)
            return
        found = trust.check(after)
        assert [await trust.sign_with(found) for _ in "ab"] == [True, False]
        assert store.signer is found is not None
        assert trust.judge.messages.policy.own_certificates == (made.der,)
