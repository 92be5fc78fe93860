"""`bsfg page` serves the page, /healthz and /metrics of a node; `bsfg fleet` prints the zones below it, `bsfg top`
both, live."""

from __future__ import annotations

import asyncio
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli import config_option, json_option, print_json
from agent.cli.local_node import load_settings
from agent.cli.run import set_up_logging
from agent.cli.table import lines
from agent.escaping import printable

if TYPE_CHECKING:
    from agent.page.fleet import ZoneRow
    from agent.page.health_tail import HealthTail
    from agent.settings.node import NodeSettings

TOP_S = 2.0
_OTHER_SCREEN, _FORMER_SCREEN, _CLEAR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H\x1b[2J"


@click.command()
@config_option
@click.option("--add-user", metavar="NAME", help="Ask for a password, print the user's line for users_file, and end.")
def page(config_file: Path, add_user: str | None) -> None:
    """Serve the page, /healthz and /metrics of the node until SIGTERM or SIGINT, at the address in [page]."""
    if add_user is not None:
        from agent.page.access import user_line

        password = click.prompt("password", hide_input=sys.stdin.isatty(), confirmation_prompt=True, err=True)
        click.echo(user_line(add_user, password))
        return
    settings = load_settings(config_file)
    from agent.page.server import serve  # late: the libraries take 20 MB

    set_up_logging()
    asyncio.run(serve(settings, lambda address: click.echo(f"page: {address}")))


@click.command()
@config_option
@click.argument("words", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Print every zone, also the good ones.")
@json_option
def fleet(config_file: Path, words: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Print the state of the zones whose health is here: the worst ten that are not good, or those whose name or
    problem holds WORDS. Exit status 0 when no operator must act anywhere, 1 otherwise."""
    from agent.cli.store.store_file import open_reader
    from agent.health.brief import SHOWN_MAX
    from agent.health.problems import Level, duration
    from agent.page.fleet import fleet_sentence, matching
    from agent.page.health_tail import HealthTail

    with open_reader(config_file, None) as reader:
        tail = HealthTail(reader)
        tail.read(time.time_ns() // 1_000_000)
    rows = _rows(tail, load_settings(config_file))
    found = matching(rows, " ".join(words))
    is_brief = not (everything or words or as_json)
    if is_brief:
        found = [row for row in found if row.level is not Level.GOOD]
    shown = found[:SHOWN_MAX] if is_brief else found
    if as_json:
        for row in shown:
            print_json(row.to_json())
    else:
        click.echo(fleet_sentence(rows))
        table = list[tuple[str, ...]]()
        for row in shown:
            behind = "" if row.behind_s is None else duration(row.behind_s)
            full = "" if row.hold_hours is None else duration(row.hold_hours * 3600)
            table.append((row.level.value, row.zone, behind, full, duration(row.health_s), row.what))
            for gateway in row.gateways:
                age = "" if gateway.health_s is None else duration(gateway.health_s)
                table.append((gateway.level.value, f"  {gateway.node}", "", "", age, gateway.said))
        for line in lines(("verdict", "zone", "behind", "full in", "health", "what"), table, "table") if table else ():
            click.echo(line)
        if len(found) > len(shown):
            click.echo(f"the worst {len(shown)} of {len(found):,} that are not good (--all prints all)")
        for row in shown[:1] if shown and shown[0].alert else ():
            click.echo(f"{row.zone}: -> {row.hint}")
    sys.exit(1 if any(row.alert for row in rows) else 0)


@click.command()
@config_option
def top(config_file: Path) -> None:
    """Show the state of the node and of the zones below, live, until Ctrl-C."""
    from agent.cli.terminal import unwrapped

    settings, screen = load_settings(config_file), unwrapped(sys.stdout)
    if not screen.isatty():
        raise click.UsageError("top needs a terminal; bsfg status and bsfg fleet print once")
    tail: HealthTail | None = None
    screen.write(_OTHER_SCREEN)
    try:
        while True:
            size = shutil.get_terminal_size()
            tail, found = _look(settings, tail, size.columns)
            screen.write(_CLEAR + "\n".join(found[: size.lines - 1]) + "\n")
            screen.flush()
            time.sleep(TOP_S)
    except KeyboardInterrupt:
        pass  # the way to end it
    finally:
        screen.write(_FORMER_SCREEN)
        screen.flush()


def _rows(tail: HealthTail, settings: NodeSettings) -> list[ZoneRow]:
    """The rows of the fleet. A zone that no peer brings any more is not part of it."""
    from agent.page.fleet import fleet_rows

    accepted = settings.zones_accepted
    zones = [
        health
        for health in tail.zones.values()
        if accepted is None or health.zone in accepted or health.zone == settings.node.name
    ]
    return fleet_rows(zones, time.time_ns() // 1_000_000)


def _look(settings: NodeSettings, tail: HealthTail | None, columns: int) -> tuple[HealthTail | None, list[str]]:
    """The lines of `top` now: those of the node are wrapped, of the zones below each has one. `tail`: what was read
    before; None: nothing, or the store could not be read."""
    from agent.cli.health.status import text
    from agent.client import Client, NodeSilent
    from agent.errors import StoreError
    from agent.fact_store import StoreReader
    from agent.page.fleet import fleet_sentence
    from agent.page.health_tail import HealthTail

    node = settings.node
    try:
        tail = tail or HealthTail(StoreReader(node.store_file))
        tail.read(time.time_ns() // 1_000_000)
        rows = [row for row in _rows(tail, settings) if row.zone != node.zone]
        below = [f"below: {fleet_sentence(rows)}"] if rows else []
        below += [f"  {row.level.value:<7} {row.zone}: {row.what}" for row in rows if row.what]
    except StoreError as error:
        tail, below = None, [str(error)]
    try:
        own = text(Client(node.state_dir).status())
    except NodeSilent as error:
        own = f"{error}; {error.hint}"
    wrapped = textwrap.TextWrapper(columns, replace_whitespace=False, drop_whitespace=False).wrap
    lines_own = [part for line in own.splitlines() for part in wrapped(printable(line)) or [""]]
    return tail, [time.strftime("%H:%M:%S"), *lines_own, "", *(printable(line)[:columns] for line in below)]
