"""SQL over a store: virtual tables for the facts, and how a statement's conditions narrow the scan."""

from agent.query.sql.session import SqlSession
