"""bsfg peer test against a real broker and real nodes: its report when all is well, and for each step that can fail."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.replication import pki
from agent.replication.broker import peer_test
from agent.replication.broker.check_session import BrokerTarget
from agent.replication.broker.diagnosis import CheckOutcome, Diagnostic
from agent.replication.broker.peer_test import Peer, check_peer
from agent.replication.mqtt.carrier import Incoming
from tests.replication.broker.zones import target_of
from tests.replication.nodes import STREAM, Node, write_node_toml
from tests.support.mosquitto import Mosquitto, free_port

pytestmark = pytest.mark.system

NOW = datetime.now(UTC)
ALL_STEPS = ["configuration", "name", "tcp", "tls", "identity", "session", "rights", "answer", "protocol", "round trip"]
ALL_STEPS += ["clock", "streams"]
PLANT = Peer("plant-a", asks_us=False, pulls=(STREAM,), is_asked=True)


def tried(wanted: BrokerTarget, peer: Peer = PLANT) -> list[Diagnostic]:
    """All steps of the test."""
    return list(check_peer(wanted, peer))


def last_bad(steps: list[Diagnostic]) -> tuple[str, str]:
    """Name and message of the one failed step, which must have a hint."""
    bad = [step for step in steps if step.outcome is CheckOutcome.BAD]
    assert len(bad) == 1, steps
    assert bad[0].hint
    return bad[0].step, bad[0].what


async def test_all_is_well_while_nodes_run(broker: Mosquitto, tmp_path: Path) -> None:
    """Every step is good, in order, with figures; running nodes keep their connections."""
    plant, idmz = (Node.open(broker, zone, tmp_path / zone) for zone in ("plant-a", "idmz"))
    plant.serve({"idmz": [STREAM]})
    idmz.pull("plant-a")
    async with plant.running(), idmz.running():
        await plant.append(1, 100)
        steps = await asyncio.to_thread(tried, target_of(broker))
        assert [step.step for step in steps] == ALL_STEPS
        assert {step.outcome for step in steps} == {CheckOutcome.GOOD}
        figures = {name: value for step in steps for name, value in step.figures.items()}
        assert figures["life"] == plant.store.life.hex()
        assert figures["packet_bytes_max"] == 1_048_576
        assert figures["exports"] == [STREAM]
        assert float(str(figures["round_trip_ms_p50"])) > 0
        assert abs(float(str(figures["clock_ahead_ms"]))) < 1000
        await plant.append(101, 100)
        await idmz.wait_end(200)
        assert [node.link.statistics().connects for node in (plant, idmz)] == [1, 1]
        assert [consumer.name for consumer in plant.store.consumers.all()] == [f"idmz.{STREAM}"]


def test_a_peer_that_only_pulls_from_us(broker: Mosquitto) -> None:
    """No request is sent; the right to answer is tested, and the hint names the test at the other zone."""
    steps = tried(target_of(broker), Peer("enterprise", asks_us=True, pulls=(), is_asked=False))
    assert [step.what for step in steps if step.step == "rights"] == ["may answer enterprise"]
    assert steps[-1].hint == "test the other direction at enterprise: bsfg peer test idmz"


def _ended(wanted: BrokerTarget, folder: Path, _: Mosquitto) -> BrokerTarget:
    site = Path(shutil.copytree(wanted.ca_file.parent, folder / "site"))
    issued = pki.issue_zone(site, "idmz", NOW - timedelta(days=9), days=5, force=True)
    return replace(wanted, cert_file=issued.cert_file, key_file=issued.key_file)


def _no_name(wanted: BrokerTarget, _folder: Path, _: Mosquitto) -> BrokerTarget:
    return replace(wanted, host="nowhere.invalid")


def _no_label(wanted: BrokerTarget, _folder: Path, _: Mosquitto) -> BrokerTarget:
    return replace(wanted, host="broker..invalid")


def _no_broker(wanted: BrokerTarget, _folder: Path, _: Mosquitto) -> BrokerTarget:
    return replace(wanted, port=free_port())


def _other_name(wanted: BrokerTarget, _folder: Path, _: Mosquitto) -> BrokerTarget:
    return replace(wanted, host="127.1")  # the same place under a name that no certificate has


def _stranger(wanted: BrokerTarget, folder: Path, _: Mosquitto) -> BrokerTarget:
    pki.create_authority(folder / "other", NOW)
    issued = pki.issue_zone(folder / "other", "idmz", NOW)
    both = folder / "both.pem"
    both.write_bytes(wanted.ca_file.read_bytes() + issued.ca_file.read_bytes())
    return replace(wanted, ca_file=both, cert_file=issued.cert_file, key_file=issued.key_file)


def _not_connected(wanted: BrokerTarget, _folder: Path, _: Mosquitto) -> BrokerTarget:
    return wanted


@pytest.mark.parametrize(
    "change,step,says",
    [
        (_ended, "configuration", "the certificate expired at"),
        (_no_name, "name", "its name cannot be resolved"),
        (_no_label, "name", "its name cannot be resolved"),
        (_no_broker, "tcp", "cannot be reached"),
        (_other_name, "tls", "is not trusted"),
        (_stranger, "identity", "its authority is not known to the broker"),
        (_not_connected, "rights", "no node of plant-a is connected"),
    ],
)
def test_the_step_that_fails_is_the_last_and_is_named(
    broker: Mosquitto,
    tmp_path: Path,
    change: Callable[[BrokerTarget, Path, Mosquitto], BrokerTarget],
    step: str,
    says: str,
) -> None:
    """All steps before the failed one are good, and none follows it."""
    steps = tried(change(target_of(broker), tmp_path, broker))
    name, what = last_bad(steps)
    assert (name, says in what) == (step, True)
    assert steps[-1].outcome is CheckOutcome.BAD
    assert [done.step for done in steps[:-1]] == ALL_STEPS[: ALL_STEPS.index(step)]


def test_a_link_the_broker_does_not_know(tmp_path: Path) -> None:
    """A link that is missing in the access list is reported as a missing right; of two, the first."""
    with Mosquitto.started(tmp_path, links=["plant-b:idmz"]) as lacking:
        steps = tried(target_of(lacking))
        assert last_bad(steps) == ("rights", "may not send requests to plant-a: not authorized")
        assert "--link plant-a:idmz, and restart the broker" in steps[-1].hint
        steps = tried(target_of(lacking), replace(PLANT, asks_us=True))
        assert last_bad(steps) == ("rights", "may not answer plant-a: not authorized")


async def test_a_peer_that_does_not_know_us(broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connected peer that does not answer, one that answers what cannot be read, and a stream that it does not export
    are different faults."""
    monkeypatch.setattr(peer_test, "WAIT_S", 0.3)

    async def steps_with(exports: dict[str, list[str]], answer: bytes = b"") -> list[Diagnostic]:
        plant = Node.open(broker, "plant-a", tmp_path / f"{len(exports)}{len(answer)}")
        plant.serve({"enterprise": [STREAM], **exports})
        await plant.append(1, 1)

        def arrived(asked: Incoming) -> None:
            if answer:
                plant.link.require().publish_answer(str(asked.response_topic), answer, asked.correlation or b"")

        # It listens for idmz, which is no peer, as a node does whose configuration has changed.
        plant.link._routes.setdefault("bsfg/1/plant-a/idmz/req", arrived)
        async with plant.running():
            steps = await asyncio.to_thread(tried, target_of(broker))
        plant.store.close()
        return steps

    name, what = last_bad(await steps_with({}))
    assert (name, "did not answer" in what) == ("answer", True)
    name, what = last_bad(await steps_with({}, b"in another language"))
    assert (name, "cannot be read" in what) == ("protocol", True)
    steps = await steps_with({"idmz": ["facts.other"]})
    name, what = last_bad(steps)
    assert (name, what) == ("streams", f"plant-a does not export {STREAM}, which this node pulls")
    assert [step.step for step in steps] == ALL_STEPS


