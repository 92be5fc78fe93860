"""What `bsfg opcua test` chooses of what a server offers."""

from pathlib import Path

import pytest
from asyncua import ua
from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256

from agent.ingest.opcua.explore.probe import Outcome, Probe
from agent.settings.sources import OpcuaSourceSettings

USER = {"user_name": "op", "password_file": Path("password")}
FILES = {"certificate_file": Path("own.der"), "private_key_file": Path("own.key")}


def probe(modes: list[str], **settings: object) -> Probe:
    """A probe of a server that offers Basic256Sha256 in these modes."""
    found = Probe(
        OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), **{**FILES, **settings}),  # type: ignore[arg-type]
        *("", False, lambda _: True),
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
    one = probe(modes, **user)
    step = await one._choose()
    assert step.outcome is Outcome.OK
    assert one.settings.security_mode == chosen
    assert not list(one.settings.problems())
