"""Program: the jobs, which kill themselves with SIGKILL, their JVM and its workers included, at a chosen step.

`python -m tests.spark.streaming.dying STEP NTH ARGUMENTS...`: the NTH time that the program comes to STEP; STEP `none`
is the program as it is.

    before_sink     the files of a batch are written, the table does not have them
    after_sink      the table has the batch, Spark's checkpoint does not have its commit
    before_confirm  both have it, the node does not know
    in_compact      small files are merged, those that were merged are still there
    after_publish   a date and zone of a derived table has its new file, and the record of what was done does not say so
    before_report   what the gaps follow from is recorded, the report is the old one
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from pyspark_bsfg import __main__ as program
from pyspark_bsfg.jobs import derived, refresh
from pyspark_bsfg.landing import tables
from pyspark_bsfg.streaming.receipts import Receipts


def land_toml(file: Path, store: Path, table: Path, checkpoint: Path, kind: str = "delta", source: str = "") -> None:
    """Settings of a land job; `source` has further lines of `[source]`."""
    file.write_text(
        f"[source]\npath = '{store}'\n{source}\n"
        f"[land]\ntable = '{table}'\ncheckpoint = '{checkpoint}'\nformat = '{kind}'\nevery_s = 0\n"
    )


def die(owner: Any, name: str, nth: int, *, is_before: bool) -> None:
    """The nth call of a function ends the process group, before or after it is carried out. Calls for the table of
    incidents do not count."""
    whole: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += not str(getattr(arguments[0], "_folder", "")).endswith("_incidents")
        if calls == nth and is_before:
            os.killpg(0, signal.SIGKILL)
        answer = whole(*arguments, **named)
        if calls == nth:
            os.killpg(0, signal.SIGKILL)
        return answer

    setattr(owner, name, wrapped)


def main(step: str, nth: int, arguments: list[str]) -> int:
    """The jobs; their exit status."""
    is_delta = "delta" in Path(arguments[0]).read_text()
    table: Any = tables._Delta if is_delta else tables._Folders
    steps: dict[str, tuple[Any, str]] = {
        "before_sink": (table, "commit"),
        "after_sink": (table, "commit"),
        "before_confirm": (Receipts, "confirm"),
        "in_compact": (DeltaTable, "vacuum") if is_delta else (table, "_remove"),
        "after_publish": (derived, "_publish"),
        "before_report": (refresh, "publish_file"),
    }
    if step != "none":
        die(*steps[step], nth, is_before=not step.startswith("after"))
    return program.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
