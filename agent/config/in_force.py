"""What a node last ran with: the settings and the tag file of each source, in the folder `in_force` of its state
folder.

A start reads it when node.toml or a tag file is wrong. The store's tag definitions would not do: they lack the sampling
rules, the intervals, scales and byte orders, and nothing of node.toml is in the store. The tag files are kept as they
were, so that an operator can copy one back.

`settings.json` is replaced last and names the copies by their digest. A crash anywhere leaves a settings.json whose
copies exist: sections and tag files of one moment. One process writes: the one that holds the store. The settings hold
paths of secrets, and no secret.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent.config.node_file import FILE_BYTES_MAX, ConfigError, Sections, from_plain, plain
from agent.config.start_settings import SettingsPlan, plan_settings
from agent.file_replace import write_file
from agent.settings.node import NodeSettings
from agent.settings.pair import PairSettings

FOLDER = "in_force"  # inside the node's state folder
INDEX = "settings.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptSettings:
    """The settings last in force, and the bytes of the tag file of each source that had one in force."""

    settings: NodeSettings
    tag_files: Mapping[str, bytes]


def load_kept(state_dir: Path) -> KeptSettings | None:
    """What was last in force; None if nothing is kept. A damaged file counts as none, which is logged."""
    folder = state_dir / FOLDER
    try:
        index = _read_index(folder)
        if index is None:
            return None
        settings = from_plain(index["settings"], folder / INDEX)
        names = {str(source): str(name) for source, name in index["tag_files"].items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError, ConfigError) as error:
        log.warning("in_force_unreadable", extra={"file": str(folder / INDEX), "why": str(error)})
        return None
    found = {source: _read_copy(folder / Path(name).name) for source, name in names.items()}
    return KeptSettings(settings, {source: data for source, data in found.items() if data is not None})


def _read_index(folder: Path) -> dict[str, dict[str, object]] | None:
    file = folder / INDEX
    if not file.exists():
        return None
    with file.open("rb") as opened:
        found: dict[str, dict[str, object]] = json.loads(opened.read(FILE_BYTES_MAX))
    return found


def _read_copy(file: Path) -> bytes | None:
    """A kept tag file; None if it is not what was written."""
    try:
        data = file.read_bytes()
    except OSError as error:
        log.warning("in_force_unreadable", extra={"file": str(file), "why": str(error)})
        return None
    if _digest(data) not in file.name:
        log.warning("in_force_unreadable", extra={"file": str(file), "why": "its content has changed"})
        return None
    return data


def load_usable(sections: Sections) -> SettingsPlan:
    """The settings of a file as far as they are right, with those last in force in the place of what is wrong. Raises
    ConfigError if there are none to run with."""
    kept = None
    if sections.settings is None and sections.node is not None:
        kept = load_kept(sections.node.state_dir)
    plan = plan_settings(sections, None if kept is None else kept.settings)
    if plan.settings is None:
        raise ConfigError(sections.file, plan.fatal)
    return plan


class InForce:
    """Keeps what is in force. A disk that refuses costs the copy, not the node: the copy before stays."""

    def __init__(self, settings: NodeSettings, names: Mapping[str, str] | None = None) -> None:
        self._folder = settings.node.state_dir / FOLDER
        self._settings = settings
        self._names = dict(names or {})  # of the copies, by source
        self._lock = threading.Lock()  # a reload and a new tag file may come together

    def keep_settings(self, settings: NodeSettings, tag_files: Mapping[str, bytes]) -> None:
        """Keep these settings, and the tag files of the sources that begin with them."""
        with self._lock:
            self._settings = settings
            self._keep(tag_files)

    def keep_files(self, tag_files: Mapping[str, bytes]) -> None:
        """Keep new tag files."""
        with self._lock:
            self._keep(tag_files)

    def _keep(self, tag_files: Mapping[str, bytes]) -> None:
        settings = self._settings
        files = {source.name: source.tags_file for source in settings.sources}
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for source, data in tag_files.items():
                if source in files:
                    name = f"{source}-{_digest(data)}{files[source].suffix}"
                    _replace(self._folder / name, data)
                    self._names[source] = name
            self._names = {source: name for source, name in self._names.items() if source in files}
            if not {peer.node for peer in settings.peer}.issuperset(settings.pair.nodes):
                settings = replace(settings, pair=PairSettings())  # a reload has removed them; it ends with the restart
            index = {"settings": plain(settings), "tag_files": self._names}
            _replace(self._folder / INDEX, json.dumps(index, indent=1).encode())
            for file in self._folder.iterdir():
                if file.name not in (INDEX, *self._names.values()):
                    file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("in_force_not_kept", extra={"folder": str(self._folder), "why": str(error)})


def _replace(file: Path, data: bytes) -> None:
    """Write a file, unless it holds this already: most starts change nothing. Raises OSError."""
    if not file.exists() or file.read_bytes() != data:
        write_file(file, data)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
