"""The generated broker configuration: first as text, then in a real Mosquitto with four identities and plain paho.

"Nothing arrives" is proven without waiting: the broker delivers to one reader in order, so once a later message (the
fence) is there, an earlier one that is not will never come.
"""

import contextlib
import os
import pwd
import queue
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent.replication import pki
from agent.replication.broker import config as plan
from agent.replication.broker.check import check_broker
from agent.replication.broker.config import BrokerLimits, BrokerPlan, PeerLink, TopologyError
from agent.replication.broker.diagnosis import Diagnostic, Outcome
from agent.replication.broker.folder import write_broker_folder
from agent.replication.broker.session import BrokerTarget
from tests.support.mosquitto import HOST, Mosquitto
from tests.waiting import wait_until

LIMIT_S = 20.0
BROKER = "private"  # the name under which the helper has its broker issued
SUCCESS, NOBODY_LISTENS, NOT_AUTHORIZED = 0x00, 0x10, 0x87
RETAIN_NOT_SUPPORTED, PACKET_TOO_LARGE, UNSPECIFIED = 0x9A, 0x95, 0x80
NOW = datetime.now(UTC)

LINKS = (PeerLink("plant-a", "idmz"), PeerLink("plant-b", "idmz"), PeerLink("idmz", "enterprise"))
ZONES = ("plant-a", "plant-b", "idmz", "enterprise")

# Written out by hand, so that the product is compared with what was meant and not with itself.
MAY_WRITE = {
    "plant-a": {"bsfg/1/plant-a/idmz/rsp/x"},
    "plant-b": {"bsfg/1/plant-b/idmz/rsp/x"},
    "idmz": {"bsfg/1/plant-a/idmz/req", "bsfg/1/plant-b/idmz/req", "bsfg/1/idmz/enterprise/rsp/x"},
    "enterprise": {"bsfg/1/idmz/enterprise/req"},
}
MAY_READ = {
    "plant-a": {"bsfg/1/plant-a/idmz/req"},
    "plant-b": {"bsfg/1/plant-b/idmz/req"},
    "idmz": {"bsfg/1/plant-a/idmz/rsp/x", "bsfg/1/plant-b/idmz/rsp/x", "bsfg/1/idmz/enterprise/req"},
    "enterprise": {"bsfg/1/idmz/enterprise/rsp/x"},
}
EVERY_TOPIC = [
    topic
    for serving in ZONES
    for asking in ZONES
    for topic in (f"bsfg/1/{serving}/{asking}/req", f"bsfg/1/{serving}/{asking}/rsp/x")
]
# For each zone, who can send it something it may read, and where.
FENCE = {
    "plant-a": ("idmz", "bsfg/1/plant-a/idmz/req"),
    "plant-b": ("idmz", "bsfg/1/plant-b/idmz/req"),
    "idmz": ("plant-a", "bsfg/1/plant-a/idmz/rsp/fence"),
    "enterprise": ("idmz", "bsfg/1/idmz/enterprise/rsp/fence"),
}


# --- as text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plant-a",
        "plant-a:",
        ":idmz",
        "plant-a:idmz:enterprise",
        "Plant:idmz",
        "plant a:idmz",
        "plant/a:idmz",
        "+:idmz",
        "#:idmz",
        "plant-a:idmz\nuser enterprise",
        "plant-a:idmz\n",
        f"{'z' * 33}:idmz",
        "plänt:idmz",
        "plant-a:plant-a",
    ],
)
def test_parse_link_refuses(text: str) -> None:
    """A link that is not two different zones is refused, above all one that would bring a second line into the list."""
    with pytest.raises(TopologyError):
        plan.parse_link(text)


def test_acl_text() -> None:
    """The access list is what a person would write by hand: one block per zone, only its peers."""
    acl = plan.render_acl([PeerLink("plant-a", "idmz")])
    assert [line for line in acl.splitlines() if line and not line.startswith("#")] == [
        "user idmz",
        "topic write bsfg/1/plant-a/idmz/req",
        "topic read bsfg/1/plant-a/idmz/rsp/+",
        "user plant-a",
        "topic write bsfg/1/plant-a/idmz/rsp/+",
        "topic read bsfg/1/plant-a/idmz/req",
    ]


_zones = st.sampled_from(["a", "b", "c", "plant-1", "idmz"])
_links = st.lists(st.builds(PeerLink, _zones, _zones).filter(lambda link: link.serving != link.asking), min_size=1)


@given(_links, st.randoms(use_true_random=False))
def test_acl_grants_the_links_and_nothing_else(links: list[PeerLink], random: Any) -> None:
    """For any topology and any order of its links, the text grants exactly four rights a link, no pattern, no deny."""
    acl = plan.render_acl(links)
    again = links * 2
    random.shuffle(again)
    assert plan.render_acl(again) == acl
    granted = set()
    user = ""
    for line in acl.splitlines():
        match line.split(" "):
            case ["user", user]:
                pass
            case ["topic", access, topic]:
                granted.add((user, access, topic))
            case _:
                assert line == "" or line.startswith("#"), line
    meant = set()
    for link in links:
        topic = f"bsfg/1/{link.serving}/{link.asking}"
        meant |= {(link.asking, "write", f"{topic}/req"), (link.serving, "read", f"{topic}/req")}
        meant |= {(link.serving, "write", f"{topic}/rsp/+"), (link.asking, "read", f"{topic}/rsp/+")}
    assert granted == meant


