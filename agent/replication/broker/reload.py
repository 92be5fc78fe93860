"""Make a running broker read its files again, but only files that leave it a broker.

Mosquitto reads certificate, key, authorities, revocation list and access list at SIGHUP and says little: without a readable
list revoked certificates come in, with one that has ended nobody does, and with a damaged certificate it runs on and refuses
everybody.  So everything is looked at first, as the user the broker runs as; nothing is sent when anything is wrong, and the
broker keeps what it has in memory.  Afterwards a handshake proves that it shows the certificate of the file.

What cannot be proven from outside is the list: that it was read takes a revoked certificate to try.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from agent.replication import pki
from agent.replication.broker import config_lint
from agent.replication.broker.config import PORT, USER
from agent.replication.broker.diagnosis import Diagnostic, Outcome
from agent.replication.broker.session import WAIT_S

WARN_DAYS = 30
"""From here on the end of certificate or list is worth a word: there is time for the next one."""

PROOFS_MAX = 20
PROOF_PAUSE_S = 0.25
"""A busy broker reads its files within a second; we wait for five."""


def check_broker_files(config_file: Path, *, now: datetime | None = None) -> Iterator[Diagnostic]:
    """Everything a reload would read: there, readable for the broker's user, valid now, and fitting together."""
    now = now or datetime.now(UTC)
    try:
        settings = config_lint.parse_config(pki.read_file(config_file).decode("utf-8", "replace"))
    except pki.PkiError as error:
        yield Diagnostic(Outcome.BAD, error.why, error.hint)
        return
    config = list(config_lint.check_config(settings))
    yield from config
    if config:
        return
    files = {name: Path(settings[name]) for name in config_lint.FILES}
    user = settings.get("user", USER)
    unreadable = list(_unreadable(files.values(), user))
    yield from unreadable
    if unreadable:
        return
    yield Diagnostic(Outcome.GOOD, f"{user} can read all {len(files)} files that {config_file} names")
    yield from _certificate_diagnostics(files["certfile"], files["keyfile"], files["cafile"], now)
    yield from _crl_diagnostics(files["crlfile"], files["cafile"], now)
    acl = list(config_lint.check_acl(pki.read_file(files["acl_file"]).decode("utf-8", "replace")))
    yield from acl or [Diagnostic(Outcome.GOOD, "the access list can be read")]


def reload_broker(
    config_file: Path, pid: int | None, pause: Callable[[float], None], *, now: datetime | None = None
) -> Iterator[Diagnostic]:
    """Check, send SIGHUP to `pid` (or to the one broker that runs with this configuration), and prove."""
    diagnostics = list(check_broker_files(config_file, now=now))
    yield from diagnostics
    if any(diagnostic.outcome is Outcome.BAD for diagnostic in diagnostics):
        hint = "the broker runs on with what it has; put that right, and reload again"
        yield Diagnostic(Outcome.BAD, "nothing was sent to the broker", hint)
        return
    if pid is None:
        running = find_brokers(config_file)
        if len(running) != 1:
            what = f"{len(running) or 'no'} broker{'s' * (len(running) != 1)} with {config_file} on this machine"
            yield Diagnostic(Outcome.BAD, f"{what}, so nothing was sent", "start it, or name one: --pid NUMBER")
            return
        (pid,) = running
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        hint = "run this as root or as the broker's user, and with the number of its process"
        yield Diagnostic(Outcome.BAD, f"SIGHUP could not be sent to {pid}: {error.strerror}", hint)
        return
    yield Diagnostic(Outcome.GOOD, f"told broker {pid} to read its files again")
    yield _prove(config_file, pause)


def deny_zones(config_file: Path, zones: Sequence[str]) -> Path:
    """Rewrite the access list so that these zones may do nothing; it counts from the next reload on."""
    for zone in zones:
        pki.check_zone(zone)
    settings = config_lint.parse_config(pki.read_file(config_file).decode("utf-8", "replace"))
    acl_file = Path(settings.get("acl_file", ""))
    before = pki.read_file(acl_file).decode()
    there = acl_file.stat()
    after = config_lint.without_zones(before, zones)
    if after != before:
        try:
            pki.write_file(acl_file, after.encode(), stat.S_IMODE(there.st_mode), there.st_gid)
        except OSError as error:
            raise pki.PkiError(
                f"cannot write {acl_file}: {error.strerror}", "run this as the folder's owner"
            ) from error
    return acl_file


def find_brokers(config_file: Path) -> list[int]:
    """Processes called mosquitto that were started with this configuration, however its path was written: to signal another site's
    broker because both said `broker/mosquitto.conf` would leave ours with a revoked zone, and say that all is well."""
    wanted, found = config_file.resolve(), []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
            started_in = (folder / "cwd").readlink() if Path(words[0]).name == "mosquitto" else None
        except OSError:  # gone meanwhile, or not ours to see
            continue
        if started_in is not None and any((started_in / word).resolve() == wanted for word in words[1:]):
            found.append(int(folder.name))
    return sorted(found)


