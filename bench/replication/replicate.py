"""`replicate`: a backlog of data set A from store to store through a broker with mutual TLS, compared with a bare loop.

Two processes have a real fact store each; the broker is a third. Both stores have synchronous=FULL, and the receiver
opens every batch once. Timed from the first request until the confirmation of the last fact is durable at the sender.
The bare loop moves the same sealed bytes in pages of the same size, through the same broker, from one SQLite file into
another. Both take turns, each round with new files. After every round both stores must hold the same batches, digest by
digest.

`signed` is the same backlog in a store that signs it, pulled by a node that demands and verifies these signatures; its
rounds take turns with the unsigned ones, which go first in every other turn.

`queued` is the alternative in use today: the same facts, one a message, in the broker's own persistent queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.replication.pki import create_signer
from bench.common.measuring import Report, files_bytes, machine, median, process_cpu_ns, rounded
from bench.common.testbed import ASKING, BARE_SERVING, SERVING, Testbed, open_testbed
from bench.replication import mosquitto_queue
from bench.replication.endpoints import batches, pull_settings

PAGE_BYTES = pull_settings().receiver.page_bytes_max
QUEUED_FACTS = 20_000


@dataclass(frozen=True, slots=True)
class Round:
    """One pass of either loop: its length, and what its processes used."""

    duration_ns: int
    sender: Mapping[str, Any]
    receiver: Mapping[str, Any]
    broker_cpu_ns: int

    def facts_per_s(self, facts: int) -> float:
        return 1e9 * facts / self.duration_ns


def run(facts: int, repeats: int, seed: int, below: Path | None, batch_facts: int) -> Report:
    """Replicate `facts` samples, `repeats` times in turns with the bare loop."""
    with open_testbed(below) as testbed:
        described = machine(testbed.folder)
        source, blobs = testbed.folder / "sender" / "facts.db", testbed.folder / "blobs-out.db"
        source.parent.mkdir()
        filled_with = {"file": source, "blobs": blobs, "facts": facts, "seed": seed, "batch_facts": batch_facts}
        with testbed.worker("fill", "fill", SERVING, **filled_with) as filling:
            filled = filling.result()
        signer, _ = create_signer(testbed.folder / "pki", SERVING, datetime.now(UTC))
        keys = {"signer_key": signer.key_file, "signer_cert": signer.cert_file}
        signed_source = testbed.folder / "sender-signed" / "facts.db"
        signed_source.parent.mkdir()
        signed_with = {**filled_with, **keys, "file": signed_source, "blobs": ""}
        with testbed.worker("fill-signed", "fill", SERVING, **signed_with) as filling:
            filling.result()
        product, signed = list[Round](), list[Round]()
        bare, bare_apart = list[Round](), list[Round]()
        at_rest = 0.0
        for number in range(repeats):
            for is_signed in (True, False) if number % 2 else (False, True):
                name = f"{number}-signed" if is_signed else str(number)
                target = testbed.folder / f"receiver-{name}" / "facts.db"
                target.parent.mkdir()
                sender = signed_source if is_signed else source
                turn = _product_round(testbed, name, sender, target, facts, keys if is_signed else {})
                _check_equal(sender, target)
                (signed if is_signed else product).append(turn)
                at_rest = at_rest if is_signed else files_bytes(target.parent) / facts
            bare.append(_bare_round(testbed, number, blobs, filled["batches"], storing_apart=False))
            bare_apart.append(_bare_round(testbed, number, blobs, filled["batches"], storing_apart=True))
    queue = mosquitto_queue.drain(min(QUEUED_FACTS, facts), seed, below)
    chosen = {"batch_facts": batch_facts, "seed": seed}
    report = _report(facts, chosen, filled["sealed_bytes"], at_rest, product, bare, bare_apart, queue, described)
    return _with_signed(report, facts, product, signed)


def _with_signed(report: Report, facts: int, product: list[Round], signed: list[Round]) -> Report:
    """The report, with what signatures cost in the same run."""
    rate, plain = (median([turn.facts_per_s(facts) for turn in rounds]) for rounds in (signed, product))
    cpu_us = _cpu_us(signed, facts)
    wire = median([turn.receiver["received_bytes"] / facts for turn in signed])
    values = {
        "facts_per_s": round(rate),
        "ratio": rounded(rate / plain),
        "rounds_facts_per_s": [round(turn.facts_per_s(facts)) for turn in signed],
        "cpu_us_per_fact": cpu_us,
        "wire_bytes_per_fact": rounded(wire),
    }
    used = ", ".join(f"{side} {us:.3f}" for side, us in cpu_us.items())
    line = f"signed     {rate / 1e6:6.2f} M facts/s, {values['ratio']} of the unsigned; us a fact: {used}; {wire:.2f} bytes"
    return replace(report, values={**report.values, "signed": values}, lines=(*report.lines, line))


def _product_round(
    testbed: Testbed, number: str, source: Path, target: Path, facts: int, keys: Mapping[str, Path]
) -> Round:
    with testbed.worker(
        f"serve-{number}", "serve", SERVING, file=source, asking=ASKING, until=facts, **keys
    ) as serving:
        broker_cpu_ns = process_cpu_ns(testbed.broker.pid)
        with testbed.worker(f"pull-{number}", "pull", ASKING, file=target, **keys) as pulling:
            sender = serving.result_with(pulling)
            broker_cpu_ns = process_cpu_ns(testbed.broker.pid) - broker_cpu_ns
            receiver = pulling.ended()
    assert receiver["facts_stored"] == facts, receiver
    return Round(sender["confirmed_ns"] - receiver["started_ns"], sender, receiver, broker_cpu_ns)


def _bare_round(testbed: Testbed, number: int, blobs: Path, count: int, *, storing_apart: bool) -> Round:
    target = testbed.folder / f"blobs-in-{number}.db"
    into = {"file": target, "blobs": count, "storing_apart": storing_apart}
    out = {"file": blobs, "asking": ASKING, "bytes_max": PAGE_BYTES}
    with testbed.worker(f"blobs-out-{number}", "blobs-out", BARE_SERVING, **out) as sending:
        broker_cpu_ns = process_cpu_ns(testbed.broker.pid)
        with testbed.worker(f"blobs-in-{number}", "blobs-in", ASKING, **into) as receiving:
            sender = sending.result_with(receiving)
            broker_cpu_ns = process_cpu_ns(testbed.broker.pid) - broker_cpu_ns
            receiver = receiving.ended()
    target.unlink()
    return Round(sender["confirmed_ns"] - receiver["started_ns"], sender, receiver, broker_cpu_ns)


def _check_equal(source: Path, target: Path) -> None:
    """Both stores hold the same batches in the same order."""
    digests, arrived = ([digest for _, digest in batches(file)] for file in (source, target))
    assert digests == arrived, f"{len(digests)} batches were sent, {len(arrived)} arrived, or others"


def _report(
    facts: int,
    chosen: Mapping[str, int],
    sealed_bytes: int,
    at_rest: float,
    product: list[Round],
    bare: list[Round],
    bare_apart: list[Round],
    queue: mosquitto_queue.Queued,
    described: Mapping[str, Any],
) -> Report:
    rate = median([turn.facts_per_s(facts) for turn in product])
    limit = median([turn.facts_per_s(facts) for turn in bare])
    limit_apart = median([turn.facts_per_s(facts) for turn in bare_apart])
    cpu_us = _cpu_us(product, facts)
    peak_mib = {side: max(getattr(turn, side)["peak_rss_mib"] for turn in product) for side in ("sender", "receiver")}
    wire = median([turn.receiver["received_bytes"] / facts for turn in product])
    values = {
        "facts_per_s": round(rate),
        "limit": {
            "what": "bare loop: equal blobs and pages, SQLite to SQLite through the same broker, both FULL",
            "facts_per_s": round(limit),
            "rounds_facts_per_s": [round(turn.facts_per_s(facts)) for turn in bare],
            "cpu_us_per_fact": _cpu_us(bare, facts),
            "storing_apart": {"facts_per_s": round(limit_apart), "ratio": rounded(rate / limit_apart)},
        },
        "ratio": rounded(rate / limit),
        "queued": queue.to_dict(),
        "rounds_facts_per_s": [round(turn.facts_per_s(facts)) for turn in product],
        "cpu_us_per_fact": cpu_us,
        "bytes_per_fact": rounded(at_rest),
        "bytes_per_fact_sealed": rounded(sealed_bytes / facts),
        "wire_bytes_per_fact": rounded(wire),
        "peak_rss_mib": peak_mib,
        "equal": True,
        "facts": facts,
        "distinct_facts": facts,
        "batch_facts": chosen["batch_facts"],
        "page_bytes": PAGE_BYTES,
        "pages": product[-1].receiver["pages"],
        "seed": chosen["seed"],
    }
    used = ", ".join(f"{side} {us:.3f}" for side, us in cpu_us.items())
    lines = (
        f"replicate  {rate / 1e6:6.2f} M facts/s, {facts / 1e6:g} M facts in batches of {chosen['batch_facts']}",
        f"limit      {limit / 1e6:6.2f} M facts/s in a bare loop with equal blobs; ratio {values['ratio']}",
        f"           {limit_apart / 1e6:6.2f} M facts/s if it stores in a thread apart; ratio {rounded(rate / limit_apart)}",
        f"queued     {queue.facts_per_s / 1e6:6.3f} M facts/s drained from Mosquitto's own persistent QoS 1 queue",
        f"CPU        us a fact: {used}",
        f"bytes      {wire:.2f} a fact on the wire, {at_rest:.2f} at rest",
        f"memory     {peak_mib['sender']} MiB sender, {peak_mib['receiver']} MiB receiver, at most",
        "equal      both stores hold the same batches, digest by digest",
    )
    return Report("replicate", values, lines, described)


def _cpu_us(rounds: list[Round], facts: int) -> dict[str, float]:
    """Processor time a fact, by process; medians."""
    return {
        "sender": rounded(median([turn.sender["cpu_ns"] / facts / 1000 for turn in rounds])),
        "receiver": rounded(median([turn.receiver["cpu_ns"] / facts / 1000 for turn in rounds])),
        "broker": rounded(median([turn.broker_cpu_ns / facts / 1000 for turn in rounds])),
    }
