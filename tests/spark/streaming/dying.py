"""Program: the jobs, of which land kills itself with SIGKILL, its JVM and its workers included, at a chosen step.

`python -m tests.spark.streaming.dying STEP NTH ARGUMENTS...`: the NTH time that it comes to STEP; STEP `none` is the
job as it is.

    before_sink     the files of a batch are written, the table does not have them
    after_sink      the table has the batch, Spark's checkpoint does not have its commit
    before_confirm  both have it, the node does not know
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark_bsfg import __main__ as program
from pyspark_bsfg.landing import tables
from pyspark_bsfg.streaming.receipts import Receipts


def land_toml(file: Path, store: Path, table: Path, checkpoint: Path, kind: str = "delta", source: str = "") -> None:
    """Settings of a land job; `source` has further lines of `[source]`."""
    file.write_text(
        f"[source]\npath = '{store}'\n{source}\n"
        f"[land]\ntable = '{table}'\ncheckpoint = '{checkpoint}'\nformat = '{kind}'\nevery_s = 0\n"
    )


def dying(step: Callable[..., Any], nth: int, *, is_before: bool) -> Callable[..., Any]:
    """As `step`, but the nth time the process group ends before or after it."""
    calls = 0

    def wrapped(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and is_before:
            os.killpg(0, signal.SIGKILL)
        answer = step(*arguments)
        if calls == nth:
            os.killpg(0, signal.SIGKILL)
        return answer

    return wrapped


def main(step: str, nth: int, arguments: list[str]) -> int:
    """The job; its exit status."""
    sink: Any = tables._Delta if "delta" in Path(arguments[0]).read_text() else tables._Folders
    if step in {"before_sink", "after_sink"}:
        whole = sink.commit

        def facts_only(self: Any, *rest: Any) -> Any:
            is_facts = not str(self._folder).endswith("_incidents")
            return counted(self, *rest) if is_facts else whole(self, *rest)

        counted = dying(whole, nth, is_before=step == "before_sink")
        sink.commit = facts_only
    if step == "before_confirm":
        Receipts.confirm = dying(Receipts.confirm, nth, is_before=True)  # type: ignore[method-assign]
    return program.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
