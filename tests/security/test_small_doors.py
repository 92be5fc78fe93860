"""Smaller interfaces: text of a peer reaches no terminal unescaped, and no number that it sends is rounded, accepted
out of range or left unanswered."""

import json
import subprocess
import sys

import pytest

from tests.security.attacker import message
from tests.security.site import EVIL, IDMZ, LIMIT_S, STREAM, Site, control_characters, some
from tests.waiting import wait_until

pytestmark = pytest.mark.system

HOSTILE_TEXT = "quiet\x1b[2J\x1b]0;owned\x07\nverdict: good\u202egnp.exe\u2066\x9b31m\r"
OUT_OF_RANGE = (-1, 2**63, 2**64, 10**30, 1.5, "1", True, [1], {"a": 1})


def commands(site: Site) -> str:
    """idmz's status on a terminal and in its log."""
    config = str(site.folder / IDMZ / "node.toml")
    shown = ""
    for words in (["status"], ["store", "stats"], ["consumer", "list"], ["peer", "test", EVIL]):
        done = subprocess.run(
            [sys.executable, "-m", "agent.cli", *words, "--config", config],
            *(),
            capture_output=True,
            timeout=60,
            check=False,
        )
        shown += done.stdout.decode() + done.stderr.decode()
    return shown


def test_an_error_text_of_a_peer_is_shown_without_its_control_characters(site: Site) -> None:
    """ESC, line breaks and bidirectional controls in message and hint of an error are not on the terminal and add no
    lines to the log."""
    site.fresh_evil()
    error = {"code": "zz_unknown", "message": HOSTILE_TEXT, "retryable": False, "hint": HOSTILE_TEXT}
    header = {"status": "error", "error": error}
    with site.unharmed():
        site.attacker.command("patch", zone=EVIL, operation="FetchFacts", header=header, times=1000)
        site.attacker.append(EVIL, STREAM, [message(1)])
        wait_until(lambda: "quiet" in json.dumps(site.status(IDMZ)), "the peer's text in the status", LIMIT_S)
        shown = commands(site)
        assert "quiet" in shown
        assert control_characters(shown) == []
        assert not any(line.startswith("verdict: good\u202e") for line in shown.splitlines())
        assert control_characters(site.log(IDMZ)) == []


NUMBERS = {
    "FetchFacts": ({"consumer_name": f"{EVIL}.n", "stream": STREAM, "limit": 10},
                   ("limit", "bytes_max", "wait_ms", "after_offset", "lease", "lease_after", "start")),
    "FetchRange": ({"stream": STREAM, "first_offset": 1, "last_offset": 2, "limit": 5},
                   ("first_offset", "last_offset", "limit", "bytes_max")),
    "FetchSequences": ({"stream": STREAM, "origin": f"evil/{'00' * 16}", "first_sequence": 1, "last_sequence": 2, "limit": 5},
                       ("first_sequence", "last_sequence", "limit", "bytes_max")),
    "GetDigests": ({"stream": STREAM}, ("ends_max",)),
    "ConfirmReceipt": ({"consumer_name": f"{EVIL}.n", "offset": 1}, ("offset", "first_offset", "lease")),
    "GetLatest": ({"stream": STREAM}, ("limit", "bytes_max", "depth_facts", "fresh_ms")),
    "GetObject": ({"digest": f"sha256:{'0' * 64}"}, ("offset", "bytes_max")),
    "PutObject": ({"digest": f"sha256:{'0' * 64}", "size": 10}, ("size", "offset")),
    "AcquireLease": ({"stream": STREAM, "producer": f"{EVIL}.p"}, ("lease_after",)),
}  # fmt: skip


@pytest.mark.parametrize("operation", some(NUMBERS, 3))
def test_a_number_out_of_range_is_answered_with_an_error(site: Site, operation: str) -> None:
    """Every integer field of every operation, below and above its range and as another type, is answered with an error,
    and the node keeps running."""
    fields, names = NUMBERS[operation]
    common = {"protocol": "bsfg.replication", "version": "1.0", "operation": operation}
    with site.unharmed():
        for name in names:
            for value in OUT_OF_RANGE:
                if name == "start" and value == "1":
                    continue
                raw = json.dumps({**common, **fields, name: value})
                answer = site.attacker.ask(EVIL, IDMZ, operation, raw=raw)
                assert answer.get("status") == "error", (name, value, answer)


STARTS = (-1, -(2**63), 2**63 - 1, 2**53, "-1", "", "yesterday", "0000-00-00T00:00:00Z", "9999-12-31T23:59:59Z")


def test_a_start_is_answered(site: Site) -> None:
    """FetchFacts with a `start` outside of time is answered, with a page or an error."""
    name = f"{EVIL}.start"
    request = {"protocol": "bsfg.replication", "version": "1.0", "operation": "FetchFacts", "consumer_name": name}
    with site.unharmed():
        for start in STARTS:
            raw = json.dumps({**request, "stream": STREAM, "limit": 10, "start": start})
            answer = site.attacker.ask(EVIL, IDMZ, "FetchFacts", raw=raw)
            assert answer.get("status") in {"ok", "error"}, start
            site.attacker.ask(EVIL, IDMZ, "UnregisterConsumer", consumer_name=name)


def test_an_appended_integer_is_stored_as_it_was_or_refused(site: Site) -> None:
    """No integer of an appended object is rounded: one that no double can hold is refused."""
    request = {"protocol": "bsfg.replication", "version": "1.0", "operation": "AppendFact", "stream": STREAM}
    with site.unharmed():
        for number in (2**53 + 1, -(2**53) - 1, 2**63 + 1, 10**25 + 1):
            envelope = {"message_id": f"n-{number}", "from_zone": EVIL, "to_zone": "*", "produced_at_unix_ms": 1}
            fact = {"subject": "order:line1/77", "predicate": "step_completed", "object": {"n": number}}
            raw = json.dumps({**request, "messages": [{"envelope": envelope, "fact": fact}]})
            answer = site.attacker.ask(EVIL, IDMZ, "AppendFact", raw=raw)
            assert answer.get("error", {}).get("code") == "bad_request", (number, answer)
