"""Hostile facts in sealed batches of an otherwise correct peer: the puller continues, the batch is declined by name,
and later facts flow. Text of a peer reaches no terminal unescaped."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.security.attacker import b64, message
from tests.security.site import EVIL, IDMZ, LIMIT_S, STREAM, TELEMETRY, Site, control_characters, some
from tests.waiting import wait_until

pytestmark = pytest.mark.system

MEDIA = {"object_media_type": "text/csv"}
DIGEST = f'"sha256:{"0" * 64}"'


def content(text: str | bytes, **fields: Any) -> dict[str, Any]:
    """A message whose object is this text."""
    return {"object": {"bin": b64(text)}, **fields}


# What else breaks a rule: tests/test_message.py, tests/batch/test_forged.py.
HOSTILE: dict[str, dict[str, Any]] = {
    "key twice in a reference": content(f'{{"digest":{DIGEST},"digest":1}}', **MEDIA),
    "depth of 100,000": content("[" * 100_000 + "]" * 100_000, **MEDIA),
    "no UTF-8": content(b'"\xff\xfe"', **MEDIA),
    "reference with a path": content('{"digest":"sha256:../../../../etc/passwd","size":1}', **MEDIA),
    "id that is no UTF-8": {"message_id": {"text": b64(b"\xff\xff")}},
    "label that is a number": {"labels": {"map": [["a", 1]]}},
    "subject that turns the line": {"subject": "order:\u202e1"},
}
HARMLESS = {"reference with a path"}
"""Canonical JSON, and no reference by the rules of the page: stored, and nothing is fetched."""


@pytest.mark.parametrize("name", some(HOSTILE, 4))
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
    assert any(EVIL in incident for incident in site.new_incidents(IDMZ)), "no incident names evil"


@pytest.mark.parametrize(
    "value, definition, flows_on",
    [
        ('{"a":1,"a":2}', '{"subject":"tag:line1/x"}', TELEMETRY),
        ("1", '{"subject":"tag:a/b","subject":"tag:a/c"}', STREAM),
    ],
)
def test_a_hostile_sample_is_set_aside(site: Site, value: str, definition: str, flows_on: str) -> None:
    """A sample with a value or a definition that breaks the rules, proven by its batch: the puller continues. Behind a
    value evil's next facts flow in the same stream, behind a definition those in the other stream."""
    site.fresh_evil()
    with site.unharmed():
        sample = {"time_ns": "1700000000000000000", "value": {"json": b64(value)}}
        site.attacker.append_sample(EVIL, TELEMETRY, sample, [definition])
        site.attacker.append(EVIL, flows_on, [message("behind", message_id=f"behind-{flows_on}")])
        site.wait_fact(f"behind-{flows_on}", stream=flows_on)


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
