"""The wall clock of programs that a test starts, moved by the library of tests/appliance/wall_clock.c."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "appliance" / "wall_clock.c"


class WallClock:
    """Programs with this environment have a clock that a test sets."""

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "wall_clock.so", folder / "clock"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        self.environment = {"WALL_CLOCK": str(self._file), "LD_PRELOAD": str(library)}
        self.set(0)

    def set(self, seconds: int) -> None:
        """Move it to this distance from the right time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds}\n")
        new.rename(self._file)
