"""docs/how-to/two-gateways.md on clean machines: a second gateway is added to a plant by the page as it stands there;
then the power of whichever leads is cut."""

import json
from contextlib import ExitStack
from pathlib import Path

from tests.appliance.gateway import Gateway
from tests.appliance.site import VALUES_S, Site, site
from tests.appliance.test_root_deb import ONE, boiler
from tests.appliance.two_zones import converter
from tests.waiting import wait_until

BOXES = ("plant-a", "plant-a-2")
WITHOUT_VALUES_S = 20
PAIR_HOST = "gateway-a.plant.example"
TAGS = "tag,unit_id,table,register,type\nboiler/pressure,1,holding,10,uint16\n"
SOURCE = """
[[modbus]]
name = "boiler"
host = "10.20.9.20"
address_base = 0
poll_interval_ms = 200
tags_file = "boiler.csv"
"""


def prepare_box(found: Site, box: str) -> None:
    """What the page leaves to the reader: the name of the broker's machine, and the tag file."""
    found.add(box, "/etc/hosts", f"10.20.9.1 {PAIR_HOST}\n")
    found.add(box, "/etc/bsfg/boiler.csv", TAGS)
    found.machines[box].run("chown root:bsfg /etc/bsfg/boiler.csv && chmod 0640 /etc/bsfg/boiler.csv")


def pair_status(found: Site, box: str) -> dict[str, object]:
    """What a box knows of the pair; empty while its node does not answer."""
    done = found.machines[box].try_(f"bsfg pair status --json --config /etc/bsfg/{box}.toml")
    return dict(json.loads(done.text)) if done.text.startswith("{") else {}


def samples(found: Site) -> list[tuple[float, str]]:
    """The values of the boiler that the IDMZ has: when each was read, in order, and the life that recorded it."""
    query = (
        "select source_time_ns, life from facts where zone = 'plant-a'"
        " and subject = 'tag:boiler/pressure' and kind = 'sample' order by source_time_ns"
    )
    shown = found.machines["idmz"].run(f'bsfg sql --json --config /etc/bsfg/idmz.toml "{query}"')
    rows = [json.loads(line) for line in shown.splitlines()]
    return [(int(row["source_time_ns"]) / 1e9, row["life"]) for row in rows]


def is_a_pair(found: Site, leader: str) -> None:
    """Both know who leads, and the other one is fit to follow."""
    (follower,) = set(BOXES) - {leader}
    wait_until(lambda: pair_status(found, leader).get("partner_state") == "follows", f"{follower} follows", VALUES_S)
    wait_until(lambda: pair_status(found, follower).get("leader") == leader, f"{leader} leads", VALUES_S)


def all_is_well(found: Site) -> None:
    """Each node is good, nothing failed, and no service was restarted by systemd."""
    for machine in ("idmz", *BOXES):
        found.wait_good(machine)
        assert found.machines[machine].run("systemctl --failed --no-legend --plain") == ""
        brokers = {"idmz": ["bsfg-broker@idmz"], "plant-a": ["bsfg-broker@pair"]}.get(machine, [])
        for unit in (f"bsfg@{machine}", *brokers):
            shown = found.machines[machine].run(f"systemctl show --property=ActiveState,NRestarts --value {unit}")
            assert sorted(shown.split()) == ["0", "active"], (machine, unit, shown)


def files_are_private(gateway: Gateway) -> None:
    """Others than root, the node and the broker read no key and no settings; the state is the node's alone."""
    assert gateway.run("find /var/lib/bsfg -not -user bsfg") == ""
    secret = r"\( -name '*.key' -o -name '*.toml' \)"
    assert len(gateway.run(f"find /etc/bsfg {secret}").splitlines()) == 2
    assert gateway.run(f"find /etc/bsfg /etc/mosquitto /var/lib/bsfg {secret} -perm /o=rwx") == ""


def outage(found: Site, leader: str) -> None:
    """The leader's power is cut: the other one records within seconds and names it; it returns, and follows."""
    (other,) = set(BOXES) - {leader}
    before = samples(found)[-1]
    found.cut_power(leader)
    wait_until(lambda: samples(found)[-1][1] != before[1], f"values of {other} in the IDMZ", VALUES_S)
    after = samples(found)
    silent_s = next(at for at, life in after if life == after[-1][1]) - max(
        at for at, life in after if life == before[1]
    )
    print(f"{leader} without power: {silent_s:.1f} s without values")
    assert silent_s < WITHOUT_VALUES_S
    status = f"bsfg status --config /etc/bsfg/{other}.toml"
    silent = f"the other gateway, {leader}, is silent"
    wait_until(lambda: silent in found.machines[other].try_(status).text, silent, VALUES_S)
    shown = found.type(other, f"bsfg pair status --config /etc/bsfg/{other}.toml")
    assert f"plant-a: {other} leads; this node leads" in shown
    assert f"partner   {leader}" in shown
    found.power_on(leader)
    is_a_pair(found, other)


@ONE
def test_two_gateways(gateway: Gateway, deb: Path, tmp_path: Path) -> None:
    """The page as it stands there makes plant-a-2 the follower of plant-a, and hands over to it. Then the power of the
    leader is cut, of plant-a-2 and of plant-a with the pair's broker: each time the values in the IDMZ go on within
    seconds, the box that is left names the dead one, and that one follows when it returns. In the end all nodes are
    good, and no unit failed."""
    with site(gateway, deb, tmp_path, BOXES) as found, ExitStack() as stack:
        plant, second = (found.machines[box] for box in BOXES)
        plant.connect(second, "10.20.9.1/24", "10.20.9.2/24", ("eth1", "eth1"))
        plant.add_address("10.20.9.20/24", "eth1")
        for box in BOXES:
            prepare_box(found, box)
        device = stack.enter_context(boiler(plant, tmp_path))
        stack.enter_context(converter(plant, "10.20.9.20", device.port))
        found.page("add-a-plant", zone="plant-a", more={"/etc/bsfg/plant-a.toml": SOURCE})
        wait_until(lambda: samples(found), "values in the IDMZ", VALUES_S)
        found.page("two-gateways", "Setting up", more={"/etc/bsfg/plant-a-2.toml": SOURCE})
        is_a_pair(found, "plant-a")
        found.page("two-gateways", "Handing over")
        for leader in reversed(BOXES):
            is_a_pair(found, leader)
            outage(found, leader)
        all_is_well(found)
        files_are_private(plant)
        files_are_private(second)
