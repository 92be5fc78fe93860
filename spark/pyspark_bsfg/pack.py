"""Program: `python -m pyspark_bsfg.pack bsfg.zip` packs this package and what it needs of the agent for `--py-files`.

Only Python and SQL are packed. The executors' Python must have pyarrow, msgspec, rfc8785 and zstandard, whose compiled
parts cannot be imported from a zip.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import agent
import pyspark_bsfg

SUFFIXES = (".py", ".sql")


def pack(target: Path) -> int:
    """Write the zip; how many files it has."""
    with ZipFile(target, "w", ZIP_DEFLATED) as packed:
        for package in (agent, pyspark_bsfg):
            folder = Path(package.__path__[0])
            for file in sorted(folder.rglob("*")):
                if file.suffix in SUFFIXES:
                    packed.write(file, file.relative_to(folder.parent))
        return len(packed.namelist())


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; its exit status."""
    parser = argparse.ArgumentParser(prog="pyspark_bsfg.pack", description="Pack what spark-submit --py-files needs.")
    parser.add_argument("target", type=Path, help="the zip to write; overwritten")
    target = parser.parse_args(arguments).target
    try:
        files = pack(target)
    except OSError as error:
        print(f"{target} cannot be written: {error}", file=sys.stderr)
        return 1
    print(f"{target}: {files} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
