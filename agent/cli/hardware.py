"""`bsfg hardware`: whether a gateway is large enough for a given rate of facts.

A profile in hardware/ describes a gateway; this command computes the hours of facts that fit and the life of its flash.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from agent.cli import json_option
from agent.health.hardware import Load, assess, parse_profile


@click.group()
def hardware() -> None:
    """Check gateway profiles against a load."""


@hardware.command()
@click.argument("profile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--facts-per-s", type=click.FloatRange(min=0, min_open=True), required=True)
@click.option("--bytes-per-fact", type=click.FloatRange(min=0, min_open=True), default=Load.bytes_per_fact)
@click.option("--commit-interval-ms", type=click.FloatRange(min=0, min_open=True), default=Load.commit_interval_ms)
@json_option
def check(
    profile: Path,
    facts_per_s: float,
    bytes_per_fact: float,
    commit_interval_ms: float,
    as_json: bool,  # noqa: FBT001 click passes options by name
) -> None:
    """Print how many hours of facts fit the gateway PROFILE and how long its flash lasts. Exit status 1 when there is a
    concern."""
    found = parse_profile(profile.read_text(encoding="utf-8"), str(profile))
    fit = assess(found, Load(facts_per_s, bytes_per_fact, commit_interval_ms))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(fit)))
    else:
        click.echo(f"{found.gateway.title} at {facts_per_s:g} facts/s:")
        click.echo(f"  {fit.hours_that_fit:,.0f} hours of facts fit, {fit.bytes_stored_per_day / 1e6:,.1f} MB a day")
        click.echo(
            f"  the flash lasts {fit.flash_years:,.1f} years, {fit.bytes_written_per_day / 1e6:,.1f} MB written a day"
        )
        for concern in fit.concerns:
            click.echo(f"  ! {concern}")
        for note in fit.advice:
            click.echo(f"  note: {note}")
    sys.exit(1 if fit.concerns else 0)
