"""docs/how-to/add-a-plant.md on clean machines: a site of one authority, one broker and three plants, each added by the
page as it stands there."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.appliance.gateway import Gateway
from tests.appliance.site import VALUES_S, site
from tests.appliance.test_root_deb import ONE
from tests.waiting import wait_until

PLANTS = ("plant-a", "plant-b", "plant-c")
SESSIONS = """
import sys, time
from pathlib import Path
from agent.replication import pki
from tests.security.broker_attacker import Attacker
context = pki.client_context(*map(Path, sys.argv[2:]))
context.check_hostname = False
sessions = [Attacker(sys.argv[1], 8883, context) for _ in range(40)]
while True:
    for session in sessions:
        session.ping()
    time.sleep(5)
"""


@contextmanager
def too_many_sessions(plant: Gateway, zone: str, host: str) -> Iterator[None]:
    """Forty sessions with the certificate of a plant, from its network."""
    pki = plant.root / "etc/bsfg/pki"
    files = [pki / "ca.pem", pki / "zones" / f"{zone}.pem", pki / "zones" / f"{zone}.key"]
    attacker = subprocess.Popen([*plant.in_network, sys.executable, "-c", SESSIONS, host, *files])
    try:
        yield
        assert attacker.poll() is None, "the sessions are open"
    finally:
        attacker.kill()
        attacker.wait()


@ONE
def test_a_site_of_three_plants(gateway: Gateway, deb: Path, tmp_path: Path) -> None:
    """Each plant is connected by the page's commands, without a change at the others; a fact of each arrives in the
    IDMZ, and all zones are good. Then one opens too many sessions: the broker's machine sees it, and its node names the
    certificate. Prints how much was typed."""
    with site(gateway, deb, tmp_path, PLANTS) as found:
        machines, idmz = found.machines, found.machines["idmz"]
        found.commands = 0
        for plant in PLANTS:
            found.page("add-a-plant", zone=plant)
            machines[plant].run(f"bsfg append --config /etc/bsfg/{plant}.toml batch:B-1042 step_completed '{{}}'")
        print(f"{found.commands} commands for {len(PLANTS)} plants")
        asked = "bsfg sql --csv --config /etc/bsfg/idmz.toml \"select zone from facts where subject = 'batch:B-1042'\""
        wait_until(lambda: set(idmz.try_(asked).text.split()) >= set(PLANTS), "a fact of each plant", VALUES_S)
        for zone in ("idmz", *PLANTS):
            found.wait_good(zone)
        seen = "cat /run/bsfg-broker/abuses.json"
        wait_until(lambda: idmz.try_(seen).text == "[]", "the unit has seen nothing", VALUES_S)
        with too_many_sessions(machines["plant-c"], "plant-c", "10.20.3.1"):
            status = "bsfg status --config /etc/bsfg/idmz.toml"
            wait_until(lambda: "zone plant-c: has 4" in idmz.try_(status).text, "the node names it", VALUES_S)
        found.wait_good("idmz")
