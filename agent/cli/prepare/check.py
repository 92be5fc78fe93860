"""`bsfg check`: every problem that can be found before a node starts, in one list.

It reads node.toml, the tag maps that it names, the certificates and keys of brokers and sources, the state folder with
its store, and what would leave two gateways both recording, or one without the other's facts. A problem in one section
does not hide problems of the others. It writes nothing, and connects to nothing without `--connect`. `run` starts with
every configuration that `check` accepts. A file in /etc/bsfg is checked with the rights of the unit's user and for the
unit's sandbox.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import ssl
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli import config_option, json_option, print_json
from agent.cli.prepare import unit
from agent.cli.terminal import print_check
from agent.config import ConfigError, Sections, load_sections
from agent.errors import StoreError
from agent.escaping import printable
from agent.fact_store import StoreDamaged, StoreForeign, StoreReader, StoreTooNew
from agent.health.brief import SHOWN_MAX
from agent.health.problems import Problem, counted
from agent.ingest import TagMapError, load_tag_maps
from agent.ingest.opcua.security.file_check import FileFinding as Finding
from agent.ingest.opcua.security.file_check import check_source_files
from agent.ingest.tags.tag_map import DEFAULT_STREAM
from agent.message import HEALTH_STREAM, OPERATIONAL_STREAM
from agent.replication.pki import WARN_DAYS, PkiError, check_identity, describe, load_certificates
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.store import StoreSettings
from agent.signing.certificates import Signer, describe_signer
from agent.signing.files import load_identity, load_trust
from agent.signing.keys import SigningError

if TYPE_CHECKING:
    from agent.cli.source.connections import ConnectionResult

Check = Callable[[Sections], Iterator[Finding]]

SIGNER_WARN_DAYS = 60
"""A certificate of five years is renewed rarely, and each receiver that pins it must be reconfigured."""
NEARLY = 0.9
"""How alike two names are of which one is misspelt: one letter of ten differs."""
KEYS_HINT = "let both nodes sign, each with a key that the other one trusts, or neither"


@click.command()
@config_option
@click.option("--connect", is_flag=True, help="Also test the connection to each source, broker and peer.")
@json_option
def check(config_file: Path, connect: bool, as_json: bool) -> None:
    """Read node.toml and the files that it names, and print every problem."""
    tried: list[ConnectionResult] = []
    is_as_node = unit.is_of_unit(config_file) and unit.become_node_user()
    try:
        sections = load_sections(config_file)
    except ConfigError as error:
        problems, notes, summary = [f"{config_file}: {problem}" for problem in error.problems], list[str](), ""
    else:
        problems = [f"{config_file}: {problem}" for problem in sections.problems]
        found = [finding for check_sections in STATIC_CHECKS for finding in check_sections(sections)]
        problems += [finding.text for finding in found if finding.is_problem]
        notes = [finding.text for finding in found if not finding.is_problem]
        if unit.is_of_unit(config_file) and not is_as_node:
            notes.append(f"not checked with the rights of {unit.USER}, the user of the unit: run this as root")
        summary = "" if problems else summary_of(sections)
        if connect and sections.settings is not None:
            from agent.cli.source.connections import test_all

            tried = asyncio.run(test_all(sections.settings))
        elif connect:
            notes.append("no connection was tried: correct node.toml first")
    if as_json:
        result = {"file": str(config_file), "problems": problems, "notes": notes}
        print_json(result | ({"connections": [asdict(attempt) for attempt in tried]} if connect else {}))
    else:
        print_check(str(config_file), problems, summary, notes)
    for attempt in () if as_json else tried:
        click.echo(
            printable(f"  {'failed' if attempt.is_bad else 'ok':<7} {attempt.kind} {attempt.name}: {attempt.what}")
        )
        if attempt.is_bad and attempt.todo:
            click.echo(printable(f"{'':10}-> {attempt.todo}"))
    sys.exit(1 if problems or any(attempt.is_bad for attempt in tried) else 0)


def summary_of(sections: Sections) -> str:
    """A node without problems in one line: its zone, sources, tags and peers."""
    settings = sections.settings
    assert settings is not None, "there is no problem"
    tags = sum(len(found.tags) for found in load_tag_maps(settings.sources).values())
    peers = ", ".join(peer.node for peer in settings.peer) or "none"
    if len(settings.peer) > SHOWN_MAX:
        peers = f"{len(settings.peer):,}"
    return f"zone {settings.node.zone}, {counted(len(settings.sources), 'source')} with {counted(tags, 'tag')}, peers: {peers}"


def check_state(sections: Sections) -> Iterator[Finding]:
    """Check that the state folder can hold a store, and that a store in it belongs to this node."""
    if sections.node is None:
        return
    folder = existing = sections.node.state_dir
    try:
        while not existing.exists():
            if existing.is_symlink():
                what = f"{existing}: is a link to {existing.readlink()}, which is not there; is its disk mounted?"
                yield Finding(what, is_problem=True)
                return
            existing = existing.parent
    except OSError as error:  # the name is too long, or a folder above cannot be entered
        yield Finding(f"{folder}: {error.strerror}; correct state_dir", is_problem=True)
        return
    if not existing.is_dir():
        yield Finding(f"{existing}: is not a folder; state_dir must name one", is_problem=True)
    elif not os.access(existing, os.W_OK | os.X_OK):
        hint = "run as the node's user, or correct state_dir"
        yield Finding(f"{existing}: this user may not write there; {hint}", is_problem=True)
    else:
        yield from _check_room(existing, sections)
        if (file := sections.node.store_file).exists():
            yield from _check_modes(folder)  # before reading, which makes files of the store's mode
            yield from _check_store(file, sections.node)


def _check_room(folder: Path, sections: Sections) -> Iterator[Finding]:
    """With less free than the store leaves free, it takes a fact only in place of a confirmed one."""
    free = shutil.disk_usage(folder).free
    floor = next((store.disk_free_bytes_min for store in sections.named("store")), StoreSettings().disk_free_bytes_min)
    if free < floor:
        text = f"{folder}: {free / 1e6:,.0f} MB of its disk are free, and disk_free_bytes_min in [store] keeps"
        text += f" {floor / 1e6:,.0f} MB free: the store takes facts only in place of confirmed ones"
        yield Finding(f"{text}; free disk space, or set it lower", is_problem=True)


def _check_store(file: Path, node: IdentitySettings) -> Iterator[Finding]:
    if not os.access(file, os.R_OK | os.W_OK):
        yield Finding(f"{file}: this user may not write it; run as the node's user", is_problem=True)
        return
    try:
        with closing(StoreReader(file)) as reader:
            reader.check_names(node.zone, node.name)
    except (StoreForeign, StoreTooNew) as error:
        yield Finding(f"{error.why}; {error.hint}" if error.hint else error.why, is_problem=True)
    except StoreDamaged as error:
        yield Finding(f"{error.why}; the node will set the file aside and begin a new store", is_problem=False)
    except StoreError:  # a store of an older schema, which the node migrates, or one that never began
        return


def _check_modes(folder: Path) -> Iterator[Finding]:
    """Find state files that other users of the machine may read. A node creates none; a copied store may have some."""
    try:
        is_open = folder.stat().st_mode & stat.S_IXOTH
        readable = [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & stat.S_IROTH]
    except OSError:  # a running node removes files, and another user's cannot be looked at
        return
    if readable and is_open:
        more = f" and {len(readable) - 1} more in {folder}" if len(readable) > 1 else ""
        what = f"{readable[0]}{more}: other users of this machine may read them"
        yield Finding(f"{what}; run: chmod -R o= {folder}", is_problem=False)


def check_identities(sections: Sections) -> Iterator[Finding]:
    """Check the certificates and keys with which this node connects to its brokers, and warn of those that expire
    soon."""
    if sections.node is None:
        return
    name, now = sections.node.name, datetime.now(UTC)
    soon: dict[Path, int] = {}  # several brokers may have one file
    for broker in sections.broker:
        problems = check_identity(broker.cert_file, broker.key_file, broker.ca_file, name)
        yield from (Finding(str(problem), is_problem=True) for problem in problems)
        if not problems and (days := describe(load_certificates(broker.cert_file)[0], now).days_left) < WARN_DAYS:
            soon[broker.cert_file] = days
    for file, days in soon.items():
        remedy = Problem.CERTIFICATE_ENDS.value.remedy.format(zone=name)
        yield Finding(f"{file}: ends in {counted(days, 'day')}; {remedy}", is_problem=False)


def check_signing(sections: Sections) -> Iterator[Finding]:
    """Check the key and certificate that sign this node's facts, and the files with the trusted signers of other
    zones."""
    if sections.node is None or sections.signing is None:
        return
    try:
        if (identity := load_identity(sections.signing, sections.node.zone, sections.node.name)) is not None:
            signers = map(describe_signer, (identity.certificate, identity.message_certificate))
            ends_ms = min(signer.not_after_ms for signer in signers if isinstance(signer, Signer))
            days = (ends_ms - datetime.now(UTC).timestamp() * 1000) / 86_400_000
            if days < SIGNER_WARN_DAYS:
                why = "receivers refuse what is signed after that; bsfg pki signer request"
                ends = f"its certificate ends in {days:.0f} days" if days > 0 else "its certificate has ended"
                yield Finding(f"{sections.signing.certificate_file}: {ends}; {why}", is_problem=False)
    except SigningError as error:
        yield Finding(f"{error.why}; {error.hint}", is_problem=True)
    try:
        load_trust(sections.signing, sections.origin)
    except SigningError as error:
        yield Finding(f"{error.why}; {error.hint}", is_problem=True)


def check_tag_files(sections: Sections) -> Iterator[Finding]:
    """The tag files of all sources, and that no two have the same tag."""
    try:
        maps = load_tag_maps(sections.sources)
    except TagMapError as error:
        yield from (Finding(str(problem), is_problem=True) for problem in error.problems)
    else:
        yield from (Finding(note, is_problem=False) for found in maps.values() for note in found.notes)


def check_certificates(sections: Sections) -> Iterator[Finding]:
    """Check the certificates, keys and trust folders of the sources, and warn of certificates that expire soon."""
    yield from check_source_files(sections.sources, datetime.now(UTC))


def runs(store_file: Path) -> bool:
    """Whether a process holds the lock of the store. The process number in its file alone may be that of another
    process since, as after a power cut."""
    lock = store_file.with_name(f"{store_file.name}.lock")
    try:
        held = (lock.read_text().strip(), str(lock.stat().st_ino))
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return False
    # 1: FLOCK  ADVISORY  WRITE 812 08:02:131543 0 EOF; a waiting process has an arrow in its row, and one field more
    return any(row[1] == "FLOCK" and (row[4], row[5].rpartition(":")[2]) == held for row in rows)


def check_unit(sections: Sections) -> Iterator[Finding]:
    """Check for paths and addresses that the unit's sandbox denies to a node of /etc/bsfg."""
    if unit.is_of_unit(sections.file):
        for text in unit.refusals_of(sections):
            yield Finding(text, is_problem=True)


