"""Scans a store: selects the batches that may match, returns their facts as columns or messages, and parses times."""

from agent.query.scan.bounds import INT64_MAX, OFFSET_MAX, Bounds, matches_glob
from agent.query.scan.dictionary import Chain, Dictionary, NumbersOnly
from agent.query.scan.errors import ExportRefused, ExtraMissing, SqlRefused, StreamUnknown, TimeUnreadable
from agent.query.scan.fact_columns import COLUMNS, BatchFacts, exact_text, sql_value, value_text, value_type
from agent.query.scan.messages import fact_messages, shown_fact
from agent.query.scan.scanner import READ_BYTES_MAX, ScanCounters, Scanner
from agent.query.scan.times import compare, parse_moment_ns, parse_time_ns
