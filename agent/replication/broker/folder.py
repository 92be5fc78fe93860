"""The folder with all files of a broker, checked before it is written.

`config` renders the texts. This module takes the certificates from the authority's folder and refuses files with which
the broker would start but refuse all clients, or accept revoked certificates. Each file is replaced whole. Run as root,
the files that the broker reads after it has dropped its privileges belong to its group; run as another user, they
belong to that user. Starting and restarting the broker is not done here.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agent.replication import pki
from agent.replication.broker.config import (
    CA_NAME,
    CERT_NAME,
    CONFIG_NAME,
    CRL_NAME,
    KEY_NAME,
    RIGHTS_NAME,
    USER,
    BrokerPlan,
    PeerLink,
    TopologyError,
    nodes_of,
    parse_config,
    read_rights,
    render_config,
    render_rights,
)

PLUGIN = "mosquitto_dynamic_security.so"
_SECRET_MODE = 0o600
_GROUP_MODE = 0o640


@dataclass(frozen=True, slots=True)
class BrokerFolder:
    """The files of one broker."""

    folder: Path

    @property
    def config_file(self) -> Path:
        return self.folder / CONFIG_NAME

    @property
    def rights_file(self) -> Path:
        return self.folder / RIGHTS_NAME

    def rights(self) -> tuple[tuple[PeerLink, ...], tuple[str, ...]]:
        """Its links and denied nodes; none if there are no files yet. Raises TopologyError, PkiError."""
        if not self.rights_file.exists():
            return (), ()
        return read_rights(pki.read_file(self.rights_file).decode("utf-8", "replace"))

    def settings(self) -> dict[str, str]:
        """What its configuration says; empty without one. Raises PkiError."""
        if not self.config_file.exists():
            return {}
        return parse_config(pki.read_file(self.config_file).decode("utf-8", "replace"))


def find_plugin(root: Path = Path("/usr/lib")) -> str:
    """The path of Mosquitto's plugin on this machine. Raises TopologyError."""
    places = (PLUGIN, f"*/{PLUGIN}", f"*/mosquitto/{PLUGIN}")  # the last since 2.1
    if found := sorted(path for place in places for path in root.glob(place)):
        return str(found[0])
    raise TopologyError(f"there is no {PLUGIN} below {root}: install Debian's mosquitto on this machine")


def write_broker(
    folder: Path,
    pki_folder: Path,
    broker_name: str,
    links: Collection[PeerLink],
    plan: BrokerPlan | None = None,
    denied: Collection[str] = (),
) -> BrokerFolder:
    """Write rights and certificates to `folder`, and with a plan the configuration. Zones in `denied` have no rights.

    If any file is invalid nothing is written. Raises PkiError, TopologyError."""
    files = BrokerFolder(folder)
    pki.check_zone(broker_name, "broker")
    rights, config = render_rights(links, denied), None if plan is None else render_config(plan)
    cert_file = pki_folder / "brokers" / f"{broker_name}.pem"
    key_file = cert_file.with_suffix(".key")
    ca_file = pki_folder / "ca.pem"
    # A list is copied to the broker by hand, and the folder's may be an older one.
    crl_file = pki.newest_crl_file(pki_folder / "ca.crl", folder / CRL_NAME, ca_file)
    problems = pki.check_broker_identity(cert_file, key_file, ca_file)
    problems += pki.check_crl(crl_file, ca_file)
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise pki.PkiError(f"the broker's files are not valid{listed}", "correct them first; nothing was written")
    group = _group_of(files.settings().get("user", USER) if plan is None else plan.user)
    secret = _SECRET_MODE if group == -1 else _GROUP_MODE
    with pki.disk_errors(folder):
        missing = [above for above in (folder, *folder.parents) if not above.exists()]
        for above in reversed(missing):
            above.mkdir()
            above.chmod(0o755)  # whatever the umask
        if missing:
            os.chown(folder, -1, group)
            folder.chmod(0o750)
        for source, name, mode in (
            (ca_file, CA_NAME, 0o644),
            (crl_file, CRL_NAME, 0o644),
            (key_file, KEY_NAME, secret),
            (cert_file, CERT_NAME, 0o644),
        ):
            pki.write_file(folder / name, source.read_bytes(), mode, group)
        pki.write_file(files.rights_file, rights.encode(), secret, group)
        if config is not None:  # last, so that the files it names exist before it does
            pki.write_file(files.config_file, config.encode(), 0o644, group)
    return files


def deny_nodes(config_file: Path, nodes: Collection[str]) -> Path:
    """Rewrite the rights so that these nodes have none after the next start of the broker. Raises PkiError,
    TopologyError."""
    files = BrokerFolder(config_file.parent)
    links, denied = files.rights()
    if strangers := sorted({*nodes} - {*nodes_of(links)}):
        raise TopologyError(f"{', '.join(strangers)}: not in {files.rights_file}, so without rights already")
    there = files.rights_file.stat()
    text = render_rights(links, {*denied, *nodes})
    with pki.disk_errors(files.folder):
        owner = there.st_uid if os.geteuid() == 0 else -1  # the broker may run as the user that wrote its files
        pki.write_file(files.rights_file, text.encode(), stat.S_IMODE(there.st_mode), there.st_gid, owner)
    return files.rights_file


def _group_of(user: str) -> int:
    """The group of the broker's user if this process is root and can give files away; -1 otherwise."""
    if os.geteuid() != 0:
        return -1
    try:
        return pwd.getpwnam(user).pw_gid
    except KeyError:
        raise pki.PkiError(
            f"there is no user {user} on this machine",
            "install mosquitto first, or run this as the user that will run the broker, or name one with --user",
        ) from None