def check_pair(sections: Sections) -> Iterator[Finding]:
    """What one of two gateways of a zone can know of the pair."""
    if sections.settings is None:
        return
    for note in _pair_notes(sections.settings, _streams_of_tags(sections)):
        yield Finding(note, is_problem=False)


def _streams_of_tags(sections: Sections) -> set[str]:
    """Empty if a tag file has problems, which are told by themselves."""
    with suppress(TagMapError):
        return {tag.stream for found in load_tag_maps(sections.sources).values() for tag in found.tags}
    return set()


def check_exports(sections: Sections) -> Iterator[Finding]:
    """Find exported streams that nothing here brings, and whose name is nearly that of another one."""
    if (settings := sections.settings) is None:
        return
    known = {OPERATIONAL_STREAM, HEALTH_STREAM, DEFAULT_STREAM, *(stream.name for stream in settings.stream)}
    known |= {stream for peer in settings.peer for stream in (*peer.pulls, *peer.appends)}
    known |= _streams_of_tags(sections)
    with suppress(StoreError), closing(StoreReader(settings.node.store_file)) as reader:
        known |= {stream.name for stream in reader.streams()}
    for peer in settings.peer:
        for stream in sorted(set(peer.exports) - known):
            if meant := get_close_matches(stream, sorted(known), 1, NEARLY):
                text = f"exports of peer {peer.node}: nothing here has a stream {stream!r}; is {meant[0]!r} meant?"
                yield Finding(text, is_problem=False)