@pytest.mark.parametrize("plants, least", [(1, 64), (14, 64), (200, 800), (plan.LINKS_MAX, 4096)])
def test_there_is_room_for_every_zone(plants: int, least: int) -> None:
    """However many zones the links name, each finds room for its node, a second identity and two tools."""
    links = [PeerLink(f"plant-{number}", "idmz") for number in range(plants)]
    text = plan.render_config(BrokerPlan(tuple(links), "/etc/mosquitto/bsfg"))
    (room,) = [int(line.split()[1]) for line in text.splitlines() if line.startswith("max_connections")]
    assert room >= least
    assert room >= 4 * (plants + 1)


@pytest.mark.parametrize(
    "change",
    [
        {"links": ()},
        {"links": (PeerLink("a", "b\nuser c"),)},
        {"links": (PeerLink("a", "a"),)},
        {"links": tuple(PeerLink("a", f"b{number}") for number in range(plan.LINKS_MAX + 1))},
        {"folder": "relative"},
        {"folder": "/a\nallow_anonymous true"},
        {"folder": "/a "},
        {"folder": "/" + "a" * plan.PATH_CHARACTERS_MAX},
        {"host": "127.0.0.1\nlistener 1883"},
        {"host": "a b"},
        {"user": ""},
        {"user": "root\npersistence true"},
        {"port": 0},
        {"port": 65536},
        {"limits": BrokerLimits(packet_bytes_max=0)},
        {"limits": BrokerLimits(inflight_messages_max=65536)},
        {"limits": BrokerLimits(keepalive_s_max=-1)},
        {"limits": BrokerLimits(connections_max=0)},
        {"limits": BrokerLimits(memory_bytes_max=1)},
    ],
)
def test_config_refuses(change: dict[str, Any]) -> None:
    """Nothing gets into the configuration that is out of range or could become a line of its own."""
    with pytest.raises(TopologyError):
        plan.render_config(BrokerPlan(**{"links": LINKS, "folder": "/etc/mosquitto/bsfg", **change}))


@pytest.mark.parametrize(
    "line",
    [
        "set_tcp_nodelay true",
        "tls_version tlsv1.3",
        "require_certificate true",
        "use_identity_as_username true",
        "allow_anonymous false",
        "persistence false",
        "retain_available false",
        "crlfile /etc/mosquitto/bsfg/zones.crl",
        "acl_file /etc/mosquitto/bsfg/acl",
        "memory_limit 201326592",
        "user mosquitto",
        "listener 8883",
    ],
)
def test_config_says_what_cannot_be_seen_from_outside(line: str) -> None:
    """Each protection stands in the file exactly once; no setting is there twice, so none undoes another."""
    config = plan.render_config(BrokerPlan(links=LINKS, folder="/etc/mosquitto/bsfg/"))
    settings = [each for each in config.splitlines() if each and not each.startswith("#")]
    assert settings.count(line) == 1
    names = [each.split(" ")[0] for each in settings if not each.startswith("log_type ")]
    assert len(names) == len(set(names))


def test_queue_fits_the_topology() -> None:
    """What may wait for a deaf reader follows from the links of the busiest zone, whether it asks or serves."""
    pulls = [PeerLink(f"plant-{number}", "idmz") for number in range(10)]
    serves = [PeerLink("idmz", f"office-{number}") for number in range(3)]
    assert plan.queued_messages_max(pulls[:1]) == 16 + 8
    assert plan.queued_messages_max(pulls) == 16 + 10 * 8
    assert plan.queued_messages_max(pulls * 2 + serves) == 16 + 13 * 8


# --- a client ---------------------------------------------------------------------------------------------------------


class Caller:
    """One zone's plain paho connection, one question at a time."""

    def __init__(
        self,
        broker: Mosquitto,
        zone: str,
        *,
        client_id: str = "",
        session_expiry_s: int = 0,
        keepalive_s: int = 60,
        will: tuple[str, bool] | None = None,
    ) -> None:
        self.zone = zone
        self.received: list[tuple[str, bytes]] = []
        self.connack: Any = None
        self.session_present = False
        self._events: queue.Queue[tuple[str, int, int]] = queue.Queue(maxsize=1000)
        identity = broker.identity(zone)
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5, reconnect_on_failure=False
        )
        client.tls_set_context(pki.client_context(identity.ca_file, identity.cert_file, identity.key_file))
        client.on_connect = self._on_connect
        client.on_disconnect = lambda _c, _u, _f, reason, _p: self._events.put(("disconnect", 0, reason.value))
        client.on_publish = lambda _c, _u, mid, reason, _p: self._events.put(("puback", mid, reason.value))
        client.on_subscribe = lambda _c, _u, mid, reasons, _p: self._events.put(("suback", mid, reasons[0].value))
        client.on_message = lambda _c, _u, message: self.received.append((message.topic, message.payload))
        if will is not None:
            client.will_set(will[0], b"will", qos=1, retain=will[1])
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = session_expiry_s
        client.connect(HOST, broker.port, keepalive_s, clean_start=session_expiry_s == 0, properties=properties)
        self.client = client
        client.loop_start()
        self.connect_reason = self._next("connect", 0)

    def publish(self, topic: str, payload: bytes = b"forbidden", **more: Any) -> int:
        """The broker's reason code, or the reason for which it disconnected instead."""
        properties = Properties(PacketTypes.PUBLISH)
        properties.MessageExpiryInterval = 60
        information = self.client.publish(topic, payload, qos=1, properties=properties, **more)
        return self._next("puback", information.mid)

    def subscribe(self, topic: str, qos: int = 1) -> int:
        """The broker's reason code, which is a grant whatever the topic."""
        _, mid = self.client.subscribe(topic, qos)
        assert mid is not None
        return self._next("suback", mid)

    def drop(self) -> None:
        """End the connection as a lost machine does: without a word, so that a will is sent."""
        sock = self.client.socket()
        assert sock is not None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        client = self.client
        client.disconnect()
        client.loop_stop()
        client.on_connect = client.on_disconnect = client.on_publish = client.on_subscribe = client.on_message = None

    def _next(self, kind: str, mid: int) -> int:
        while True:
            event = self._events.get(timeout=LIMIT_S)
            if event[0] == "disconnect" or event[:2] == (kind, mid):
                return event[2]

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        self.session_present = flags.session_present
        self.connack = properties
        self._events.put(("connect", 0, reason.value))


