"""Program: `python -m pyspark_bsfg.pack bsfg.zip` packs this package and the agent's modules for `--py-files`.

Only Python and SQL files are packed. The executors' Python must have LIBRARIES, whose compiled parts cannot be imported
from a zip. With `--libraries` they are packed too, for `--archives`, which Spark unpacks: then the executors need only
a Python of the same version on the same kind of machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import agent
import pyspark_bsfg

SUFFIXES = (".py", ".sql")
# The last four are needed only to read facts over MQTT.
LIBRARIES = ("pyarrow", "msgspec", "rfc8785", "zstandard", "paho-mqtt", "watchdog", "cryptography", "cffi")
LEFT_OUT = ("include", "tests")  # of pyarrow: half of its files, for programs that compile against it
QUICK = 1  # of deflate: a shared library of a hundred megabytes takes seconds instead of half a minute


def pack(target: Path, libraries: Sequence[str] = ()) -> int:
    """Write the zip. Returns the number of its files. Raises PackageNotFoundError for a library that is not
    installed."""
    with ZipFile(target, "w", ZIP_DEFLATED, compresslevel=QUICK if libraries else None) as packed:
        for package in (agent, pyspark_bsfg):
            folder = Path(package.__path__[0])
            for file in sorted(folder.rglob("*")):
                if file.suffix in SUFFIXES:
                    packed.write(file, file.relative_to(folder.parent))
        for library in libraries:
            for file, name in _files(library):
                packed.write(file, name)
        return len(packed.namelist())


def _files(library: str) -> Iterator[tuple[Path, str]]:
    """The files that a library has installed into site-packages, without programs and compiled Python files."""
    for file in distribution(library).files or ():
        is_in_site = not file.is_absolute() and ".." not in file.parts
        if is_in_site and file.suffix != ".pyc" and not set(LEFT_OUT) & set(file.parts[1:2]):
            yield Path(str(file.locate())), str(file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program. Returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="pyspark_bsfg.pack", description="Pack what spark-submit --py-files or --archives needs."
    )
    parser.add_argument("target", type=Path, help="the zip to write; overwritten")
    parser.add_argument("--libraries", action="store_true", help=f"also {', '.join(LIBRARIES)}, for --archives")
    asked = parser.parse_args(arguments)
    try:
        files = pack(asked.target, LIBRARIES if asked.libraries else ())
    except PackageNotFoundError as error:
        print(f"{error.name} is not installed here; pip install 'bsfg-agent[spark]'", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{asked.target} cannot be written: {error}", file=sys.stderr)
        return 1
    print(f"{asked.target}: {files} files, {asked.target.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