def check_page(sections: Sections) -> Iterator[Finding]:
    """A page that would not start, or refuse everybody. Its node runs."""
    if (page := sections.page) is None:
        return
    file = page.users_file
    with suppress(OSError):  # only the page's user may look into the folder
        if file is not None and (not file.exists() or not file.stat().st_size):
            text = f"{file} has no user: nobody can log in to the page: bsfg page --add-user NAME >>{file}"
            yield Finding(text, is_problem=False)
    if page.cert_file is None or page.key_file is None:
        return
    if why := _page_trouble(page.cert_file, page.key_file, page.client_ca_file):
        yield Finding(why, is_problem=False)
    with suppress(PkiError):
        days = describe(load_certificates(page.cert_file)[0], datetime.now(UTC)).days_left
        if days < WARN_DAYS:
            yield Finding(
                f"{page.cert_file}: ends in {counted(days, 'day')}; browsers refuse it then", is_problem=False
            )


def _page_trouble(cert_file: Path, key_file: Path, client_ca_file: Path | None) -> str:
    """Why the page cannot use its files; empty if it can, or if only its user may read them."""
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca_file)
        context.load_cert_chain(cert_file, key_file, password="")  # none, and no question at the terminal
    except PermissionError:
        return ""
    except FileNotFoundError:
        files = filter(None, (cert_file, key_file, client_ca_file))
        return f"{next(file for file in files if not file.exists())} does not exist: the page does not start"
    except OSError as error:
        return f"{cert_file} and {key_file}: the page does not start: {error.strerror or error}"
    return ""


