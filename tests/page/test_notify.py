"""Alarms reach people: once when they have lasted, again while they last, once when they are over; and what a zone has
written cannot change the form of a message."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.health.problems import Level
from agent.page import sender as tested
from agent.page.fleet import ZoneRow
from agent.page.notify import TOLD_MAX, Notice, NoticeCore, NoticeKind
from agent.page.sender import Sender, body_of, mail_of
from agent.page.watch import Watch
from agent.settings.node import IdentitySettings
from agent.settings.notify import TEMPLATE, NotifySettings
from tests.waiting import wait_until_async

S, H = 1_000, 3_600_000
EVIL = '"}, "x": "${hint}\r\nBcc: all@example'


def row(zone: str, *names: str, alert: bool = True, what: str = "source press: lost") -> ZoneRow:
    """A zone. `names`: of its alerts."""
    level = Level.BROKEN if alert else Level.GOOD
    return ZoneRow(
        zone, level, alert, 0, what, "look", None, None, 1.0, alerts=tuple((name, name, name) for name in names)
    )


def told(core: NoticeCore, now_ms: int, *rows: ZoneRow) -> list[tuple[str, str]]:
    """What is told now."""
    return [(notice.event.value, notice.zone) for notice in core.decide(rows, now_ms)]


def test_raised_repeated_and_cleared() -> None:
    """After it has lasted a minute, every two hours, and when it is over; another zone by itself."""
    core = NoticeCore(60, 2)
    assert told(core, 0, row("a")) == []
    assert told(core, 59 * S, row("a")) == []
    assert told(core, 60 * S, row("a"), row("b")) == [("raised", "a")]
    assert told(core, 61 * S, row("a"), row("b")) == []
    assert told(core, 120 * S, row("a"), row("b")) == [("raised", "b")]
    assert told(core, 60 * S + 2 * H, row("a"), row("b")) == [("repeated", "a")]
    assert told(core, 3 * H - 90 * S, row("a"), row("b"), row("c")) == [("repeated", "b")]
    assert told(core, 3 * H, row("a", alert=False), row("b"), row("c")) == [("raised", "c"), ("cleared", "a")]
    assert told(core, 3 * H + 1, row("b")) == [("cleared", "c")]
    assert told(core, 5 * H, row("b", alert=False)) == [("cleared", "b")]


def test_a_further_alert_is_told_while_one_lasts() -> None:
    """A device that is lost while a certificate ends is told about like the first one, under its own name; one that
    was there when the zone was told about is only counted. It is told again when it was away and has come back. The
    last notice says what is over, and since when."""
    core, began = NoticeCore(60, 24), 24 * H
    core.decide([row("a", "certificate ends", "press lost")], began)
    (first,) = core.decide([row("a", "certificate ends", "press lost")], began + 60 * S)
    assert first.subject == "a: broken: source press: lost (and 1 more)"
    both = row("a", "certificate ends", "boiler lost")
    assert core.decide([both], began + 61 * S) == core.decide([both], began + 120 * S) == []
    (further,) = core.decide([both], began + 121 * S)
    assert (further.event, further.subject) == (NoticeKind.RAISED, "a: broken: boiler lost")
    assert (further.hint, further.since_unix_ms) == ("boiler lost", began + 61 * S)
    assert core.decide([both], began + 122 * S) == []
    assert core.decide([row("a", "certificate ends")], began + 130 * S) == core.decide([both], began + 139 * S) == []
    (again,) = core.decide([both], began + 199 * S)
    assert (again.subject, again.since_unix_ms) == (further.subject, began + 139 * S)
    (over,) = core.decide([row("a", alert=False)], began + 200 * S)
    assert (over.hint, over.since_unix_ms) == ("it was, from 1970-01-02 00:00:00Z: source press: lost", began + 200 * S)


def test_since_when_is_as_the_page_says() -> None:
    """Also of what began before this process: a page that was restarted tells an old alarm again, and not as a new
    one."""
    core, old = NoticeCore(60, 0), replace(row("a"), since_unix_ms=5.0 * S)
    core.decide([old], 9 * H)
    (raised,) = core.decide([old], 9 * H + 60 * S)
    (over,) = core.decide([], 10 * H)
    assert (raised.since_unix_ms, over.hint) == (5 * S, "it was, from 1970-01-01 00:00:05Z: source press: lost")


def test_what_gets_worse_is_told_again() -> None:
    """A zone that was late and is broken; not the way back, and not another text of the same level."""
    core, late = NoticeCore(0, 0), replace(row("a"), level=Level.LATE)
    assert told(core, 0, late) == told(core, 1, row("a")) == [("raised", "a")]
    assert told(core, 2, row("a", what="other")) == told(core, 3, late) == told(core, 4, row("a")) == []


def test_what_passes_by_itself_is_not_told() -> None:
    """An alert that is over within the time is neither raised nor cleared, and the next one begins anew."""
    core = NoticeCore(60, 0)
    assert told(core, 0, row("a")) == told(core, 30 * S, row("a", alert=False)) == told(core, 40 * S, row("a")) == []
    assert told(core, 99 * S, row("a")) == []
    assert told(core, 100 * S, row("a")) == [("raised", "a")]
    assert told(core, 100 * H, row("a")) == [], "0 hours: once"


def test_only_the_zones_that_are_asked_for() -> None:
    """A receiver with zones hears of no other; a thousand at once are one message with their number."""
    assert told(NoticeCore(0, 0, frozenset({"b"})), 0, row("a"), row("b")) == [("raised", "b")]
    (notice,) = NoticeCore(0, 0).decide([row(f"z{n}") for n in range(TOLD_MAX + 1)], 0)
    assert (notice.zone, notice.more, notice.subject) == (
        "z0", TOLD_MAX, f"z0 and {TOLD_MAX} more zones: broken: source press: lost"
    )  # fmt: skip


def test_the_form_of_a_message_is_the_receivers() -> None:
    """Quotes, line ends and placeholders in what a zone wrote stay inside their value and their header."""
    notice = Notice(NoticeKind.RAISED, "a", "broken", EVIL, EVIL, 1_795_000_000_000)
    found = json.loads(body_of(TEMPLATE, notice, "enterprise"))
    assert found.keys() == {"text"}
    assert EVIL in found["text"]
    assert json.loads(body_of('{"a": "${event} ${seen_by} $unknown"}', notice, "e")) == {"a": "raised e $unknown"}
    mail = mail_of(NotifySettings("n", mail_from="b@x", mail_to=("c@x", "d@x")), notice, "enterprise")
    assert (mail["To"], mail["Bcc"]) == ("c@x, d@x", None)
    assert "\n" not in mail["Subject"]


@pytest.mark.parametrize(
    "settings, fields",
    [
        ({"webhook_url": "https://x/y"}, []),
        ({}, ["webhook_url"]),
        ({"webhook_url": "ftp://x"}, ["webhook_url"]),
        ({"webhook_url": "http://[::1"}, ["webhook_url"]),
        ({"webhook_url": "http://x/a b"}, ["webhook_url"]),
        ({"webhook_url": "http://x", "webhook_template": '{"text": "${what}"'}, ["webhook_template"]),
        ({"webhook_url": "http://x", "webhook_template": '"${waht}"'}, ["webhook_template"]),
        ({"webhook_url": "http://x", "smtp_host": "m", "mail_from": "a", "mail_to": ("b",)}, ["webhook_url"]),
        ({"smtp_host": "m", "mail_from": "a", "mail_to": ("b",)}, []),
        ({"smtp_host": "m"}, ["mail_to"]),
        ({"smtp_host": "m", "mail_from": '"A b" <a@x>', "mail_to": ("b@x", "B 2 <b@x>")}, []),
        ({"smtp_host": "m", "mail_from": '"', "mail_to": ("b", "c\nBcc: d")}, ["mail_from", "mail_to"]),
        ({"smtp_host": "m", "mail_from": "a", "mail_to": ("b",), "smtp_user": "u"}, ["smtp_user"]),
        ({"webhook_url": "http://x", "zones": ("A",), "after_s": -1.0, "repeat_hours": 9000.0}, ["zones", "after_s", "repeat_hours"]),
        ({"webhook_url": "http://x", "smtp_port": 0}, ["smtp_port"]),
        (
            {"smtp_host": "m", "mail_from": "a", "mail_to": ("b",), "smtp_user": "u", "smtp_password_file": Path("p"), "smtp_security": "none"},
            ["smtp_security"],
        ),
    ],
)  # fmt: skip
def test_rules(settings: dict[str, Any], fields: list[str]) -> None:
    """Each broken rule is named by its setting."""
    assert [name for name, _ in NotifySettings("n", **settings).problems()] == fields


@contextmanager
def receiver(answers: list[int]) -> Iterator[tuple[str, list[Any]]]:
    """A web server that answers with these statuses, and what was posted to it; it redirects to itself."""
    posted: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop(0))
            self.send_header("Location", "/")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", posted
        finally:
            server.shutdown()
            thread.join()


class AtOnce(Executor):
    """Carries out each call at once, in the thread of the caller."""

    def submit(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Its result, or its error."""
        done: Future[Any] = Future()
        try:
            done.set_result(call(*given, **named))
        except OSError as error:
            done.set_exception(error)
        return done


