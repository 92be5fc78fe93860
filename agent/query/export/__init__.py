"""Facts exported to flat files that other programs read: SQLite, CSV, JSON lines, Parquet."""

from agent.query.export.export import STDOUT, FormName, export

__all__ = [
    "STDOUT",
    "FormName",
    "export",
]