def _certificate_diagnostics(cert_file: Path, key_file: Path, ca_file: Path, now: datetime) -> Iterator[Diagnostic]:
    problems = pki.check_broker_identity(cert_file, key_file, None, now=now)
    yield from (Diagnostic(Outcome.BAD, f"{each.file}: {each.why}", each.hint) for each in problems)
    if problems:
        return
    left = pki.describe(pki.load_certificates(cert_file)[0], now).days_left
    yield _ends("the broker's certificate", left, "bsfg pki renew --broker NAME, and bsfg broker config again")
    if pki.check_broker_identity(cert_file, key_file, ca_file, now=now):
        # Allowed: zones and broker may have different authorities.  By mistake, every node would refuse the broker.
        what = f"the broker's certificate is not of the zones' authority ({ca_file})"
        yield Diagnostic(Outcome.NOTE, what, "the nodes' ca_file must name its authority as well")


def _crl_diagnostics(crl_file: Path, ca_file: Path, now: datetime) -> Iterator[Diagnostic]:
    problems = pki.check_crl(crl_file, ca_file, now=now)
    yield from (Diagnostic(Outcome.BAD, f"{each.file}: {each.why}", each.hint) for each in problems)
    if problems:
        return
    lists = pki.load_crls(crl_file)
    for authority in pki.load_certificates(ca_file):
        if not any(pki.is_crl_of(crl, authority) for crl in lists):
            what = f"no revocation list of {authority.subject.rfc4514_string()}: whoever it issued would be refused"
            yield Diagnostic(Outcome.BAD, what, f"bring its list into {crl_file} too, or take it out of {ca_file}")
    ends = [facts.days_left for facts in (pki.describe_crl(crl, now) for crl in lists) if facts.days_left is not None]
    if ends:
        yield _ends("the revocation list", min(ends), "make the next in time: bsfg pki crl, and bring it here")


def _ends(what: str, days_left: int, hint: str) -> Diagnostic:
    if days_left < WARN_DAYS:
        return Diagnostic(Outcome.NOTE, f"{what} ends in {days_left} days", hint)
    return Diagnostic(Outcome.GOOD, f"{what} is good for {days_left} days")


def _unreadable(files: Iterable[Path], user: str) -> Iterator[Diagnostic]:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        yield Diagnostic(
            Outcome.BAD, f"there is no user {user} on this machine", "install mosquitto, or correct the line user"
        )
        return
    groups, closed = set(os.getgrouplist(user, entry.pw_gid)), set[Path]()
    for file in files:
        steps = [*reversed(file.parents), file]
        for step in steps:
            if step in closed:  # a folder is told once, whatever lies in it
                break
            try:
                there = step.stat()
            except OSError as error:
                yield Diagnostic(Outcome.BAD, f"{step}: {error.strerror}", "bring it, or correct the rights above it")
                break
            need = 4 if step == file else 1
            if not _may(there, entry.pw_uid, groups, need):
                verb = "read" if step == file else "enter"
                what = f"{user} may not {verb} {step} (mode {stat.S_IMODE(there.st_mode):04o})"
                closed.add(step)
                yield Diagnostic(Outcome.BAD, what, f"chgrp {user} {step}; chmod g+{'r' if need == 4 else 'x'} {step}")
                break


def _may(there: os.stat_result, uid: int, groups: set[int], need: int) -> bool:
    """What the kernel would answer; root may everything."""
    if uid == 0:
        return True
    shift = 6 if there.st_uid == uid else 3 if there.st_gid in groups else 0
    return bool(there.st_mode >> shift & need)


def _prove(config_file: Path, pause: Callable[[float], None]) -> Diagnostic:
    """Whether the broker shows the certificate that lies in its file."""
    settings = config_lint.parse_config(pki.read_file(config_file).decode("utf-8", "replace"))
    port, _, host = settings.get("listener", str(PORT)).partition(" ")
    wanted = pki.load_certificates(Path(settings["certfile"]))[0].public_bytes(serialization.Encoding.DER)
    reason = "it shows another certificate"
    for _ in range(PROOFS_MAX):
        pause(PROOF_PAUSE_S)  # first, since what it shows before it has read is not what counts
        try:
            shown = _shown(host or "localhost", int(port))
        except (OSError, ValueError) as error:
            reason = str(error)
            continue
        if shown == wanted:
            return Diagnostic(Outcome.GOOD, "it shows the certificate that lies in its file")
        reason = "it shows another certificate than the one in its file"
    return Diagnostic(Outcome.BAD, f"after the reload: {reason}", "its log says what it could not read")


def _shown(host: str, port: int) -> bytes | None:
    """The certificate a broker shows; whether we trust it is not asked, it is compared byte by byte."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as channel,
    ):
        return channel.getpeercert(binary_form=True)
