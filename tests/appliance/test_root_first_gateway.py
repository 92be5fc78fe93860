"""docs/how-to/first-gateway.md on two clean machines without a network but the cable between them: from the packages to
values of an OPC UA server and a Modbus device, both of other makers, in a second zone."""

import re
from pathlib import Path

from appliance.packages import Target
from tests.appliance.page import commands, tutorial
from tests.appliance.test_root_deb import BOTH
from tests.appliance.two_zones import latest, two_zones, walk
from tests.waiting import wait_until

COMMANDS_MAX = 8
VALUES_S = 60
TAGS = {"Plant/count", "Plant/temperature", "boiler/pressure", "boiler/temperature"}


@BOTH
def test_the_first_gateway(target: Target, deb: Path, tmp_path: Path) -> None:
    """The page as it stands, on machines without Python, broker and packet filter, which the stick has: at most eight
    commands and no file edited until values of both servers are in the second zone, and go on coming. The fingerprints
    to compare are equal. Prints the minutes."""
    steps = list(tutorial())
    assert len(steps) <= COMMANDS_MAX
    assert {step.command.split()[0] for step in steps} == {"dpkg", "bsfg"}, "no file is edited"
    with two_zones(target, deb, tmp_path, is_bare=True) as zones:
        assert "pre-depends on python3" in zones.plant.try_(f"dpkg -i {zones.plant.copy_in(deb)}").text
        (brought,) = commands("brought")
        zones.plant.run(brought)
        zones.idmz.run(brought.replace("/debian/", "/debian-broker/"))
        assert zones.plant.try_("test -e /usr/sbin/mosquitto").status == 1
        minutes = walk(zones)
        print(f"{target.name}: {len(steps)} commands, no file edited, {minutes:.1f} minutes")
        wait_until(lambda: latest(zones.idmz).keys() >= TAGS, "values in the second zone", VALUES_S)
        last = zones.operator.type(steps[-1])
        assert all(f"{tag} " in last for tag in TAGS), last
        fingerprints = re.findall(r"fingerprint of the key[^:]*: (\S+)", "\n".join(zones.operator.shown))
        assert len(fingerprints) > len(set(fingerprints))
        before = latest(zones.idmz)
        changing = ("Plant/count", "boiler/pressure")
        wait_until(
            lambda: all(latest(zones.idmz)[tag] != before[tag] for tag in changing), "newer values of both", VALUES_S
        )
        assert float(before["Plant/temperature"]) == 21.5
        for zone, gateway in (("plant-a", zones.plant), ("idmz", zones.idmz)):
            wait_until(
                lambda zone=zone, gateway=gateway: (
                    gateway.try_(f"bsfg status --config /etc/bsfg/{zone}.toml").status == 0
                ),
                f"a good status of {zone}",
                VALUES_S,
            )
            assert (
                gateway.run(
                    "find /var/lib/bsfg -not -user bsfg; find /etc/bsfg ! -path /etc/bsfg/page -not -group bsfg"
                )
                == ""
            )
            assert gateway.run("find /etc/bsfg -perm /o=rwx") == ""
