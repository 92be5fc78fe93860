"""Attacks on the brokers of a site by a zone with a valid certificate, and by sockets without one.

The generated configuration runs in real Mosquittos. Each attack was seen to do harm if all zones share one process.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.replication import pki
from agent.replication.broker.config import limits_for, parse_link
from tests.replication.broker.zones import NOBODY_LISTENS, SUCCESS, Caller
from tests.security.broker_attacker import SUBACK, Attacker, bare_socket, is_open
from tests.security.broker_site import HOST, PairBroker, RunningSite
from tests.support.memory import rss_bytes
from tests.waiting import wait_until

pytestmark = pytest.mark.system

REQUEST = "bsfg/1/plant-a/idmz/req"
ANSWERS = "bsfg/1/idmz/enterprise/rsp/+"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RunningSite]:
    """plant-a and idmz on one broker, idmz and enterprise on another."""
    with RunningSite.started(tmp_path) as running:
        yield running


@contextlib.contextmanager
def _session(broker: PairBroker, zone: str, **more: str) -> Iterator[Caller]:
    """An honest connection."""
    caller = Caller(broker, zone, **more)  # type: ignore[arg-type]
    try:
        yield caller
    finally:
        caller.close()


def _attacker(broker: PairBroker, client_id: str = "", expiry_s: int = 0, *, is_deaf: bool = False) -> Attacker:
    mine = broker.identity("enterprise")
    context = pki.client_context(mine.ca_file, mine.cert_file, mine.key_file)
    return Attacker(HOST, broker.port, context, client_id=client_id, expiry_s=expiry_s, is_deaf=is_deaf)


def _attackers(broker: PairBroker, count: int) -> list[Attacker]:
    """As many sessions as the broker admits, at most `count`."""
    admitted: list[Attacker] = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            admitted.append(_attacker(broker, is_deaf=True))
    return admitted


def _publishes_during_one_subscribe(site: RunningSite) -> tuple[bool, int]:
    """While one SUBSCRIBE of 60,000 filters occupies the broker of the attacker, idmz and plant-a exchange a hundred
    messages. Returns whether they finished before the attacker had its answer, and how many arrived."""
    honest, attacked = site.broker("plant-a", "idmz"), site.broker("idmz", "enterprise")
    served = threading.Event()
    with _session(honest, "idmz") as idmz, _session(honest, "plant-a") as plant, _attacker(attacked) as attacker:
        plant.subscribe(REQUEST)
        for number in range(2):
            attacker.subscribe([f"{number}/{each}" for each in range(30_000)])
        attacker.send_subscribe([f"last/{each}" for each in range(60_000)])

        def await_answer() -> None:
            attacker.await_packet(SUBACK)
            served.set()

        # Until the broker has the whole packet, it serves others between its parts.
        wait_until(lambda: attacker.unsent_bytes() == 0, "the broker has the SUBSCRIBE")
        waiting = threading.Thread(target=await_answer)
        waiting.start()
        for number in range(100):
            assert idmz.publish(REQUEST, f"{number}".encode()) == SUCCESS
            # One by one: the broker drops messages beyond the queue of a session that cannot read.
            wait_until(lambda: len(plant.received) > number, "the honest message arrives")  # noqa: B023 awaited here
        was_served = served.is_set()
        waiting.join()
        return not was_served, len(plant.received)


def test_subscribing_without_end_delays_no_other_pair(site: RunningSite) -> None:
    """One SUBSCRIBE occupies its broker for seconds. Meanwhile plant-a and idmz, on a broker of their own, exchange a
    hundred messages."""
    assert _publishes_during_one_subscribe(site) == (True, 100)


def test_sessions_that_do_not_read_do_not_reach_the_memory_limit(site: RunningSite) -> None:
    """A zone opens as many sessions as it can and reads none of the pages sent to them. The broker stays below its
    memory limit, and the zone that sends the pages, on the same broker, stays connected. (With 64 connections and 192
    MiB, 30 such sessions reached the limit, and the sender was disconnected 58 times in 24 s.)"""
    broker = site.broker("idmz", "enterprise")
    limits = limits_for([parse_link("idmz:enterprise")])
    with _session(broker, "idmz") as idmz:
        deaf = _attackers(broker, 40)
        try:
            assert 4 <= len(deaf) <= limits.connections
            for each in deaf:
                each.subscribe([ANSWERS])
            page, most = bytes(1_048_000), 0
            for number in range(3 * limits.queued_messages):
                # Acknowledged, so that none is merely waiting in our own socket.
                assert idmz.publish("bsfg/1/idmz/enterprise/rsp/x", page) == SUCCESS, number
                most = max(most, rss_bytes(broker.pid))
            assert limits.queued_messages * len(page) < most < limits.memory_bytes
            assert "Out of memory" not in broker.log_text()
            assert idmz.publish("bsfg/1/idmz/enterprise/rsp/x", b"still here") == SUCCESS
        finally:
            for each in deaf:
                each.close()


def test_messages_kept_for_sessions_at_qos_1_are_bounded(site: RunningSite) -> None:
    """Sessions that subscribe at QoS 1 and acknowledge nothing hold no more than the limits allow, also after they have
    disconnected."""
    broker = site.broker("idmz", "enterprise")
    limits = limits_for([parse_link("idmz:enterprise")])
    with _session(broker, "idmz") as idmz:
        for number in range(6):
            with _attacker(broker, f"gone-{number}", expiry_s=0xFFFF_FFFF) as gone:
                gone.subscribe([ANSWERS], qos=1)
        deaf = _attackers(broker, 6)
        try:
            for each in deaf:
                each.subscribe([ANSWERS], qos=1)
            for number in range(2 * limits.queued_messages):
                assert idmz.publish("bsfg/1/idmz/enterprise/rsp/x", bytes(1_048_000)) == SUCCESS, number
            assert rss_bytes(broker.pid) < limits.memory_bytes
        finally:
            for each in deaf:
                each.close()


def test_qos_2_is_refused(site: RunningSite) -> None:
    """A client cannot store messages at the broker by QoS 2 publishes that it never completes: it is disconnected."""
    with _attacker(site.broker("idmz", "enterprise")) as attacker:
        attacker.publish("bsfg/1/idmz/enterprise/req", b"x", qos=2)
        wait_until(lambda: not is_open(attacker.socket, 1.0) or attacker.socket.pending() > 0, "it is disconnected")


def test_bare_sockets_lock_out_their_own_pair_only(site: RunningSite) -> None:
    """With 64 sockets without a certificate at one broker, a zone of another pair still connects. The memory they take
    of the attacked broker is bounded, also if Mosquitto miscounts. (Sharing a port, they locked out every zone for 96
    s.)"""
    honest, attacked = site.broker("plant-a", "idmz"), site.broker("idmz", "enterprise")
    bare = [bare_socket(HOST, attacked.port) for _ in range(64)]
    try:
        wait_until(lambda: sum(is_open(each) for each in bare) < 32, "the broker closes most of them")
        for _ in range(3):
            with _session(honest, "plant-a") as plant:
                assert plant.publish("bsfg/1/plant-a/idmz/rsp/x") == NOBODY_LISTENS
    finally:
        for each in bare:
            each.close()


def test_connections_stay_bounded_where_mosquitto_miscounts(site: RunningSite) -> None:
    """Mosquitto 2.0.11 lowers its count twice for a connection that ends, so max_connections rises with each. The limit
    of open files, which the unit sets, holds. (Without it, 40 of 40 sockets were open after the fifth round.)"""
    broker, limits = site.broker("idmz", "enterprise"), limits_for([parse_link("idmz:enterprise")])
    for _ in range(6):
        bare = [bare_socket(HOST, broker.port) for _ in range(40)]
        wait_until(lambda bare=bare: sum(is_open(each) for each in bare) <= limits.files - 6, "the rest is closed")
        for each in bare:
            each.close()
