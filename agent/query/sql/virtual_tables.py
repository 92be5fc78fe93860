"""Virtual tables for apsw: `facts` over a scan, and small tables over a list of rows.

Method names are apsw's. A cursor of `facts` opens a batch when SQLite reaches it, builds the columns that the statement
uses, and answers from these lists; a row costs a third of a microsecond and as much again for each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apsw

from agent.query.scan import COLUMNS, BatchFacts, Scanner
from agent.query.sql.scan_plan import Plan, is_useful, order_kept

_OPERATORS = {
    apsw.SQLITE_INDEX_CONSTRAINT_EQ: "eq",
    apsw.SQLITE_INDEX_CONSTRAINT_GT: "gt",
    apsw.SQLITE_INDEX_CONSTRAINT_GE: "ge",
    apsw.SQLITE_INDEX_CONSTRAINT_LT: "lt",
    apsw.SQLITE_INDEX_CONSTRAINT_LE: "le",
    apsw.SQLITE_INDEX_CONSTRAINT_GLOB: "glob",
    apsw.SQLITE_INDEX_CONSTRAINT_LIKE: "like",
}
_STREAM_SHIFT = 48  # a row id is the stream's number and the offset: room for 2.8e14 facts in a stream


class Module:
    """The module to which SQLite connects when a statement names its table."""

    def __init__(self, declaration: str, table: Any) -> None:
        self._declaration = declaration
        self._table = table

    def Connect(self, *_: Any) -> tuple[str, Any]:
        return self._declaration, self._table

    Create = Connect


class _Table:
    """Base of the tables, which have nothing to release."""

    def Disconnect(self) -> None:
        pass

    Destroy = Disconnect


class FactsTable(_Table):
    """The table `facts`."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner

    def BestIndexObject(self, found: apsw.IndexInfo) -> bool:
        """Accept the conditions that exclude batches, and an order in which a scan returns rows anyway."""
        terms: list[tuple[str, str]] = []
        for number in range(found.nConstraint):
            column = found.get_aConstraint_iColumn(number)
            operator = _OPERATORS.get(found.get_aConstraint_op(number), "")
            if not found.get_aConstraint_usable(number) or column < 0 or not operator:
                continue
            if is_useful(COLUMNS[column], operator, found.get_aConstraint_collation(number)):
                if found.get_aConstraintUsage_in(number):
                    operator = "in"
                    found.set_aConstraintUsage_in(number, True)
                terms.append((COLUMNS[column], operator))
                found.set_aConstraintUsage_argvIndex(number, len(terms))
        order = [
            (COLUMNS[found.get_aOrderBy_iColumn(n)], found.get_aOrderBy_desc(n))
            for n in range(found.nOrderBy)
            if found.get_aOrderBy_iColumn(n) >= 0
        ]
        newest_first = order_kept(terms, order) if len(order) == found.nOrderBy else None
        found.orderByConsumed = newest_first is not None
        plan = Plan(tuple(terms), tuple(sorted(n for n in found.colUsed if n < len(COLUMNS))), bool(newest_first))
        found.estimatedCost = plan.cost
        found.estimatedRows = max(1, int(plan.cost))
        found.idxStr = plan.text()
        return True

    def Open(self) -> FactsCursor:
        return FactsCursor(self._scanner)


class FactsCursor:
    """A cursor over a scan."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._streams = {name: number for number, name in enumerate(sorted(scanner.ends))}
        self._scanned: Iterator[BatchFacts] = iter(())
        self._facts: BatchFacts | None = None
        self._used: Sequence[int] = ()
        self._columns: Mapping[int, Sequence[Any]] = {}
        self._count = self._at = 0

    def Filter(self, _: int, text: str, values: Sequence[Any]) -> None:
        """Begin a scan."""
        plan = Plan.of(text)
        self._used = plan.used
        self._scanned = self._scanner.scan(plan.bounds(values), newest_first=plan.newest_first)
        self._load()

    def Eof(self) -> bool:
        return self._facts is None

    def Next(self) -> None:
        self._at += 1
        if self._at >= self._count:
            self._load()

    def Column(self, number: int) -> Any:
        return self.Rowid() if number < 0 else self._columns[number][self._at]

    def Rowid(self) -> int:
        assert self._facts is not None
        return (self._streams[self._facts.stream] << _STREAM_SHIFT) + self._facts.first_offset + (
            self._facts.places[self._at]
        )  # fmt: skip

    def Close(self) -> None:
        self._scanned = iter(())

    def _load(self) -> None:
        facts = self._facts = next(self._scanned, None)
        if facts is not None:
            self._at, self._count = 0, len(facts.places)
            self._columns = {number: facts.column(COLUMNS[number]) for number in self._used}


class RowsTable(_Table):
    """A small table. Its rows are computed for each scan, and SQLite reads all of them."""

    def __init__(self, rows: Callable[[], Iterable[Sequence[Any]]]) -> None:
        self._rows = rows

    def BestIndexObject(self, found: apsw.IndexInfo) -> bool:
        found.estimatedCost = 1e4
        return True

    def Open(self) -> _RowsCursor:
        return _RowsCursor(self._rows)


class _RowsCursor:
    """A cursor over a list of rows."""

    def __init__(self, rows: Callable[[], Iterable[Sequence[Any]]]) -> None:
        self._make = rows
        self._rows: Sequence[Sequence[Any]] = ()
        self._at = 0

    def Filter(self, *_: Any) -> None:
        self._rows, self._at = list(self._make()), 0

    def Eof(self) -> bool:
        return self._at >= len(self._rows)

    def Next(self) -> None:
        self._at += 1

    def Column(self, number: int) -> Any:
        return self._at if number < 0 else self._rows[self._at][number]

    def Rowid(self) -> int:
        return self._at

    def Close(self) -> None:
        self._rows = ()