class Zones:
    """The callers of one test, opened as they are needed."""

    def __init__(self, broker: Mosquitto, stack: contextlib.ExitStack) -> None:
        self.broker = broker
        self._stack = stack
        self._callers: dict[str, Caller] = {}

    def __getitem__(self, zone: str) -> Caller:
        if zone not in self._callers:
            self._callers[zone] = self.connection(zone)
        return self._callers[zone]

    def connection(self, zone: str, **more: Any) -> Caller:
        """Another connection of `zone`."""
        caller = Caller(self.broker, zone, **more)
        self._stack.callback(caller.close)
        return caller

    def fence(self, zone: str) -> list[tuple[str, bytes]]:
        """All that has arrived at `zone` when everything published before is delivered."""
        writer, topic = FENCE[zone]
        reader = self[zone]
        payload = f"fence {len(reader.received)}".encode()
        reader.subscribe(topic)
        assert self[writer].publish(topic, payload) == SUCCESS
        wait_until(lambda: (topic, payload) in reader.received, f"the fence reaches {zone}")
        return [message for message in reader.received if not message[1].startswith(b"fence")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """One broker for all tests that leave it as it was."""
    with Mosquitto.started(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def zones(broker: Mosquitto) -> Iterator[Zones]:
    """Connections of the four zones."""
    with contextlib.ExitStack() as stack:
        yield Zones(broker, stack)


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("link", LINKS, ids=lambda link: f"{link.asking} asks {link.serving}")
def test_request_and_answer_pass(zones: Zones, link: PeerLink) -> None:
    """What the links allow works: the request reaches its server, the answer its asker.  Control for all refusals."""
    request, response = f"bsfg/1/{link.serving}/{link.asking}/req", f"bsfg/1/{link.serving}/{link.asking}/rsp/x"
    server, asker = zones[link.serving], zones[link.asking]
    assert asker.publish(request, b"anyone?") == NOBODY_LISTENS
    server.subscribe(request)
    asker.subscribe(response)
    assert asker.publish(request, b"question") == SUCCESS
    wait_until(lambda: server.received == [(request, b"question")], "the request arrives")
    assert server.publish(response, b"answer") == SUCCESS
    wait_until(lambda: asker.received == [(response, b"answer")], "the answer arrives")


@pytest.mark.system
@pytest.mark.parametrize(
    "zone,topic",
    [
        pytest.param("enterprise", "bsfg/1/plant-a/idmz/req", id="ask as another"),
        pytest.param("plant-a", "bsfg/1/plant-b/idmz/req", id="ask a sibling as another"),
        pytest.param("plant-a", "bsfg/1/plant-a/idmz/req", id="ask itself as another"),
        pytest.param("enterprise", "bsfg/1/plant-a/enterprise/req", id="ask without a link"),
        pytest.param("plant-b", "bsfg/1/plant-a/idmz/rsp/x", id="serve as a sibling"),
        pytest.param("enterprise", "bsfg/1/plant-a/idmz/rsp/x", id="serve as one below"),
        pytest.param("idmz", "bsfg/1/plant-a/idmz/rsp/x", id="answer itself as another"),
        pytest.param("plant-b", "bsfg/1/plant-b/enterprise/rsp/x", id="answer without a link"),
        pytest.param("plant-a", "bsfg/1/plant-a/idmz/rsp/x/y", id="below its own"),
        pytest.param("plant-a", "bsfg/1/plant-a/idmz/rsp", id="above its own"),
        pytest.param("plant-a", "bsfg/2/plant-a/idmz/rsp/x", id="another version"),
        pytest.param("plant-a", "elsewhere", id="elsewhere"),
        pytest.param("plant-a", "$SYS/broker/uptime", id="$SYS"),
        pytest.param("plant-a", "$CONTROL/dynamic-security/v1", id="$CONTROL"),
    ],
)
def test_write_refused(zones: Zones, zone: str, topic: str) -> None:
    """A zone can neither ask as another, nor serve as another, nor write anywhere else; the broker says so (0x87)."""
    for reader in ZONES:
        if reader != zone:
            zones[reader].subscribe(topic)
    assert zones[zone].publish(topic) == NOT_AUTHORIZED
    assert {reader: zones.fence(reader) for reader in ZONES if reader != zone} == {
        reader: [] for reader in ZONES if reader != zone
    }


@pytest.mark.system
def test_every_zone_on_every_topic(zones: Zones) -> None:
    """The whole matrix: four zones writing 32 topics, everybody listening to everything.

    Writes succeed exactly where meant, and what was written arrives exactly at whom it was meant for.
    """
    for zone in ZONES:
        zones[zone].subscribe("#")
    written = set()
    for zone in ZONES:
        for topic in EVERY_TOPIC:
            reason = zones[zone].publish(topic, zone.encode())
            assert reason == (SUCCESS if topic in MAY_WRITE[zone] else NOT_AUTHORIZED), (zone, topic)
            if reason == SUCCESS:
                written.add((topic, zone.encode()))
    for zone in ZONES:
        expected = {message for message in written if message[0] in MAY_READ[zone]}
        assert set(zones.fence(zone)) == expected, zone


@pytest.mark.system
@pytest.mark.parametrize(
    "pattern",
    [
        "#",
        "bsfg/#",
        "+/+/+/+/+/+",
        "bsfg/1/plant-a/idmz/#",
        "bsfg/1/plant-a/idmz/rsp/x",
        "bsfg/1/plant-a/idmz/req",
        "bsfg/1/+/+/rsp/+",
        "$share/g/bsfg/1/plant-a/idmz/rsp/x",
        "$share/g/#",
        "$SYS/#",
    ],
)
@pytest.mark.parametrize("snooper", ["enterprise", "plant-b"])
def test_listening_in_delivers_nothing(zones: Zones, snooper: str, pattern: str) -> None:
    """A zone cannot read another's requests and answers, by whatever subscription, which the broker always grants.

    Nor does it take anything away: the rightful reader gets every answer although a stranger shares the topic.
    """
    assert zones[snooper].subscribe(pattern) <= 1
    zones["idmz"].subscribe("bsfg/1/plant-a/idmz/rsp/x")
    zones["plant-a"].subscribe("bsfg/1/plant-a/idmz/req")
    sent = [f"answer {number}".encode() for number in range(20)]
    for payload in sent:
        assert zones["plant-a"].publish("bsfg/1/plant-a/idmz/rsp/x", payload) == SUCCESS
    assert zones["idmz"].publish("bsfg/1/plant-a/idmz/req", b"question") == SUCCESS
    assert zones.fence(snooper) == []
    assert [payload for _, payload in zones.fence("idmz")] == sent
    assert [payload for _, payload in zones.fence("plant-a")] == [b"question"]


@pytest.mark.system
def test_will_on_foreign_topic(zones: Zones) -> None:
    """A last will is a write like any other: left on another zone's topic, it is not delivered when its author dies.

    The same will on the author's own topic is, so the refusal is not for want of a will.
    """
    zones["idmz"].subscribe("bsfg/1/+/idmz/rsp/+")
    for number, topic in enumerate(("bsfg/1/plant-a/idmz/rsp/x", "bsfg/1/plant-b/idmz/rsp/x")):
        dying = zones.connection("plant-b", client_id=f"dying-{number}", will=(topic, False))
        dying.drop()
        wait_until(lambda: f"dying-{number} " in _ends(zones.broker.log_text()), "the broker notices")  # noqa: B023 at once
    assert zones.fence("idmz") == [("bsfg/1/plant-b/idmz/rsp/x", b"will")]


def _ends(log: str) -> str:
    """The lines that tell of a connection's end."""
    return "\n".join(line for line in log.splitlines() if "closed its connection" in line or "disconnected" in line)


@pytest.mark.system
def test_certificate_without_a_link(tmp_path: Path) -> None:
    """A zone of our own authority that no link names connects and can do nothing at all."""
    with (
        Mosquitto.started(tmp_path, zones=(*ZONES, "stranger")) as broker,
        contextlib.ExitStack() as stack,
    ):
        zones = Zones(broker, stack)
        stranger = zones["stranger"]
        assert stranger.connect_reason == SUCCESS
        stranger.subscribe("#")
        for topic in [*EVERY_TOPIC, "bsfg/1/stranger/idmz/rsp/x", "bsfg/1/idmz/stranger/req"]:
            assert stranger.publish(topic) == NOT_AUTHORIZED, topic
        for zone in ZONES:
            for topic in MAY_WRITE[zone]:
                assert zones[zone].publish(topic) in (SUCCESS, NOBODY_LISTENS)
        # Nobody can send the stranger a fence; an acknowledgement on its own connection comes after what came before.
        assert stranger.publish("elsewhere") == NOT_AUTHORIZED
        assert stranger.received == []


@pytest.mark.system
def test_removing_a_link_ends_living_sessions(tmp_path: Path) -> None:
    """Without its link, after a reload, a zone that stays connected can neither write nor read any more."""
    with Mosquitto.started(tmp_path) as broker, contextlib.ExitStack() as stack:
        zones = Zones(broker, stack)
        topic = "bsfg/1/plant-a/idmz/rsp/x"
        zones["idmz"].subscribe(topic)
        assert zones["plant-a"].publish(topic, b"before") == SUCCESS
        left = BrokerPlan(links=LINKS[1:], folder="", host=HOST, port=broker.port, user=_me())
        write_broker_folder(broker.files.folder, broker.pki_folder, BROKER, left)
        broker.reload()
        assert zones["plant-a"].publish(topic, b"after") == NOT_AUTHORIZED
        fence = "bsfg/1/plant-b/idmz/rsp/fence"  # plant-a can no longer send one
        idmz = zones["idmz"]
        idmz.subscribe(fence)
        assert zones["plant-b"].publish(fence, b"fence") == SUCCESS
        wait_until(lambda: (fence, b"fence") in idmz.received, "the fence arrives")
        assert idmz.received == [(topic, b"before"), (fence, b"fence")]


# Clean start, keep-alive 60 s, no properties, a client identifier from the broker (MQTT 5, 3.1).
_CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"


# --- doors ------------------------------------------------------------------------------------------------------------


def _right(broker: Mosquitto, _folder: Path) -> ssl.SSLContext | None:
    mine = broker.identity("idmz")
    return pki.client_context(mine.ca_file, mine.cert_file, mine.key_file)


def _plaintext(_broker: Mosquitto, _folder: Path) -> ssl.SSLContext | None:
    return None


def _anonymous(broker: Mosquitto, _folder: Path) -> ssl.SSLContext | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(broker.ca_file)
    return context


def _tls_1_2(broker: Mosquitto, folder: Path) -> ssl.SSLContext | None:
    context = _right(broker, folder)
    assert context is not None
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def _foreign_authority(broker: Mosquitto, folder: Path) -> ssl.SSLContext | None:
    """Same zone, same name of the authority, another key."""
    name = pki.load_certificates(broker.ca_file)[0].subject.rfc4514_string().removeprefix("CN=")
    pki.create_authority(folder, NOW, name=name)
    issued = pki.issue_zone(folder, "idmz", NOW)
    return pki.client_context(broker.ca_file, issued.cert_file, issued.key_file)


def _issued_at(moment: datetime) -> Callable[[Mosquitto, Path], ssl.SSLContext | None]:
    def context(broker: Mosquitto, folder: Path) -> ssl.SSLContext | None:
        copied = shutil.copytree(broker.pki_folder, folder / "pki")
        issued = pki.issue_zone(copied, "idmz", moment, days=1, force=True)
        return pki.client_context(broker.ca_file, issued.cert_file, issued.key_file)

    return context


def _brokers_own(broker: Mosquitto, _folder: Path) -> ssl.SSLContext | None:
    files = broker.pki_folder / "brokers"
    return pki.client_context(broker.ca_file, files / f"{BROKER}.pem", files / f"{BROKER}.key")


@pytest.mark.system
@pytest.mark.parametrize(
    "way,enters",
    [
        pytest.param(_right, True, id="right identity"),
        pytest.param(_plaintext, False, id="plaintext"),
        pytest.param(_anonymous, False, id="no certificate"),
        pytest.param(_tls_1_2, False, id="TLS 1.2"),
        pytest.param(_foreign_authority, False, id="another authority of the same name"),
        pytest.param(_issued_at(NOW - timedelta(days=2)), False, id="expired"),
        pytest.param(_issued_at(NOW + timedelta(days=2)), False, id="not begun"),
        pytest.param(_brokers_own, False, id="a server's certificate"),
    ],
)
def test_who_gets_in(
    broker: Mosquitto, tmp_path: Path, way: Callable[[Mosquitto, Path], ssl.SSLContext | None], *, enters: bool
) -> None:
    """Only TLS 1.3 with a valid client certificate of the zones' own authority reaches CONNACK."""
    assert _connack(broker, way(broker, tmp_path)) is enters


@pytest.mark.system
def test_revoked_certificate_is_refused(tmp_path: Path) -> None:
    """The broker reads the authority's revocation list: who is on it does not come in any more, the others do."""
    with Mosquitto.started(tmp_path) as broker:
        authority = pki.load_authority(broker.pki_folder)
        idmz, plant = broker.identity("idmz"), broker.identity("plant-a")
        serial = pki.load_certificates(idmz.cert_file)[0].serial_number
        entry = (
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW - timedelta(minutes=1)).build()
        )
        crl = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.certificate.subject)
            .last_update(NOW - timedelta(minutes=1))
            .next_update(NOW + timedelta(days=1))
            .add_revoked_certificate(entry)
            .sign(authority.key, hashes.SHA256())
        )
        pki.write_file(broker.files.crl_file, crl.public_bytes(serialization.Encoding.PEM), 0o644)
        broker.reload()
        contexts = [pki.client_context(each.ca_file, each.cert_file, each.key_file) for each in (idmz, plant)]
        assert [_connack(broker, context) for context in contexts] == [False, True]


