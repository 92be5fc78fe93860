"""`bsfg demo`: run three zones, a broker and a simulated plant on this machine, cut a link and compare counts
(agent/demo)."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import click

from agent.cli import table
from agent.errors import BsfgError


@click.command()
@click.option("--keep", is_flag=True, help="Keep everything running at the end until Ctrl-C.")
def demo(keep: bool) -> None:
    """Show facts travelling from a plant to the enterprise, a cut link, the catch-up, and the counts in Spark."""
    import pyarrow as pa  # noqa: F401 a plain install learns here, not at the end, that it has no Spark

    from agent.demo.scenario import DemoOutcome, Timing, View, new_folder, run_demo

    def report(outcome: DemoOutcome) -> None:
        _print_rollup(outcome.spark)
        counts = [f"{zone} {count:,}" for zone, count in outcome.facts.items()]
        click.echo(
            f"{'all equal' if outcome.equal else 'NOT EQUAL'}: facts appended and received {', '.join(counts)}, "
            f"rolled up by Spark {outcome.rolled_up:,}; messages in every zone {max(outcome.messages.values())}"
        )

    folder = new_folder()
    try:
        outcome = run_demo(folder, View(click.echo), Timing(), keep=keep, report=report)
    except BsfgError as error:
        sys.exit(f"bsfg demo: {error}\nlogs are kept in {folder}")
    shutil.rmtree(folder)
    sys.exit(0 if outcome.equal else 1)


def _print_rollup(spark: dict[str, Any]) -> None:
    """The first rows of the rollup, as Spark read them back from Parquet."""
    click.echo(f"Spark: {spark['rows']:,} rows (tag and minute) from {spark['facts_read']:,} facts; the first:")
    rows = [[f"{cell:,.2f}" if isinstance(cell, float) else cell for cell in row.values()] for row in spark["sample"]]
    for line in table.lines(list(spark["sample"][0]), rows, "table") if rows else ():
        click.echo(line)
