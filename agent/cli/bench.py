"""`bsfg bench`: benchmarks of this machine, each with a limit measured in the same run.

Each benchmark prints lines for a person, or with --json one JSON object. It writes below --folder, which must be on the
disk to be measured, starts a private broker on loopback if it needs one, and deletes everything at the end. Run it on
an otherwise idle machine. The ratio to the limit can be compared between machines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agent.cli import json_option

if TYPE_CHECKING:
    from bench.common.measuring import Report

_Command = TypeVar("_Command", bound=Callable[..., Any])

_folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Measure the disk that this folder is on.  [default: /var/tmp]",
)
_seed_option = click.option("--seed", type=int, default=1, show_default=True, help="Seed of the data.")


def _facts_option(default: int) -> Callable[[_Command], _Command]:
    return click.option(
        "--facts", type=click.IntRange(min=2000), default=default, show_default=True, help="Size of the run, in facts."
    )


def _seconds_option(default: float) -> Callable[[_Command], _Command]:
    return click.option(
        "--seconds", type=click.FloatRange(min=0.1), default=default, show_default=True, help="Length of each part."
    )


@click.group()
def bench() -> None:
    """Measure this machine; each benchmark is compared with a limit."""


@bench.command()
@_facts_option(2_000_000)
@_seconds_option(3.0)
@_seed_option
@_folder_option
@json_option
def append(facts: int, seconds: float, seed: int, folder: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Durable appends in batches of 1000 samples, beside raw file appends with fdatasync."""
    from bench.store import append as benchmark

    _print(benchmark.run(facts, seconds, seed, folder), as_json=as_json)


@bench.command()
@_facts_option(8_000_000)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds; the medians are printed."
)
@click.option(
    "--batch-facts", type=click.IntRange(1, 16_384), default=2000, show_default=True, help="Facts of a batch."
)
@_seed_option
@_folder_option
@json_option
def replicate(
    facts: int,
    repeats: int,
    batch_facts: int,
    seed: int,
    folder: Path | None,
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """A backlog from store to store through a broker, beside a bare loop that moves the same bytes."""
    from bench.replication import replicate as benchmark

    _print(benchmark.run(facts, repeats, seed, folder, batch_facts), as_json=as_json)


@bench.command()
@_seconds_option(10.0)
@_seed_option
@_folder_option
@json_option
def lag(seconds: float, seed: int, folder: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """A fact every 10 ms, from its append to its confirmation, alone and among 100,000 facts/s."""
    from bench.replication import lag as benchmark

    _print(benchmark.run(seconds, seed, folder), as_json=as_json)


@bench.command()
@_facts_option(1_000_000)
@_seconds_option(5.0)
@_seed_option
@_folder_option
@json_option
def fetch(facts: int, seconds: float, seed: int, folder: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """FetchFacts of 1000 facts at random offsets, beside bare round trips of equal bytes."""
    from bench.replication import fetch as benchmark

    _print(benchmark.run(facts, seconds, seed, folder), as_json=as_json)


@bench.command()
@_facts_option(86_400_000)
@_seconds_option(5.0)
@_seed_option
@_folder_option
@json_option
def drain(facts: int, seconds: float, seed: int, folder: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """A day's backlog is drained while live facts keep coming, beside a bare loop that moves the same bytes."""
    from bench.replication import drain as benchmark

    _print(benchmark.run(facts, seconds, seed, folder), as_json=as_json)


@bench.command()
@_facts_option(2_000_000)
@_seconds_option(5.0)
@_seed_option
@_folder_option
@json_option
def retention(facts: int, seconds: float, seed: int, folder: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Appends while as many facts are forgotten, beside a store that keeps everything."""
    from bench.store import retention as benchmark

    _print(benchmark.run(facts, seconds, seed, folder), as_json=as_json)


@bench.command()
@_facts_option(5_000_000)
@click.option(
    "--gigabytes",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    help="Fill up to this size before opening.",
)
@_seed_option
@_folder_option
@json_option
def growth(facts: int, gigabytes: float, seed: int, folder: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """A store that grows: the rate at its end beside that at its start; then kill -9, and opening it."""
    from bench.store import growth as benchmark

    _print(benchmark.run(facts, gigabytes, seed, folder), as_json=as_json)


@bench.command()
@click.option(
    "--ids", "count", type=click.IntRange(min=40_000), default=1_000_000, show_default=True, help="Messages to append."
)
@_seed_option
@_folder_option
@json_option
def ids(count: int, seed: int, folder: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Messages with random ids: the rate at the end of millions, beside that of a store that is new."""
    from bench.store import ids as benchmark

    _print(benchmark.run(count, seed, folder), as_json=as_json)


@bench.command()
@click.option("--producers", "count", type=click.IntRange(min=1), default=1000, show_default=True, help="Tasks.")
@_seconds_option(10.0)
@_folder_option
@json_option
def producers(count: int, seconds: float, folder: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """A thousand producers that each await their own message, beside as many bare futures and one fsync for all."""
    from bench.store import producers as benchmark

    _print(benchmark.run(count, seconds, folder), as_json=as_json)


@bench.command()
@_facts_option(2_000_000)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds; the medians are printed."
)
@_seed_option
@_folder_option
@json_option
def sql(facts: int, repeats: int, seed: int, folder: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
    """An hour of one tag in SQL over sealed batches, beside a flat table in plain SQLite."""
    from bench.store import sql as benchmark

    _print(benchmark.run(facts, repeats, seed, folder), as_json=as_json)


@bench.command()
@click.option("--source", type=click.Choice(["opcua"]), default="opcua", show_default=True, help="Kind of source.")
@click.option(
    "--items",
    type=click.IntRange(min=1, max=50_000),
    multiple=True,
    default=(1_000, 5_000, 20_000),
    show_default=True,
    help="Items of the subscription; may be given more than once.",
)
@_seconds_option(5.0)
@click.option("--minutes", type=click.FloatRange(min=0), default=0, help="Then so long at a steady rate, for memory.")
@_folder_option
@json_option
def ingest(
    source: str,
    items: tuple[int, ...],
    seconds: float,
    minutes: float,
    folder: Path | None,
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """Values of a source from the socket to the committed store, beside the library that receives them."""
    from bench.ingest import opcua as benchmark

    assert source == "opcua", "click allows no other"
    _print(benchmark.run(items, seconds, minutes, folder), as_json=as_json)


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.to_dict()))
        return
    for line in report.lines:
        click.echo(line)
    described = report.machine
    click.echo(
        f"machine    {described['cores']} cores, {described['processor']}, {described['filesystem']}, Python "
        f"{described['python']}, SQLite {described['sqlite']}, load {described['load_1min']} at the start"
    )
