"""A zone of the site opens sessions with its valid certificate until the broker takes no more.

Mosquitto has no limit for a certificate, and this broker no packet filter before it. What honest zones notice: those
that are connected nothing; one that has to connect then is refused, until the zone that the status names is shut
out."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.client import Client, NodeSilent
from agent.demo.processes import Child
from agent.replication import pki
from bench.common import testbed
from bench.replication.fleet import pulling_node
from tests.security.broker_attacker import Attacker
from tests.security.test_broker_attacks import evil
from tests.security.test_subscription_flood import IDMZ, LINKS, PLANTS, appended, is_connected
from tests.sim import scaled
from tests.support.mosquitto import HOST, Mosquitto
from tests.waiting import wait_until

pytestmark = pytest.mark.system

SESSIONS = scaled(400, 4_096)
SPARE = "spare"
# Mosquitto 2.0.11 counts a connection that ends before TLS twice as ended, so that it accepts one more. Its start is
# waited for by such a connection, which it may have accepted by then or not. LimitNOFILE of its unit holds in any case.
MISCOUNTED = (0, 1)


def reason(state: Path) -> dict[str, Any]:
    """What the status says of the zone; nothing without a reason, or an answer."""
    with contextlib.suppress(NodeSilent):
        return next((shown for shown in Client(state).status()["reasons"] if shown["problem"] == "broker_abused"), {})
    return {}


def connects(broker: Mosquitto, zone: str) -> bool:
    """Whether a zone gets a session now."""
    mine = broker.identity(zone)
    context = pki.client_context(mine.ca_file, mine.cert_file, mine.key_file)
    with contextlib.suppress(OSError, AssertionError), Attacker(HOST, broker.port, context):
        return True
    return False


def run(*command: object) -> None:
    """Run a command of bsfg."""
    done = CliRunner().invoke(bsfg, [str(word) for word in command], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_a_zone_that_takes_all_sessions_is_named_and_shut_out(tmp_path: Path) -> None:
    """Facts of connected plants flow on. The node of the broker's machine names the certificate, as an alert, with the
    commands; after them it gets no session, the others reconnect, and the reason is gone."""
    with (
        Mosquitto.started(tmp_path / "site", [*PLANTS, IDMZ, SPARE, "evil"], [*LINKS, f"{SPARE}:{IDMZ}"]) as broker,
        contextlib.ExitStack() as stack,
    ):
        folder, config = broker.files.folder, broker.files.config_file
        config.write_text(config.read_text().replace("max_connections 4096", f"max_connections {SESSIONS}"))
        broker.restart()
        bed = testbed.Testbed(tmp_path, broker)
        plants = stack.enter_context(bed.worker("plants", "plants", PLANTS[0], zones=PLANTS, facts_per_plant=1))
        node, state = pulling_node(bed, PLANTS), tmp_path / IDMZ / "state"
        watched, toml = tmp_path / "abuses.json", tmp_path / IDMZ / "node.toml"
        toml.write_text(toml.read_text().replace("[[peer]]", f'watch_file = "{watched}"\n[[peer]]', 1))
        stack.callback(node.stop)
        node.start()
        node.wait_ready(lambda: is_connected(state), 60.0)
        look = ["broker", "sessions", "--config", folder, "--log", folder / "log", "--seconds", "1", "--watch", watched]
        watch = Child("watch", [sys.executable, "-m", "agent.cli", *map(str, look)], tmp_path / "watch.log")
        stack.callback(watch.stop)
        watch.start()
        wait_until(watched.exists, "the first look")
        assert reason(state) == {}

        opened = list[Any]()
        with contextlib.suppress(OSError, AssertionError):  # refused
            while len(opened) <= SESSIONS:
                opened.append(stack.enter_context(evil(broker)))
                if len(opened) % 512 == 0:  # they stay
                    for session in opened:
                        session.ping()
        assert len(opened) - (SESSIONS - len(PLANTS) - 1) in MISCOUNTED
        appended(plants, state)
        assert not connects(broker, SPARE)
        wait_until(lambda: reason(state), "the certificate is named")
        named = reason(state)
        assert named["subject"] == "zone evil"
        assert named["alert"]
        assert f"has {len(opened):,} sessions" in named["text"]
        assert "bsfg broker deny evil" in named["hint"]
        assert "bsfg pki revoke evil" in named["hint"]

        run("pki", "revoke", "evil", "--pki", broker.pki_folder)
        run("broker", "config", folder, "--name", "private", "--pki", broker.pki_folder)
        run("broker", "deny", "evil", "--config", config)
        broker.restart()  # as its service does
        assert not connects(broker, "evil")
        assert connects(broker, SPARE)
        wait_until(lambda: is_connected(state), "the others are back", 60.0)
        appended(plants, state)
        wait_until(lambda: reason(state) == {}, "the reason is gone")
