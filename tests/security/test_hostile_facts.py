"""Hostile facts in sealed batches of an otherwise correct peer: the puller continues, the batch is declined by name,
and later facts flow. Text of a peer reaches no terminal unescaped."""

import contextlib
import json
import secrets
import subprocess
import sys
import time
from typing import Any

import pytest

from agent.batch import SEALED_BYTES_MAX
from agent.fact_store import StoreReader
from agent.message import OBJECT_BYTES_MAX
from tests.security.attacker import b64, message
from tests.security.site import EVIL, IDMZ, LIMIT_S, STREAM, TELEMETRY, Site, control_characters, some
from tests.waiting import wait_until

pytestmark = pytest.mark.system

MEDIA = {"object_media_type": "text/csv"}
DIGEST = f'"sha256:{"0" * 64}"'


def content(text: str | bytes, **fields: Any) -> dict[str, Any]:
    """A message whose object is this text."""
    return {"object": {"bin": b64(text)}, **fields}


def any_text(data: bytes) -> dict[str, str]:
    """Bytes in place of a text."""
    return {"text": b64(data)}


OBJECTS = {
    "key twice in a reference": content(f'{{"digest":{DIGEST},"digest":1}}', **MEDIA),
    "key twice": content('{"a":1,"a":2}'),
    "key twice, written in two ways": content('{"a":1,"\\u0061":2}'),
    "depth of 101": content("[" * 101 + "]" * 101),
    "depth of 971": content("[" * 971 + "]" * 971, **MEDIA),
    "depth of 972": content("[" * 972 + "]" * 972, **MEDIA),
    "depth of 100,000": content("[" * 100_000 + "]" * 100_000, **MEDIA),
    "objects in objects": content('{"a":' * 40_000 + "1" + "}" * 40_000, **MEDIA),
    "integer of 2^53 + 1": content("9007199254740993"),
    "integer of 5,000 digits": content("9" * 5_000, **MEDIA),
    "number beyond a double": content("1e400", **MEDIA),
    "not a number": content("NaN"),
    "infinity": content("-Infinity", **MEDIA),
    "another text for one": content("1.0"),
    "minus zero": content("-0"),
    "white space": content('{ "a": 1 }'),
    "keys out of order": content('{"b":1,"a":2}'),
    "lone surrogate": content('"\\ud800"', **MEDIA),
    "surrogate in UTF-8": content(b'"\xed\xa0\x80"', **MEDIA),
    "control character": content('"\x1b[2J"'),
    "no UTF-8": content(b'"\xff\xfe"', **MEDIA),
    "byte order mark": content(b"\xef\xbb\xbf1"),
    "nothing": content(""),
    "no JSON": content("hello", **MEDIA),
    "two values": content("1 1"),
    "a byte too long": content('"' + "x" * 262_143 + '"'),
    "65 references": content(
        "[" + ",".join(f'{{"digest":"sha256:{n:064x}","size":1}}' for n in range(65)) + "]", **MEDIA
    ),
    "reference of a negative size": content(f'{{"digest":{DIGEST},"size":-1}}', **MEDIA),
    "reference of a huge size": content(f'{{"digest":{DIGEST},"size":1e+300}}', **MEDIA),
    "reference with a path": content('{"digest":"sha256:../../../../etc/passwd","size":1}', **MEDIA),
}
FIELDS: dict[str, dict[str, Any]] = {
    "empty id": {"message_id": ""},
    "id of 257 bytes": {"message_id": "x" * 257},
    "id with a control character": {"message_id": "a\x1b]0;x\x07"},
    "id that is no UTF-8": {"message_id": any_text(b"\xff\xff")},
    "id that is a number": {"message_id": 7},
    "zone with a path": {"from_zone": "../idmz"},
    "receiver with a line break": {"to_zone": "a\nb"},
    "time before 1970": {"produced_at_unix_ms": -1},
    "time beyond the year 2248": {"produced_at_unix_ms": {"int": str(2**43)}},
    "cause with a control character": {"causation_id": "\x00"},
    "33 labels": {"labels": {"map": [[str(n), "x"] for n in range(33)]}},
    "label that is a number": {"labels": {"map": [["a", 1]]}},
    "label with a control character": {"labels": {"map": [["a\nb", "x"]]}},
    "media type with a line break": {"object_media_type": "text/csv\r\nX: 1"},
    "schema of a megabyte": {"object_schema": "x" * 400_000},
    "subject without a kind": {"subject": "order"},
    "subject that turns the line": {"subject": "order:\u202e1"},
    "subject with a space": {"subject": "order:a b"},
    "predicate in capitals": {"predicate": "Step"},
    "predicate with a line break": {"predicate": "step\n"},
}
HOSTILE = {**OBJECTS, **FIELDS}
HARMLESS = {"65 references", "reference of a negative size", "reference of a huge size", "reference with a path"}
"""Canonical JSON, and not references by the rules of the page or too many of them: stored, and nothing is fetched."""


