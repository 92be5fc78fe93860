"""What `bsfg opcua test` chooses of what a server offers."""

from pathlib import Path
from typing import Any

import pytest
from asyncua import ua
from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256
from asyncua.ua.object_ids import ObjectIdNames

from agent.ingest.opcua.explore.probe import Probe, StepOutcome, _limits_step, _redundancy_step
from agent.settings.opcua_address import NodeAddress
from agent.settings.sources import OpcuaSourceSettings

USER = {"user_name": "op", "password_file": Path("password")}
FILES = {"certificate_file": Path("own.der"), "private_key_file": Path("own.key")}


def probe(modes: list[str], **settings: object) -> Probe:
    """A probe of a server that offers Basic256Sha256 in these modes."""
    found = Probe(
        OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), **{**FILES, **settings}),  # type: ignore[arg-type]
        "",
        False,
        lambda _: True,
    )
    for mode in modes:
        endpoint = ua.EndpointDescription()
        endpoint.SecurityPolicyUri, endpoint.SecurityMode = (
            SecurityPolicyBasic256Sha256.URI,
            ua.MessageSecurityMode[mode],
        )
        found._endpoints.append(endpoint)
    return found


@pytest.mark.parametrize(
    "modes, user, chosen",
    [
        (["Sign"], {}, "Sign"),
        (["Sign", "SignAndEncrypt"], USER, "SignAndEncrypt"),
        (["Sign"], USER, "Sign"),
    ],
)
async def test_the_section_that_is_printed_passes_the_check(
    modes: list[str], user: dict[str, object], chosen: str
) -> None:
    """A server that only signs serves any user; the token policy encrypts a password, or it is not sent."""
    server_probe = probe(modes, **user)
    step = await server_probe._choose()
    assert step.outcome is StepOutcome.OK
    assert server_probe.settings.security_mode == chosen
    assert not list(server_probe.settings.problems())


@pytest.mark.parametrize(
    "step, values, said",
    [
        (_redundancy_step, {"RedundancySupport": 0}, None),
        (_redundancy_step, {}, None),
        (
            _redundancy_step,
            {"RedundancySupport": 2, "ServerUriArray": ["urn:a", "urn:b"]},
            "Warm: urn:a, urn:b; service level 200",
        ),
        (_redundancy_step, {"RedundancySupport": 77}, "77: it does not name the others; service level 200"),
        (_limits_step, {}, "the server declares none"),
        (
            _limits_step,
            {"MaxNodesPerRead": 500, "MaxNodesPerBrowse": 0, "MaxSessions": 20, "AccessHistoryDataCapability": False},
            "MaxNodesPerRead 500, MaxSessions 20, history of values: no",
        ),
    ],
)
async def test_what_a_server_says_of_itself_is_shown(step: Any, values: dict[str, object], said: str | None) -> None:
    """Redundant servers as it names them, with no line where there are none; limits as far as it declares them."""

    class Services:
        async def read(self, asked: list[tuple[NodeAddress, object]]) -> list[ua.DataValue]:
            names = [ObjectIdNames[node.identifier].rpartition("_")[2] for node, _ in asked]  # type: ignore[index]
            return [ua.DataValue(ua.Variant({"ServiceLevel": 200, **values}.get(name))) for name in names]

    found = await step(Services())
    assert (None if found is None else found.what) == said
