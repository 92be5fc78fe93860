"""Shell: sends notices by webhook or mail. Each receiver has a queue and a task of its own, so that one that does not
answer delays nothing else; what cannot be sent is tried again, and the oldest is dropped when the queue is full."""

from __future__ import annotations

import asyncio
import json
import logging
import smtplib
import ssl
import time
import urllib.error
import urllib.request
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from http.client import HTTPException
from string import Template
from typing import Any

from agent.escaping import password_text
from agent.page.notify import Notice, NoticeCore
from agent.page.watch import LOOK_S, Watch
from agent.page.words import moment
from agent.settings.notify import TEMPLATE_NAMES, NotifySettings

QUEUE_MAX = 100
SEND_S = 10.0
RETRY_S, RETRY_S_MAX = 5.0, 300.0

log = logging.getLogger(__name__)


def body_of(template: str, notice: Notice, own_zone: str) -> str:
    """The JSON template with its ${names} filled in; each value is escaped as the inside of a JSON text."""
    values = {
        "event": notice.event.value,
        "zone": notice.zone,
        "level": notice.level,
        "what": notice.what,
        "hint": notice.hint,
        "since": moment(notice.since_unix_ms),
        "subject": notice.subject,
        "seen_by": own_zone,
    }
    assert values.keys() == {*TEMPLATE_NAMES}, "those that the check of the settings accepts"
    return Template(template).safe_substitute({name: json.dumps(text)[1:-1] for name, text in values.items()})


def mail_of(settings: NotifySettings, notice: Notice, own_zone: str) -> EmailMessage:
    """The mail for a notice. What a zone wrote cannot end a header."""
    mail = EmailMessage()
    mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain=f"{own_zone}.bsfg")
    mail["From"], mail["To"] = settings.mail_from, ", ".join(settings.mail_to)
    mail["Subject"] = " ".join(f"[bsfg] {notice.subject}".split())[:200]
    mail.set_content(f"{notice.subject}\n\n{notice.hint}\n\nsince {moment(notice.since_unix_ms)}, seen by {own_zone}\n")
    return mail


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The library follows a redirect by a GET without the notice, and calls that delivered."""

    def redirect_request(self, *_: object) -> None:
        """None: the answer is an error."""


class Sender:
    """One receiver."""

    def __init__(self, settings: NotifySettings, own_zone: str) -> None:
        self._settings, self._own_zone = settings, own_zone
        self.core = NoticeCore(settings.after_s, settings.repeat_hours, frozenset(settings.zones))
        self._queue: deque[Notice] = deque(maxlen=QUEUE_MAX)
        self._thread = ThreadPoolExecutor(1)  # not of those that read the store for the page

    async def run(self, watch: Watch) -> None:
        """Look, and send what is due, until cancelled."""
        wait_s, next_s = RETRY_S, 0.0
        while True:
            if watch.looked_unix_ms:
                self._queue.extend(self.core.decide(watch.rows(), watch.looked_unix_ms))
            if self._queue and time.monotonic() >= next_s:
                try:
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._send, self._queue[0])
                except (OSError, ValueError, HTTPException) as error:  # smtplib's are OSErrors
                    log.warning("notice_not_sent", extra={"receiver": self._settings.name, "why": str(error)})
                    next_s, wait_s = time.monotonic() + wait_s, min(2 * wait_s, RETRY_S_MAX)
                else:
                    self._queue.popleft()
                    next_s, wait_s = 0.0, RETRY_S
                    continue
            await asyncio.sleep(LOOK_S)

    def _send(self, notice: Notice) -> None:
        settings = self._settings
        if settings.webhook_url:
            body = body_of(settings.webhook_template, notice, self._own_zone).encode()
            request = urllib.request.Request(  # noqa: S310 the settings admit http and https only
                settings.webhook_url, body, {"Content-Type": "application/json"}
            )
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=SEND_S):
                return
        file = settings.smtp_password_file
        password = "" if file is None else password_text(file.read_bytes(), file)
        smtp: Any = smtplib.SMTP_SSL if settings.smtp_security == "tls" else smtplib.SMTP
        context = {"context": ssl.create_default_context()} if settings.smtp_security == "tls" else {}
        with smtp(settings.smtp_host, settings.smtp_port, timeout=SEND_S, **context) as server:
            if settings.smtp_security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if settings.smtp_user:
                server.login(settings.smtp_user, password)
            server.send_message(mail_of(settings, notice, self._own_zone))