def _connack(broker: Mosquitto, context: ssl.SSLContext | None) -> bool:
    """Whether a bare MQTT 5 CONNECT is answered with success."""
    try:
        with (
            socket.create_connection((HOST, broker.port), LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname=HOST) if context else plain as channel,
        ):
            channel.settimeout(LIMIT_S)
            channel.sendall(_CONNECT)
            answer = channel.recv(4)
    except (ssl.SSLError, ConnectionError):
        return False
    return answer[:1] == b"\x20" and answer[3:4] == b"\x00"


@pytest.mark.system
def test_connack_tells_the_limits(zones: Zones) -> None:
    """A client learns packet size, receive maximum, keep-alive and that nothing is retained, as configured."""
    connack = zones.connection("idmz", keepalive_s=600).connack
    assert connack.MaximumPacketSize == 1_048_576
    assert connack.ReceiveMaximum == 16
    assert connack.RetainAvailable == 0
    assert connack.ServerKeepAlive == 120


@pytest.mark.system
def test_full_page_passes_and_larger_disconnects(zones: Zones) -> None:
    """A page of almost the limit arrives whole; one beyond the limit does not, and costs its sender the connection."""
    topic = "bsfg/1/plant-a/idmz/rsp/x"
    page = bytes(1_048_576 - 256)
    zones["idmz"].subscribe(topic)
    assert zones["plant-a"].publish(topic, page) == SUCCESS
    reason = zones.connection("plant-a").publish(topic, bytes(1_048_576))
    # The broker closes at the packet's header; whether its reason is read before the sender's write fails is a race.
    assert reason in (PACKET_TOO_LARGE, UNSPECIFIED)
    assert zones.fence("idmz") == [(topic, page)]


