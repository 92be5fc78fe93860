"""Facts exported to flat files that other programs read: SQLite, CSV, JSON lines, Parquet."""

from agent.query.export.exporter import STDOUT, FormatName, export
