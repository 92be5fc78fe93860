"""A connection to a Modbus device: which bytes are the answer to a request, and when that is certain.

`frames` reads and writes frames, `answers` matches them to requests (cores). `connection` opens TCP, TLS and serial
lines, `endpoint` holds what all sources of one device share, `line` takes their requests in turns.
"""

from agent.ingest.modbus.line.endpoint import Endpoint, Endpoints
from agent.ingest.modbus.line.line import Line, ReadRefused, UnitGarbled, UnitSilent

__all__ = ["Endpoint", "Endpoints", "Line", "ReadRefused", "UnitGarbled", "UnitSilent"]
