"""With which settings a node starts when something in node.toml is wrong: values in, values out."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import load, load_sections
from agent.config.start_settings import NotInForce, SettingsPlan, plan_settings
from agent.settings.node import NodeSettings

NODE = '[node]\nzone = "plant-a"\n'
BROKER = '[[broker]]\nname = "site"\nhost = "h"\nca_file = "ca"\ncert_file = "c"\nkey_file = "k"\n'
PEER = '[[peer]]\nzone = "idmz"\nbroker = "site"\nexports = ["facts.telemetry"]\n'
STREAM = '[[stream]]\nname = "facts.telemetry"\nttl_hours = 0\n'
METER = '[[modbus]]\nname = "meter"\nhost = "h1"\ntags_file = "meter.csv"\naddress_base = 0\n'
BOILER = METER.replace("meter", "boiler").replace("h1", "h2")
SHIFT = '[[notify]]\nname = "shift"\nwebhook_url = "http://127.0.0.1:8480/a"\n'
DUTY = SHIFT.replace("shift", "duty").replace("8480", "8481")
WRONG = '[[notify]]\nname = "wrong"\n'
ALL = NODE + BROKER + PEER + STREAM + METER + BOILER + SHIFT + DUTY


def before(folder: Path, text: str = ALL) -> NodeSettings:
    """The settings of this text."""
    file = folder / "before.toml"
    file.write_text(text)
    return load(file)


def planned(folder: Path, text: str, last: NodeSettings | None = None) -> SettingsPlan:
    """How a node starts whose file has this text."""
    file = folder / "node.toml"
    file.write_text(text)
    return plan_settings(load_sections(file), last)


def names(settings: NodeSettings) -> dict[str, list[str]]:
    """The lists that are not empty, by the names in them."""
    found = {
        "broker": [broker.name for broker in settings.broker],
        "peer": [peer.zone for peer in settings.peer],
        "stream": [stream.name for stream in settings.stream],
        "modbus": [source.name for source in settings.modbus],
        "notify": [receiver.name for receiver in settings.notify],
    }
    return {kind: entries for kind, entries in found.items() if entries}


WHOLE = {
    "broker": ["site"],
    "peer": ["idmz"],
    "stream": ["facts.telemetry"],
    "modbus": ["meter", "boiler"],
    "notify": ["shift", "duty"],
}
ONLY_METER = {**WHOLE, "modbus": ["meter"]}
WITHOUT_PEER = {kind: found for kind, found in WHOLE.items() if kind != "peer"}
WITHOUT_BROKER = {kind: found for kind, found in WITHOUT_PEER.items() if kind != "broker"}

CASES = {
    "a value of one source": (BOILER, BOILER.replace("= 0", "= 7"), "source boiler", ONLY_METER),
    "no value": (BOILER, BOILER.replace("address_base = 0\n", ""), "source boiler", ONLY_METER),
    "no TOML": (BOILER, BOILER.replace('"h2"', '"h2'), "source boiler", ONLY_METER),
    "a setting misspelt": (BOILER, BOILER.replace("host", "hosst"), "source boiler", ONLY_METER),
    "a heading misspelt": (BOILER, BOILER.replace("[[modbus]]", "[[modbuss]]"), "source boiler", ONLY_METER),
    "a device without a profile": (BOILER, BOILER + 'device = "none"\n', "source boiler", ONLY_METER),
    "a name that no one has": (BOILER, BOILER.replace('"boiler"', '"boi ler"'), "source boi ler", ONLY_METER),
    "a name twice": (BOILER, BOILER + METER, "source meter", WHOLE),
    "a broker": (BROKER, BROKER.replace("host", "hst"), "broker site", WITHOUT_BROKER),
    "a peer": (PEER, PEER.replace("exports", "export"), "peer idmz", WITHOUT_PEER),
    "a peer of no broker": (PEER, PEER.replace('"site"', '"sight"'), "peer idmz", WITHOUT_PEER),
    "a receiver": (DUTY, DUTY.replace("url", "uri"), "notify duty", {**WHOLE, "notify": ["shift"]}),
    "an unknown section": (BOILER, BOILER + "[xyz]\na = 1\n", "xyz", WHOLE),
    "a section with a quoted dot": (BOILER, BOILER + '["xyz.a"]\na = 1\n', "xyz.a", WHOLE),
    "[page]": (BOILER, BOILER + "[page]\nlisten_port = 99999\n", "page", WHOLE),
}


@pytest.mark.parametrize("case", CASES)
def test_without_an_earlier_start_the_wrong_section_is_left_out(case: str, tmp_path: Path) -> None:
    """It is named with the reason; every other section is in force. A peer whose broker is left out goes with it."""
    right, wrong, subject, expected = CASES[case]
    plan = planned(tmp_path, ALL.replace(right, wrong) + WRONG)
    assert plan.settings is not None
    assert names(plan.settings) == expected
    assert [section.subject for section in plan.not_in_force].count(subject) == 1
    assert len({section.why for section in plan.not_in_force if not section.is_kept}) == len(plan.not_in_force) > 1


@pytest.mark.parametrize("case", [case for case in CASES if case != "a name that no one has"])
def test_a_wrong_section_goes_on_as_it_was_last_in_force(case: str, tmp_path: Path) -> None:
    """The settings are those of the last start, although other sections have changed; the change of those counts."""
    right, wrong, subject, _ = CASES[case]
    last = before(tmp_path)
    plan = planned(tmp_path, ALL.replace(right, wrong) + "[store]\nbytes_max = 9999999\n", last)
    assert plan.settings is not None
    changed = replace(last, store=plan.settings.store, modbus=plan.settings.modbus)
    assert (plan.settings, plan.settings.store.bytes_max) == (changed, 9_999_999)
    assert set(plan.settings.modbus) == set(last.modbus)
    assert [section.subject for section in plan.not_in_force].count(subject) == 1


def test_of_two_nodes_of_a_zone_the_wrong_one_goes_on(tmp_path: Path) -> None:
    """A peer is known by its node, not by its zone: the other peer of its zone does not stand in for it."""
    pair = "".join(PEER.replace('"idmz"\n', f'"idmz"\nnode = "{node}"\n') for node in ("idmz-1", "idmz-2"))
    last = before(tmp_path, ALL.replace(PEER, pair))
    plan = planned(tmp_path, ALL.replace(PEER, pair).replace('"idmz-1"', '"idmz-1"\nport = 0'), last)
    assert plan.settings is not None
    assert (plan.settings.peer, [section.subject for section in plan.not_in_force]) == (
        last.peer[::-1],
        ["peer idmz-1"],
    )


def test_a_source_that_was_renamed_with_a_mistake_is_left_out(tmp_path: Path) -> None:
    """Nothing ties it to the one before, which the file no longer has."""
    kettle = BOILER.replace('"boiler"', '"kettle"').replace("= 0", "= 7")
    plan = planned(tmp_path, ALL.replace(BOILER, kettle), before(tmp_path))
    assert plan.settings is not None
    assert [source.name for source in plan.settings.modbus] == ["meter"]
    assert [(section.subject, section.is_kept) for section in plan.not_in_force] == [("source kettle", False)]


WEIGHTY = {
    "[store]": (STREAM, STREAM + "[store]\nbytes_max = 5\n"),
    "[store] misspelt": (STREAM, STREAM + "[strore]\nbytes_max = 5\n"),
    "[[stream]]": (STREAM, STREAM.replace("= 0", "= -1")),
    "[[stream]] twice": (STREAM, STREAM + STREAM),
    "[[origin]]": (STREAM, STREAM + '[[origin]]\nzone = "plant-b"\nsignatures = "requird"\n'),
    "[[origin]] without an authority": (STREAM, STREAM + '[[origin]]\nzone = "plant-b"\nsignatures = "required"\n'),
    "[signing]": (STREAM, STREAM + '[signing]\ncertificate_file = "c"\n'),
}


@pytest.mark.parametrize("case", WEIGHTY)
def test_what_would_lose_or_leak_facts_is_never_left_out(case: str, tmp_path: Path) -> None:
    """Streams, store, signing and origins are as they were last in force, as a whole; without a last time the node does
    not start."""
    text, last = ALL.replace(*WEIGHTY[case]), before(tmp_path)
    assert planned(tmp_path, text, last).settings == last
    refused = planned(tmp_path, text)
    assert refused.settings is None
    assert refused.fatal


def test_settings_of_another_zone_are_not_taken(tmp_path: Path) -> None:
    """A state folder that was copied brings no peers and sources along."""
    text = NODE + METER.replace("= 0", "= 7")
    assert planned(tmp_path, text, before(tmp_path, ALL.replace("plant-a", "plant-b"))) == planned(tmp_path, text)


def test_without_a_zone_nothing_starts(tmp_path: Path) -> None:
    """Zone and state folder are what everything else hangs on."""
    plan = planned(tmp_path, ALL.replace('"plant-a"', '"plant-a'), before(tmp_path))
    assert plan.settings is None
    assert [problem.path for problem in plan.fatal] == ["node"]


def test_a_good_file_is_in_force_as_it_is(tmp_path: Path) -> None:
    """What was before does not count."""
    plan = planned(tmp_path, NODE + METER, before(tmp_path))
    assert (plan.settings, plan.not_in_force) == (load(tmp_path / "node.toml"), ())


def test_what_is_not_in_force_says_what_runs_instead() -> None:
    """For the log and the record."""
    assert (
        str(NotInForce("peer idmz", "port = 0: is wrong", is_kept=False)) == "peer idmz: left out: port = 0: is wrong"
    )
    assert "as it was last in force" in str(NotInForce("peer idmz", "x", is_kept=True))


PARTNER = '[[peer]]\nzone = "plant-a"\nnode = "plant-a-2"\nbroker = "site"\npulls = ["facts.telemetry"]\n'
PAIR = '[pair]\npartner = "plant-a-2"\nwitness = "idmz"\n'


def test_a_wrong_pair_goes_on_as_it_was(tmp_path: Path) -> None:
    """A partner that is no peer does not stop the start: the pair is the one last in force; without one the node
    records, because a gateway that waits for a mistyped partner would record nothing."""
    text = ALL + PARTNER + PAIR.replace('partner = "plant-a-2"', 'partner = "plant-a-3"')
    kept = planned(tmp_path, text, before(tmp_path, ALL + PARTNER + PAIR))
    assert kept.settings is not None
    assert kept.settings.pair.partner == "plant-a-2"
    left_out = planned(tmp_path, text)
    assert left_out.settings is not None
    assert left_out.settings.pair.partner == ""
    assert [(part.subject, part.is_kept) for part in left_out.not_in_force] == [("pair", False)]


@pytest.mark.parametrize("setting", ["node", "name", "partnr"])
def test_a_misspelt_partner_does_not_end_the_pair(setting: str, tmp_path: Path) -> None:
    """[pair] is there once, so a setting that would name one of several sections does not hide what was before."""
    last = before(tmp_path, ALL + PARTNER + PAIR)
    plan = planned(tmp_path, ALL + PARTNER + PAIR.replace("partner", setting), last)
    assert plan.settings == last
    assert [(part.subject, part.is_kept) for part in plan.not_in_force] == [("pair", True)]


def test_a_name_of_another_zone_is_fatal(tmp_path: Path) -> None:
    """A node that is named like the zone of a peer cannot start with anything else: its name is its identity."""
    text = ALL.replace('zone = "plant-a"\n', 'zone = "plant-a"\nname = "idmz"\n')
    plan = planned(tmp_path, text.replace('zone = "idmz"\n', 'zone = "idmz"\nnode = "idmz-1"\n'))
    assert plan.settings is None
    assert "another zone" in str(plan.fatal[0])
