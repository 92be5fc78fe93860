"""What a node can log and record: every event of a log line with its level, and every kind of incident, read from the
code.

An event is the constant text of a log call, or the `action` among its fields. Where the code passes a variable, `NAMED`
says which constants it holds; a call that neither shows is an error, so no event is missed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.ingest.opcua.events.collector import LINES
from agent.replication.pulling.catch_up import CatchUpEvent
from agent.replication.pulling.receiving.pull_events import NoteKind
from tools.syntax import syntax_tree

AGENT = Path(__file__).resolve().parents[1] / "agent"
EVENT = re.compile(r"[a-z]+(_[a-z]+)*")
LEVELS = ("info", "warning", "error", "exception")  # a node logs nothing below
NAMED: dict[tuple[str, str], tuple[str, Iterable[str]]] = {
    ("ingest/opcua/events/collector.py", "action"): ("warning", LINES),
    ("replication/pulling/pull_runner.py", "note.kind.value"): ("warning", [kind.value for kind in NoteKind]),
    ("replication/pulling/pull_runner.py", "noted[0].value"): ("info", [event.value for event in CatchUpEvent]),
}
INFORMATIVE = {"peer_returned", "page_stored"}  # of NoteKind


def events() -> dict[str, str]:
    """Level by event, sorted; of an event with several levels the highest."""
    found: dict[str, str] = {}
    for file in sorted(AGENT.rglob("*.py")):
        path = file.relative_to(AGENT).as_posix()
        if not path.startswith("demo/"):
            for name, level in events_of(path, syntax_tree(file.read_text("utf-8"))):
                found[name] = max(found.get(name, level), level, key=LEVELS.index)
    return dict(sorted(found.items()))


def incidents() -> set[str]:
    """The kinds of incidents."""
    found: set[str] = set()
    for file in AGENT.rglob("*.py"):
        for node in ast.walk(syntax_tree(file.read_text("utf-8"))):
            kinds: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                kinds = node.args[:1] if node.func.attr in {"add_incident", "note_incident"} else []
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_report":
                kinds = node.args[3:4]
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "INCIDENT":
                kinds = [node.value]
            found |= {kind.value for kind in kinds if isinstance(kind, ast.Constant) and isinstance(kind.value, str)}
    return found


def events_of(path: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(event, level) of each log call of a module. Raises KeyError for one whose event is not known."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and (level := _level(call)):
                    yield from _of_call(path, function, call, level)


def _level(call: ast.Call) -> str:
    """The level of a log call; empty if it is none, or below what is shown."""
    target = call.func
    if not isinstance(target, ast.Attribute) or ast.unparse(target.value) not in {"log", "_log"}:
        return ""
    if target.attr == "log":
        named = ast.unparse(call.args[0]).lower()
        return next((level for level in reversed(LEVELS) if level in named), "warning")
    return target.attr if target.attr in LEVELS else ""


def _of_call(path: str, function: ast.AST, call: ast.Call, level: str) -> Iterator[tuple[str, str]]:
    event = call.args[1] if ast.unparse(call.func).endswith(".log") else call.args[0]
    if (action := _action(function, call)) is not None:
        event = action
    for choice in (event.body, event.orelse) if isinstance(event, ast.IfExp) else (event,):
        if isinstance(choice, ast.Constant) and isinstance(choice.value, str) and EVENT.fullmatch(choice.value):
            yield choice.value, level
        else:
            named_level, names = NAMED[path, ast.unparse(choice)]  # an unknown one: use a constant, or add it there
            yield from ((name, "info" if name in INFORMATIVE else named_level) for name in names)


def _action(function: ast.AST, call: ast.Call) -> ast.expr | None:
    """The `action` among the fields of a call, in place or in the nearest assignment to `extra` before it."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "extra"]
    assigned = [
        (node.lineno, node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and node.lineno <= call.lineno
        if "extra"
        in {ast.unparse(target) for target in getattr(node, "targets", [getattr(node, "target", None)]) if target}
    ]
    uses_extra = any(isinstance(node, ast.Name) and node.id == "extra" for value in given for node in ast.walk(value))
    if uses_extra and assigned:
        given.append(max(assigned, key=lambda item: item[0])[1])
    for value in given:
        for node in ast.walk(value):
            if isinstance(node, ast.Dict):
                for key, found in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "action":
                        return found
    return None
