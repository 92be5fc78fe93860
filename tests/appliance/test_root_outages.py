"""What fails in a plant and comes back by itself: a Modbus device, an OPC UA server, the broker, the clock. On two
booted machines with the real unit, under the interpreter of their Debian."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.status_codes import CLOCK_UNCERTAIN
from appliance.packages import Target
from tests.appliance.gateway import Gateway
from tests.appliance.test_root_deb import BOTH
from tests.appliance.two_zones import TwoZones, latest, two_zones, walk
from tests.waiting import wait_until

DROPPED_S = 45  # several times as long as a source waits for an answer and between two connections
BACK_S = 90  # a source tries again after 30 s at the latest
MODBUS, OPCUA = "boiler/pressure", "Plant/count"
NODE = "bsfg@plant-a"
BROKER = "bsfg-broker@idmz"

WALL_CLOCK = Path(__file__).with_name("wall_clock.c")
CLOCK_FILE = "etc/bsfg/clock"
CLOCK_DROP_IN = f"[Service]\nEnvironment=LD_PRELOAD=/etc/bsfg/wall_clock.so WALL_CLOCK=/{CLOCK_FILE}\n"


@contextmanager
def packets_dropped(gateway: Gateway, port: int) -> Iterator[None]:
    """No packet to or from this port arrives, and none is answered, as behind a switch without power."""
    rules = f"tcp dport {port} drop; tcp sport {port} drop"
    table = f"table inet outage {{ chain packets {{ type filter hook input priority 0; {rules}; }}; }}"
    subprocess.run([*gateway.in_network, "nft", table], check=True)
    try:
        yield
    finally:
        subprocess.run([*gateway.in_network, "nft", "delete table inet outage"], check=True)


def lost(zones: TwoZones, tag: str) -> None:
    """Wait until the node knows that the source of this tag is away."""
    name = {MODBUS: "boiler", OPCUA: "press"}[tag]
    words = f"bsfg source list --config /etc/bsfg/plant-a.toml | grep -w {name}"
    wait_until(lambda: "connected" not in zones.plant.try_(words).text, f"{name} is lost", BACK_S)


def is_back(zones: TwoZones, what: str, began: dict[str, str]) -> None:
    """Newer values of both sources arrive in the IDMZ, and both zones say that all is well."""
    for tag in (MODBUS, OPCUA):
        wait_until(lambda tag=tag: latest(zones.idmz).get(tag) != began[tag], f"after {what}: newer {tag}", BACK_S)
    for zone, gateway in (("plant-a", zones.plant), ("idmz", zones.idmz)):
        says = f"bsfg status --config /etc/bsfg/{zone}.toml"
        wait_until(
            lambda says=says, gateway=gateway: gateway.try_(says).status == 0, f"after {what}: {zone} is good", BACK_S
        )


def drop_packets(zones: TwoZones) -> None:
    """The network of the Modbus device is away for a while."""
    with packets_dropped(zones.plant, 502):
        lost(zones, MODBUS)
        time.sleep(DROPPED_S)  # tidy: the length of the outage


def restart_device(zones: TwoZones) -> None:
    """The Modbus device loses its power; the converter in front of it stays."""
    zones.boiler.kill()
    lost(zones, MODBUS)
    zones.boiler.start()
    zones.boiler.set(1, "holding", 10, 10_000, 215)
    zones.boiler.count(1, "holding", 10, 10)


def restart_server(zones: TwoZones) -> None:
    """The OPC UA server loses its power."""
    zones.press.kill()
    lost(zones, OPCUA)
    asyncio.run(zones.press.start())


def restart_broker(zones: TwoZones) -> None:
    """The broker is killed, and systemd starts it."""
    restarts = f"systemctl show --property=NRestarts --value {BROKER}"
    before = zones.idmz.run(restarts)
    zones.idmz.run(f"systemctl kill --signal=KILL {BROKER}")
    wait_until(lambda: zones.idmz.run(restarts) != before, "the broker was restarted", BACK_S)


OUTAGES: tuple[Callable[[TwoZones], None], ...] = (drop_packets, restart_device, restart_server, restart_broker)


@BOTH
def test_what_fails_comes_back_by_itself(target: Target, deb: Path, tmp_path: Path) -> None:
    """After each outage, without a command, values of both sources arrive again in the second zone, both zones are
    good, and the node is the same process."""
    with two_zones(target, deb, tmp_path) as zones:
        walk(zones)
        is_back(zones, "the page", dict.fromkeys((MODBUS, OPCUA), ""))
        pid = zones.plant.run(f"systemctl show --property=MainPID --value {NODE}")
        for outage in OUTAGES:
            outage(zones)
            is_back(zones, outage.__name__, latest(zones.idmz))
        assert zones.plant.run(f"systemctl show --property=MainPID --value {NODE}") == pid


def set_clock(gateway: Gateway, seconds: int) -> None:
    """Move the wall clock of the plant's node to this distance from the right time."""
    new = gateway.root / f"{CLOCK_FILE}.new"
    new.write_text(f"{seconds:+d}\n")
    new.rename(gateway.root / CLOCK_FILE)


def newest(gateway: Gateway, tag: str, column: str = "value") -> str:
    """The value of a tag that a machine's store recorded last, whatever its time; or another column."""
    zone = gateway.root.parent.name
    statement = (
        f"select {column} from facts where subject = 'tag:{tag}' and kind = 'sample' order by offset desc limit 1"
    )
    return gateway.try_(f'bsfg sql --csv --config /etc/bsfg/{zone}.toml "{statement}"').text


@BOTH
def test_a_clock_that_is_set_stops_nothing(target: Target, deb: Path, tmp_path: Path) -> None:
    """The plant's node starts in 1970: the values of the Modbus device are uncertain until its time arrives, which the
    second zone shows. Its wall clock runs two hours ahead, is right again, falls two hours behind, and is right again:
    each time values of both sources go on arriving in the second zone, from the same process."""
    with two_zones(target, deb, tmp_path) as zones:
        walk(zones)
        set_clock(zones.plant, 100 - int(time.time()))
        library = zones.plant.root / "etc/bsfg/wall_clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, WALL_CLOCK], check=True)
        folder = zones.plant.root / f"etc/systemd/system/{NODE}.service.d"
        folder.mkdir()
        (folder / "clock.conf").write_text(CLOCK_DROP_IN)
        began = latest(zones.idmz)
        zones.plant.run(f"systemctl daemon-reload && systemctl restart --no-block {NODE}")
        uncertain = [str(CLOCK_UNCERTAIN)]
        wait_until(lambda: newest(zones.plant, MODBUS, "quality").split()[-1:] == uncertain, "values of 1970", BACK_S)
        set_clock(zones.plant, 0)
        is_back(zones, "the time", began)
        status = "bsfg status --config /etc/bsfg/idmz.toml"
        wait_until(lambda: "set forward by" in zones.idmz.run(status), "the clock of the plant, in the IDMZ", BACK_S)
        pid = zones.plant.run(f"systemctl show --property=MainPID --value {NODE}")
        for seconds in (7200, 0, -7200, 0):
            set_clock(zones.plant, seconds)
            for tag in (MODBUS, OPCUA):
                before = newest(zones.idmz, tag)
                wait_until(
                    lambda tag=tag, before=before: newest(zones.idmz, tag) != before,
                    f"clock at {seconds} s: newer {tag}",
                    BACK_S,
                )
        assert zones.plant.run(f"systemctl show --property=MainPID --value {NODE}") == pid
