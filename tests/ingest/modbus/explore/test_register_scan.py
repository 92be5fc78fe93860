"""A scan against devices made up here: what exists is found exactly, within a number of reads."""

from collections.abc import Collection
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.explore.register_scan import RegisterScan, Span

existing = st.frozensets(st.integers(0, 120))


def scanned(
    scan: RegisterScan, registers: Collection[int], longest: int = 1_000, borders: Collection[int] = ()
) -> list[Span]:
    """Carry a scan out on a device with these registers, which takes reads up to this length, and none across a border.
    Returns the reads."""
    reads = []
    while (span := scan.next_range()) is not None:
        reads.append(span)
        first, end = span
        if end - first > longest or any(first < border < end for border in borders):
            scan.refused("too long")
        elif all(address in registers for address in range(first, end)):
            scan.answered()
        else:
            scan.refused("missing")
    return reads


def addresses(spans: list[Span]) -> set[int]:
    """The addresses in spans."""
    return {address for first, end in spans for address in range(first, end)}


@given(existing, st.integers(1, 125), st.integers(1, 130), st.integers(0, 30))
def test_what_exists_is_found_and_nothing_else(there: frozenset[int], count_max: int, longest: int, first: int) -> None:
    """Whatever the device has and however short its reads must be, the found ranges are its registers, in order and
    joined; each single register that is missing was refused as such."""
    scan = RegisterScan(first, 121, count_max, 10_000)
    reads = scanned(scan, there, longest)
    wanted = {address for address in there if address >= first}
    assert addresses(scan.found) == wanted
    assert all(end < after for (_, end), (after, _) in zip(scan.found, scan.found[1:], strict=False))
    assert scan.refusals.total() == 121 - first - len(wanted)
    assert (scan.unknown, scan.addresses_left) == ([], 0)
    assert len(reads) == scan.reads_total
    assert all(end - begin <= count_max for begin, end in reads)


@given(existing, st.integers(1, 60))
def test_the_limit_of_reads_leaves_unknown_and_never_missing(there: frozenset[int], reads_max: int) -> None:
    """Found, refused and unknown addresses are the whole range, each once; what is called found exists."""
    scan = RegisterScan(0, 121, 125, reads_max)
    assert len(scanned(scan, there)) <= reads_max
    found, unknown = addresses(scan.found), addresses(scan.unknown)
    assert found <= there
    assert not found & unknown
    assert len(found) + len(unknown) + scan.refusals.total() == 121


def test_a_missing_table_costs_fewer_than_two_reads_a_register() -> None:
    """1,000 registers that do not exist, and a full table: the price that the page names."""
    empty = RegisterScan(0, 1_000, 125, 10_000)
    assert len(scanned(empty, ())) <= 1_700
    full = RegisterScan(0, 1_000, 125, 10_000)
    assert len(scanned(full, range(1_000))) == 9
    hole = RegisterScan(0, 1_000, 125, 10_000)
    assert len(scanned(hole, {*range(1_000)} - {500})) <= 30


def test_a_device_that_takes_short_reads_is_learned_once() -> None:
    """A refusal of a range that exists as a whole is about its length: later reads are shorter at once, and the length
    that works is known."""
    scan = RegisterScan(0, 1_000, 125, 10_000)
    reads = scanned(scan, range(1_000), longest=40)
    assert scan.found == [(0, 1_000)]
    assert (scan.too_long, scan.count_max) == (124, 32)
    assert len(reads) < 40


@given(st.lists(st.integers(4, 60), min_size=1, max_size=20))
def test_a_device_with_borders_is_not_said_to_take_short_reads(sizes: list[int]) -> None:
    """Registers in areas that no read may cross: all are found, and no length is blamed."""
    borders = list(accumulate(sizes))
    scan = RegisterScan(0, 1_000, 100, 10_000)
    scanned(scan, range(1_000), borders=borders)
    assert scan.found == [(0, 1_000)]
    assert (scan.too_long, scan.count_max) == (0, 100)


@given(st.integers(1, 99), st.integers(0, 1))
def test_the_length_that_a_device_takes_is_found(longest: int, first: int) -> None:
    """The hint is true of it: that length is answered, and the other one is refused."""
    scan = RegisterScan(first, 1_000, 100, 10_000)
    scanned(scan, range(1_000), longest)
    assert scan.count_max <= longest < scan.too_long
