"""What only a terminal needs: a line of progress, steps of a test, and foreign text without control sequences."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

import click

from agent.ingest import ProbeStep
from agent.message import Value

PROGRESS_S = 0.5


def printable(text: str) -> str:
    """Foreign text without control sequences for a terminal."""
    return "".join(one if one.isprintable() else "?" for one in text)


def value_text(value: Value) -> str:
    """A tag's value on one line; floats with the digits that they have."""
    if isinstance(value, float):
        return f"{value:.7g}" if _is_single(value) else f"{value:.12g}"
    return "" if value is None else f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def _is_single(value: float) -> bool:
    """Whether a number is one of float32, which has seven digits."""
    try:
        (single,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return False
    return bool(single == value)


def print_step(step: ProbeStep, *, as_json: bool) -> None:
    """A step of a test of a source."""
    if as_json:
        click.echo(json.dumps({**asdict(step), "outcome": step.outcome.value}, ensure_ascii=False))
        return
    for line in _step_lines(step):
        click.echo(printable(line))


def _step_lines(step: ProbeStep) -> Iterator[str]:
    yield f"  {step.outcome.value:<7} {step.name:<16} {step.what}"
    for detail in step.details:
        yield f"{'':26} {detail}"
    if step.todo:
        yield f"{'':26} -> {step.todo}"


class Progress:
    """How far long work is, on a terminal; silent in a pipe."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._next_s = time.monotonic() + PROGRESS_S
        self._has_written = False

    def __call__(self, what: str, count: int) -> None:
        if self._is_shown and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_S
            self._has_written = True
            click.echo(f"\r\x1b[K{count:,} {what}", nl=False, err=True)

    def end(self) -> None:
        """Remove the line."""
        if self._has_written:
            click.echo("\r\x1b[K", nl=False, err=True)
