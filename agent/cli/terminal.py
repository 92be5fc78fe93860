"""Output on a terminal: streams that print no control characters, a progress line, and the steps of a test.

All commands print through `printable_streams`, so whatever a peer or a device wrote reaches a terminal, a log or a pipe
escaped. Two kinds of output go past it: the control sequences of `redraw`, and CSV into a file or pipe, which keeps
every character of its texts.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, BinaryIO, TextIO

import click

from agent.cli import print_json
from agent.errors import BsfgError
from agent.escaping import printable, printable_lines
from agent.message import Value

if TYPE_CHECKING:
    from agent.ingest import ProbeStep

PROGRESS_S = 0.5


class PrintableStream(io.TextIOBase):
    """Writes to `inner` without control characters, except line ends."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.inner.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.inner.errors

    @property
    def buffer(self) -> BinaryIO:
        """The inner byte stream; bytes are written unchanged."""
        return self.inner.buffer

    def write(self, text: str) -> int:
        self.inner.write(printable_lines(text))
        return len(text)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        self.inner.flush()

    def close(self) -> None:
        """Do nothing: the inner stream belongs to the caller. It may be closed already when this object is collected,
        which Python 3.13 reports."""

    def isatty(self) -> bool:
        return self.inner.isatty()

    def fileno(self) -> int:
        return self.inner.fileno()


class OutputLost(BsfgError):
    """Standard output takes no more, as on a full disk."""

    hint = "look at the free space there"


class _StandardOutput(PrintableStream):
    """Standard output, whose errors are OutputLost."""

    def write(self, text: str) -> int:
        with _output_errors():
            return super().write(text)

    def flush(self) -> None:
        with _output_errors():
            super().flush()


@contextlib.contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if sys.__stdout__ is not None:  # what is left in its buffer would fail again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
        if isinstance(error, BrokenPipeError):  # its reader has enough
            raise
        raise OutputLost(f"standard output cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def printable_streams() -> Iterator[None]:
    """Escape control characters on standard output and standard error while the block runs. Raises OutputLost."""
    with (
        contextlib.redirect_stdout(_StandardOutput(unwrapped(sys.stdout))),
        contextlib.redirect_stderr(PrintableStream(unwrapped(sys.stderr))),
    ):
        yield


def unwrapped(stream: TextIO) -> TextIO:
    """The inner stream, for output whose control sequences this program writes itself."""
    return stream.inner if isinstance(stream, PrintableStream) else stream


def echo_csv(line: str) -> None:
    """Print a line of CSV. Control characters are escaped only on a terminal. Raises OutputLost."""
    with _output_errors():
        click.echo(line, file=sys.stdout if sys.stdout.isatty() else unwrapped(sys.stdout))


def echo_file(data: bytes) -> None:
    """Print the content of a file as it is. Raises OutputLost."""
    with _output_errors():
        click.echo(data, nl=False)


def redraw(text: str) -> None:
    """Replace the line of a terminal on standard error."""
    stream = unwrapped(sys.stderr)
    stream.write(f"\r\x1b[K{printable(text)}")
    stream.flush()


def value_text(value: Value) -> str:
    """A tag's value on one line: a float32 with seven digits, a float64 with twelve."""
    if isinstance(value, float):
        return f"{value:.7g}" if _is_single(value) else f"{value:.12g}"
    return "" if value is None else f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def _is_single(value: float) -> bool:
    """Whether a number is exactly a float32."""
    try:
        (single,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return False
    return bool(single == value)


def print_check(what: str, problems: Sequence[str], summary: str, notes: Sequence[str]) -> None:
    """Print the result of checking a file: its problems, or that it is valid."""
    if problems:
        click.echo(f"{len(problems)} problem{'s' * (len(problems) > 1)}:")
    for problem in problems:
        click.echo(f"  {problem}")
    if not problems:
        click.echo(f"{what}: good; {summary}")
    for note in notes:
        click.echo(f"note: {note}")


def print_step(step: ProbeStep, *, as_json: bool) -> None:
    """Print one step of a source test."""
    if as_json:
        print_json({**asdict(step), "outcome": step.outcome.value})
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
    """Shows the progress of long work on one line of a terminal, and prints nothing into a pipe."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._next_s = time.monotonic() + PROGRESS_S
        self._has_written = False

    def __call__(self, what: str, count: int) -> None:
        self.show(f"{count:,} {what}")

    def show(self, text: str) -> None:
        """Show the text, at most once every PROGRESS_S seconds."""
        if self._is_shown and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_S
            self._has_written = True
            redraw(text)

    def remove_line(self) -> None:
        """Remove the line."""
        if self._has_written:
            redraw("")
