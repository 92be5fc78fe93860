"""The folder with all files of one broker, checked before it is written.

`config` renders the texts. This module takes the certificates from the authority's folder and refuses files with which
the broker would start but refuse all clients, or accept revoked certificates. Each file is replaced whole. Run as root,
the files that the broker reads after it has dropped its privileges belong to its group; run as another user, they
belong to that user. Starting and reloading the broker is not done here.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from agent.replication import pki
from agent.replication.broker.config import (
    ACL_NAME,
    CA_NAME,
    CERT_NAME,
    CONFIG_NAME,
    CRL_NAME,
    KEY_NAME,
    BrokerPlan,
    render_acl,
    render_config,
)

_SECRET_MODE = 0o600
_GROUP_MODE = 0o640


class BrokerFolder:
    """The files of one broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_file, self.acl_file = folder / CONFIG_NAME, folder / ACL_NAME
        self.ca_file, self.crl_file = folder / CA_NAME, folder / CRL_NAME
        self.cert_file, self.key_file = folder / CERT_NAME, folder / KEY_NAME


def write_broker_folder(
    folder: Path, pki_folder: Path, broker_name: str, plan: BrokerPlan, *, now: datetime | None = None
) -> BrokerFolder:
    """Write configuration, access list and certificates to `folder`.

    `plan.folder` is its path on the broker's machine; empty means `folder` itself. If any file is invalid nothing is
    written. Raises PkiError, TopologyError."""
    pki.check_zone(broker_name, "broker")
    plan = replace(plan, folder=plan.folder or str(folder.resolve()))
    config, acl = render_config(plan), render_acl(plan.links)
    cert_file = pki_folder / "brokers" / f"{broker_name}.pem"
    key_file = cert_file.with_suffix(".key")
    ca_file, crl_file = pki_folder / "ca.pem", pki_folder / "ca.crl"
    problems = pki.check_broker_identity(cert_file, key_file, ca_file, now=now)
    problems += pki.check_crl(crl_file, ca_file, now=now)
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise pki.PkiError(f"the broker's files are not valid{listed}", "correct them first; nothing was written")
    group = _group_of(plan.user)
    secret = _SECRET_MODE if group == -1 else _GROUP_MODE
    files = BrokerFolder(folder)
    with pki.disk_errors(folder):
        _make_folder(folder, group)
        for source, target, mode in (
            (ca_file, files.ca_file, 0o644),
            (crl_file, files.crl_file, 0o644),
            (key_file, files.key_file, secret),
            (cert_file, files.cert_file, 0o644),
        ):
            pki.write_file(target, source.read_bytes(), mode, group)
        pki.write_file(files.acl_file, acl.encode(), secret, group)
        # Last, so that the files it names exist before it does.
        pki.write_file(files.config_file, config.encode(), 0o644, group)
    return files


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


def _make_folder(folder: Path, group: int) -> None:
    if folder.exists():
        return
    folder.mkdir(mode=0o750, parents=True)
    os.chown(folder, -1, group)
