"""The steps of `bsfg setup` that involve other machines: certificates, requests carried on a stick, and the authority
and the broker if they are on this machine.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agent.cli.prepare.questions import SIDES, ask_new_passphrase
from agent.cli.prepare.steps import PASSPHRASE, SetupFailed, Steps, has_systemd
from agent.replication import pki
from agent.replication.broker import CONFIG_NAME, PORT, USER, BrokerFolder, PeerLink

MOSQUITTO = Path("/etc/mosquitto")
FIREWALL = Path("/usr/share/doc/bsfg/systemd/examples/bsfg-broker.nft")
HERE = "127.0.0.1"  # a broker of this machine; not localhost, which a minimal system may not resolve


class Site:
    """What a node needs from other machines before it can be connected. `left`: what an operator still has to do."""

    def __init__(self, steps: Steps, given: Mapping[str, Any], config_file: Path, left: list[str]) -> None:
        self.zone: str = given["zone"]
        self._steps, self._left = steps, left
        self._broker: Mapping[str, Any] = given["broker"]
        self._peer: Mapping[str, Any] = given.get("peer", {})
        self._stick = _folder(given, "stick")
        self._authority = _folder(given, "authority")
        self._is_open = False
        self.pki = config_file.parent / "pki"
        # One broker of a machine serves all its zones, so its files are not those of a node.
        is_unit = steps.is_unit
        self._broker_pki = MOSQUITTO / "pki" if is_unit else self.pki
        self._broker_folder = (MOSQUITTO / "bsfg" if is_unit else config_file.parent / "brokers") / self.zone

    def prepare(self) -> bool:
        """Prepare the certificates of this zone, its peer and a broker here. Returns whether this zone can be
        connected."""
        if not self._identity():
            return False
        if self._broker.get("here"):
            if not self._broker_identity():
                return False
            self._run_broker()
        if self._authority is not None and self._stick is not None and self._peer:
            self._sign_for_peer(self._authority, self._stick, self._peer["zone"])
        if self._authority is not None and self._authority.exists():
            self._left.append(
                f"once every zone has its certificate, move the authority, {self._authority}, to a machine that is neither "
                "gateway nor broker; keep a copy of it and of the passphrase at another place"
            )
        return True

    # ---------------------------------------------------------------------------------------------------- certificates

    def _open_authority(self, folder: Path) -> None:
        """Create the authority if there is none, and keep its passphrase for the commands that follow. Only for the
        first signature: an operator who adds a source is not asked for the passphrase."""
        if self._is_open:
            return
        self._is_open = True
        key_file = folder / "ca.key"
        is_new = not key_file.exists()
        if self._steps.asks and PASSPHRASE not in os.environ and (is_new or pki.is_locked(key_file)):
            known = "" if is_new else click.prompt("Passphrase of the authority's key", hide_input=True)
            self._steps.give_passphrase(known or ask_new_passphrase())
        if is_new:
            self._steps.bsfg("pki", "ca", "--pki", str(folder))

    def _identity(self) -> bool:
        """Key and certificate of this zone; False while its request is on the way."""
        if (self.pki / "zones" / f"{self.zone}.pem").exists():
            return True
        requested = self.pki / "zones" / "requested"
        is_new = not (requested / f"{self.zone}.key").exists()
        if is_new:
            self._steps.bsfg("pki", "request", self.zone, "--pki", str(self.pki))
        request = requested / f"{self.zone}.csr"
        if self._authority is not None:
            self._sign(self._authority, self.zone, request)
            self._import(self.zone, self._authority / "zones", self._authority, self.pki)
            return True
        if self._stick is None:
            self._left.append(
                f"have {request} signed (bsfg pki sign), import the certificate (bsfg pki import), and run setup again"
            )
            return False
        self._needs_stick(self._stick)
        # A certificate that was on the stick before the key was made belongs to a former key.
        if not is_new and (self._stick / f"{self.zone}.pem").exists():
            self._import(self.zone, self._stick, self._stick, self.pki)
            return True
        self._steps.copy(request, self._stick / request.name)
        self._left.append(
            f"take the stick to the authority; run setup there, or run bsfg pki sign {self.zone} --request {request.name} "
            f"and copy {self.zone}.pem and ca.pem to the stick; then run setup here again. The authority must print the "
            f"same fingerprint of the key: {pki.request_fingerprint(request, self.zone)}"
        )
        return False

    def _broker_identity(self) -> bool:
        """Key and certificate of the broker, which has the name of its node's zone."""
        if (self._broker_pki / "brokers" / f"{self.zone}.pem").exists():
            return True
        request = self._broker_pki / "brokers" / "requested" / f"{self.zone}.csr"
        if not request.exists():
            hosts = dict.fromkeys([str(self._broker["host"]), "localhost", HERE])
            named = [word for host in hosts for word in ("--host", host)]
            self._steps.bsfg("pki", "request", "--broker", self.zone, *named, "--pki", str(self._broker_pki))
        if self._authority is None:
            self._left.append(
                f"have {request} signed (bsfg pki sign --broker), import the certificate, and run setup again"
            )
            return False
        self._sign(self._authority, self.zone, request, "--broker")
        self._import(self.zone, self._authority / "brokers", self._authority, self._broker_pki, "--broker")
        return True

    def _sign_for_peer(self, authority: Path, stick: Path, peer: str) -> None:
        """If the peer's request is on the stick, sign it and replace it by the certificate."""
        request = stick / f"{peer}.csr"
        is_signed = (authority / "zones" / f"{peer}.pem").exists() or not authority.exists()  # or has been moved away
        if not is_signed:
            self._needs_stick(stick)
        if not request.exists():
            if not is_signed:
                self._left.append(f"run setup at {peer}, bring the stick with {request.name} here, and run setup again")
            return
        click.echo(f"fingerprint of the key in {request}: {pki.request_fingerprint(request, peer)}")
        if self._steps.asks and not click.confirm(f"Sign it? Setup must have printed the same fingerprint at {peer}"):
            raise SetupFailed(f"{request} was not signed; remove it, and run setup at {peer} again")
        self._sign(authority, peer, request)
        self._steps.copy(authority / "zones" / f"{peer}.pem", stick / f"{peer}.pem")
        self._steps.copy(authority / "ca.pem", stick / "ca.pem")
        self._steps.run(["rm", str(request)])
        self._left.append(f"take the stick back to {peer}, and run setup there again")

    def _needs_stick(self, stick: Path) -> None:
        if not stick.is_dir():
            raise SetupFailed(f"{stick}: no such folder; is the stick mounted?")

    def _sign(self, authority: Path, name: str, request: Path, *kind: str) -> None:
        self._open_authority(authority)
        self._steps.bsfg("pki", "sign", *kind, name, "--request", str(request), "--pki", str(authority))

    def _import(self, name: str, certificates: Path, authority: Path, into: Path, *kind: str) -> None:
        files = ["--cert", str(certificates / f"{name}.pem"), "--ca", str(authority / "ca.pem")]
        if kind:  # only brokers read the list
            files += ["--crl", str(authority / "ca.crl")]
        self._steps.bsfg("pki", "import", *kind, name, *files, "--pki", str(into))

    # ---------------------------------------------------------------------------------------------------------- broker

    def _run_broker(self) -> None:
        """A broker for this zone and its peers: files, service."""
        if not (links := self._links()):
            raise SetupFailed("a broker here needs a peer, with exports or pulls")
        words = ["broker", "config", str(self._broker_folder), "--pki", str(self._broker_pki), "--name", self.zone]
        words += [word for link in links for word in ("--link", f"{link.serving}:{link.asking}")]
        is_running = BrokerFolder(self._broker_folder).config_file.exists()
        words += ["--port", str(self._broker.get("port", PORT))]
        if not self._steps.is_unit:
            words += ["--user", pwd.getpwuid(os.geteuid()).pw_name]
        elif USER not in {user.pw_name for user in pwd.getpwall()}:
            raise SetupFailed("mosquitto is not installed: apt install mosquitto, or Debian's packages from a stick")
        self._steps.bsfg(*words)
        self._left.append(f"load the rules of the packet filter if they are not loaded: nft -f {FIREWALL}")
        if not self._steps.is_unit or not has_systemd():
            start = "restart" if is_running else "start"
            self._left.append(f"{start} the broker: mosquitto -c {self._broker_folder / CONFIG_NAME}")
            return
        units = (f"bsfg-broker@{self.zone}", f"bsfg-broker-files@{self.zone}.path", "bsfg-broker-check.timer")
        self._steps.run(["systemctl", "enable", "--now", *units])
        if is_running:  # rights are read at the start
            self._steps.run(["systemctl", "restart", units[0]])

    def _links(self) -> Sequence[PeerLink]:
        """The links between this node and its peer: this node exports, or pulls, or both."""
        peer = str(self._peer.get("zone", ""))
        both = {"exports": PeerLink(self.zone, peer), "pulls": PeerLink(peer, self.zone)}
        return [both[name] for name in SIDES.values() if self._peer.get(name)]


def _folder(given: Mapping[str, Any], name: str) -> Path | None:
    return Path(str(given[name])).absolute() if given.get(name) else None
