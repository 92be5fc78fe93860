"""`bsfg setup`: from an installed package to a running node, by the commands that an operator would type.

Each step is one of those commands, printed before it runs, or lines that are added to node.toml, printed too. What is
there already is left as it is, so that setup may be run again: when a certificate has come, or for the next source. The
answers come from a file, or from questions. It ends with the first values and with what is left to do.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from agent.cli.prepare import unit
from agent.config import ConfigError, load_sections
from agent.errors import BsfgError
from agent.health.client import NodeSilent, ask_health_of
from agent.message import ZONE

VALUES_S = 60.0
ANSWERS = ("zone", "broker", "peer", "certificate", "authority", "opcua", "modbus")
_OWN = ("tags", "glob", "trust")  # of a source: answers that are no settings


class SetupFailed(BsfgError):
    """A step failed; what was done before it stays, and setup goes on from there when it is run again."""


@click.command()
@click.option(
    *("--config", "config_file"),
    type=click.Path(path_type=Path),
    help="The node's configuration, written if it does not exist.  [default: /etc/bsfg/ZONE.toml]",
)
@click.option(
    "--answers", type=click.Path(path_type=Path, exists=True), help="A TOML file with the answers: nothing is asked."
)
def setup(config_file: Path | None, answers: Path | None) -> None:
    """Set up a node: settings, key and request, broker and peer, first source, service; then show its first values."""
    given = _read(answers) if answers is not None else _ask()
    if not isinstance(zone := given.get("zone"), str) or not ZONE.fullmatch(zone):
        raise click.UsageError(f"zone {zone!r}: a zone is 1 to 32 of a-z, 0-9 and -")
    Setup(given, (config_file or unit.CONFIG_FOLDER / f"{zone}.toml").absolute()).run()


def _read(file: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupFailed(f"{file}: {error}") from error
    if unknown := sorted(found.keys() - set(ANSWERS)):
        raise SetupFailed(f"{file}: {unknown[0]} is no answer; known are {', '.join(ANSWERS)}")
    return found


def _ask() -> dict[str, Any]:
    """The answers from questions; an empty one leaves its part out."""
    given: dict[str, Any] = {"zone": click.prompt("Zone of this node (a-z, 0-9, -)")}
    if host := click.prompt("Host of the broker (empty: none yet)", default="", show_default=False):
        port = click.prompt("Its port for this zone and its peer", default=8883)
        given["broker"] = {"name": "broker", "host": host, "port": port}
        zone = click.prompt("Zone of the peer there")
        streams = ["facts.telemetry", "facts.operational"]
        side = click.prompt("It", type=click.Choice(["reads from here", "is read by this node"]))
        given["peer"] = {"zone": zone, "exports" if side == "reads from here" else "pulls": streams}
    kind = click.prompt("First source", type=click.Choice(["opcua", "modbus", "none"]), default="none")
    if kind != "none":
        source: dict[str, Any] = {"name": click.prompt("Its name, such as press-1")}
        if kind == "opcua":
            source["url"] = click.prompt("Its address, opc.tcp://host:4840")
            source["glob"] = click.prompt("Variables to read, as 'Line1/*/Temperature'", default="*")
        else:
            source["host"] = click.prompt("Its host")
            source["address_base"] = int(click.prompt("Registers count from", type=click.Choice(["0", "1", "40001"])))
            rows = "tag,table,register,type\n"
            while row := click.prompt("A tag, as line1/t,holding,1,float32 (empty: no more)", default=""):
                rows += f"{row}\n"
            source["tags"] = rows
        given[kind] = [source]
    return given


class Setup:
    """The steps, in order. `left`: what an operator still has to do."""

    def __init__(self, given: Mapping[str, Any], config_file: Path) -> None:
        self.given, self.file = given, config_file
        self.zone: str = given["zone"]
        self.pki = config_file.parent / "pki"
        self.left: list[str] = []
        self._is_unit = unit.is_of_unit(config_file)

    def run(self) -> None:
        """All steps. Raises SetupFailed, ConfigError."""
        if not self.file.exists():
            self._bsfg("init", "--zone", self.zone, "--config", str(self.file))
        if "broker" in self.given:
            self._identity()
        for kind in ("opcua", "modbus"):
            for source in self.given.get(kind, []):
                self._source(kind, source)
        self._give_to_node()
        self._bsfg("check", "--config", str(self.file))
        self._start()
        self._show()

    # ------------------------------------------------------------------------------------------------------------ steps

    def _identity(self) -> None:
        """The zone's key and certificate; broker and peer once they can be used."""
        cert_file, request = self.pki / "zones" / f"{self.zone}.pem", self.pki / "zones" / "requested"
        if not cert_file.exists():
            if not (request / f"{self.zone}.key").exists():
                self._bsfg("pki", "request", self.zone, "--pki", str(self.pki))
            if not (self.given.get("certificate") and self.given.get("authority")):
                self.left.append(
                    f"have {request / self.zone}.csr signed (bsfg pki sign {self.zone} --request FILE, at the authority), "
                    "and run setup again with certificate and authority in the answers, or bsfg pki import"
                )
                return
            own = ("--cert", str(self.given["certificate"]), "--ca", str(self.given["authority"]))
            self._bsfg("pki", "import", self.zone, *own, "--pki", str(self.pki))
        broker = {"name": "broker", **self.given["broker"], "ca_file": "pki/ca.pem"}
        broker |= {"cert_file": f"pki/zones/{self.zone}.pem", "key_file": f"pki/zones/{self.zone}.key"}
        if not self._has("broker", "name", broker["name"]):
            self._add("broker", broker)
        peer = self.given.get("peer")
        if peer is not None and not self._has("peer", "zone", peer.get("zone", "")):
            self._add("peer", {"broker": broker["name"], **peer})

    def _source(self, kind: str, source: Mapping[str, Any]) -> None:
        """Add a source that is not there yet, and try it: what cannot be read is taken out again."""
        name, before = str(source.get("name", "")), self.file.read_text("utf-8")
        if self._has(kind, "name", name):
            return
        tags_file = self.file.parent / "tags.d" / f"{name}.csv"
        tags_file.parent.mkdir(exist_ok=True)
        if "tags" in source:
            tags_file.write_text(str(source["tags"]), encoding="utf-8")
        found = self._found_by_test(source) if kind == "opcua" else {}
        settings = {key: value for key, value in source.items() if key not in _OWN}
        self._add(kind, {**found, "tags_file": f"tags.d/{name}.csv", **settings})
        try:
            if not tags_file.exists():
                glob = ("--glob", source["glob"]) if source.get("glob", "*") != "*" else ()
                words = ("opcua", "browse", name, "--config", str(self.file), *glob, "--csv", str(tags_file))
                self._bsfg(*words)
            self._give_to_node()
            self._bsfg("source", "test", name, "--config", str(self.file), as_node=True)
        except SetupFailed:
            self._replace(before)
            raise

    def _found_by_test(self, source: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with which `opcua test` got through to a server."""
        words = ["opcua", "test", str(source.get("url", "")), "--pki", str(self._state_dir() / "opcua")]
        words += [f"--{flag}" for flag in ("insecure", "trust") if source.get(flag)]
        self._give_to_node()
        self._bsfg(*words, as_node=True)
        found = self._bsfg(*words, "--json", as_node=True, is_shown=False).splitlines()[-1]
        (section,) = tomllib.loads(json.loads(found)["section"])["opcua"]
        assert isinstance(section, dict), "a section is a table"
        return section

    def _start(self) -> None:
        """The service: enabled, and started, or reloaded where it runs."""
        if not self._is_unit or shutil.which("systemctl") is None or not Path("/run/systemd/system").exists():
            self.left.append(f"start the node: bsfg run --config {self.file}")
            return
        name = f"bsfg@{self.file.stem}"
        is_active = subprocess.run(["systemctl", "--quiet", "is-active", name], check=False).returncode == 0
        self._run(["systemctl", "reload", name] if is_active else ["systemctl", "enable", "--now", name])

    def _show(self) -> None:
        """The first values of the node that runs, and what is left to do."""
        if not any("bsfg run" in one for one in self.left):
            self._wait_for_values()
            self._bsfg("latest", "--config", str(self.file))
        if not load_sections(self.file).sources:
            self.left.append("add a source: setup again with one, or docs/operate/sources.md")
        if "broker" not in self.given:
            self.left.append("connect it with another zone: setup again with broker and peer")
        click.echo("\nleft to do:" if self.left else "\nnothing is left to do")
        for one in self.left:
            click.echo(f"  - {one}")

    def _wait_for_values(self) -> None:
        sections, deadline = load_sections(self.file), time.monotonic() + VALUES_S
        assert sections.node is not None
        assert sections.health is not None
        page = (sections.node.state_dir, self.zone, sections.health.listen_host, sections.health.listen_port)
        while sections.sources and time.monotonic() < deadline:
            try:
                if all(one["values_total"] for one in ask_health_of(*page)["sources"]):
                    return
            except NodeSilent:
                pass
            time.sleep(0.5)

    # ------------------------------------------------------------------------------------------------------------ tools

    def _state_dir(self) -> Path:
        node = load_sections(self.file).node
        if node is None:
            raise ConfigError(self.file, load_sections(self.file).problems)
        return node.state_dir

    def _has(self, section: str, key: str, name: str) -> bool:
        found = tomllib.loads(self.file.read_text("utf-8")).get(section, [])
        return name in {one.get(key) for one in found}

    def _add(self, section: str, settings: Mapping[str, Any]) -> None:
        """Add a section to node.toml. Raises ConfigError, and adds nothing, where the file would have a problem."""
        lines = [f"[[{section}]]", *(f"{name} = {_toml(name, value)}" for name, value in settings.items())]
        text = f"{self.file.read_text('utf-8')}\n" + "\n".join(lines) + "\n"
        self._replace(text)
        click.echo("\n".join([f"# added to {self.file}", *lines]))

    def _replace(self, text: str) -> None:
        """Give node.toml another text: after a power cut it has the old or the new one, whole. Mode and owner stay.
        Raises ConfigError, and changes nothing, where the text has a problem."""
        before = self.file.stat()
        part = self.file.with_name(f".{self.file.name}.part")
        part.unlink(missing_ok=True)  # what an interrupted attempt left
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(text.encode())
                file.flush()
                if problems := load_sections(part).problems:
                    raise ConfigError(self.file, problems)
                # Owner before mode: in the other order the old group could read the file for a moment.
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
                os.fsync(file.fileno())
            part.replace(self.file)
        finally:
            part.unlink(missing_ok=True)

    def _give_to_node(self) -> None:
        """What this process made may be read by the node's group and no other; the state folder belongs to the node."""
        if not self._is_unit or os.geteuid() != 0:
            return
        group = self.file.parent.stat().st_gid
        for path in [*self.pki.rglob("*"), *(self.file.parent / "tags.d").rglob("*"), self.file.parent / "tags.d"]:
            if path.exists():
                os.chown(path, -1, group)
                path.chmod(0o750 if path.is_dir() else 0o640)
        state_dir = self._state_dir()
        if not state_dir.exists():
            state_dir.mkdir(mode=0o700)
            shutil.chown(state_dir, unit.USER, unit.USER)

    def _bsfg(self, *words: str, as_node: bool = False, is_shown: bool = True) -> str:
        """Run a command of this program, as the node's user where it makes files that are the node's."""
        python = [sys.executable, "-m", "agent.cli"]
        user = ["runuser", "-u", unit.USER, "--"] if as_node and self._is_unit and os.geteuid() == 0 else []
        return self._run([*user, *python, *words], is_shown=is_shown, words=[*user, "bsfg", *words])

    def _run(self, command: list[str], *, is_shown: bool = True, words: list[str] | None = None) -> str:
        if is_shown:
            click.echo(f"$ {shlex.join(words or command)}")
        done = subprocess.run(command, text=True, stdout=None if is_shown else subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SetupFailed(f"this step failed: {shlex.join(words or command)}; run setup again once it succeeds")
        return done.stdout or ""


def _toml(name: str, value: object) -> str:
    """A text, number, truth value or list as TOML, which has them as JSON does. Raises SetupFailed."""
    if isinstance(value, str | bool | int | float) or (
        isinstance(value, list) and all(isinstance(one, str | bool | int | float) for one in value)
    ):
        return json.dumps(value, ensure_ascii=False)
    raise SetupFailed(f"{name} = {value!r}: an answer is a text, a number, true, false, or a list of these")