def test_commands(broker: Mosquitto, tmp_path: Path) -> None:
    """list and test read node.toml, print for people and programs, and exit with 1 for a bad result and 2 for wrong
    usage."""
    config = write_node_toml(tmp_path, broker, "idmz", f'zone = "plant-a"\npulls = ["{STREAM}"]')

    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(bsfg, ["peer", *words, "--config", str(config)])
        return result.exit_code, result.output

    assert call("list")[1].startswith("plant-a")
    assert json.loads(call("list", "--json")[1])["pulls"] == [STREAM, "health"]
    code, said = call("test", "plant-a")
    assert code == 1
    assert "ok      tls           TLSv1.3, CN=broker private" in said
    assert "failed  rights" in said
    steps = [json.loads(line)["step"] for line in call("test", "plant-a", "--json")[1].splitlines()]
    assert steps == ALL_STEPS[: ALL_STEPS.index("rights") + 1]
    code, said = call("test", "elsewhere")
    assert (code, "it names plant-a" in said) == (2, True)


def test_the_page_names_every_step() -> None:
    """docs/operate/peers.md shows each step that the command has, under its name and in its order."""
    page = (Path(__file__).parents[3] / "docs/operate/peers.md").read_text("utf-8")
    shown = [line[10:23].strip() for line in page.splitlines() if line.startswith("  ok      ")]
    assert shown == ALL_STEPS
