"""`bsfg tags import`: a tag file from the tag list of another product, and every row that could not be translated."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from agent.cli import FILE, FILE_OR_STDOUT, write_whole
from agent.cli.tags.commands import PROTOCOLS, temporary_source
from agent.cli.terminal import echo_file
from agent.ingest import TagMapError
from agent.ingest.tags.file import dialect_of
from agent.ingest.tags.foreign import ignition, kepware, neuron
from agent.ingest.tags.foreign.translation import Options, Translation, tag_file
from agent.ingest.tags.sheet import FILE_BYTES_MAX
from agent.settings.sources import ADDRESS_BASES

PRODUCTS = {"kepware": kepware.translate, "neuron": neuron.translate, "ignition": ignition.translate}
OWN_BASE = {"kepware": 40_001, "neuron": 40_001, "ignition": 1}  # the base in which the product counts registers


@click.command("import")
@click.option(
    "--from", "product", type=click.Choice(list(PRODUCTS)), required=True, help="The product whose list it is."
)
@click.option(
    "--protocol", type=click.Choice(PROTOCOLS), default="modbus", show_default=True, help="Protocol of the tags."
)
@click.option("--out", type=FILE_OR_STDOUT, help="Write the tag file here; - is standard output, the default.")
@click.option(
    "--base", type=click.Choice(ADDRESS_BASES), help="How the written registers count.  [default: as in the file]"
)
@click.option("--zero-based", is_flag=True, help="The device was set to count registers from 0.")
@click.option("--prefix", default="", metavar="TEXT", help="Put before each tag, such as line1/.")
@click.option(
    "--device",
    default="",
    metavar="NAME",
    help="Ignition: only this device, or this OPC UA server. Kepware, OPC UA: Channel.Device.",
)
@click.option("--types", type=FILE, help="Ignition: the export of the UDT definitions, if it is a file of its own.")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NUMBER=URI",
    help="OPC UA: the URI of a namespace number in the list; may be given several times.",
)
@click.option("--encoding", metavar="NAME", help="The code page of a file that is not UTF-8, such as windows-1250.")
@click.argument("file", type=FILE)
def import_list(
    product: str,
    protocol: str,
    out: Path | None,
    base: int | None,
    zero_based: bool,
    prefix: str,
    device: str,
    types: Path | None,
    namespaces: Sequence[str],
    encoding: str | None,
    file: Path,
) -> None:
    """Translate the tag list FILE of another product: Kepware's CSV, Neuron's sheet as CSV, Ignition's JSON or CSV.

    Rows that cannot be translated are listed with the reason on standard error; the exit status is then 1.
    """
    if product == "kepware" and protocol == "opcua" and not device:
        raise click.UsageError(
            "give the channel and device of the list, which it does not name: --device Channel1.Device1"
        )
    out = None if out == Path("-") else out
    base = OWN_BASE[product] if base is None else base
    options = Options(
        protocol,
        base,
        zero_based,
        prefix,
        device,
        _namespaces(namespaces),
        code_page=_code_page(encoding or ""),
        types=_content(types) if types else b"",
    )
    try:
        found = PRODUCTS[product](file.name, _content(file), options)
        data = tag_file(found, dialect_of(temporary_source(protocol, file, base)))
    except TagMapError as error:
        sys.exit("".join(f"bsfg: {problem}\n" for problem in error.problems).rstrip())
    if found.rows and out is None:
        echo_file(data)
    elif found.rows and out is not None:
        write_whole(out, data)
    _report(found, file, protocol, base)
    if not found.rows:
        sys.exit(f"bsfg: {file.name} has no tag that could be translated; nothing was written")
    written = "" if out is None else f" written to {out}"
    click.echo(
        f"{len(found.rows)} tags{written}; next: bsfg tags check, and compare some values with the device", err=True
    )
    sys.exit(1 if found.refused else 0)


def _report(found: Translation, file: Path, protocol: str, base: int) -> None:
    for title, remarks in (("not translated", found.refused), ("translated, but", found.remarks)):
        if remarks:
            click.echo(f"{len(remarks)} rows of {file.name} {title}:", err=True)
        for remark in sorted(remarks, key=lambda remark: remark.row):
            click.echo(f"  {remark}", err=True)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if protocol == "modbus":
        click.echo(f"note: these registers count with address_base = {base}", err=True)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        sys.exit(f"bsfg: {file} cannot be read: {error.strerror}")


def _code_page(name: str) -> str:
    """The name of a text encoding that Python has; empty if none is given."""
    try:
        b"\0\0\0\0".decode(name or "utf-8", "replace")
    except (LookupError, ValueError):
        raise click.UsageError(f"--encoding {name!r} is not known; write a name such as windows-1250 or gbk") from None
    return name


def _namespaces(texts: Sequence[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for text in texts:
        number, separator, uri = text.partition("=")
        if not separator or not number.isdigit() or not uri:
            raise click.UsageError(f"--namespace {text!r}: write NUMBER=URI, such as 2=urn:vendor:plc")
        found[int(number)] = uri
    return found
