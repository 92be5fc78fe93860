"""The permissions of a node under the shipped unit (systemd/bsfg@.service), for the commands that prepare or check a
node.

A node.toml directly in /etc/bsfg belongs to a unit: bsfg@NAME reads /etc/bsfg/NAME.toml, runs as user bsfg and writes
only to /var/lib/bsfg/NAME. A test compares these values with the unit.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from agent.cli.node_choice import CONFIG_FOLDER as _FOLDER
from agent.config import Sections
from agent.settings.host import host_of

CONFIG_FOLDER = _FOLDER
STATE_FOLDER = Path("/var/lib/bsfg")
USER = "bsfg"
DROP_INS = ("/etc/systemd/system/bsfg@.service.d", "/etc/systemd/system/bsfg@{}.service.d")
HIDDEN = (Path("/home"), Path("/root"), Path("/run/user"), Path("/tmp"), Path("/var/tmp"))  # noqa: S108 named, not used


def is_of_unit(config_file: Path) -> bool:
    """Whether this is the file of a node that systemd runs."""
    return config_file.absolute().parent == CONFIG_FOLDER


def state_dir_of(config_file: Path) -> Path:
    """The only folder to which the unit of this file may write."""
    return STATE_FOLDER / config_file.stem


def become_node_user() -> bool:
    """Switch this process from root to the node's user, permanently, so that checks run with its rights. False if there
    is no such user, or if this process is not root."""
    if os.geteuid() != 0:
        return False
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        return False
    os.initgroups(USER, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    return True


def refusals_of(sections: Sections) -> Iterator[str]:
    """Accesses that the unit's sandbox would deny although file modes allow them, each with a remedy."""
    state_dir, stem = state_dir_of(sections.file), sections.file.stem
    node = sections.node
    if node is not None and not node.state_dir.is_relative_to(state_dir):
        why = f"bsfg@{stem} may write only in {state_dir}"
        yield f'state_dir: {node.state_dir} is read-only for the node: {why}; set state_dir = "{state_dir}"'
    for name, file in _files(sections):
        if any(file.is_relative_to(folder) for folder in HIDDEN):
            yield f"{name}: {file} is hidden from bsfg@{stem}; move it to {CONFIG_FOLDER}"
    for name, made in _made_at_first_use(sections):
        if not made.is_relative_to(state_dir) and not os.access(made, os.F_OK):
            hint = f"remove the line (the node then creates the file in {state_dir}), or create it with bsfg opcua certificate"
            yield f"{name}: {made} does not exist, and the node cannot create it there; {hint}"
    drop_ins = _drop_ins(stem)
    for source in sections.modbus:
        if source.transport == "rtu" and "DeviceAllow=" not in drop_ins:
            hint = f"put serial.conf with this port into {DROP_INS[1].format(stem)}"
            yield f"{source.name}: serial_port: bsfg@{stem} may open no device; {hint}"
    for name, host in _hosts(sections) if "IPAddressAllow=" not in drop_ins else ():
        if _is_public(host):
            hint = f"put conduit.conf with this address into {DROP_INS[1].format(stem)}"
            yield f"{name}: bsfg@{stem} reaches private networks only, not {host}; {hint}"


def _hosts(sections: Sections) -> Iterator[tuple[str, str]]:
    """The hosts to which the node connects, with the section that names them."""
    yield from ((f"broker {broker.name}", broker.host) for broker in sections.broker)
    yield from ((source.name, host_of(url)) for source in sections.opcua for url in (source.url, *source.urls))
    yield from ((source.name, source.host) for source in sections.modbus)


def _is_public(host: str) -> bool:
    """Whether this is an address outside private networks; a name is not looked up."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def _made_at_first_use(sections: Sections) -> Iterator[tuple[str, Path]]:
    """The files that the node creates if they do not exist."""
    for source in sections.opcua:
        for name in ("certificate_file", "private_key_file"):
            if source.security_policy != "None" and (file := getattr(source, name)) is not None:
                yield f"{source.name}: {name}", file


def _files(sections: Sections) -> Iterator[tuple[str, Path]]:
    """Every file and folder that the node reads, with the setting that names it."""
    parts: list[tuple[str, Any]] = [(f"broker {broker.name}", broker) for broker in sections.broker]
    parts += [(source.name, source) for source in sections.sources]
    parts += [("signing", signing) for signing in sections.named("signing")]
    for name, settings in parts:
        for setting in fields(settings):
            if isinstance(file := getattr(settings, setting.name), Path):
                yield f"{name}: {setting.name}", file


def _drop_ins(stem: str) -> str:
    """The lines of this node's drop-ins without comments."""
    found = [path for folder in DROP_INS for path in sorted(Path(folder.format(stem)).glob("*.conf"))]
    lines = [line for path in found for line in path.read_text("utf-8", "replace").splitlines()]
    return "\n".join(line for line in lines if not line.lstrip().startswith(("#", ";")))
