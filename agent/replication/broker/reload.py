"""Make a running broker read its files again, after checking that they are valid.

Mosquitto reads certificate, key, authorities and revocation list at SIGHUP and reports little: without a
readable revocation list it accepts revoked certificates, with an expired one it refuses all clients, and with a damaged
certificate it keeps running and refuses all clients. So all files are checked first, as the user that runs the broker.
If one is invalid no signal is sent, and the broker keeps what it has in memory. Afterwards a handshake proves that the
broker uses the certificate in its file.

Whether the broker has read the revocation list cannot be tested from outside without a revoked certificate. The rights
of nodes are read at the start only, and open connections outlive a revocation, so `end_broker` lets the service manager
start the broker again; nodes reconnect within seconds.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from agent.replication import pki
from agent.replication.broker.check_session import WAIT_S
from agent.replication.broker.config import CONFIG_NAME, PORT, USER, TopologyError, parse_config, read_rights
from agent.replication.broker.diagnosis import USE_GENERATED, Diagnostic, bad, bad_files, good, note

FILES = ("cafile", "certfile", "keyfile", "crlfile", "plugin_opt_config_file")
"""Settings that name a file of ours."""
_WITHOUT = {
    "cafile": "client certificates cannot be verified",
    "certfile": "the broker has no certificate",
    "keyfile": "the broker has no key",
    "crlfile": "revoked certificates are accepted",
    "plugin": "every node has all rights",
    "plugin_opt_config_file": "every node has all rights",
}
_NEEDED = {
    "tls_version": ("tlsv1.3", "clients with TLS 1.2 are accepted"),
    "require_certificate": ("true", "clients without a certificate are accepted"),
    "use_identity_as_username": ("true", "rights apply to no client"),
    "allow_anonymous": ("false", "clients without a user name are accepted"),
}

ATTEMPTS_MAX = 20
ATTEMPT_PAUSE_S = 0.25
"""A busy broker reads its files within a second; we wait for five."""


def config_files(path: Path) -> list[Path]:
    """The configurations at `path`: the file itself, or one for each process below a folder. Raises PkiError."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        is_folder = False
    except OSError as error:
        raise pki.PkiError(f"{path} cannot be read by this user", "run as root") from error
    if not is_folder:
        return [path]
    if found := sorted(path.glob(f"*/{CONFIG_NAME}")) or sorted(path.glob(CONFIG_NAME)):
        return found
    folders = [path, *(part for part in path.iterdir() if part.is_dir())] if os.access(path, os.R_OK) else [path]
    if closed := next((folder for folder in folders if not os.access(folder, os.R_OK | os.X_OK)), None):
        raise pki.PkiError(f"{closed} cannot be read by this user", "run as root")
    raise pki.PkiError(f"there is no {CONFIG_NAME} in {path} or its subfolders", "write it with bsfg broker config")


def check_broker_files(config_file: Path, *, now: datetime | None = None) -> Iterator[Diagnostic]:
    """Check all files that a reload reads: present, readable for the broker's user, valid now, consistent."""
    now = now or datetime.now(UTC)
    try:
        settings = parse_config(pki.read_file(config_file).decode("utf-8", "replace"))
    except pki.PkiError as error:
        yield bad(error.why, error.hint)
        return
    config = list(check_config(settings))
    yield from config
    if config:
        return
    files = {name: Path(settings[name]) for name in FILES}
    user = settings.get("user", USER)
    unreadable = list(_unreadable(files.values(), user))
    yield from unreadable
    if unreadable:
        return
    yield good(f"user {user} can read all {len(files)} files named in {config_file}")
    yield from _certificate_diagnostics(files["certfile"], files["keyfile"], files["cafile"], now)
    yield from _crl_diagnostics(files["crlfile"], files["cafile"], now)
    try:
        links, denied = read_rights(pki.read_file(files["plugin_opt_config_file"]).decode("utf-8", "replace"))
    except TopologyError as error:
        yield bad(str(error), error.hint)
    else:
        yield good(f"rights of {len(links)} links; denied: {', '.join(denied) or 'no node'}")


