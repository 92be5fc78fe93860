"""Draws the states of a consumer from the table in the code into docs/operate/consumers.md. Prints nothing when the
page is up to date.

The output is a Mermaid state diagram, which code hosts render and which reads as text. Run it after changing the table.
"""

from __future__ import annotations

import re
from pathlib import Path

from agent.fact_store.core.lifecycle import TRANSITIONS, Lifecycle

PAGE = Path(__file__).resolve().parents[1] / "docs/operate/consumers.md"
_MARKED = re.compile(r"(<!-- lifecycle: from agent/fact_store/core/lifecycle.py -->\n).*?(<!-- end -->)", re.DOTALL)


def diagram() -> str:
    """The diagram: one state for each Lifecycle, one arrow for each row."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {_name(Lifecycle.NEW)}: registered"]
    lines += [f"    {_name(state)}: {state.value}" for state in Lifecycle if _name(state) != state.value]
    lines += [
        f"    {_name(before)} --> {_name(after)}: {event.value}" for (before, event), after in TRANSITIONS.items()
    ]
    lines += [f"    {_name(Lifecycle.DELETED)} --> [*]", "```"]
    return "\n".join(lines) + "\n"


def drawn(page: str) -> str:
    """The page with the diagram as it is now."""
    assert len(_MARKED.findall(page)) == 1, "the page has no place for the diagram"
    return _MARKED.sub(lambda found: found[1] + diagram() + found[2], page)


def _name(state: Lifecycle) -> str:
    return state.value.replace(" ", "_")


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if (new := drawn(text)) != text:
        PAGE.write_text(new, encoding="utf-8")
        print(f"updated {PAGE}")
