"""Errors of reading facts into Spark, as one branch of the tree in `agent.errors`.

Spark wraps them as text in its own exceptions, so each text names the thing and ends with what to do.

    SparkError                  any of the below; never raised itself
        OptionError             an option of the data source, or a requested schema, is wrong
        SettingsError           the TOML of the jobs is wrong
        StreamUnknown           the node exports no stream of that name
            StreamAbsent        the store's file has no such stream: no fact of it has come yet, or it is misspelt
        FactsGone               facts of the requested range are no longer, or not yet, in the store
        ConsumerRefused         a consumer cannot be registered or confirmed this way
        NodeUnavailable         a node cannot be asked over MQTT: certificate, rights, connection, or the node itself
        StoreUnreadable         the file cannot be read from here, or its content is inconsistent
        JobRefused              the result of a job would be wrong
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from agent.errors import BsfgError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class SparkError(BsfgError):
    """Root of this branch. The text says what happened and, at its end, what to do."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(f"{why}; {hint}" if hint else why)
        self.why = why
        self.hint = hint


class OptionError(SparkError):
    """An option of the data source, or a requested schema, is wrong."""


class SettingsError(SparkError):
    """The TOML of the jobs is wrong; one line for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StreamUnknown(SparkError):
    """The node exports no stream of that name."""


class StreamAbsent(StreamUnknown):
    """The store's file has no such stream: no fact of it has come yet, or the name is misspelt."""


class FactsGone(SparkError):
    """Facts of the requested range are no longer, or not yet, in the store."""


class ConsumerRefused(SparkError):
    """A consumer cannot be registered or confirmed this way. `code` is the protocol's error code, if a node has
    answered."""

    def __init__(self, why: str, hint: str = "", code: str = "") -> None:
        super().__init__(why, hint)
        self.code = code


class NodeUnavailable(SparkError):
    """A node cannot be asked over MQTT: certificate, rights, connection, or the node itself."""


class StoreUnreadable(SparkError):
    """The file cannot be read from here, or its content is inconsistent."""


class JobRefused(SparkError):
    """The result of a job would be wrong."""


def briefly(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Errors of ours come out of `call` without the way that they took: Spark shows users the whole traceback, whose
    last line would be all that helps them."""

    @wraps(call)
    def called(*arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return call(*arguments, **named)
        except BsfgError as error:
            raise error.with_traceback(None) from None

    return called
