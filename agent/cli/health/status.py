"""`bsfg status`: the state of the running node. Causes come first, each with what to do and what follows from it.

It prints what the page and a monitoring system show. The exit status is 1 if the node does not answer.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import click

from agent.cli import config_option, json_option, print_either
from agent.client import Client
from agent.config import ConfigError, load_sections
from agent.escaping import printable
from agent.health.problems import Level, duration

WIDTH, WIDTH_MIN = 120, 40
everything_option = click.option("--all", "everything", is_flag=True, help="Print all, not only the worst ten.")
LATE = 3  # so that monitoring tells a bad sensor from a dead source
READ_MARKS = range(123, 128)  # https://www.sqlite.org/walformat.html, "WAL Locks": WAL_READ_LOCK(0) to (4)
LASTING_S = 0.3  # a reader of ours ends within milliseconds
KEEPS_UP_S = 10.0  # a consumer whose oldest unconfirmed fact is younger is not catching up


@click.command()
@config_option
@everything_option
@json_option
def status(config_file: Path, everything: bool, as_json: bool) -> None:
    """Print the state of the running node: problems, and of many parts of a kind the worst ten. Exit status 0 when no
    action is needed, 3 when facts are late or some tags bad, 1 otherwise."""
    sections = load_sections(config_file)  # problems in node.toml do not hide the state of a running node
    node = sections.node
    if node is None:
        raise ConfigError(config_file, sections.problems)
    found = Client(node.state_dir).status(everything=everything)
    if any(reason["problem"] == "log_held" for reason in found["reasons"]):
        found["store"]["log_held_by"] = lasting_readers(node.store_file)
    print_either(found, text(found), as_json=as_json)
    sys.exit(exit_status(found))


class _Part(NamedTuple):
    """A line about one part of the node; the names of all stand in one column."""

    kind: str
    name: str
    state: str

    def text(self, width: int) -> str:
        """The line, with a column of `width` for the name."""
        return f"  {self.kind:<9} {self.name:<{width}} {self.state}"


def exit_status(found: dict[str, Any]) -> int:
    """0, 1 or 3, from the status as JSON."""
    if not found["alert"]:
        return 0
    return LATE if found["verdict"] == Level.LATE.value else 1


def text(found: dict[str, Any]) -> str:
    """The status as text for people."""
    lines: list[str | _Part] = [f"{found['node'] or found['zone']}: {found['summary']}"]
    reasons = found["reasons"]
    for place, reason in enumerate(reasons, 1):
        is_last_of_hint = place == len(reasons) or reasons[place]["hint"] != reason["hint"]
        lines += reason_lines(reason, is_hinted=is_last_of_hint)
    if left_out := found["reasons_left_out"]:
        kinds = ", ".join(f"{count:,} {problem}" for problem, count in left_out.items())
        lines += _wrapped(f"and {sum(left_out.values()):,} more: {kinds} (--all)", "  ")
    if readers := found["store"].get("log_held_by"):
        lines += _wrapped(f"the write-ahead log is held by process {', '.join(readers)}", "      ")
    lines += _pair(found["pair"], found["taken_unix_ms"])
    for stream in found["streams"]:
        held = f"offsets {stream['first_offset']:,} to {stream['end_offset']:,}"
        if stream["first_offset"] > stream["end_offset"]:
            held = "no facts"
        lines.append(_Part("stream", stream["name"], f"{held}, {stream['bytes'] / 1e6:.1f} MB{_room(stream)}"))
    lines += _more(found, "streams")
    lines += _artifacts(found["store"])
    lines += [_Part("clock", change["zone"], change["text"]) for change in found["clock_changes"]]
    for consumer in found["consumers"]:
        progress = f"confirmed to {consumer['frontier']:,}, {consumer['behind_facts']:,} behind"
        held = f"{consumer['state']}, {progress}{_behind(consumer)}{_held(consumer)}"
        lines.append(_Part("consumer", consumer["name"], held))
    lines += _more(found, "consumers", "consumers_level", "have everything")
    for broker in found["brokers"]:
        lines.append(_Part("broker", broker["name"], "connected" if broker["connected"] else "not connected"))
    for peer in found["peers"]:
        link = "connected" if peer["connected"] else "blocked" if peer["blocked"] else "not connected"
        link = "fenced, stopped" if peer["fenced"] else link
        waits = ", a page waits to be stored" if peer["page_waits"] else ""
        progress = f"{peer['position']:,} of {peer['end_offset']:,}{_catch_up(peer)}{_pacing(peer)}{waits}"
        lines.append(_Part("peer", f"{peer['zone']}/{peer['stream']}", f"{link}, {progress}"))
    lines += _more(found, "peers", "peers_connected", "connected")
    for source in found["sources"]:
        link = "connected" if source["connected"] else "not connected"
        lost = f", {source['lost_total']:,} lost" if source["lost_total"] else ""
        quiet = " since the start" if source["last_value_unix_ms"] and not source["values_total"] else ""
        bad = f" ({source['tags_bad']:,} bad)" if source["tags_bad"] else ""
        to_fill = source["gaps_open"]
        gaps = f", {to_fill:,} gap{'s' * (to_fill > 1)} to fill from history" if to_fill else ""
        values = f"{source['tags']:,} tags{bad}, {source['values_total']:,} values{quiet}{lost}{gaps}"
        lines.append(_Part("source", source["name"], f"{link}, {values}{_events(source['events'])}"))
    lines += _more(found, "sources", "sources_connected", "connected")
    width = max([24, *(len(line.name) for line in lines if isinstance(line, _Part))])
    return "\n".join(printable(line.text(width) if isinstance(line, _Part) else line) for line in lines)


def _more(found: dict[str, Any], kind: str, good: str = "", said: str = "") -> list[str]:
    """How many parts of a kind there are and how many are good, where not all are printed."""
    count = found["counts"][kind]
    if count == len(found[kind]):
        return []
    well = f", {found['counts'][good]:,} {said}" if good else ""
    return [f"  {'':<9} the worst {len(found[kind])} of {count:,}{well} (--all prints all)"]


def reason_lines(reason: dict[str, Any], *, is_hinted: bool) -> list[str]:
    """A problem, and beneath it what to do, once for several with the same remedy. What follows from another problem
    stands beneath that, and needs nothing of its own."""
    if reason["caused_by"]:
        return _wrapped(f"{reason['subject']}: {reason['text']}", "      so ")
    mark = "!" if reason["alert"] else "-"
    named = f"{reason['subject']}: {reason['text']} [{reason['problem']}]"  # the name under which log.md explains it
    return _wrapped(named, f"  {mark} ") + (_wrapped(reason["hint"], "      -> ") if is_hinted else [])


def _wrapped(text: str, mark: str) -> list[str]:
    """A line of at most WIDTH columns, or the terminal's if that has fewer, and more of them for a text that is
    longer."""
    columns = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    return wrap(
        text,
        max(WIDTH_MIN, min(WIDTH, columns)),
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _events(found: dict[str, Any] | None) -> str:
    """The event counts of a source; empty if no events are configured."""
    if found is None:
        return ""
    lost = f" ({found['lost_total']:,} lost)" if found["lost_total"] else ""
    return f", {found['events_total']:,} events{lost}, {found['conditions_retained']:,} conditions retained"


def _catch_up(peer: dict[str, Any]) -> str:
    """Progress of a pull that is far behind: where it began, its rate, and the time left."""
    state = peer["catch_up"]
    if state is None:
        return ""
    pace = "" if state["facts_per_s"] is None else f" at {state['facts_per_s']:,.0f} facts/s"
    left = "" if state["seconds_left"] is None else f", {state['seconds_left']:,.0f} s left"
    return f", catching up from {state['from_offset']:,}: {state['percent']:.1f} %{pace}{left}"


def _pair(pair: dict[str, Any] | None, now_unix_ms: int) -> list[_Part]:
    """The role of this gateway of two, since when, and when the other one and the witness were heard."""
    if pair is None:
        return []
    role = {"leads": "leads", "alone": "records alone"}.get(pair["role"], f"follows {pair['leader'] or 'no node'}")
    since = duration((now_unix_ms - pair["since_unix_ms"]) / 1000)
    heard = f"{pair['partner']} {_heard(pair['partner_heard_ms'])}"
    if pair["witness"]:
        heard += f", witness {pair['witness']} {_heard(pair['witness_heard_ms'])}"
    return [_Part("pair", pair["zone"], f"{role} for {since}, term {pair['term']}; {heard}")]


def _heard(ms: int | None) -> str:
    return "has not answered" if ms is None else f"heard {duration(ms / 1000)} ago"


def _artifacts(store: dict[str, Any]) -> list[str]:
    """The bytes of artifacts, if there are any or one waits for room, and by zone those that no fact refers to."""
    limit, lacking = store["artifact_bytes_max"], store["artifact_bytes_lacking"]
    if not store["artifact_bytes"] and not lacking:
        return []
    of = "" if limit is None else f" of {limit / 1e6:.1f} MB"
    full = f", {store['artifact_limit']} reached: an artifact needs {lacking / 1e6:.1f} MB more"
    lines = [f"  artifacts {store['artifact_bytes'] / 1e6:.1f} MB{of}{full if lacking else ''}"]
    quota = store["artifact_unreferenced_bytes_max"]
    of = f" of {quota / 1e6:.1f} MB" if quota else ""
    lines += [f"            {unreferenced['bytes'] / 1e6:.1f} MB{of} from {unreferenced['zone']}, no fact refers to them"
              for unreferenced in store["artifact_unreferenced"]]  # fmt: skip
    return lines


def _pacing(peer: dict[str, Any]) -> str:
    """How long this pull waited for the bandwidth limit of its peer."""
    state = peer["pacing"]
    if state is None:
        return ""
    now = ", waits now" if state["waits"] else ""
    return (
        f", limited to {state['bytes_per_second_max'] / 1000:,.1f} kB/s: waited {state['waited_seconds_total']:,.0f} s"
        f" for {state['bytes_waited_off_total'] / 1e6:,.1f} MB{now}"
    )


def _room(stream: dict[str, Any]) -> str:
    """The limit of a stream, its rate, and the time until it is full."""
    parts = []
    if stream["bytes_max"] is not None:
        parts.append(f" of {stream['bytes_max'] / 1e6:.1f} MB")
    if stream["inflow_bytes_per_s"]:
        parts.append(f", {stream['inflow_bytes_per_s'] / 1000:.1f} kB/s")
    if stream["hours_until_full"] is not None:
        parts.append(f", full in {stream['hours_until_full']:,.1f} h without confirmations")
    loss_h = stream["hours_until_ttl_loss"]
    if loss_h is not None and round(loss_h, 1) != stream["ttl_hours"]:  # something has waited for minutes
        parts.append(f", first loss in {loss_h:,.1f} h")
    return "".join(parts)


def _behind(consumer: dict[str, Any]) -> str:
    """The age of a consumer's oldest unconfirmed fact, and the time it needs to catch up if it is late."""
    age, left = consumer["oldest_unconfirmed_age_s"], consumer["seconds_left"]
    if not consumer["behind_facts"] or age is None:
        return ""
    pace = (
        ""
        if left is None or age < KEEPS_UP_S
        else f", reads {consumer['facts_per_s']:,.0f} facts/s, {duration(left)} left"
    )
    return f", oldest {duration(age)}{pace}"


def _held(consumer: dict[str, Any]) -> str:
    """The bytes kept for a consumer that is behind."""
    if not consumer["behind_facts"] or consumer["bytes_held"] is None:
        return ""
    return f", holds back {consumer['bytes_held'] / 1e6:.1f} MB"


def lasting_readers(database: Path) -> list[str]:
    """The processes that hold a read for some time, as `1234 (python3)`; none if they cannot be seen from here.
    SQLite's readers hold a lock on one of five bytes of the `-shm` file while a transaction is open. The node cannot
    ask the kernel itself, because its unit sees only its own processes."""
    shared = database.with_name(f"{database.name}-shm")
    try:
        first = set(_readers(shared))
        if not first:
            return []
        time.sleep(LASTING_S)
        return [f"{pid} ({_process_name(pid)})" for pid in sorted(first & set(_readers(shared)))]
    except OSError:
        return []


def _readers(file: Path) -> Iterator[int]:
    found = file.stat()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in Path("/proc/locks").read_text("ascii").splitlines():
        words = line.split()
        if len(words) == 8 and words[5] == place and int(words[6]) in READ_MARKS and int(words[4]) > 0:
            yield int(words[4])


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "of another user"