@pytest.mark.virtual_time
async def test_each_outage_of_a_receiver_begins_with_short_pauses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While a receiver is down the pauses double. A later failure, after it was there, is tried again soon."""
    watch, sender = (
        Watch(IdentitySettings("enterprise", tmp_path)),
        Sender(NotifySettings("n", after_s=0), "enterprise"),
    )
    rows, tried_s, fails = [row("plant")], list[float](), [True, True, True, False, True, False]

    def send(_: Notice) -> None:
        tried_s.append(time.monotonic())
        if fails[len(tried_s) - 1]:
            raise OSError("down")
        rows.append(row("cell"))

    monkeypatch.setattr(watch, "rows", lambda: rows[:2])
    monkeypatch.setattr(sender, "_send", send)
    monkeypatch.setattr(sender, "_thread", AtOnce())
    watch.looked_unix_ms = 1
    sending = asyncio.create_task(sender.run(watch))
    await wait_until_async(lambda: len(tried_s) == len(fails), "the second notice")
    sending.cancel()
    pauses_s = [after - before for before, after in pairwise(tried_s)]
    limits_s = [tested.RETRY_S, 2 * tested.RETRY_S, 4 * tested.RETRY_S, 0.0, tested.RETRY_S]
    assert all(least <= found <= least + tested.LOOK_S + 0.1 for least, found in zip(limits_s, pauses_s, strict=True))


@pytest.mark.system
async def test_a_receiver_that_fails_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of 500 is no delivery, nor is a redirect: the notice is sent again, and once."""
    monkeypatch.setattr(tested, "RETRY_S", 0.01)
    monkeypatch.setattr(tested, "LOOK_S", 0.01)
    watch = Watch(IdentitySettings("enterprise", tmp_path))
    watch.looked_unix_ms = 1
    monkeypatch.setattr(watch, "rows", lambda: [row("plant")])
    with receiver([500, 302, 200]) as (url, posted):
        sending = asyncio.create_task(Sender(NotifySettings("n", after_s=0, webhook_url=url), "enterprise").run(watch))
        await wait_until_async(lambda: len(posted) == 3, "the third post")
        watch.looked_unix_ms = 2
        sending.cancel()
    assert posted == [posted[0]] * 3
    assert posted[0]["text"].startswith("plant: broken: source press: lost")
