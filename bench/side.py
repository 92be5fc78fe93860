"""One process of a benchmark: `python -m bench.side ROLE OPTIONS`, with the options as one JSON object.

    fill        a store with a backlog of data set A, and the same sealed bytes as blobs for the bare loop
    serve       the product's serving side: a fact store, a link, a server; done when a given offset is confirmed
    pull        the product's pulling side: a fact store, a link, a puller
    lag         as serve, and a fact every 10 ms; done when all are confirmed
    echo        bare round trips, the answering end
    blobs-out   the bare loop's sending end
    blobs-in    the bare loop's receiving end
    grow        a store that grows, and goes on growing until the process is killed
    drain       as serve, with a backlog, and live facts beside it; done when it is drained and all is confirmed
    ids         a store that is appended messages with random ids, until the process is killed

It prints READY, then RESULT {...} once what it waits for has happened, and ENDED {...} when it is told to stop. Times are of
the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.figures import peak_rss_mib, tcp_bytes
from bench.stage import Door

Options = Mapping[str, Any]


def say(word: str, values: Mapping[str, Any] | None = None) -> None:
    """One line for the process that started this one."""
    print(word if values is None else f"{word} {json.dumps(values)}", flush=True)


def usage(since_cpu_ns: int, port: int) -> dict[str, Any]:
    """What this process has used: processor time since then, the most memory ever, bytes of its broker connections."""
    sent_bytes, received_bytes = tcp_bytes(port)
    return {
        "cpu_ns": time.process_time_ns() - since_cpu_ns,
        "peak_rss_mib": peak_rss_mib(),
        "sent_bytes": sent_bytes,
        "received_bytes": received_bytes,
        "threads": threads(),
    }


def threads() -> dict[str, float]:
    """Processor time of each thread that lives, in ms: where to look first."""
    return {
        thread.name: round(int(stat.read_text("ascii").split()[0]) / 1e6, 1)
        for thread in threading.enumerate()
        if (stat := Path(f"/proc/self/task/{thread.native_id}/schedstat")).exists()
    }


def door_of(options: Options) -> Door:
    """The way to the broker."""
    return Door(**options["door"])


def _wait_for_stop() -> threading.Event:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    return stopped


def _fill(options: Options) -> None:
    from bench.product import fill

    stopped = _wait_for_stop()
    say("READY")
    say("RESULT", fill(options))
    stopped.wait()


def _echo(options: Options) -> None:
    from bench.bare import Echo

    stopped = _wait_for_stop()
    echo = Echo(door_of(options), options["asking"])
    say("READY")
    stopped.wait()
    echo.close()


def _blobs_out(options: Options) -> None:
    from bench.bare import BlobsOut

    stopped = _wait_for_stop()
    door = door_of(options)
    side = BlobsOut(door, options["asking"], Path(options["file"]), options["bytes_max"])
    since_ns = time.process_time_ns()
    say("READY")
    while not side.done.wait(0.1):
        if stopped.is_set():
            return
    say("RESULT", {"confirmed_ns": side.confirmed_ns, "pages": side.pages, **usage(since_ns, door.port)})
    stopped.wait()
    side.close()


def _blobs_in(options: Options) -> None:
    from bench.bare import BlobsIn

    stopped = _wait_for_stop()
    door = door_of(options)
    side = BlobsIn(door, Path(options["file"]), options["blobs"], storing_apart=options["storing_apart"])
    say("READY")
    since_ns = time.process_time_ns()
    side.start()
    stopped.wait()
    say("ENDED", {"started_ns": side.started_ns, **usage(since_ns, door.port)})
    side.close()


def _serve(options: Options) -> None:
    from bench.product import serve

    serve(options)


def _pull(options: Options) -> None:
    from bench.product import pull

    pull(options)


def _lag(options: Options) -> None:
    from bench.product import lag

    lag(options)


def _grow(options: Options) -> None:
    from bench.growth import grow

    grow(options)


def _drain(options: Options) -> None:
    from bench.drain import drain

    drain(options)


def _ids(options: Options) -> None:
    from bench.ids import ids

    ids(options)


ROLES: dict[str, Callable[[Options], None]] = {
    "fill": _fill,
    "serve": _serve,
    "pull": _pull,
    "lag": _lag,
    "echo": _echo,
    "blobs-out": _blobs_out,
    "blobs-in": _blobs_in,
    "grow": _grow,
    "drain": _drain,
    "ids": _ids,
}

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