STATIC_CHECKS: tuple[Check, ...] = (
    check_state,
    check_identities,
    check_signing,
    check_tag_files,
    check_certificates,
    check_pair,
    check_exports,
    check_page,
    check_unit,
)
"""The conditions that `run` needs at its start, in the order of its steps. They are checked without a connection."""


def _pair_notes(settings: NodeSettings, recorded: Collection[str]) -> Iterator[str]:
    """`recorded`: the streams of the tags."""
    own, pair = settings.node, settings.pair
    for peer in settings.peer:
        if peer.zone == own.zone and peer.node != pair.partner:
            why = f"peer {peer.node} records for our zone, {own.zone}, and [pair] does not name it: both nodes record"
            yield f'{why}; write partner = "{peer.node}" in [pair]'
    partner = next((peer for peer in settings.peer if peer.node == pair.partner), None)
    if partner is None:
        return
    local = {stream.name for stream in settings.stream if stream.write_class == "local"}
    others = {stream for peer in settings.peer if peer is not partner for stream in peer.exports}
    for kind, exchanged in (("exports", partner.exports), ("pulls", partner.pulls)):
        if lacking := sorted({*recorded, *others} - local - set(exchanged)):
            why = f"{kind} of peer {partner.node} lacks {', '.join(lacking)}: one gateway has no copy of the other's facts"
            yield f"{why}; add it there and at {partner.node}"
    for peer in settings.peer:
        if peer.node == pair.witness and peer.broker == partner.broker:
            why = (
                f"{pair.partner} and {pair.witness} are reached over one broker, {peer.broker}: without it both record"
            )
            yield f"{why}; give the two gateways a broker of their own (docs/how-to/two-gateways.md)"
    yield from _signing_notes(settings)


def _signing_notes(settings: NodeSettings) -> Iterator[str]:
    """Whether the facts of the zone that both nodes record are accepted from the other one, and from this one."""
    own, partner, signing = settings.node, settings.pair.partner, settings.signing
    signs = signing.key_file is not None
    if signs and signing.facts_ca_file is None:
        pins = frozenset[bytes]().union(*(origin.pins for origin in settings.origin if origin.zone == own.zone))
        with suppress(SigningError):  # which is told by itself
            identity = load_identity(signing, own.zone, own.name)
            pins -= {hashlib.sha256(identity.certificate).digest()} if identity else set()
        if not pins:
            why = f"no key of {partner} is trusted here: what it records of {own.zone} is not stored, once this node signed"
            yield f'{why}; name facts_ca_file in [signing], or pin its certificate in [[origin]] zone = "{own.zone}"'
    if not own.store_file.exists():
        return
    with suppress(StoreError), closing(StoreReader(own.store_file)) as reader:
        if not signs and own.zone in reader.signed_zones():
            why = f"facts of {own.zone} here are signed, and this node does not sign: receivers do not store what it records"
            yield f"{why}; {KEYS_HINT}"
        incidents = reader.incidents(kinds=["declined"])
        if declined := next((incident for incident in incidents if incident.declines(own.zone)), None):
            yield f"facts of {own.zone} were not stored here: {declined.detail.partition('. ')[0]}; {KEYS_HINT}"
