"""[[notify]] of node.toml: to whom `bsfg page` tells the alerts of this zone and of those below, and how."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Literal

from agent.message import ZONE
from agent.settings.host import host_problem, url_problem

TEMPLATE = '{"text": "${subject} (since ${since}). ${hint}"}'
TEMPLATE_NAMES = ("event", "zone", "level", "what", "hint", "since", "subject", "seen_by")
HOURS_MAX = 8_760.0
_PART = r"""[^@\s<>"(),;:\\[\]]+"""
_ADDRESS = f"{_PART}(?:@{_PART})?"
_MAIL = re.compile(rf"""{_ADDRESS}|(?:"[^"\\\r\n]+"|\w[\w -]*) *<{_ADDRESS}>""")
"""What the library for mail can write into a header: it fails at other texts."""


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """[[notify]]: a receiver, by webhook or mail. `zones`: those that it hears of, none for all. `after_s`: how long an
    alert must last; `repeat_hours`: how often it is told while it lasts, 0 for once. `webhook_template`: the JSON that
    is posted, with ${event}, ${zone}, ${level}, ${what}, ${hint}, ${since}, ${subject}, ${seen_by}."""

    name: str
    zones: tuple[str, ...] = ()
    after_s: float = 60.0
    repeat_hours: float = 24.0
    webhook_url: str = ""
    webhook_template: str = TEMPLATE
    smtp_host: str = ""
    smtp_port: int = 587
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    smtp_user: str = ""
    smtp_password_file: Path | None = None
    mail_from: str = ""
    mail_to: tuple[str, ...] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.name:
            yield "name", "must not be empty"
        for zone in self.zones:
            if not ZONE.fullmatch(zone):
                yield "zones", f"{zone!r} is not a zone (1 to 32 of a-z, 0-9 and -)"
        if not 0 <= self.after_s <= 86_400:
            yield "after_s", "0 (at once) to 86400"
        if not 0 <= self.repeat_hours <= HOURS_MAX:
            yield "repeat_hours", "0 (never) to 8760"
        if bool(self.webhook_url) == bool(self.smtp_host):
            yield "webhook_url", "name either webhook_url, or smtp_host with mail_from and mail_to"
        if self.webhook_url and (why := url_problem(self.webhook_url, "https://host/path", "http", "https")):
            yield "webhook_url", why
        elif not self.webhook_url.isascii() or any(character.isspace() for character in self.webhook_url):
            yield "webhook_url", "a URL has no blanks and only ASCII; write others as %20 or the like"
        if why := _template_problem(self.webhook_template):
            yield "webhook_template", why
        if self.smtp_host and (why := host_problem(self.smtp_host)):
            yield "smtp_host", why
        if not 1 <= self.smtp_port <= 65_535:
            yield "smtp_port", "a TCP port is 1 to 65535"
        if self.smtp_host and not (self.mail_from and self.mail_to):
            yield "mail_to", "mail needs mail_from and mail_to"
        addresses = [("mail_from", self.mail_from)] * bool(self.mail_from) + [("mail_to", to) for to in self.mail_to]
        for name, text in addresses:
            if not _MAIL.fullmatch(text):
                yield name, f'{text!r} is not an address; write duty@plant.example, or "Duty" <duty@plant.example>'
        if bool(self.smtp_user) != (self.smtp_password_file is not None):
            yield "smtp_user", "smtp_user and smtp_password_file go together"
        if self.smtp_user and self.smtp_security == "none":
            yield "smtp_security", "a password is not sent without TLS: use starttls or tls"


def _template_problem(text: str) -> str:
    """What is wrong with a template, empty if its names are known and it is JSON."""
    template = Template(text)
    for name in template.get_identifiers():
        if name not in TEMPLATE_NAMES:
            near = difflib.get_close_matches(name, TEMPLATE_NAMES, 1) or TEMPLATE_NAMES
            return f"${{{name}}} is not known; did you mean {' or '.join(near)}?"
    try:
        json.loads(template.safe_substitute(dict.fromkeys(TEMPLATE_NAMES, "")))
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    return ""
