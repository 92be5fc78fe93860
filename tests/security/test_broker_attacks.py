"""Attacks on the one broker of a site by a zone with a valid certificate, and by sockets without one, while two other
zones exchange messages over it.

The generated configuration runs in a real Mosquitto. The controls at the end are the same attacks on the same broker
with rights as patterns, or without the limits: there they do harm.
"""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.replication import pki
from tests.replication.broker.zones import SUCCESS, Caller
from tests.security.broker_attacker import Attacker, bare_socket, is_open
from tests.support.mosquitto import HOST, Mosquitto
from tests.waiting import wait_until

pytestmark = pytest.mark.system

ZONES = ("plant-a", "idmz", "enterprise", "evil")
LINKS = ("plant-a:idmz", "idmz:enterprise", "idmz:evil", "evil:idmz")
REQUEST = "bsfg/1/plant-a/idmz/req"
ANSWERS = "bsfg/1/+/evil/rsp/0/+"
MIB = 1 << 20
NOT_AUTHORIZED = 0x87


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """The broker of plant-a, idmz, enterprise, and evil, which is linked with idmz."""
    with Mosquitto.started(tmp_path, ZONES, LINKS) as running:
        yield running


def rss_bytes(broker: Mosquitto) -> int:
    """The memory of the broker now."""
    status = Path(f"/proc/{broker.pid}/status").read_text("ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def cpu_s(broker: Mosquitto) -> float:
    """The processor time that the broker has used."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def evil(broker: Mosquitto, client_id: str = "", expiry_s: int = 0, *, is_deaf: bool = False) -> Attacker:
    """A session of the attacker."""
    mine = broker.identity("evil")
    context = pki.client_context(mine.ca_file, mine.cert_file, mine.key_file)
    return Attacker(HOST, broker.port, context, client_id=client_id, expiry_s=expiry_s, is_deaf=is_deaf)


@contextlib.contextmanager
def honest(broker: Mosquitto) -> Iterator[tuple[Caller, Caller]]:
    """idmz, which asks, and plant-a, which hears its requests. They exchange a message after the attack, too."""
    with contextlib.ExitStack() as stack:
        idmz, plant = (Caller(broker, zone) for zone in ("idmz", "plant-a"))
        stack.callback(idmz.close)
        stack.callback(plant.close)
        plant.listen()
        yield idmz, plant
        assert idmz.publish(REQUEST, b"still here") == SUCCESS
        wait_until(lambda: (REQUEST, b"still here") in plant.received, "the honest message arrives")


def bombs() -> dict[str, list[str]]:
    """SUBSCRIBE packets just below 1 MB: many levels, and many names within the zone's own topics."""
    return {
        "many levels": ["a/" * 90 + str(number) for number in range(5_000)],
        "many names of its own": [f"bsfg/1/{number:x}/evil/rsp/0/{number:x}" for number in range(25_000)],
        "many names to serve": [f"bsfg/1/evil/{number:x}/req" for number in range(30_000)],
    }


def reasons(broker: Mosquitto, topics: list[str]) -> set[int]:
    """How a SUBSCRIBE of the attacker is answered; empty if the broker ends the session, as newer ones do with large
    packets."""
    with evil(broker) as attacker:
        try:
            attacker.subscribe(topics)
        except OSError:
            return set()
        return set(attacker.suback[-len(topics) :])


@pytest.mark.parametrize("name", bombs())
def test_a_subscription_bomb_costs_nothing(broker: Mosquitto, name: str) -> None:
    """Twenty SUBSCRIBE packets of 1 MB, and as many of a few dozen kB, are refused, filter by filter, or with the
    session, and leave less than 8 MiB behind (in a broker that grants subscriptions and filters at delivery, one of
    them took 332 MB); two honest zones go on. A fraction of a second of processor time is all that they take."""
    with honest(broker):
        before, used_s = rss_bytes(broker), cpu_s(broker)
        for _ in range(20):
            assert reasons(broker, bombs()[name]) <= {NOT_AUTHORIZED}
            assert reasons(broker, bombs()[name][:400]) == {NOT_AUTHORIZED}
        assert rss_bytes(broker) - before < 8 * MIB
        print(f"{cpu_s(broker) - used_s:.2f} s of processor time")


def test_sessions_that_do_not_read_cost_a_bounded_part(broker: Mosquitto) -> None:
    """evil opens forty sessions, subscribes each to its answers, and sends itself nothing: it has no link with itself.
    What idmz answers to it waits for at most sixteen pages a session, also at QoS 1 and after the sessions have
    gone."""
    with honest(broker) as (idmz, _):
        deaf = [evil(broker, f"deaf-{number}", 3600, is_deaf=True) for number in range(40)]
        for number, session in enumerate(deaf):
            session.subscribe([ANSWERS], qos=number % 2)
        page = bytes(1_000_000)
        for number in range(48):
            assert idmz.publish("bsfg/1/idmz/evil/rsp/0/x", page) == SUCCESS, number
        assert 16 * len(page) < rss_bytes(broker) < 400 * MIB
        for session in deaf:
            session.close()


def test_qos_2_is_refused(broker: Mosquitto) -> None:
    """A client cannot store messages at the broker by QoS 2 publishes that it never completes: it is disconnected."""
    with honest(broker), evil(broker) as attacker:
        attacker.publish("bsfg/1/idmz/evil/req", b"x", qos=2)
        wait_until(lambda: not is_open(attacker.socket, 1.0) or attacker.socket.pending() > 0, "it is disconnected")


def test_a_broker_that_an_attack_ends_costs_a_restart(broker: Mosquitto) -> None:
    """What the limits do not prevent, the service manager's restart ends: after a kill the zones meet again."""
    broker.kill()
    broker.start()
    with honest(broker):
        pass


def test_the_control_grants_a_bomb(broker: Mosquitto) -> None:
    """The same names within the zone's own topics, at the same broker with its subscriptions as patterns,
    which is how Mosquitto's own access lists are written: it is granted, and takes tens of megabytes."""
    text = broker.files.rights_file.read_text()
    broker.files.rights_file.write_text(
        text.replace("subscribeLiteral", "subscribePattern").replace("/rsp/0/+", "/rsp/+/+")
    )
    broker.restart()
    topics = bombs()["many names of its own"]
    with evil(broker) as attacker:
        before = rss_bytes(broker)
        for at in range(0, len(topics), 2_500):  # newer brokers refuse larger packets
            attacker.subscribe(topics[at : at + 2_500])
            assert set(attacker.suback[-2_500:]) == {0}
        assert rss_bytes(broker) - before > 20 * MIB


def test_bare_sockets_are_bounded_by_the_files_of_the_unit(broker: Mosquitto) -> None:
    """Sockets without a certificate: the limit of open files holds where Mosquitto 2.0.11 miscounts its connections,
    and honest zones that are connected stay so. (The packet filter limits each address: test_broker_firewall.)"""
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (60, 60))
    with honest(broker):
        for _ in range(6):
            bare = [bare_socket(HOST, broker.port) for _ in range(80)]
            wait_until(lambda bare=bare: sum(is_open(connection) for connection in bare) < 60, "the rest is closed")
            for connection in bare:
                connection.close()
