"""The pages of docs/how-to: every command as it stands there, on a site of real nodes, a broker and a device."""

import json
from collections.abc import Iterator

import pytest

from tests.docs.one_machine import PAGES, Site
from tests.ingest.fakes import running
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.in_order]
TYPED = ("survive-an-outage", "move-the-store")
TYPED += ("add-a-plant", "replace-a-gateway", "two-gateways")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site, with plant-a, which reads a meter, connected to the IDMZ."""
    with running("modbus_server") as device:
        made = Site(tmp_path_factory.mktemp("site"), device.port)
        try:
            made.prepare()
            wait_until(lambda: arrived(made, "plant-a") >= 1, "values in the IDMZ", 60)
            yield made
        finally:
            made.stop()


def arrived(site: Site, zone: str) -> int:
    """The facts of a zone that the IDMZ has."""
    query = f"select count(*) as n from facts where zone = '{zone}'"
    return int(json.loads(site.type("idmz", f'bsfg sql --json --config /etc/bsfg/idmz.toml "{query}"'))["n"])


def arrive(site: Site, zone: str) -> None:
    """Return when more facts of a zone have come to the IDMZ."""
    before = arrived(site, zone)
    wait_until(lambda: arrived(site, zone) > before, f"facts of {zone}", 60)


def oldest_life(site: Site, zone: str) -> str:
    """The oldest life of a zone's store."""
    lines = site.type(zone, f"bsfg store lives --zone {zone} --json --config /etc/bsfg/{zone}.toml").splitlines()
    return str(json.loads(lines[0])["life"])


def said_by(said: dict[str, str], part: str) -> str:
    """What the last command with these words printed."""
    return next(text for line, text in reversed(said.items()) if part in line)


def test_every_page_is_typed() -> None:
    """A page without a test could show what does not work; those about Spark are in tests/spark, the first gateway in
    tests/appliance, the program in tests/client."""
    assert {page.stem for page in PAGES.glob("*.md")} == {
        *TYPED,
        "first-gateway",
        "jobs",
        "analyse",
        "spark-for-kafka-users",
        "program",
    }


def test_survive_an_outage(site: Site) -> None:
    """Without the broker, status names it and the exit status is 1; with it, what was recorded meanwhile arrives."""

    def cut(line: str) -> None:
        broker = site.running["idmz bsfg-broker@idmz"]
        broker.stop()
        wait_until(lambda: "broker idmz" in site.type("plant-a", line).partition("\n")[0], "the verdict names it", 60)
        before = arrived(site, "plant-a")
        site.type("plant-a", "bsfg append --config /etc/bsfg/plant-a.toml batch:B-1 step_completed {}")
        assert arrived(site, "plant-a") == before
        broker.start()

    said = site.page("survive-an-outage", cut)
    assert "hours" in said_by(said, "hardware check")
    assert "bytes" in said_by(said, "store stats")
    assert "facts.telemetry" in said_by(said, "peer list")
    arrive(site, "plant-a")


def test_rotate_certificates(site: Site) -> None:
    """The node goes on with the new certificate, and so does the broker, without a restart of either."""
    before = {name: child.pid for name, child in site.running.items()}
    site.page("../operate/certificates", section="Renewing certificates")
    arrive(site, "plant-a")
    log = site.folder / "plant-a.bsfg@plant-a.log"
    wait_until(lambda: "identity_taken_over" in log.read_text(), "the node uses its new certificate", 60)
    assert {name: child.pid for name, child in site.running.items()} == before


def test_move_the_store(site: Site) -> None:
    """The moved store has its lives and its facts, and the IDMZ goes on reading it without an incident."""
    before, count = oldest_life(site, "plant-a"), arrived(site, "plant-a")
    site.page("move-the-store")
    assert oldest_life(site, "plant-a") == before
    arrive(site, "plant-a")
    assert arrived(site, "plant-a") > count


