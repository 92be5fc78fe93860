"""bsfg broker check against sound, weak and unreachable brokers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from agent.replication.broker.check import check_broker
from agent.replication.broker.check_session import MqttSession
from agent.replication.broker.diagnosis import CheckOutcome, Diagnostic
from agent.replication.mqtt import MqttConnection
from agent.replication.protocol.errors import ConnectionLost
from tests.replication.broker.zones import LINKS, ZONES, Zones, target_of
from tests.support.mosquitto import Mosquitto


def _diagnostics(broker: Mosquitto, zone: str, /, **change: Any) -> list[Diagnostic]:
    return list(check_broker(replace(target_of(broker, zone), **change), LINKS))


@pytest.mark.system
@pytest.mark.parametrize("zone", ZONES)
def test_check_finds_nothing_wrong(broker: Mosquitto, zone: str) -> None:
    """The check of a correct broker is good for every zone; an absent peer is a note only."""
    diagnostics = _diagnostics(broker, zone)
    assert [diagnostic for diagnostic in diagnostics if diagnostic.outcome is CheckOutcome.BAD] == []
    assert len(diagnostics) >= 10


@pytest.mark.system
def test_check_makes_a_round_trip(zones: Zones) -> None:
    """If the peer answers, the check reports it: request, response topic and correlation work."""
    server = zones["plant-a"]

    def answer(_client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = message.properties.CorrelationData
        server.client.publish(message.properties.ResponseTopic, b"{}", properties=properties)

    server.client.on_message = answer
    server.listen()
    assert "plant-a answered a request" in [diagnostic.what for diagnostic in _diagnostics(zones.broker, "idmz")]


@pytest.mark.system
@pytest.mark.parametrize(
    "spoiled,says",
    [
        (
            {
                "plugin": "",
                "plugin_opt_config_file": "",
                "retain_available": "true",
                "max_packet_size": "",
                "tls_version": "tlsv1.2",
            },
            {
                "idmz may send requests in another node's name (accepted, no subscriber)",
                "idmz may read requests made to plant-a",
                "the broker keeps retained messages",
                "the broker accepts packets of any size",
                "the broker accepts clients with TLS 1.2",
            },
        ),
        (
            {
                "max_packet_size": "100000",
                "require_certificate": "false",
                "allow_anonymous": "true",
                "use_identity_as_username": "false",
            },
            {
                "packets are limited to 100000 bytes; a page needs up to 1048576",
                "the broker accepts clients without a certificate",
            },
        ),
    ],
    ids=["rights and limits", "identities"],
)
def test_check_finds_a_weak_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: dict[str, str], says: set[str]
) -> None:
    """Each protection removed from the configuration by hand is found from outside and named, with what to do, also if
    the broker delivers a message after it has acknowledged it."""
    on_message = MqttSession._on_message
    monkeypatch.setattr(
        MqttSession,
        "_on_message",
        lambda self, message: self._runner.get_loop().call_later(0.05, on_message, self, message),
    )
    with Mosquitto.started(tmp_path) as broker:
        config = broker.files.config_file
        kept = [line for line in config.read_text().splitlines() if line.split(" ")[0] not in spoiled]
        changed = [f"{setting} {value}" for setting, value in spoiled.items() if value]
        config.write_text("\n".join([*kept, *changed, ""]))
        broker.restart()
        bad = [diagnostic for diagnostic in _diagnostics(broker, "idmz") if diagnostic.outcome is CheckOutcome.BAD]
        assert says <= {diagnostic.what for diagnostic in bad}
        assert all(diagnostic.hint for diagnostic in bad)


@pytest.mark.system
@pytest.mark.parametrize("refusal", ["Not authorized", "Unspecified error", "closed"])
def test_check_names_a_missing_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str) -> None:
    """A missing link is reported as the right that fails, for the requesting and for the serving zone, and nothing else
    is, however the broker refuses a publish: by any reason code, or by closing the connection (MQTT 5, 4.13.2)."""
    acknowledged = MqttConnection._on_acknowledged

    def refuse(self: MqttConnection, identifier: int, reason: ReasonCode) -> None:
        if reason.is_failure and refusal == "closed":
            self._end_with(ConnectionLost("b", refusal))
        else:
            acknowledged(self, identifier, ReasonCode(PacketTypes.PUBACK, refusal) if reason.is_failure else reason)

    monkeypatch.setattr(MqttConnection, "_on_acknowledged", refuse)
    with Mosquitto.started(tmp_path, links=["plant-b:idmz"]) as broker:
        for zone, what in (
            ("idmz", "idmz may send requests to plant-a: failed"),
            ("plant-a", "plant-a may answer idmz: failed"),
            ("plant-a", "plant-a may not receive requests"),
        ):
            bad = [
                diagnostic.what for diagnostic in _diagnostics(broker, zone) if diagnostic.outcome is CheckOutcome.BAD
            ]
            assert [problem for problem in bad if problem.startswith(what)], bad
            assert not [problem for problem in bad if "plant-b" in problem or "another node's name" in problem], bad
