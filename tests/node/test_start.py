"""What a node starts with where a part of its files is wrong: the rest of them, and of that part what was last in
force."""

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.config import ConfigFile, InForce, load
from agent.fact_store import FactStore
from agent.node.node import Node
from agent.node.start import read_start
from tests.waiting import wait_until_async

SOURCES = ("a", "b", "c")
ROW = "tag,register,table,type\nline/{0},1,holding,int16\n"


class Note(NamedTuple):
    """An incident, as the store is given it."""

    kind: str
    subject: str
    text: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node with three sources, which has run with all of them."""
    sections = [
        f'[[modbus]]\nname = "{name}"\nhost = "h"\ntags_file = "{name}.csv"\naddress_base = 0\n' for name in SOURCES
    ]
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant-a"\n' + "".join(sections))
    for name in SOURCES:
        (tmp_path / f"{name}.csv").write_text(ROW.format(name))
    (tmp_path / "state").mkdir()
    settings = load(tmp_path / "node.toml")
    InForce(settings).keep_settings(settings, {name: ROW.format(name).encode() for name in SOURCES})
    return tmp_path


def test_a_wrong_tag_file_costs_no_other_source_anything(folder: Path) -> None:
    """Two of three files are wrong: these sources read their last maps, the third its new file, and what is in force is
    kept of all three. Each wrong file is an incident."""
    new = ROW.format("a") + "line/a2,2,holding,int16\n"
    (folder / "a.csv").write_text(new)
    for name in ("b", "c"):
        (folder / f"{name}.csv").write_text("tag\n")
    start = read_start(ConfigFile(folder / "node.toml"))
    assert {name: [tag.name for tag in found.tags] for name, found in start.tag_maps.items()} == {
        "a": ["line/a", "line/a2"], "b": ["line/b"], "c": ["line/c"]
    }  # fmt: skip
    assert start.tag_files == {"a": new.encode(), "b": ROW.format("b").encode(), "c": ROW.format("c").encode()}
    noted = list[Note]()
    store: Any = type("Store", (), {"note_incident": lambda _, *words: noted.append(Note(*words))})()
    start.report(store)
    assert [(incident.kind, incident.subject) for incident in noted] == [
        ("settings", "source b"),
        ("settings", "source c"),
    ]
    assert all(incident.text.startswith("the last map in force is read: ") for incident in noted)


async def test_a_mended_tag_file_is_read_with_the_section_of_the_file(folder: Path) -> None:
    """A section and its tag file were changed together, and the tag file is wrong: both stay as they were last in
    force, which the status says. When the tag file is right, the new section is in force with it: with the old address
    base its registers would give wrong values that look right."""
    text = (folder / "node.toml").read_text()
    (folder / "node.toml").write_text(text.replace("address_base = 0", "address_base = 1", 1))
    (folder / "a.csv").write_text("tag\n")
    file, stop = ConfigFile(folder / "node.toml"), asyncio.Event()
    start = read_start(file)
    assert [(part.subject, part.is_kept) for part in start.not_in_force] == [("source a", True)]
    assert [source.address_base for source in start.settings.modbus] == [0, 0, 0]
    with FactStore.open(folder / "state" / "facts.db", "plant-a") as store:
        node = Node(store, start, file, asyncio.Event())
        running = asyncio.create_task(node.run(stop, asyncio.get_running_loop().create_future()), name="node")
        await wait_until_async(lambda: node._collector._turns > 0, "the start")
        assert node._reloader.settings == start.settings
        (folder / "a.csv").write_text(ROW.format("a").replace("line/a", "line/new"))
        await wait_until_async(lambda: node._reloader.settings.modbus[0].address_base == 1, "the new section")
        (tag,) = node._ingest.tag_maps()["a"].tags
        assert (tag.name, tag.definition.address) == ("line/new", "unit 1 holding 1 (base 1) AB")
        assert node._reloader.not_in_force == ()
        (folder / "a.csv").write_text(ROW.format("a"))
        await wait_until_async(lambda: node._ingest.tag_maps()["a"].tags[0].name == "line/a", "the next edit")
        stop.set()
        await running
