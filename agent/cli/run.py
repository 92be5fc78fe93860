"""`bsfg run`: the node, in the foreground, until SIGTERM or SIGINT.

Logs go to standard error, one JSON object a line when that is not a terminal: a constant event name and its fields.
Normal operation logs little.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from agent.cli import config_option
from agent.config import digest_of, load
from agent.foreign_text import printable, printable_lines

_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class EventFormatter(logging.Formatter):
    """A record as an event and its fields: JSON for machines, one readable line for people."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        event = fields.pop("action", record.getMessage())
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
            head = {"time": time, "level": record.levelname.lower(), "event": event}
            return json.dumps(head | fields, default=str)
        trace = fields.pop("traceback", "")
        text = printable(" ".join(f"{name}={value}" for name, value in fields.items()))
        text += f"\n{printable_lines(trace)}" if trace else ""
        return f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():<7} {event} {text}".rstrip()


def set_up_logging() -> None:
    """Log events of the agent from INFO on and of libraries from WARNING on, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter(as_json=not sys.stderr.isatty()))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("agent").setLevel(logging.INFO)


@click.command()
@config_option
def run(config_file: Path) -> None:
    """Run the node until SIGTERM or SIGINT."""
    read_digest = digest_of(config_file)  # before it is read, so that no later change is missed
    settings = load(config_file)
    set_up_logging()
    from agent.node import run_node  # the protocol drivers weigh 40 MB; a config error must not wait for them

    asyncio.run(run_node(settings, lambda: digest_of(config_file) != read_digest))