def check_config(settings: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Settings whose absence would disable certificate checks, revocation or the rights of nodes."""
    for name, effect in _WITHOUT.items():
        if not settings.get(name, "").startswith("/"):
            yield bad(f"no {name} with an absolute path: {effect}", USE_GENERATED)
    for name, (value, effect) in _NEEDED.items():
        if settings.get(name) != value:
            yield bad(f"{name} is {settings.get(name, 'not set')}: {effect}", USE_GENERATED)


def reload_broker(config_file: Path, pid: int | None, pause: Callable[[float], None]) -> Iterator[Diagnostic]:
    """Check the files, send SIGHUP to `pid` or to the broker that runs with this configuration, and verify its
    certificate."""
    diagnostics = list(check_broker_files(config_file))
    yield from diagnostics
    if any(diagnostic.is_bad for diagnostic in diagnostics):
        hint = "the broker keeps its present files; correct them and reload again"
        yield bad("no signal was sent to the broker", hint)
        return
    sent = _signal(config_file, pid, signal.SIGHUP)
    yield sent
    if not sent.is_bad:
        yield _verify_certificate(config_file, pause)


def end_broker(config_file: Path, pid: int | None) -> Diagnostic:
    """End the broker, so that its service starts it again, with the present rights and without its connections."""
    return _signal(config_file, pid, signal.SIGTERM)


def _signal(config_file: Path, pid: int | None, number: signal.Signals) -> Diagnostic:
    """Send a signal to `pid`, or to the broker that runs with this configuration."""
    if pid is None:
        running = find_brokers(config_file)
        if len(running) != 1:
            what = f"{len(running) or 'no'} broker{'s' * (len(running) != 1)} with {config_file} on this machine"
            return bad(f"{what}, so no signal was sent", "start it, or name its process: --pid NUMBER")
        (pid,) = running
    try:
        os.kill(pid, number)
    except OSError as error:
        hint = "run this as root or as the broker's user, and with the number of its process"
        return bad(f"{number.name} could not be sent to {pid}: {error.strerror}", hint)
    return good(f"sent {number.name} to broker {pid}")


def find_brokers(config_file: Path) -> list[int]:
    """Process ids of brokers started with this configuration file.

    Relative paths are resolved in the working directory of each process: two brokers may both have been started with
    `broker/mosquitto.conf`, and a signal to the wrong one would leave a revoked node connected.
    """
    wanted = config_file.resolve()
    processes = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return sorted(int(folder.name) for folder in processes if _runs_with(folder, wanted))


def _runs_with(process: Path, config_file: Path) -> bool:
    try:
        program, *arguments = (process / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
        if Path(program).name != "mosquitto":
            return False
        # First: the next step is refused if the broker is in a user namespace of its own (PrivateUsers=).
        if str(config_file) in arguments:
            return True
        started_in = (process / "cwd").readlink()
    except OSError:  # it has ended, or belongs to another user
        return False
    return any((started_in / argument).resolve() == config_file for argument in arguments)


def _certificate_diagnostics(cert_file: Path, key_file: Path, ca_file: Path, now: datetime) -> Iterator[Diagnostic]:
    problems = pki.check_broker_identity(cert_file, key_file, None, now=now)
    yield from bad_files(problems)
    if problems:
        return
    left = pki.describe(pki.load_certificates(cert_file)[0], now).days_left
    yield _ends("the broker's certificate", left, "bsfg pki sign --broker NAME, and bsfg broker config again")
    if pki.check_broker_identity(cert_file, key_file, ca_file, now=now):
        # Zones and broker may have different authorities. If it is a mistake, every node refuses the broker.
        what = f"the broker's certificate was not issued by the nodes' authority ({ca_file})"
        yield note(what, "the nodes' ca_file must contain its authority as well")


def _crl_diagnostics(crl_file: Path, ca_file: Path, now: datetime) -> Iterator[Diagnostic]:
    problems = pki.check_crl(crl_file, ca_file, now=now)
    yield from bad_files(problems)
    if problems:
        return
    lists = pki.load_crls(crl_file)
    for authority in pki.load_certificates(ca_file):
        if not any(pki.is_crl_of(crl, authority) for crl in lists):
            what = (
                f"no revocation list of {authority.subject.rfc4514_string()}, so all its certificates would be refused"
            )
            yield bad(what, f"add its list to {crl_file}, or remove the authority from {ca_file}")
    ends = [(facts.days_left, facts.issuer) for facts in (pki.describe_crl(crl, now) for crl in lists)]
    if dated := [(left, issuer) for left, issuer in ends if left is not None]:
        left, issuer = min(dated)
        what = "the revocation list" if len(lists) == 1 else f"the revocation list of {issuer}"
        yield _ends(what, left, "make the next one in time (bsfg pki crl) and copy it here")


def _ends(what: str, days_left: int, hint: str) -> Diagnostic:
    if days_left < pki.WARN_DAYS:
        return note(f"{what} ends in {days_left} days", hint)
    return good(f"{what} is valid for {days_left} days")


def _unreadable(files: Iterable[Path], user: str) -> Iterator[Diagnostic]:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        yield bad(f"there is no user {user} on this machine", "install mosquitto, or correct the line user")
        return
    groups, closed = set(os.getgrouplist(user, entry.pw_gid)), set[Path]()
    for file in files:
        steps = [*reversed(file.parents), file]
        for step in steps:
            if step in closed:  # one report for each folder
                break
            try:
                there = step.stat()
            except OSError as error:
                yield bad(f"{step}: {error.strerror}", "copy it there, or correct the rights of the folders above it")
                break
            need = 4 if step == file else 1
            if not _may(there, entry.pw_uid, groups, need):
                verb = "read" if step == file else "enter"
                what = f"{user} may not {verb} {step} (mode {stat.S_IMODE(there.st_mode):04o})"
                closed.add(step)
                yield bad(what, f"chgrp {user} {step}; chmod g+{'r' if need == 4 else 'x'} {step}")
                break


def _may(there: os.stat_result, uid: int, groups: set[int], need: int) -> bool:
    """Whether the permission bits grant `need`; root has all rights."""
    if uid == 0:
        return True
    shift = 6 if there.st_uid == uid else 3 if there.st_gid in groups else 0
    return bool(there.st_mode >> shift & need)


def _verify_certificate(config_file: Path, pause: Callable[[float], None]) -> Diagnostic:
    """Whether the broker presents the certificate in its file."""
    settings = parse_config(pki.read_file(config_file).decode("utf-8", "replace"))
    port, _, host = settings.get("listener", str(PORT)).partition(" ")
    wanted = pki.load_certificates(Path(settings["certfile"]))[0].public_bytes(serialization.Encoding.DER)
    reason = ""
    for _ in range(ATTEMPTS_MAX):
        pause(ATTEMPT_PAUSE_S)  # first, so that the broker has read its files
        try:
            presented = _presented_certificate(host or "localhost", int(port))
        except (OSError, ValueError) as error:
            reason = str(error)
            continue
        if presented == wanted:
            return good("the broker presents the certificate in its file")
        reason = "the broker presents another certificate than the one in its file"
    return bad(f"after the reload: {reason}", "its log names the file that it could not read")


def _presented_certificate(host: str, port: int) -> bytes | None:
    """The certificate that a broker presents, not verified: the caller compares it byte by byte."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as channel,
    ):
        return channel.getpeercert(binary_form=True)
