"""Core: the bytes of a request and a snapshot in, the bytes of an answer out, for /healthz and /metrics.

It is read-only: GET is the only method, paths are compared whole, and of the headers only the end is searched for. It
never keeps a connection, reads a body, compresses, or puts internal errors into an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

import msgspec

from agent.errors import BsfgError
from agent.health import metrics
from agent.health.brief import SHOWN_MAX, counts_of, left_out, worst_of
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import Verdict, assess

REQUEST_BYTES_MAX = 8 * 1024  # a browser with many cookies sends half of it; a scraper 200 bytes
END_OF_REQUEST = b"\r\n\r\n"
PATHS = ("/healthz", "/metrics")


def answer(request: bytes, snapshot: Callable[[], NodeSnapshot]) -> bytes:
    """The answer to a request of any bytes. The snapshot is taken only for a path that needs it."""
    line, _, _ = request.partition(b"\r\n")
    words = line.split(b" ")
    if len(request) > REQUEST_BYTES_MAX:
        return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"at most {REQUEST_BYTES_MAX} bytes are read\n")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or END_OF_REQUEST not in request:
        return _plain(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1 request\n")
    if words[0] != b"GET":
        return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered here\n", "Allow: GET\r\n")
    path, _, query = words[1].decode("ascii", "replace").partition("?")
    if path not in PATHS:
        return _plain(HTTPStatus.NOT_FOUND, f"here are {' and '.join(PATHS)}\n")
    try:
        taken = snapshot()
    except BsfgError as error:
        return _plain(HTTPStatus.SERVICE_UNAVAILABLE, f"the node's status cannot be read: {error}\n")
    return (
        _answer(HTTPStatus.OK, metrics.CONTENT_TYPE, metrics.render(taken))
        if path == "/metrics"
        else _healthz(taken, query)
    )


def _healthz(snapshot: NodeSnapshot, query: str) -> bytes:
    verdict = assess(snapshot)
    status = HTTPStatus.SERVICE_UNAVAILABLE if verdict.alert else HTTPStatus.OK
    return _answer(status, "application/json", encode_health(snapshot, verdict, everything=query == "all") + b"\n")


def encode_health(snapshot: NodeSnapshot, verdict: Verdict, *, everything: bool = False) -> bytes:
    """The body of /healthz: the verdict, then the snapshot; of many parts of a kind the worst, unless `everything` is
    asked for."""
    reasons = verdict.reasons if everything else verdict.reasons[:SHOWN_MAX]
    judged = {
        "verdict": verdict.level.value,
        "alert": verdict.alert,
        "summary": verdict.summary(),
        "reasons": [reason.to_json() for reason in reasons],
        "reasons_left_out": {} if everything else left_out(verdict),
        "counts": counts_of(snapshot),
    }
    shown = snapshot if everything else worst_of(snapshot, verdict)
    body = msgspec.json.encode(judged | {name: getattr(shown, name) for name in shown.__dataclass_fields__})
    return msgspec.json.format(body, indent=1)


def _plain(status: HTTPStatus, text: str, headers: str = "") -> bytes:
    return _answer(status, "text/plain; charset=utf-8", text.encode(), headers)


def _answer(status: HTTPStatus, content_type: str, body: bytes, headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n{headers}\r\n"
    )
    return head.encode() + body
