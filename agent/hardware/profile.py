"""Core: the profile of a class of gateways, read from a file, and the choice of the profile that fits a machine.

A profile holds what the maker publishes and a measurement does not show: how often a cell of the flash can be erased,
whether the clock has a battery. Calculations that need a figure which it leaves out are skipped.

    ProfileError            a profile cannot be used
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Literal, TypeVar

import msgspec

from agent.errors import BsfgError

ARCHITECTURES = ("amd64", "arm64")  # that packages are built for

_T = TypeVar("_T")
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Figure = Annotated[float, msgspec.Meta(gt=0)]


class ProfileError(BsfgError):
    """A gateway profile breaks the rules of hardware/README.md."""

    hint = "hardware/README.md lists every key with its unit"


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One class of gateways. `device_tree`: beginnings of `compatible` strings; `dmi`: beginnings of vendor or product;
    `otherwise`: for every machine of its architecture that no other profile names. From `kind` on it is the disk that
    holds /var/lib/bsfg."""

    name: str
    title: str
    architecture: Literal["amd64", "arm64", "armhf"]
    real_time_clock: Literal["battery", "capacitor", "none"] | None = None
    watchdog_s_max: _Figure | None = None  # the longest time of the hardware watchdog; None without one
    device_tree: tuple[str, ...] = ()
    dmi: tuple[str, ...] = ()
    otherwise: bool = False
    kind: Literal["emmc", "sd", "ssd", "nvme", "virtual"] | None = None
    capacity_bytes: _Count | None = None
    system_bytes: _Count | None = None  # taken by the operating system and others
    erase_cycles: _Count | None = None
    write_amplification: Annotated[float, msgspec.Meta(ge=1)] | None = None  # bytes worn per byte written
    sync_p99_ms: _Figure | None = None
    power_loss_protected: bool = False


class _Profiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    profile: list[Profile]


def choose(
    profiles: Iterable[Profile], architecture: str, device_tree: Iterable[str], dmi: Iterable[str]
) -> Profile | None:
    """The profile of a machine with these identifiers; None for an architecture without a profile."""
    trees, names = tuple(device_tree), tuple(dmi)
    found = list(profiles)
    by_tree = (profile for profile in found if any(tree.startswith(profile.device_tree) for tree in trees))
    by_dmi = (profile for profile in found if any(name.startswith(profile.dmi) for name in names))
    others = (profile for profile in found if profile.otherwise and profile.architecture == architecture)
    return next(chain(by_tree, by_dmi, others), None)


def parse_profiles(text: str) -> list[Profile]:
    """The profiles that come with the program. Raises ProfileError."""
    return _read(text, "profiles.toml", _Profiles).profile


def parse_profile(text: str, name: str = "profile") -> Profile:
    """A profile from the text of a file of its own. Raises ProfileError."""
    return _read(text, name, Profile)


def _read(text: str, name: str, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(tomllib.loads(text), kind)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{name}: is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ProfileError(f"{name}: {error}") from error
