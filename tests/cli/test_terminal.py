"""The stream that all commands print through."""

import io

from agent.cli.terminal import PrintableStream


def test_a_stream_leaves_its_inner_stream_alone_when_it_is_collected() -> None:
    """The stream inside belongs to others: it stays open, and when they closed it first nothing is reported (Python
    3.13 reports what a collected stream's close raises)."""
    inner = io.TextIOWrapper(io.BytesIO(), "utf-8")
    stream = PrintableStream(inner)
    stream.write("a\x1bb")
    stream.close()
    inner.seek(0)
    assert inner.read() == "a\\u001bb"
    inner.close()
    PrintableStream(inner).close()