@pytest.mark.system
def test_deaf_reader_costs_little(zones: Zones) -> None:
    """A zone that subscribes and never reads makes the broker hold a bounded number of pages; nobody else notices.

    200 pages of 200 kB are sent at QoS 0.  Mosquitto counts those in messages and not in bytes, and its usual limit of
    200 would keep them all.
    """
    page, sent = bytes(200_000), 200
    topic = b"bsfg/1/plant-a/idmz/rsp/x"
    subscribe = b"\x00\x01\x00" + struct.pack(">H", len(topic)) + topic + b"\x00"
    context = _right(zones.broker, Path())
    assert context is not None
    with (
        socket.create_connection((HOST, zones.broker.port), LIMIT_S) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as deaf,
    ):
        deaf.sendall(_CONNECT)
        assert deaf.recv(100)[:1] == b"\x20"
        deaf.sendall(bytes([0x82, len(subscribe)]) + subscribe)
        assert deaf.recv(100)[:1] == b"\x90"
        for _ in range(sent):
            zones["plant-a"].client.publish(topic.decode(), page, qos=0)
        assert zones["plant-a"].publish("bsfg/1/plant-a/idmz/rsp/other") in (SUCCESS, NOBODY_LISTENS)
        assert zones["plant-b"].publish("bsfg/1/plant-b/idmz/rsp/x") == NOBODY_LISTENS
        received = _drain(deaf)
    pages = received // len(page)
    in_sockets = 40  # 8 MB, more than kernel and TLS hold on the way
    assert pages <= plan.queued_messages_max(LINKS) + in_sockets < sent


