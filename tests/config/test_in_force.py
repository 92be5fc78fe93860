"""What a node last ran with, kept in its state folder: it comes back as it was, whatever a crash or a disk did."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cli.prepare.init import node_toml
from agent.config import InForce, in_force, load, load_kept
from agent.config.in_force import FOLDER, INDEX
from agent.config.node_file import from_plain, plain
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.pair import PairSettings
from agent.settings.signing import SigningSettings
from agent.settings.sources import ModbusSourceSettings

TEXT = """
[node]
zone = "plant-a"
[[broker]]
name = "site"
host = "h"
ca_file = "ca"
cert_file = "c"
key_file = "k"
[[peer]]
zone = "idmz"
broker = "site"
exports = ["a", "b"]
pulls = ["orders"]
start = [{ stream = "orders", at = "latest" }]
[[stream]]
name = "a"
ttl_hours = 0
[[opcua]]
name = "plc"
url = "opc.tcp://h:4840"
tags_file = "plc.csv"
events = ["Server"]
[[modbus]]
name = "meter"
device = "pm"
host = "h"
tags_file = "meter.csv"
"""


@pytest.mark.parametrize("text", [TEXT, node_toml("plant-a")])
def test_settings_come_back_equal(text: str, tmp_path: Path) -> None:
    """All sections, with the defaults of a device profile that is gone meanwhile."""
    file, profile = tmp_path / "node.toml", tmp_path / "devices.d" / "pm.toml"
    profile.parent.mkdir()
    profile.write_text('description = "x"\naddress_base = 1\nport = 1502\n')
    file.write_text(text)
    settings = load(file)
    profile.unlink()
    assert from_plain(json.loads(json.dumps(plain(settings))), tmp_path / "elsewhere" / "x") == settings


def settings_of(folder: Path, *sources: str) -> NodeSettings:
    """A node with these sources."""
    found = tuple(ModbusSourceSettings(name, folder / f"{name}.csv", 0, host="h") for name in sources)
    signing = SigningSettings(compromised_file=folder / "compromised.toml")
    return NodeSettings(IdentitySettings("plant-a", folder), modbus=found, signing=signing)


def kept_in(folder: Path) -> tuple[NodeSettings, Mapping[str, bytes]]:
    """The kept settings and tag files."""
    found = load_kept(folder)
    assert found is not None
    return found.settings, found.tag_files


def copies(folder: Path) -> list[bytes]:
    """The kept tag files."""
    return sorted(file.read_bytes() for file in (folder / FOLDER).iterdir() if file.name != INDEX)


def test_tag_files_are_kept_while_their_source_is_configured(tmp_path: Path) -> None:
    """The newest of each source, as bytes; nothing of a source that is gone. A file in another folder may have the same
    name."""
    both = settings_of(tmp_path, "m1", "m2")
    kept = InForce(both)
    kept.keep_settings(both, {"m1": b"one", "m2": b"two"})
    kept.keep_files({"m1": b"\xff new"})
    assert kept_in(tmp_path) == (both, {"m1": b"\xff new", "m2": b"two"})
    assert copies(tmp_path) == [b"two", b"\xff new"]
    only = settings_of(tmp_path, "m2")
    kept.keep_settings(only, {})
    assert (kept_in(tmp_path), copies(tmp_path)) == ((only, {"m2": b"two"}), [b"two"])


def test_a_pair_that_a_reload_has_ended_keeps_nothing_from_being_read(tmp_path: Path) -> None:
    """Its partner is no peer any more, and [pair] is in force until the restart, which may find another mistake."""
    settings = settings_of(tmp_path, "a")
    InForce(settings).keep_settings(replace(settings, pair=PairSettings("plant-a-2")), {"a": b"1"})
    assert kept_in(tmp_path) == (settings, {"a": b"1"})


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    """A node that restarts every minute wears no flash."""
    settings = settings_of(tmp_path, "m1")
    InForce(settings).keep_settings(settings, {"m1": b"one"})
    before = {file.name: file.stat().st_ino for file in (tmp_path / FOLDER).iterdir()}
    InForce(settings).keep_settings(settings, {"m1": b"one"})
    assert {file.name: file.stat().st_ino for file in (tmp_path / FOLDER).iterdir()} == before


def test_a_crash_between_two_writes_leaves_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each number of writes the process ends: sections and tag files are all of before, or all of after."""
    old, new = settings_of(tmp_path, "m1", "m2"), settings_of(tmp_path, "m1", "m2", "m3")
    old_files, new_files = {"m1": b"1", "m2": b"2"}, {"m1": b"one", "m2": b"two", "m3": b"three"}
    write = in_force.write_file
    for writes in range(5):
        InForce(old).keep_settings(old, old_files)
        left = writes

        def failing(path: Path, data: bytes) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            write(path, data)

        with monkeypatch.context() as during:
            during.setattr(in_force, "write_file", failing)
            with suppress(KeyboardInterrupt):
                InForce(old).keep_settings(new, new_files)
        assert kept_in(tmp_path) == ((new, new_files) if writes == 4 else (old, old_files))


def test_a_damaged_copy_counts_as_none(tmp_path: Path) -> None:
    """A tag file that is not what was written, an index that is none, and no folder at all."""
    assert load_kept(tmp_path) is None
    settings = settings_of(tmp_path, "m1", "m2")
    InForce(settings).keep_settings(settings, {"m1": b"one", "m2": b"two"})
    (file,) = (tmp_path / FOLDER).glob("m1-*")
    file.write_bytes(b"on")
    assert kept_in(tmp_path) == (settings, {"m2": b"two"})
    for damaged in ("{", "[]", '{"settings": {}, "tag_files": {}}', '{"settings": {"node": {"zone": "plant-a"}}}'):
        (tmp_path / FOLDER / INDEX).write_text(damaged)
        assert load_kept(tmp_path) is None


def test_a_disk_that_refuses_ends_no_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The copy is not made, which the log says."""
    (tmp_path / FOLDER).write_text("in the way")
    settings = settings_of(tmp_path, "m1")
    InForce(settings).keep_settings(settings, {"m1": b"one"})
    assert [record.message for record in caplog.records] == ["in_force_not_kept"]


def test_only_the_nodes_user_may_read_it(tmp_path: Path) -> None:
    """It says where keys and devices are."""
    settings = settings_of(tmp_path, "m1")
    umask = os.umask(0)
    try:
        InForce(settings).keep_settings(settings, {"m1": b"one"})
    finally:
        os.umask(umask)
    assert {file.stat().st_mode & 0o077 for file in [tmp_path / FOLDER, *(tmp_path / FOLDER).iterdir()]} == {0}