def test_add_a_plant(site: Site) -> None:
    """The facts of a second plant, and of a third one after it, arrive in the IDMZ over its one broker; its node was
    not restarted, and the first plant goes on."""
    pid = site.running["idmz bsfg@idmz"].pid
    for zone in ("plant-d", "plant-b"):
        said = site.page("add-a-plant", zone=zone)
        assert "ok      streams" in said_by(said, "peer test")
        site.type(zone, f"bsfg append --config /etc/bsfg/{zone}.toml batch:B-2 step_completed {{}}")
        wait_until(lambda zone=zone: arrived(site, zone) >= 1, f"facts of {zone}", 60)  # type: ignore[misc]
    assert site.running["idmz bsfg@idmz"].pid == pid
    arrive(site, "plant-a")


def test_upgrade_a_fleet(site: Site) -> None:
    """After the restart the zones are connected and hold the same."""
    site.page("add-a-plant")
    before = oldest_life(site, "plant-b")
    said = site.page("../operate/install")
    assert "equal" in said_by(said, "peer compare")
    assert oldest_life(site, "plant-b") == before


METER = """
[[modbus]]
name = "meter"
host = "127.0.0.1"
port = {port}
poll_interval_ms = 100
address_base = 0
tags_file = "meter.csv"
"""


def test_two_gateways(site: Site) -> None:
    """The second gateway follows, takes the lead by the page's command, and keeps it when the first one is killed; the
    values of both are in the IDMZ, and its status has no problem but the dead box."""
    said = site.page("two-gateways", section="Setting up")
    assert "plant-a leads; this node follows" in said_by(said, "pair status")
    site.write("plant-a-2", "/etc/bsfg/meter.csv", (site.root("plant-a") / "etc/bsfg/meter.csv").read_text())
    site.write("plant-a-2", "/etc/bsfg/plant-a-2.toml", METER.format(port=site.device_port))
    site.type("plant-a-2", "systemctl reload bsfg@plant-a-2")
    status = "bsfg source list --json --config /etc/bsfg/plant-a-2.toml"
    wait_until(lambda: "standby" in site.type("plant-a-2", status), "the follower's source to stand by", 60)
    ready = "bsfg pair status --json --config /etc/bsfg/plant-a.toml"
    wait_until(lambda: '"partner_state": "follows"' in site.type("plant-a", ready), "the follower to be fit", 60)
    said = site.page("two-gateways", section="Handing over")
    assert "plant-a-2 leads now" in said_by(said, "pair switch")
    site.running["plant-a bsfg@plant-a"].kill()
    arrive(site, "plant-a")
    site.type("plant-a", "systemctl start bsfg@plant-a")
    arrive(site, "plant-a")
    lives = "bsfg sql --json --config /etc/bsfg/idmz.toml \"select distinct life from facts where zone = 'plant-a'\""
    assert site.type("idmz", lives).count("life") >= 2


def test_replace_a_gateway(site: Site) -> None:
    """The new gateway's values reach the IDMZ beside those of the old one, whose certificate no broker accepts."""
    arrive(site, "plant-a")
    site.running["plant-a bsfg@plant-a"].kill()
    site.page("replace-a-gateway")
    lives = "bsfg sql --json --config /etc/bsfg/idmz.toml \"select distinct life from facts where zone = 'plant-a'\""
    wait_until(lambda: site.type("idmz", lives).count("life") >= 2, "facts of both stores", 60)
    kinds = "bsfg sql --json --config /etc/bsfg/plant-a.toml 'select distinct kind from incidents'"
    wait_until(lambda: "restored" in site.type("plant-a2", kinds), "the incident that the page names", 60)
    site.running["plant-a2 bsfg@plant-a"].stop()
    refused = site.type("plant-a", "bsfg peer test idmz --config /etc/bsfg/plant-a.toml", is_good=False)
    assert "Was the node denied on purpose?" in refused


def test_use_your_own_pki(site: Site) -> None:
    """Identities that OpenSSL signed are imported, and the broker enforces with them what it must."""
    said = site.page("../operate/certificates", section="Certificates of your own PKI")
    assert "Works zones CA" in said_by(said, "pki show")
    checked = said_by(said, "broker check")
    assert "as idmz-c with TLS 1.3" in checked
    others = [line for line in checked.splitlines() if not line.startswith("good")]
    assert others == ["note  no node of plant-c is connected, so no request was tried"]