def _drain(deaf: ssl.SSLSocket) -> int:
    """Read all that waits and return its bytes; an answered ping marks the end.

    A ping may have to be sent again: above its limit the broker drops every packet, also the answer to a ping.
    """
    received, end = 0, b""
    deaf.settimeout(0.1)

    def answered() -> bool:
        nonlocal received, end
        deaf.sendall(b"\xc0\x00")
        with contextlib.suppress(TimeoutError):
            while end != b"\xd0\x00":
                data = deaf.recv(1 << 20)
                assert data, "the broker closed the connection"
                received += len(data)
                end = (end + data)[-2:]
        return end == b"\xd0\x00"

    wait_until(answered, "the broker answers a ping")
    return received


# --- nothing stays ----------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_retained_publish_disconnects(zones: Zones) -> None:
    """Who sets retain is disconnected with the reason, and whoever subscribes later finds nothing."""
    topic = "bsfg/1/plant-a/idmz/rsp/x"
    assert zones.connection("plant-a").publish(topic, b"keep me", retain=True) == RETAIN_NOT_SUPPORTED
    zones["idmz"].subscribe(topic)
    assert zones.fence("idmz") == []


@pytest.mark.system
def test_retained_will_refused(zones: Zones) -> None:
    """Nor can retain come in as a last will: the session is refused with the reason."""
    caller = zones.connection("plant-a", will=("bsfg/1/plant-a/idmz/rsp/x", True))
    assert caller.connect_reason == RETAIN_NOT_SUPPORTED


@pytest.mark.system
def test_nothing_survives_a_restart(tmp_path: Path) -> None:
    """A session that was to last, with a message waiting in it, is gone after a restart, and no file has appeared."""
    with Mosquitto.started(tmp_path) as broker, contextlib.ExitStack() as stack:
        zones = Zones(broker, stack)
        files = sorted(path.name for path in broker.files.folder.iterdir())
        topic = "bsfg/1/plant-a/idmz/rsp/x"
        lasting = Caller(broker, "idmz", client_id="lasting", session_expiry_s=3600)
        lasting.subscribe(topic)
        lasting.close()
        assert zones["plant-a"].publish(topic, b"for later") == SUCCESS  # matched: the session exists
        stack.close()
        broker.restart()
        assert sorted(path.name for path in broker.files.folder.iterdir()) == files
        with contextlib.ExitStack() as again:
            zones = Zones(broker, again)
            lasting = zones.connection("idmz", client_id="lasting", session_expiry_s=3600)
            assert not lasting.session_present
            lasting.subscribe(topic)
            assert zones["plant-a"].publish(topic, b"new") == SUCCESS
            wait_until(lambda: lasting.received, "a new message arrives")
            assert lasting.received == [(topic, b"new")]


