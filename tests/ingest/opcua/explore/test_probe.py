"""What `bsfg opcua test` chooses of what a server offers."""

from pathlib import Path
from typing import Any

import pytest
from asyncua import ua
from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256
from asyncua.ua.object_ids import ObjectIds

from agent.ingest.opcua.explore.probe import Probe, StepOutcome, _limits_step, _redundancy_step
from agent.settings.opcua_address import NodeAddress
from agent.settings.sources import OpcuaSourceSettings

USER = {"user_name": "op", "password_file": Path("password")}
FILES = {"certificate_file": Path("own.der"), "private_key_file": Path("own.key")}


class Services:
    """A server that has these values, by the numbers of their nodes."""

    def __init__(self, values: dict[int, Any]) -> None:
        self.values = values

    async def read(self, asked: list[tuple[NodeAddress, object]]) -> list[ua.DataValue]:
        return [ua.DataValue(ua.Variant(self.values.get(int(node.identifier)))) for node, _ in asked]


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
    "support, servers, said",
    [
        (0, None, None),
        (None, None, None),
        (2, ["urn:a", "urn:b"], "Warm: urn:a, urn:b; service level 200"),
        (77, None, "77: it does not name the others; service level 200"),
    ],
)
async def test_redundant_servers_are_shown_as_the_server_names_them(
    support: int | None, servers: list[str] | None, said: str | None
) -> None:
    """A server without redundancy, or that does not say, gets no line."""
    values = {
        ObjectIds.Server_ServiceLevel: 200,
        ObjectIds.Server_ServerRedundancy_RedundancySupport: support,
        ObjectIds.Server_ServerRedundancy_ServerUriArray: servers,
    }

    step = await _redundancy_step(Services(values))  # type: ignore[arg-type]
    assert (None if step is None else step.what) == said


async def test_limits_are_shown_as_far_as_the_server_declares_them() -> None:
    """None of zero, which is no limit, and none that it does not have."""
    values = {
        ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerRead: 500,
        ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerBrowse: 0,
        ObjectIds.Server_ServerCapabilities_MaxSessions: 20,
        ObjectIds.HistoryServerCapabilities_AccessHistoryDataCapability: False,
    }
    said = "MaxNodesPerRead 500, MaxSessions 20, history of values: no"
    assert (await _limits_step(Services(values))).what == said  # type: ignore[arg-type]
