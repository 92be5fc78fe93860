"""`bsfg demo`: run three zones, a broker and a simulated plant on this machine, cut a link and compare counts
(agent/demo)."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import click

from agent.cli.terminal import unwrapped
from agent.errors import BsfgError

PIPE_COLUMNS = 120


@click.command()
@click.option("--keep", is_flag=True, help="Keep everything running at the end until Ctrl-C.")
def demo(keep: bool) -> None:
    """Show facts travelling from a plant to the enterprise, a cut link, the catch-up, and the counts in Spark."""
    from rich.console import Console
    from rich.table import Table

    from agent.demo.layout import ZONES
    from agent.demo.scenario import Outcome, Timing, new_folder, run_demo
    from agent.demo.view import View

    def report(outcome: Outcome) -> None:
        view.end_table()
        view.console.print(_spark_table(Table, outcome.spark))
        counts = [f"{zone} {count:,}" for zone, count in outcome.facts.items()]
        view.console.print(
            f"{'all equal' if outcome.equal else 'NOT EQUAL'}: facts appended and received {', '.join(counts)}, "
            f"rolled up by Spark {outcome.rolled_up:,}; messages in every zone {max(outcome.messages.values())}",
            style="bold green" if outcome.equal else "bold red",
            highlight=False,
            soft_wrap=True,
        )

    folder = new_folder()
    try:
        with View(
            Console(file=unwrapped(sys.stdout), width=None if sys.stdout.isatty() else PIPE_COLUMNS), ZONES
        ) as view:
            outcome = run_demo(folder, view, Timing(), keep=keep, report=report)
    except BsfgError as error:
        sys.exit(f"bsfg demo: {error}\nlogs are kept in {folder}")
    shutil.rmtree(folder)
    sys.exit(0 if outcome.equal else 1)


def _spark_table(table_type: Any, spark: dict[str, Any]) -> Any:
    """The first rows of the rollup, as Spark read them back from Parquet."""
    table = table_type(
        title=f"Spark: {spark['rows']:,} rows (tag and minute) from {spark['facts_read']:,} facts; the first:"
    )
    sample = spark["sample"]
    for name in sample[0] if sample else ():
        table.add_column(name)
    for row in sample:
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    return table


def _cell(name: str, value: object) -> str:
    """A value of the rollup, shortened for a terminal: time of day, tag without its prefix, two decimals."""
    if value is None:
        return "-"
    if name == "minute":
        return str(value)[11:16]
    return f"{value:,.2f}" if isinstance(value, float) else str(value).removeprefix("tag:")