# --- the folder -------------------------------------------------------------------------------------------------------


def _me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize(
    "spoil,says",
    [
        (lambda folder: (folder / "ca.crl").unlink(), "No such file"),
        (lambda folder: (folder / "ca.crl").write_text("rubbish"), "not a revocation list"),
        (lambda folder: (folder / "brokers/test.pem").write_text("rubbish"), "not a certificate"),
        (lambda folder: (folder / "brokers/test.key").chmod(0o644), "chmod 0600"),
        (lambda folder: shutil.copy(folder / "zones/idmz.key", folder / "brokers/test.key"), "does not match"),
        (lambda folder: shutil.copy(folder / "zones/idmz.pem", folder / "brokers/test.pem"), "not for a server"),
        (lambda folder: pki.create_authority(folder, NOW, force=True), "signed by"),
    ],
)
def test_folder_refuses_what_would_not_serve(tmp_path: Path, spoil: Callable[[Path], object], says: str) -> None:
    """With any file wrong nothing is written: a broker would start and refuse everybody, or let revoked ones in."""
    pki_folder, target = tmp_path / "pki", tmp_path / "broker"
    pki.create_authority(pki_folder, NOW)
    pki.issue_broker(pki_folder, "test", ["localhost"], NOW)
    pki.issue_zone(pki_folder, "idmz", NOW)
    spoil(pki_folder)
    with pytest.raises(pki.PkiError, match=says):
        write_broker_folder(target, pki_folder, "test", BrokerPlan(links=LINKS, folder="", user=_me()))
    assert not target.exists()


def test_folder_names_a_missing_user(tmp_path: Path) -> None:
    """As root, a broker user that does not exist is refused before the broker fails to start for it."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    pki.create_authority(tmp_path / "pki", NOW)
    pki.issue_broker(tmp_path / "pki", "test", ["localhost"], NOW)
    with pytest.raises(pki.PkiError, match="no user nobody-at-all"):
        write_broker_folder(
            tmp_path / "b", tmp_path / "pki", "test", BrokerPlan(links=LINKS, folder="", user="nobody-at-all")
        )


@pytest.mark.system
def test_broker_gives_up_root() -> None:
    """Started as root from the folder as shipped, the broker runs as its own user and could read every file it
    needs."""
    if os.geteuid() != 0:
        pytest.skip("only root can give it up")
    try:
        user = pwd.getpwnam(plan.USER)
    except KeyError:
        pytest.skip("the package's user is missing")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # the way to the broker's own folder, which is closed to others
        with Mosquitto.started(folder) as broker:
            own = BrokerPlan(links=LINKS, folder="", host=HOST, port=broker.port)
            shutil.rmtree(broker.files.folder)
            write_broker_folder(broker.files.folder, broker.pki_folder, BROKER, own)
            broker.restart()
            assert Path(f"/proc/{broker.pid}").stat().st_uid == user.pw_uid
            assert broker.files.key_file.stat().st_mode & 0o777 == 0o640
            with contextlib.ExitStack() as stack:
                assert Zones(broker, stack)["idmz"].publish("bsfg/1/plant-a/idmz/req") == NOBODY_LISTENS


# --- bsfg broker check ------------------------------------------------------------------------------------------------


def _diagnostics(broker: Mosquitto, zone: str, /, **change: Any) -> list[Diagnostic]:
    mine = broker.identity(zone)
    access = BrokerTarget(HOST, broker.port, zone, mine.ca_file, mine.cert_file, mine.key_file)
    return list(check_broker(replace(access, **change), LINKS))


@pytest.mark.system
@pytest.mark.parametrize("zone", ZONES)
def test_check_finds_nothing_wrong(broker: Mosquitto, zone: str) -> None:
    """Every zone's check of a broker as configured is good; an absent peer is worth a note and no more."""
    diagnostics = _diagnostics(broker, zone)
    assert [diagnostic for diagnostic in diagnostics if diagnostic.outcome is Outcome.BAD] == []
    assert len(diagnostics) >= 10


