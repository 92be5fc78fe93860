"""What the page on tag files shows, works."""

import re
from pathlib import Path

import pytest

from agent.ingest import quality
from agent.ingest.modbus import address as modbus_address
from agent.ingest.opcua import address as opcua_address
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.tags.reading import modbus, opcua

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "tag-file.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(csv|toml)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("form, block", BLOCKS)
def test_the_examples_are_good_tag_files(form: str, block: str) -> None:
    """A reader who copies an example gets tags: one for each row, or as many as the page says."""
    read = opcua if "address" in block else modbus
    found = read(block, file=f"tags.{form}")
    rows = {"csv": block.count("\n") - 1, "toml": 1}[form]
    assert len(found.tags) == (4 if "meter,,{tag}" in block else rows)


def test_the_page_has_examples_of_all_kinds() -> None:
    """A template, TOML, OPC UA and Modbus."""
    assert [form for form, _ in BLOCKS] == ["csv", "toml", "csv", "csv"]


def test_every_column_and_status_is_on_the_page() -> None:
    """A column the program knows is described, and so is every status it gives by itself."""
    settings = ModbusSourceSettings(name="m", host="m", tags_file=Path("tags.csv"), address_base=0)
    for column in (*opcua_address.dialect().all_columns, *modbus_address.dialect(settings).all_columns):
        assert f"`{column.name}`" in PAGE, column.name
    given = [value for name, value in vars(quality).items() if name.startswith("BAD_")]
    for value in given:
        assert f"0x{value:08X}" in PAGE, hex(value)
