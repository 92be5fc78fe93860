"""`bsfg run`: the node, in the foreground, until SIGTERM or SIGINT. `bsfg reload`: apply a changed node.toml to the
running node.

Logs go to standard error, one JSON object a line when that is not a terminal: a constant event name and its fields.
Normal operation logs little, and lines that peers cause are limited.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from agent import local_socket
from agent.cli import config_option, json_option, print_json
from agent.config import ConfigError, ConfigFile, load_sections
from agent.escaping import printable, printable_lines

RELOAD_WAITS_MS = 60_000
"""Removed sources deliver the values that they hold, in parallel, for ten seconds at most; then removed pulls end."""
TAG_PROBLEMS_TOLD_MAX = 20
FILES_MAX = 65_536  # as in the unit

_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


LINES_MAX = 30
"""Log lines a minute of one event about one peer or broker. Peers cause most of these lines, and the journal drops
lines of any kind from a service that writes too many."""
MINUTE_S = 60.0


class LineLimit(logging.Filter):
    """Drops the lines of one event about one peer or broker beyond LINES_MAX a minute. The field `left_out` of the next
    line counts them."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}  # when the minute began, lines since

    def filter(self, record: logging.LogRecord) -> bool:
        about = getattr(record, "peer", None) or getattr(record, "broker", None)
        if about is None:
            return True
        key = record.getMessage(), str(about)
        begun_s, count = self._counts.get(key, (record.created, 0))
        if 0 <= record.created - begun_s < MINUTE_S:
            self._counts[key] = begun_s, count + 1
            return count < LINES_MAX
        self._counts[key] = record.created, 1
        if count > LINES_MAX:
            record.left_out = count - LINES_MAX
        return True


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
    handler.addFilter(LineLimit())
    handler.setFormatter(EventFormatter(as_json=not sys.stderr.isatty()))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("agent").setLevel(logging.INFO)


def raise_file_limit() -> None:
    """Let this process open as many files as it may, up to FILES_MAX: each device takes one, and a shell allows
    1,024."""
    with suppress(OSError, ValueError):  # the unit forbids the call, and has set its own limit
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, FILES_MAX)), hard))


@click.command()
@config_option
def run(config_file: Path) -> None:
    """Run the node until SIGTERM or SIGINT, with everything in node.toml and the tag files that is right."""
    file = ConfigFile(config_file)
    sections = file.load_sections()
    if sections.node is None:
        raise ConfigError(config_file, sections.problems)
    set_up_logging()
    raise_file_limit()
    from agent.node import run_node  # late: the drivers take 40 MB, and a config error must not wait for them

    asyncio.run(run_node(file))


@click.command()
@config_option
@json_option
def reload(config_file: Path, as_json: bool) -> None:
    """Make the running node read node.toml again, and print the changes that it applied. Exit status 1 when the file or
    a tag file is refused."""
    sections = load_sections(config_file)  # the node reports the other problems of the file
    node = sections.node
    if node is None:
        raise ConfigError(config_file, sections.problems)
    try:
        found = asyncio.run(local_socket.ask(node.state_dir, local_socket.Reload(), RELOAD_WAITS_MS))
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise local_socket.LocalError(
            f"no node runs in {node.state_dir}", "start it: bsfg run, or systemctl start bsfg@ZONE"
        ) from error
    answer = local_socket.accepted(found, local_socket.Reloaded)
    if as_json:
        problems = {"tag_file_problems": answer.tag_file_problems}
        print_json({"applied": answer.applied, "needs_restart": answer.needs_restart} | problems)
        sys.exit(1 if answer.tag_file_problems else 0)
    nothing = "nothing has changed for the node; [page] and [[notify]] need a restart of the page"
    click.echo(f"reloaded: {', '.join(answer.applied) or nothing}")
    if answer.needs_restart:
        click.echo(f"note: not in force until the node is restarted: {', '.join(answer.needs_restart)}")
    if answer.tag_file_problems:
        told = [
            *answer.tag_file_problems[:TAG_PROBLEMS_TOLD_MAX],
            "the tags in force stay; bsfg check lists the problems of each file",
        ]
        sys.exit("\n  ".join(["bsfg: a tag file is refused", *told]))
