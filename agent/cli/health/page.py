"""`bsfg page` serves the page, /healthz and /metrics of a node; `bsfg fleet` prints the zones below it, `bsfg top`
both, live."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from pathlib import Path

import click

from agent.cli import config_option, json_option
from agent.cli.node_settings import load_settings
from agent.cli.run import set_up_logging
from agent.cli.table import lines
from agent.escaping import printable

TOP_S = 2.0


@click.command()
@config_option
@click.option("--add-user", metavar="NAME", help="Ask for a password, print the user's line for users_file, and end.")
def page(config_file: Path, add_user: str | None) -> None:
    """Serve the page, /healthz and /metrics of the node until SIGTERM or SIGINT, at the address in [page]."""
    if add_user is not None:
        from agent.page.access import user_line

        click.echo(user_line(add_user, click.prompt("password", hide_input=True, confirmation_prompt=True)))
        return
    settings = load_settings(config_file)
    from agent.page.server import serve  # late: the libraries take 20 MB

    set_up_logging()
    asyncio.run(serve(settings, lambda address: click.echo(f"page: {address}")))


@click.command()
@config_option
@click.argument("words", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Print the good zones as well.")
@json_option
def fleet(config_file: Path, words: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Print the state of each zone whose health is here, worst first: of those whose name or problem holds WORDS. Exit
    status 0 when no operator must act anywhere, 1 otherwise."""
    from agent.cli.store.store_file import open_reader
    from agent.health.problems import Level
    from agent.health.verdict import duration
    from agent.page.fleet import fleet_rows, fleet_sentence, matching
    from agent.page.health_tail import HealthTail

    with open_reader(config_file, None) as reader:
        tail = HealthTail(reader)
        tail.read()
    rows = fleet_rows(tail.zones.values(), time.time_ns() // 1_000_000)
    found = matching(rows, " ".join(words))
    shown = [row for row in found if everything or words or as_json or row.level is not Level.GOOD]
    if as_json:
        for row in shown:
            click.echo(json.dumps(row.to_json(), ensure_ascii=False))
    else:
        click.echo(fleet_sentence(rows))
        table = [
            (
                *(row.level.value, row.zone, "" if row.behind_s is None else duration(row.behind_s)),
                "" if row.hold_hours is None else duration(row.hold_hours * 3600),
                *(duration(row.health_s), row.what),
            )
            for row in shown
        ]
        for line in lines(("verdict", "zone", "behind", "full in", "health", "what"), table, "table") if table else ():
            click.echo(line)
        for row in shown[:1] if shown and shown[0].alert else ():
            click.echo(f"{row.zone}: -> {row.hint}")
    sys.exit(1 if any(row.alert for row in rows) else 0)


@click.command()
@config_option
def top(config_file: Path) -> None:
    """Show the state of the node and of the zones below, live, until Ctrl-C."""
    from agent.cli.health.status import text
    from agent.cli.terminal import unwrapped
    from agent.client import Client, NodeSilent
    from agent.fact_store import StoreError, StoreReader
    from agent.page.fleet import fleet_rows, fleet_sentence
    from agent.page.health_tail import HealthTail

    node = load_settings(config_file).node
    tail: HealthTail | None = None
    while True:
        try:
            tail = tail or HealthTail(StoreReader(node.store_file))
            tail.read()
            rows = fleet_rows(tail.zones.values(), time.time_ns() // 1_000_000)
            below = [fleet_sentence(rows)] if len(rows) > 1 else []
            below += [
                f"  {row.level.value:<7} {row.zone}: {row.what}" for row in rows if row.what and row.zone != node.zone
            ]
        except StoreError as error:
            tail, below = None, [str(error)]
        try:
            shown = text(Client(node.state_dir).status())
        except NodeSilent as error:
            shown = f"{error}; {error.hint}"
        size = shutil.get_terminal_size()
        lines_shown = [time.strftime("%H:%M:%S"), *shown.splitlines(), "", *below][: size.lines - 1]
        screen = unwrapped(sys.stdout)
        screen.write("\x1b[H\x1b[2J" + "\n".join(printable(line)[: size.columns] for line in lines_shown) + "\n")
        screen.flush()
        time.sleep(TOP_S)
