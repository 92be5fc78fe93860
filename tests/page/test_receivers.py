"""Alarms reach receivers that are not ours: a mail server (Exim) with TLS and a login, and Debian's `webhook`. Both are
down at first."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes, policy
from pathlib import Path

import pytest

from agent.demo.processes import Child, accepts, free_port
from agent.health.problems import Level
from agent.page import sender as tested
from agent.page.fleet import ZoneRow
from agent.page.sender import Sender
from agent.page.watch import Watch
from agent.settings.node import IdentitySettings
from agent.settings.notify import NotifySettings
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

HOST = "127.0.0.1"
EXIM = """
primary_hostname = mail.test
spool_directory = {folder}/spool
log_file_path = {folder}/spool/%slog
pid_file_path = {folder}/spool/pid
local_interfaces = 127.0.0.1
daemon_smtp_ports = {port}
tls_advertise_hosts = *
tls_certificate = {folder}/cert.pem
tls_privatekey = {folder}/key.pem
auth_advertise_hosts = ${{if eq{{$tls_in_cipher}}{{}}{{}}{{*}}}}
acl_smtp_rcpt = rcpt
keep_environment =
begin acl
rcpt:
  accept authenticated = *
  deny
begin routers
keep:
  driver = accept
  transport = file
begin transports
file:
  driver = appendfile
  directory = {folder}/spool/mail
  maildir_format
  user = Debian-exim
begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  server_prompts = :
  server_condition = ${{if and{{{{eq{{$auth2}}{{bsfg}}}}{{eq{{$auth3}}{{secret}}}}}}}}
  server_set_id = $auth2
"""
HOOK = '#!/bin/sh\nprintf "%s\\n" "$1" >>{folder}/hooked\n'


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the mail server's user can enter, with a certificate and a password."""
    if os.geteuid() or not shutil.which("exim4") or not shutil.which("webhook"):
        pytest.skip("needs root, exim4-daemon-light and webhook")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=mail -addext subjectAltName=IP:127.0.0.1"
        files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
        subprocess.run(["openssl", *words.split(), *files], check=True, capture_output=True)
        shutil.chown(folder / "key.pem", "Debian-exim")
        (folder / "password").write_text("secret\n")
        yield folder


def mail_server(folder: Path, port: int) -> Child:
    """Exim on a port."""
    (folder / "exim.conf").write_text(EXIM.format(folder=folder, port=port))
    return Child("exim4", ["exim4", "-C", folder / "exim.conf", "-bdf"], folder / "exim.log")


def hook_server(folder: Path, port: int) -> Child:
    """Debian's webhook, which runs a command with the text that was posted."""
    (folder / "command").write_text(HOOK.format(folder=folder))
    (folder / "command").chmod(0o755)
    text = {"source": "payload", "name": "text"}
    hook = {"id": "bsfg", "execute-command": str(folder / "command"), "pass-arguments-to-command": [text]}
    (folder / "hooks.json").write_text(json.dumps([hook]))
    words = ["webhook", "-hooks", folder / "hooks.json", "-ip", HOST, "-port", str(port)]
    return Child("webhook", words, folder / "webhook.log")


def mails(folder: Path) -> list[str]:
    """The subjects of what was delivered, in order."""
    found = [message_from_bytes(file.read_bytes(), policy=policy.default) for file in folder.glob("spool/mail/new/*")]
    assert all(mail["Date"] and mail["Message-ID"] and mail["To"] == "oncall@example" for mail in found)
    return [mail["Subject"] for mail in sorted(found, key=lambda mail: mail["Subject"])]


async def test_raised_repeated_and_cleared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two receivers that are down when a zone breaks are told once they are there; then again, and that it is over. One
    whose address is of something else ends nothing."""
    monkeypatch.setattr(tested, "RETRY_S", 0.05)
    monkeypatch.setattr(tested, "LOOK_S", 0.01)
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
    watch, hooked = Watch(IdentitySettings("enterprise", folder)), folder / "hooked"
    row = ZoneRow("plant-ü", Level.BROKEN, True, 0, 'lost: "press"', "look", None, None, 1.0)
    rows = [row]
    monkeypatch.setattr(watch, "rows", lambda: list(rows))
    watch.looked_unix_ms = 1
    mail_port, hook_port = free_port(), free_port()
    mail = NotifySettings(
        "mail", after_s=0, repeat_hours=2, smtp_host=HOST, smtp_port=mail_port, smtp_user="bsfg",
        smtp_password_file=folder / "password", mail_from="bsfg@example", mail_to=("oncall@example",),
    )  # fmt: skip
    hook = NotifySettings("hook", after_s=0, repeat_hours=2, webhook_url=f"http://{HOST}:{hook_port}/hooks/bsfg")
    wrong = NotifySettings("wrong", after_s=0, webhook_url=f"http://{HOST}:{mail_port}/")
    senders = [Sender(receiver, "enterprise") for receiver in (mail, hook, wrong)]
    tasks = [asyncio.create_task(sender.run(watch)) for sender in senders]
    await wait_until_async(lambda: all(sender._queue for sender in senders), "each to have something to tell")
    with mail_server(folder, mail_port) as exim, hook_server(folder, hook_port) as webhook:
        for server, port in ((exim, mail_port), (webhook, hook_port)):
            server.start()
            server.wait_ready(lambda port=port: accepts(port))  # type: ignore[misc]
        for count in range(1, 4):
            await wait_until_async(
                lambda n=count: (
                    len(mails(folder)) == n and hooked.exists() and len(hooked.read_text().splitlines()) == n
                ),
                f"notice {count} at both",
            )
            watch.looked_unix_ms += 7_200_000
            if count == 2:
                rows[:] = [replace(row, alert=False)]
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
    told = ['plant-ü: broken: lost: "press"'] * 2 + ["plant-ü: needs nobody any more"]
    assert mails(folder) == [f"[bsfg] {subject}" for subject in told]
    assert [line.split(" (since")[0] for line in hooked.read_text().splitlines()] == told
