"""Core: which packages a gateway needs, of those that requirements.lock pins, and what is known of each.

The choice follows the requirements that the packages declare, from bsfg itself and its extra `sql`, under the markers
of the gateway's Python and machine. `pip` is left out: sqlite-utils asks for it to install plug-ins, which a gateway
has none of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OWN = "bsfg-agent"
EXTRAS = ("sql",)  # `bsfg sql`: what is missing on a gateway cannot be installed when it is needed
LEFT_OUT = frozenset({"pip"})


@dataclass(frozen=True, slots=True)
class Target:
    """A Debian release on a kind of machine. `architecture` is Debian's word, `machine` that of wheels and kernel."""

    debian: int
    suite: str
    python: str  # "3.11"
    glibc_minor: int
    architecture: str

    @property
    def machine(self) -> str:
        """The name of the architecture in the names of wheels."""
        return {"amd64": "x86_64", "arm64": "aarch64"}[self.architecture]

    @property
    def name(self) -> str:
        """As in the name of a bundle: debian12-amd64."""
        return f"debian{self.debian}-{self.architecture}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms whose wheels run there, as pip names them."""
        minors = range(self.glibc_minor, 16, -1)
        return (*(f"manylinux_2_{minor}_{self.machine}" for minor in minors), f"manylinux2014_{self.machine}")

    @property
    def markers(self) -> dict[str, str]:
        """What the markers of requirements compare with."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": self.machine,
        }


TARGETS = tuple(
    Target(debian, suite, python, glibc_minor, architecture)
    for debian, suite, python, glibc_minor in ((12, "bookworm", "3.11", 36), (13, "trixie", "3.13", 41))
    for architecture in ("amd64", "arm64")
)


@dataclass(frozen=True, slots=True)
class Pin:
    """One version in requirements.lock, and the SHA-256 digests of its files."""

    name: str
    version: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Package:
    """What a wheel says of itself, and the digest of its file."""

    name: str
    version: str
    summary: str
    licence: str  # an SPDX expression, or the words of the package; empty where it says nothing
    is_expression: bool
    requires: tuple[str, ...]
    digest: str


def read_lock(text: str) -> dict[str, Pin]:
    """The pins of requirements.lock by canonical name."""
    pins: dict[str, Pin] = {}
    for block in re.split(r"\n(?=\S)", text):
        found = re.match(r"([A-Za-z0-9_.-]+)==([^ ]+)", block)
        if found:
            name = canonicalize_name(found[1])
            pins[name] = Pin(found[1], found[2], tuple(re.findall(r"sha256:([0-9a-f]{64})", block)))
    return pins


def needed(target: Target, requires: Callable[[str], list[str]]) -> dict[str, tuple[str, ...]]:
    """The packages that run on the target, each with those that it asks for itself. `requires` gives the requirements
    that a package declares, by its canonical name."""
    found: dict[str, set[str]] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [(OWN, ("", *EXTRAS))]
    while waiting:
        name, extras = waiting.pop()
        asked = found.setdefault(name, set())
        for requirement in map(Requirement, requires(name)):
            other = canonicalize_name(requirement.name)
            if other in LEFT_OUT or not _applies(requirement, target.markers, extras):
                continue
            if other not in found or requirement.extras:
                waiting.append((other, ("", *sorted(requirement.extras))))
            asked.add(other)
    return {name: tuple(sorted(asked)) for name, asked in sorted(found.items())}


def _applies(requirement: Requirement, markers: Mapping[str, str], extras: tuple[str, ...]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**markers, "extra": extra}) for extra in extras)


def requirements_text(names: Iterator[str] | list[str], pins: Mapping[str, Pin]) -> str:
    """The lines of requirements.lock for `names`; raises KeyError for one that is not pinned."""
    lines = []
    for name in sorted(names):
        pin = pins[name]
        lines.append(
            " \\\n    ".join([f"{pin.name}=={pin.version}", *(f"--hash=sha256:{digest}" for digest in pin.digests)])
        )
    return "\n".join(lines) + "\n"


def read_metadata(text: str, digest: str) -> Package:
    """A package from the METADATA of its wheel."""
    header = HeaderParser().parsestr(text)
    expression = header["License-Expression"] or ""
    free = (header["License"] or "").strip().splitlines()
    licence = expression or (free[0] if free and len(free[0]) < 80 else "")
    if licence in {"", "UNKNOWN"}:
        classified = [
            classifier.rpartition(" :: ")[2]
            for classifier in header.get_all("Classifier", [])
            if classifier.startswith("License")
        ]
        licence = ", ".join(classified)
    return Package(
        name=canonicalize_name(header["Name"]),
        version=header["Version"],
        summary=header["Summary"] or "",
        licence=licence,
        is_expression=bool(expression),
        requires=tuple(header.get_all("Requires-Dist", [])),
        digest=digest,
    )