@pytest.mark.system
def test_check_makes_a_round_trip(zones: Zones) -> None:
    """Where the peer answers, the check says so: request, response topic and correlation went there and back."""
    server = zones["plant-a"]

    def answer(_client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = message.properties.CorrelationData
        server.client.publish(message.properties.ResponseTopic, b"{}", properties=properties)

    server.client.on_message = answer
    server.subscribe("bsfg/1/plant-a/idmz/req")
    assert "plant-a answered a request" in [diagnostic.what for diagnostic in _diagnostics(zones.broker, "idmz")]


@pytest.mark.system
@pytest.mark.parametrize(
    "spoiled,says",
    [
        ({"acl_file": ""}, "may send requests in another zone's name"),
        ({"acl_file": ""}, "may read requests made to plant-a"),
        ({"retain_available": "true"}, "keeps retained messages"),
        ({"max_packet_size": ""}, "packets of any size"),
        ({"max_packet_size": "100000"}, "packets are limited to 100000"),
        ({"tls_version": "tlsv1.2"}, "accepts clients with TLS 1.2"),
        (
            {"require_certificate": "false", "allow_anonymous": "true", "use_identity_as_username": "false"},
            "accepts clients without a certificate",
        ),
    ],
)
def test_check_finds_a_weak_broker(tmp_path: Path, spoiled: dict[str, str], says: str) -> None:
    """Each protection taken out of the configuration by hand is noticed from outside and named, with what to do."""
    with Mosquitto.started(tmp_path) as broker:
        config = broker.files.config_file
        kept = [line for line in config.read_text().splitlines() if line.split(" ")[0] not in spoiled]
        changed = [f"{setting} {value}" for setting, value in spoiled.items() if value]
        config.write_text("\n".join([*kept, *changed, ""]))
        broker.restart()
        bad = [diagnostic for diagnostic in _diagnostics(broker, "idmz") if diagnostic.outcome is Outcome.BAD]
        assert any(says in diagnostic.what for diagnostic in bad), bad
        assert all(diagnostic.hint for diagnostic in bad)


@pytest.mark.system
def test_check_names_a_missing_link(tmp_path: Path) -> None:
    """A link the broker's list lacks is told as the right that fails, for the asking and for the serving zone."""
    with Mosquitto.started(tmp_path, links=["plant-b:idmz"]) as broker:
        for zone, what in (
            ("idmz", "idmz may send requests to plant-a: failed"),
            ("plant-a", "plant-a may answer idmz: failed"),
        ):
            bad = [diagnostic.what for diagnostic in _diagnostics(broker, zone) if diagnostic.outcome is Outcome.BAD]
            assert [each for each in bad if each.startswith(what)], bad


@pytest.mark.system
def test_check_says_why_it_cannot_connect(tmp_path: Path) -> None:
    """No broker, a broker of another name, a certificate it does not take, files of another zone: each told apart."""
    with Mosquitto.started(tmp_path) as broker:
        other = tmp_path / "other"
        pki.create_authority(other, NOW)
        foreign = pki.issue_zone(other, "idmz", NOW)
        both = tmp_path / "both.pem"
        both.write_bytes(broker.ca_file.read_bytes() + foreign.ca_file.read_bytes())
        stranger = {"cert_file": foreign.cert_file, "key_file": foreign.key_file, "ca_file": both}
        for change, says in (
            ({"zone": "plant-a"}, "common name"),
            (stranger, "refuses our certificate"),
            ({"ca_file": foreign.ca_file}, "was signed by"),
        ):
            (diagnostic,) = _diagnostics(broker, "idmz", **change)
            assert diagnostic.outcome is Outcome.BAD
            assert says in diagnostic.what
            assert diagnostic.hint
        wrong_name = pki.issue_broker(broker.pki_folder, "elsewhere", ["broker.elsewhere"], NOW)
        shutil.copy(wrong_name.cert_file, broker.files.cert_file)
        shutil.copy(wrong_name.key_file, broker.files.key_file)
        broker.restart()
        (diagnostic,) = _diagnostics(broker, "idmz")
        assert "is not trusted" in diagnostic.what
        broker.stop()
        (diagnostic,) = _diagnostics(broker, "idmz")
        assert "cannot be reached" in diagnostic.what


# --- the broker for tests itself --------------------------------------------------------------------------------------


@pytest.mark.system
def test_started_broker_can_be_hurt_and_comes_back(tmp_path: Path) -> None:
    """Frozen, it is silent and keeps its connections; killed and restarted, it is on the same port; then it is gone."""
    with Mosquitto.started(tmp_path) as broker, contextlib.ExitStack() as stack:
        port, first = broker.port, broker.pid
        zones = Zones(broker, stack)
        idmz = zones["idmz"]
        broker.freeze()
        wait_until(lambda: _state(first) == "T", "it is frozen")
        broker.thaw()
        assert idmz.publish("bsfg/1/plant-a/idmz/req") == NOBODY_LISTENS
        stack.close()
        broker.kill()
        with pytest.raises(ConnectionRefusedError):
            _connect(port)
        broker.restart()
        assert broker.port == port
        assert broker.pid != first
        _connect(port)
        broker.freeze()  # leaving the block must get rid of a frozen one too
        last = broker.pid
    assert not Path(f"/proc/{last}").exists()
    assert "terminating" not in broker.log.read_text()  # killed each time, never asked


@pytest.mark.system
def test_no_broker_outlives_its_starter(tmp_path: Path) -> None:
    """Whoever started a broker and is killed outright takes it along."""
    script = (
        "import sys, pathlib; from tests.support.mosquitto import Mosquitto\n"
        "with Mosquitto.started(pathlib.Path(sys.argv[1])) as broker:\n"
        "    print(broker.pid, flush=True); sys.stdin.read()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_REPOSITORY
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or _state(pid) == "Z", "the broker is gone")


_REPOSITORY = Path(__file__).resolve().parents[3]


def _connect(port: int) -> None:
    socket.create_connection((HOST, port), LIMIT_S).close()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
