"""`bsfg bench`: benchmarks of this machine, each with a limit measured in the same run.

Each benchmark prints lines for a person, or with --json one JSON object. It writes below --folder, which must be on the
disk to be measured, starts a private broker on loopback if it needs one, and deletes everything at the end. Run it on
an otherwise idle machine. The ratio to the limit can be compared between machines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent.cli import WRITABLE_FOLDER, NumberRange, json_option, print_json

if TYPE_CHECKING:
    from bench.common.measuring import Report

_Option = Callable[[Callable[..., None]], Callable[..., None]]


@click.group()
def bench() -> None:
    """Measure this machine; each benchmark is compared with a limit."""


def _option(name: str, kind: click.ParamType[Any], default: float, text: str) -> _Option:
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def _facts(default: int) -> _Option:
    return _option("--facts", click.IntRange(min=2000), default, "Size of the run, in facts.")


def _seconds(default: float) -> _Option:
    return _option("--seconds", NumberRange(min=0.1), default, "Length of each part of the run.")


def _repeats(default: int) -> _Option:
    return _option("--repeats", click.IntRange(min=1), default, "Rounds; the medians are printed.")


_SEED = _option("--seed", click.INT, 1, "Seed of the data.")
_FOLDER = click.option(
    "--folder", "below", type=WRITABLE_FOLDER, help="Measure the disk that this folder is on.  [default: /var/tmp]"
)


def _benchmark(module: str, text: str, options: Sequence[_Option]) -> None:
    """Add the command that passes its options, by name, to `run` of a module of bench, imported when it is called."""

    def command(*, as_json: bool, **chosen: Any) -> None:
        _print(importlib.import_module(f"bench.{module}").run(**chosen), as_json=as_json)

    called: Callable[..., None] = command
    decorators: list[_Option] = [*options, _FOLDER, json_option]
    for decorated in reversed(decorators):
        called = decorated(called)
    bench.command(module.rpartition(".")[2], help=text)(called)


_benchmark(
    "store.append",
    "Durable appends in batches of 1000 samples, compared with raw file appends with fdatasync.",
    [_facts(2_000_000), _seconds(3.0), _SEED],
)
_benchmark(
    "replication.replicate",
    "A backlog from store to store through a broker, compared with a bare loop that moves the same bytes.",
    [
        _facts(8_000_000),
        _repeats(3),
        _option("--batch-facts", click.IntRange(1, 16_384), 2000, "Facts in a batch."),
        _SEED,
    ],
)
_benchmark(
    "replication.lag",
    "A fact every 10 ms, from its append to its confirmation, alone and among 100,000 facts/s.",
    [_seconds(10.0), _SEED],
)
_benchmark(
    "replication.hostile",
    "The lag of an honest zone while another zone floods the node that serves both, compared with its lag without a flood.",
    [
        _seconds(20.0),
        click.option(
            "--flood",
            "floods",
            type=click.Choice(
                ["requests", "ranges", "parked", "artifacts", "subscriptions", "silent", "sockets", "page"]
            ),
            multiple=True,
            help="Only this flood; may be given more than once.  [default: all]",
        ),
    ],
)
_benchmark(
    "replication.pair",
    "Two gateways of a zone: a message until both have it, compared with one of them, and what the second one costs.",
    [_seconds(10.0)],
)
_benchmark(
    "replication.fleet",
    "A node that pulls from many plants over one broker: memory, processor idle and loaded, lag, and times.",
    [_option("--plants", click.IntRange(2, 4000), 100, "Number of plants."), _seconds(10.0)],
)
_benchmark(
    "replication.page",
    "The page of a zone above many plants: times, memory, and the processor time of a node with 10,000 tags.",
    [_option("--plants", click.IntRange(2, 4000), 100, "Number of plants."), _seconds(65.0)],
)
_benchmark(
    "replication.fetch",
    "FetchFacts of 1000 facts at random offsets, compared with bare round trips of equal bytes.",
    [_facts(1_000_000), _seconds(5.0), _SEED],
)
_benchmark(
    "replication.drain",
    "A day's backlog is drained while live facts keep coming, compared with a bare loop that moves the same bytes.",
    [_facts(86_400_000), _seconds(5.0), _SEED],
)
_benchmark(
    "wear.wear",
    "What two nodes write to their disks for each fact, by cause, and the resulting lifetime of flash.",
    [
        _option("--tags", click.IntRange(min=10), 11_000, "Tags; each changes once a second."),
        _seconds(60.0),
        click.option(
            "--interval-ms",
            "intervals_ms",
            type=click.IntRange(0, 60_000),
            multiple=True,
            help="Commit interval; may be given more than once.  [default: 250, 1000]",
        ),
        _option("--target", click.IntRange(0, 16_384), 0, "batch_facts_target; 0: the default."),
        _option(
            "--keep-hours",
            NumberRange(0, 168),
            24.0,
            "keep_hours of the stream; with 0 as many facts are deleted as are appended.",
        ),
    ],
)
_benchmark(
    "store.retention",
    "Appends while as many facts are deleted, compared with a store that keeps everything.",
    [_facts(2_000_000), _seconds(5.0), _SEED],
)
_benchmark(
    "store.growth",
    "A growing store: the append rate at its end compared with its start; then kill -9, and the time to open it.",
    [
        _facts(5_000_000),
        _option("--gigabytes", NumberRange(min=0), 0, "Fill the store up to this size before opening it."),
        _option("--lives", click.IntRange(min=0), 0, "Instead: what so many lives of a thousand zones cost."),
        _SEED,
    ],
)
_benchmark(
    "store.ids",
    "Messages with random ids: the append rate at the end of the run, compared with that of a new store.",
    [_option("--ids", click.IntRange(min=40_000), 1_000_000, "Messages to append."), _SEED],
)
_benchmark(
    "store.sql",
    "An hour of one tag in SQL over sealed batches, compared with a flat table in plain SQLite.",
    [_facts(2_000_000), _repeats(5), _SEED],
)
_benchmark(
    "spark.spark",
    "Facts of a store file in Spark, compared with the same rows in Parquet and prebuilt in Arrow.",
    [_facts(2_000_000), _repeats(5), _SEED],
)
_benchmark(
    "spark.stream",
    "The land job: a backlog into a Delta table, compared with Spark's own Parquet writer; then from append to row.",
    [_facts(2_000_000), _seconds(20.0), _SEED],
)


@bench.command()
@click.option(
    "--source", type=click.Choice(["opcua", "modbus"]), default="opcua", show_default=True, help="Kind of source."
)
@click.option(
    "--items",
    type=click.IntRange(min=1, max=50_000),
    multiple=True,
    default=(1_000, 5_000, 20_000),
    show_default=True,
    help="Items of the subscription, or tags of the device; may be given more than once.",
)
@_seconds(5.0)
@click.option(
    "--minutes",
    type=NumberRange(min=0),
    default=0,
    help="Then run for so many minutes at a steady rate, to measure memory.",
)
@_FOLDER
@json_option
def ingest(
    source: str, items: tuple[int, ...], seconds: float, minutes: float, below: Path | None, as_json: bool
) -> None:
    """Values of a source from the socket to the committed store, compared with the library that receives them."""
    _print(importlib.import_module(f"bench.ingest.{source}").run(items, seconds, minutes, below), as_json=as_json)


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
        return
    for line in report.lines:
        click.echo(line)
    described = report.machine
    click.echo(
        f"machine    {described['cores']} cores, {described['processor']}, {described['filesystem']}, Python "
        f"{described['python']}, SQLite {described['sqlite']}, load {described['load_1min']} at the start"
    )
