"""The walk through an address space: it ends, finds each variable once by its shortest path, and says what it left
out."""

from collections.abc import Mapping, Sequence

import pytest

from agent.ingest.opcua.explore.walk import FAILURES_NAMED_MAX, FoundVariable, Reference, Walk, is_wanted
from agent.settings.opcua_address import NodeAddress

Space = Mapping[str, Sequence[Reference]]


def node(name: str) -> NodeAddress:
    """A node of the test's server."""
    return NodeAddress("urn:x", name)


def folder(name: str) -> Reference:
    """A reference to a folder."""
    return Reference(node(name), name, is_variable=False, is_property=False)


def variable(name: str) -> Reference:
    """A reference to a variable."""
    return Reference(node(name), name, is_variable=True, is_property=False)


def prop(name: str, parent: str) -> Reference:
    """A reference to a property of a variable."""
    return Reference(node(f"{parent}.{name}"), name, is_variable=True, is_property=True)


def walked(space: Space, *, depth: int = 20, nodes: int = 1000, **more: object) -> Walk:
    """A walk to its end, two nodes a call; a node that is not in the space is refused."""
    walk = Walk(node("root"), depth, nodes, **more)  # type: ignore[arg-type]
    while batch := walk.next_nodes(2):
        for node_id in batch:
            name = str(node_id.identifier)
            if name in space:
                walk.found(node_id, space[name])
            else:
                walk.failed(node_id, "BadUserAccessDenied")
    return walk


def paths(walk: Walk) -> list[str]:
    """The paths of what was found."""
    return [place.path_text for place in walk.variables()]


def test_loops_end_and_the_shortest_path_wins() -> None:
    """A machine that refers back to its line, and a variable that hangs in two places."""
    space = {
        "root": [folder("line"), folder("views")],
        "line": [folder("oven")],
        "oven": [folder("line"), folder("root"), variable("t")],
        "views": [variable("t")],
        "t": [],
    }
    walk = walked(space)
    assert paths(walk) == ["views/t"]
    assert walk.browsed_total == 5


def test_units_are_found_and_properties_are_left_out() -> None:
    """EngineeringUnits belongs to its variable; properties are variables only if they are asked for."""
    space = {
        "root": [variable("t"), prop("Serial", "root")],
        "t": [prop("EngineeringUnits", "t")],
        "t.EngineeringUnits": [],
        "root.Serial": [],
    }
    (found,) = walked(space).variables()
    assert found.units == node("t.EngineeringUnits")
    assert paths(walked(space, with_properties=True)) == ["Serial", "t", "t/EngineeringUnits"]


def test_the_depth_is_a_limit_and_what_lies_deeper_is_counted() -> None:
    """Nothing below the limit is found, except the unit of a variable at the limit."""
    space = {
        "root": [folder("a"), variable("v1")],
        "a": [folder("b"), variable("v2")],
        "b": [variable("v3")],
        "v1": [],
        "v2": [prop("EngineeringUnits", "v2"), variable("v2.part")],
    }
    walk = walked(space, depth=2)
    assert paths(walk) == ["a/v2", "v1"]
    assert walk.variables()[0].units is not None
    assert walk.deeper_total == 2
    assert not walk.is_cut


def test_the_number_of_nodes_is_a_limit() -> None:
    """A walk that is cut says so."""
    space = {"root": [variable(f"v{number}") for number in range(10)], **{f"v{number}": [] for number in range(10)}}
    walk = walked(space, nodes=5)
    assert (len(walk.variables()), walk.is_cut, walk.nodes_total) == (4, True, 5)
    assert not walked(space).is_cut


def test_a_part_that_is_refused_is_named_and_the_rest_is_found() -> None:
    """A folder that may not be browsed costs that folder; many of them are counted, and the first named."""
    space = {"root": [folder("sealed"), variable("v")], "v": []}
    walk = walked(space)
    assert paths(walk) == ["v"]
    assert walk.failures.named == ["sealed: BadUserAccessDenied"]
    many = walked({"root": [folder(f"f{number}") for number in range(50)]})
    assert many.failures.counts == {"BadUserAccessDenied": 50}
    assert len(many.failures.named) == FAILURES_NAMED_MAX


def test_nodes_given_back_are_asked_for_again_first() -> None:
    """What a call did not take comes next, in its order."""
    walk = Walk(node("root"), 5, 100)
    walk.found(walk.next_nodes(1)[0], [folder("a"), folder("b"), folder("c")])
    batch = walk.next_nodes(2)
    walk.give_back(batch[1:])
    assert walk.next_nodes(5) == [node("b"), node("c")]


def test_a_skipped_node_is_not_entered() -> None:
    """The server's own object, unless it is asked for."""
    space = {"root": [folder("server"), variable("v")], "server": [variable("state")], "v": [], "state": []}
    assert paths(walked(space, skipped=[node("server")])) == ["v"]


@pytest.mark.parametrize(
    "text, glob, wanted",
    [
        ("", "", True),
        ("TEMP", "", True),
        ("press", "", False),
        ("db1.t", "", True),
        ("", "Line1/*/Temp*", True),
        ("", "Line1/Temp*", False),
        ("", "line1/*", False),
        ("temp", "Line2/*", False),
    ],
)
def test_filters(text: str, glob: str, *, wanted: bool) -> None:
    """A text in any case in path or node id, a glob on the whole path; both must hold."""
    assert is_wanted(FoundVariable(node("DB1.T"), ("Line1", "Oven", "Temperature")), text, glob) is wanted
