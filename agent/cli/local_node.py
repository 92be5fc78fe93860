"""Sends requests to the node of this machine over its socket. If no node runs, the command opens the store and answers
the request itself; only then is the store's code imported.

The settings are those that the node runs with: a mistake in one section of node.toml must not take the other commands
from the person who corrects it. What is not in force is named on standard error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from agent import local_socket
from agent.cli import NumberRange
from agent.cli.run import EventFormatter
from agent.client import Client
from agent.config import load_sections, load_usable
from agent.pages import Start
from agent.settings.node import NodeSettings

_RequestT = TypeVar("_RequestT", bound=local_socket.AnyRequest)
_AnswerT = TypeVar("_AnswerT", bound=msgspec.Struct)
AnswerWithoutNode = Callable[[NodeSettings, _RequestT], Coroutine[Any, Any, local_socket.LocalReply]]

ANSWER_S = 10.0  # twice the default acks_timeout of a stream
LOCKED_S = 10.0
LOCKED_STEP_S = 0.05
_LOADED = f"{__name__}.loaded"


def start_of(_: click.Context, parameter: click.Parameter, value: str) -> Start:
    """Parse `--start`: oldest, end, or a time given as a date or an age."""
    match value:
        case "oldest":
            return "oldest"
        case "end":
            return "end"
    from agent.query.scan import TimeUnreadable, parse_moment_ns  # late: it loads the store

    try:
        return parse_moment_ns(value, time.time_ns()) // 1_000_000
    except TimeUnreadable as error:
        raise click.BadParameter(f"{error}, and neither oldest nor end; {error.hint}", param=parameter) from error


start_option = click.option(
    "--start",
    default="oldest",
    show_default=True,
    callback=start_of,
    help="Where a new consumer begins: oldest, end, or a time (2026-11-21T06:00Z, 2h).",
)


to_option = click.option(
    "--to", "peer", metavar="NODE", help="Send the request to the node of this peer.  [default: this node]"
)
answer_s_option = click.option(
    "--answer-s",
    type=NumberRange(0.1, 3600),
    default=ANSWER_S,
    show_default=True,
    help="How long to wait for a peer's answer before asking again.",
)


async def answer_from_store(settings: NodeSettings, request: local_socket.AnyRequest) -> local_socket.LocalReply:
    """Answer a request while no node runs. Raises NoNode for one that only a node can answer."""
    if isinstance(request, local_socket.NODE_REQUESTS):  # the store is not opened: a starting node needs its lock
        raise local_socket.NoNode
    from agent.local_socket.serving import RequestHandler, open_store

    with open_store(settings) as store:
        return await RequestHandler(store).answer(request)


def ask(
    settings: NodeSettings,
    request: _RequestT,
    kind: type[_AnswerT],
    waits_ms: int = 0,
    without_node: AnswerWithoutNode[_RequestT] = answer_from_store,
) -> _AnswerT:
    """Send a request to the running node; if no node runs, answer it with `without_node`. Raises LocalError when the
    request is refused.

    `kind` is the type of the answer. `waits_ms` is how long the store may wait for acknowledgements before it answers.
    """
    return local_socket.accepted(asyncio.run(_answer(settings, request, waits_ms, without_node)), kind)


def node_client(settings: NodeSettings) -> Client:
    """The node as applications see it, or its store where none runs."""

    async def ask_node(request: local_socket.AnyRequest, waits_ms: int) -> local_socket.LocalReply:
        return await _answer(settings, request, waits_ms, answer_from_store)

    return Client(settings.node.state_dir, ask_node=ask_node)


def unknown_stream(known: Sequence[str], stream: str, consumer: str = "") -> str:
    """That there is no such stream, and how to remove a consumer that would wait for its first fact."""
    text = f"bsfg: no stream {stream!r} yet; there are: {', '.join(known) or 'none'}"
    undo = f"bsfg consumer remove {consumer} --force --now"
    return f"{text}; consumer {consumer} waits for its first fact ({undo}, if that was a mistake)" if consumer else text


async def _answer(
    settings: NodeSettings, request: _RequestT, waits_ms: int, without_node: AnswerWithoutNode[_RequestT]
) -> local_socket.LocalReply:
    """Raises StoreLocked where another process holds the store for LOCKED_S without serving the socket."""
    deadline = time.monotonic() + LOCKED_S
    while True:
        try:
            return await local_socket.ask(settings.node.state_dir, request, waits_ms)
        except (FileNotFoundError, ConnectionRefusedError):
            from agent.fact_store import StoreLocked

            try:
                return await without_node(settings, request)
            except StoreLocked:  # by another command, or by a node that starts or stops
                if time.monotonic() >= deadline:
                    raise
        await asyncio.sleep(LOCKED_STEP_S)


def load_settings(config_file: Path) -> NodeSettings:
    """The settings of the file as far as they are right, and those last in force for the rest; a command reads them
    once. Raises ConfigError if a node could not start with it."""
    loaded: dict[Path, NodeSettings] = click.get_current_context().meta.setdefault(_LOADED, {})
    assert logging.lastResort is not None
    logging.lastResort.setFormatter(EventFormatter(as_json=False))  # the store that a command opens logs, too
    if config_file not in loaded:
        plan = load_usable(load_sections(config_file))
        assert plan.settings is not None, "there are settings to run with"
        for part in plan.not_in_force:
            click.echo(f"bsfg: {config_file}: {part}; see bsfg check", err=True)
        loaded[config_file] = plan.settings
    return loaded[config_file]
