"""`bsfg tags template`: print a tag file template that explains every column, or the JSON schema of the TOML form."""

from __future__ import annotations

import json
from pathlib import Path

import click

from agent.cli.tags.options import PROTOCOLS, temporary_source
from agent.ingest.tags.example import example_csv, example_toml, json_schema
from agent.ingest.tags.file import dialect_of


@click.command()
@click.argument("protocol", type=click.Choice(PROTOCOLS))
@click.option("--toml", "as_toml", is_flag=True, help="TOML in place of CSV.")
@click.option("--schema", is_flag=True, help="The JSON schema of the TOML form, for an editor.")
def template(protocol: str, as_toml: bool, schema: bool) -> None:
    """Print a template of a tag file that explains every column."""
    dialect = dialect_of(temporary_source(protocol, Path("tags.csv"), 0))
    if schema:
        click.echo(json.dumps(json_schema(dialect, protocol), indent=2))
    elif as_toml:
        click.echo(example_toml(dialect), nl=False)
    else:
        click.echo(example_csv(dialect), nl=False)