@pytest.mark.parametrize("name", some(HOSTILE, 5))
def test_a_hostile_fact_is_set_aside_and_the_next_flows(site: Site, name: str) -> None:
    """One fact breaks one rule, in a batch with correct digest and chain, followed by an honest batch. The puller
    continues, the honest fact reaches the enterprise, the hostile one no store, and an incident names evil."""
    attacker = site.attacker
    before = site.fresh_evil()
    with site.unharmed():
        hostile = message("hostile", **HOSTILE[name])
        attacker.append(EVIL, STREAM, [message("before"), hostile])
        behind = f"behind-{name}"
        attacker.append(EVIL, STREAM, [message(behind, message_id=behind)])
        site.wait_fact(behind)
    if name in HARMLESS:
        return
    new = site.ids(IDMZ, after=before)
    assert behind in new
    assert "evil-hostile" not in new
    assert any(EVIL in one for one in site.new_incidents(IDMZ)), "no incident names evil"


VALUES = {
    "key twice": '{"a":1,"a":2}',
    "depth of 5,000": "[" * 5_000 + "]" * 5_000,
    "not a number": "NaN",
    "lone surrogate": '"\\ud800"',
    "no UTF-8": b'"\xff"',
    "white space": "[1, 2]",
}


@pytest.mark.parametrize("name", some(VALUES, 2))
def test_a_hostile_value_of_a_sample_is_set_aside(site: Site, name: str) -> None:
    """JSON values of samples obey the same rules."""
    attacker = site.attacker
    site.fresh_evil()
    definitions = ['{"subject":"tag:line1/x"}']
    with site.unharmed():
        for value in (VALUES[name], "[1,2]"):
            sample = {"time_ns": "1700000000000000000", "value": {"json": b64(value)}}
            attacker.append_sample(EVIL, TELEMETRY, sample, definitions)
        behind = f"sample-{name}"
        attacker.append(EVIL, TELEMETRY, [message(behind, message_id=behind)])
        site.wait_fact(behind, stream=TELEMETRY)


DEFINITIONS = {
    "key twice": '{"subject":"tag:a/b","subject":"tag:a/c"}',
    "no object": "[]",
    "no subject": "{}",
    "control character": '{"subject":"tag:a/b","unit":"\\u001b[2J"}',
    "depth of 900": '{"subject":"tag:a/b","x":' + "[" * 900 + "]" * 900 + "}",
    "a number beyond a double": '{"subject":"tag:a/b","x":1e400}',
    "60,000 bytes": '{"description":"' + "x" * 60_000 + '","subject":"tag:a/b"}',
}


@pytest.mark.parametrize("name", some(DEFINITIONS, 2))
def test_a_hostile_definition_stops_no_other_zone(site: Site, name: str) -> None:
    """A definition breaks the rules, with a batch that proves it: the puller continues, and evil's messages in the
    other stream and the plant's facts flow."""
    site.fresh_evil()
    with site.unharmed():
        sample = {"time_ns": "1700000000000000000", "value": "text"}
        site.attacker.append_sample(EVIL, TELEMETRY, sample, [DEFINITIONS[name]])
        behind = f"definition-{name}"
        site.attacker.append(EVIL, STREAM, [message(behind, message_id=behind)])
        site.wait_fact(behind)


def test_batches_that_no_packet_takes_together_stop_no_reader(site: Site) -> None:
    """A batch of the largest size without a head is followed by one as large with the head of some key. A page ends
    with a head, so idmz could pass on neither of them, nor later facts."""
    before = site.fresh_evil()
    head = (
        b"\x01\x00"
        + secrets.token_bytes(8)
        + (time.time_ns() // 1_000_000).to_bytes(8, "little")
        + secrets.token_bytes(64)
    )
    with site.unharmed():
        for number, more in enumerate(({}, {"head": b64(head)})):
            parts = [
                f'"{"x" * (bytes_of - 2)}"'
                for bytes_of in (OBJECT_BYTES_MAX, SEALED_BYTES_MAX - 488 - OBJECT_BYTES_MAX)
            ]
            large = [message(f"{number}-{part}", text) for part, text in enumerate(parts)]
            site.attacker.append(EVIL, STREAM, large, **more)
        wait_until(lambda: site.end(IDMZ) == before + 4, "both batches at idmz")
        with contextlib.closing(StoreReader(site.store(IDMZ))) as reader:
            sizes = [len(one.sealed) for one in reader.read(STREAM, before, 4, 2 * SEALED_BYTES_MAX).batches]
        assert sum(sizes) > 1_048_576 - 1_024, sizes


HOSTILE_TEXT = "quiet\x1b[2J\x1b]0;owned\x07\nverdict: good\u202egnp.exe\u2066\x9b31m\r"


def commands(site: Site) -> str:
    """idmz's status on a terminal and in its log."""
    config = str(site.folder / IDMZ / "node.toml")
    shown = ""
    for words in (["status"], ["store", "stats"], ["consumer", "list"], ["peer", "test", EVIL]):
        done = subprocess.run(
            [sys.executable, "-m", "agent.cli", *words, "--config", config],
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
