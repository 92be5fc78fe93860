"""Tests the connection to a server step by step: name, port, protocol, endpoints, both certificates, session, user,
state, limits.

Each step reports its result, or the problem and what to do. A step that fails ends the test. The steps use the code of
a source, so settings that pass the test work for a source. The command prints the working settings for node.toml.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from asyncua import ua
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIds

from agent.ingest.dial import look_up
from agent.ingest.errors import SourceError, SourceRefused
from agent.ingest.opcua.explore.services import Services, open_services, value_of
from agent.ingest.opcua.security.certificate import (
    ensure_certificate,
    file_to_import,
    own_certificate,
    read_certificate,
)
from agent.ingest.opcua.security.channel import choose_endpoint, judge_server, mode_name, policy_name, presented_by
from agent.ingest.opcua.security.client import StepTrackingClient, offered_endpoints
from agent.ingest.opcua.security.refusal import NAME_UNKNOWN, ClientIdentity, ConnectStep, Failure, explain
from agent.ingest.opcua.security.trust_folder import TrustFolder
from agent.ingest.opcua.security.trust_list import TrustVerdict
from agent.ingest.probe_result import ProbeStep, StepOutcome, failed
from agent.settings.opcua_address import STANDARD_URI, NodeAddress
from agent.settings.sources import OpcuaSourceSettings, SecurityMode, SecurityPolicy, section

PORT = 4840
CLOCK_DIFFERENCE_S = 5.0  # beyond it, source times and ours are hard to compare, and certificates may be refused
# The most common one first, because servers are tested most with it.
_PREFERRED: tuple[tuple[SecurityPolicy, SecurityMode], ...] = (
    ("Basic256Sha256", "SignAndEncrypt"),
    ("Aes256Sha256RsaPss", "SignAndEncrypt"),
    ("Aes128Sha256RsaOaep", "SignAndEncrypt"),
    ("Basic256Sha256", "Sign"),
    ("Aes256Sha256RsaPss", "Sign"),
    ("Aes128Sha256RsaOaep", "Sign"),
)
_TOKENS = {
    ua.UserTokenType.Anonymous: "anonymous",
    ua.UserTokenType.UserName: "user name",
    ua.UserTokenType.Certificate: "certificate",
    ua.UserTokenType.IssuedToken: "issued token",
}


@dataclass(slots=True)
class Probe:
    """One test. `settings` become those that work. Unless `is_chosen`, another policy than that of the settings may be
    used.

    `confirm` decides whether to trust an unknown certificate of the server.
    """

    settings: OpcuaSourceSettings
    password: str
    is_chosen: bool
    confirm: Callable[[TrustVerdict], bool]
    is_over: bool = False
    _endpoints: list[ua.EndpointDescription] = field(default_factory=list)
    _are_hidden: bool = False

    async def steps(self) -> AsyncIterator[ProbeStep]:
        """The steps, each when it ends. Afterwards `settings` are those that were used."""
        for name, step in (
            ("name", self._name),
            ("endpoints", self._ask),
            ("policy", self._choose),
            ("our certificate", self._own),
            ("its certificate", self._server),
        ):
            try:
                found = await step()
            except SourceError as error:
                found = failed(name, str(error))
            if found is not None:
                yield found
                if found.outcome is StepOutcome.FAILED:
                    return
        async for found in self._session_steps():
            yield found

    async def _name(self) -> ProbeStep:
        parts = urlsplit(self.settings.url)
        host, port = parts.hostname or "", parts.port or PORT
        try:
            addresses = await look_up(host, port)
        except OSError as error:
            failure = Failure(ConnectStep.TCP, NAME_UNKNOWN, str(error))
            return failed("name", str(explain(failure, ClientIdentity(self.settings.url, ""))))
        return ProbeStep("name", StepOutcome.OK, f"{host} is {', '.join(addresses)}, port {port}")

    async def _ask(self) -> ProbeStep:
        """TCP, Hello and GetEndpoints. A failure names the one that failed."""
        try:
            self._endpoints = await offered_endpoints(StepTrackingClient(self.settings), self.settings)
        except SourceError:
            if self.settings.server_certificate_file is None:
                raise
            self._are_hidden = True
            return ProbeStep(
                "endpoints", StepOutcome.NOTE, "not shown without security; the file of its certificate is given"
            )
        lines = [_endpoint_line(endpoint) for endpoint in self._endpoints]
        server = self._endpoints[0].Server if self._endpoints else None
        if server is None:
            todo = "write the host name by which the server knows itself into the URL, or configure an endpoint there"
            return failed("endpoints", f"{self.settings.url} offers no endpoint at this address", todo)
        name = server.ApplicationName.Text if server.ApplicationName is not None else ""
        what = f"{name or 'a server'} ({server.ApplicationUri}), product {server.ProductUri or 'unnamed'}"
        return ProbeStep("endpoints", StepOutcome.OK, what, details=tuple(lines))

    async def _choose(self) -> ProbeStep:
        offered = {(policy_name(endpoint), mode_name(endpoint)) for endpoint in self._endpoints}
        settings = self.settings
        if settings.security_policy == "None":
            if ("None", "None") in offered:
                return ProbeStep(
                    "policy", StepOutcome.NOTE, "no signing and no encryption, as asked for with --insecure"
                )
            return failed("policy", f"{settings.url} does not offer connections without security", "omit --insecure")
        wanted = (settings.security_policy, settings.security_mode)
        if wanted in offered or self._are_hidden:
            return ProbeStep("policy", StepOutcome.OK, f"{wanted[0]}, {wanted[1]}")
        if not self.is_chosen:
            for policy, mode in _PREFERRED:
                if (policy, mode) in offered:
                    self.settings = replace(settings, security_policy=policy, security_mode=mode)
                    return ProbeStep("policy", StepOutcome.OK, f"{policy}, {mode}")
        policies = sorted({policy for policy, _ in offered})
        todo = f"enable one of {', '.join(dict.fromkeys(policy for policy, _ in _PREFERRED))} at the server"
        if "None" in policies:
            todo += "; or, where the network is protected otherwise, accept no security with --insecure"
        return failed(
            "policy", f"{settings.url} offers no policy that can be used; it offers {', '.join(policies)}", todo
        )

    async def _own(self) -> ProbeStep | None:
        settings = self.settings
        if settings.security_policy == "None":
            return None
        certificate, key = settings.certificate_file, settings.private_key_file
        assert certificate is not None, "checked with the settings"
        assert key is not None, "checked with the settings"
        is_new = not certificate.exists()
        await asyncio.to_thread(ensure_certificate, certificate, key, settings.application_uri)
        own = own_certificate(settings)
        file = await asyncio.to_thread(file_to_import, certificate)
        return ProbeStep(
            "our certificate",
            StepOutcome.OK,
            f"{'made now' if is_new else 'from'} {file}",
            details=(
                *_certificate_lines(own.sha1, own.sha256, own.validity),
                f"names {', '.join((*own.uris, *own.host_names))}",
            ),
        )

    async def _server(self) -> ProbeStep | None:
        """The server's certificate: trusted already, or now after confirmation."""
        settings = self.settings
        if self._are_hidden or (settings.security_policy == "None" and not settings.user_name):
            return None
        presented = presented_by(settings, choose_endpoint(settings, self._endpoints))
        file = settings.server_certificate_file
        pinned = None if file is None else read_certificate(file)
        verdict = await asyncio.to_thread(judge_server, settings, presented, pinned)
        facts = verdict.facts
        lines = (
            *_certificate_lines(facts.sha1, facts.sha256, facts.validity),
            f"subject {facts.subject}, {'self-signed' if facts.is_self_issued else f'issued by {facts.issuer}'}",
            f"names {', '.join((*facts.uris, *facts.host_names)) or 'none'}",
        )
        name = "its certificate"
        if verdict.trust is not None:
            return ProbeStep(name, StepOutcome.OK, f"accepted: {verdict.trust.value}", details=lines)
        if not verdict.is_unknown:
            return failed(name, verdict.why, verdict.todo, lines)
        why = verdict.why + (f", and {verdict.also_why}" if verdict.also_why else "")
        if not self.confirm(verdict):
            todo = "compare the thumbprint with the one shown at the server, then call this again with --trust"
            return failed(name, why, todo, lines)
        if settings.trust_folder is None or verdict.also_why or verdict.why != "is not trusted":
            self.settings = replace(settings, server_certificate_sha256=facts.sha256, server_certificate_file=None)
            return ProbeStep(name, StepOutcome.OK, f"pinned now: it {why}", details=lines)
        folder = TrustFolder(settings.trust_folder)
        await asyncio.to_thread(folder.reject, facts)
        trusted = await asyncio.to_thread(folder.trust, facts.sha1)
        return ProbeStep(name, StepOutcome.OK, f"trusted now: {trusted.file}", details=lines)

    async def _session_steps(self) -> AsyncIterator[ProbeStep]:
        settings = self.settings
        try:
            async with open_services(settings, self.password) as services:
                user = settings.user_name or str(settings.user_certificate_file or "anonymous")
                yield ProbeStep("session", StepOutcome.OK, f"opened as {user}")
                yield await _state_step(services)
                if (redundancy := await _redundancy_step(services)) is not None:
                    yield redundancy
                yield await _clock_step(services)
                yield await _limits_step(services)
                self.is_over = True
        except SourceError as error:
            yield failed("session", str(error))


async def _state_step(services: Services) -> ProbeStep:
    names = ("State", "BuildInfo_ProductName", "BuildInfo_ManufacturerName", "BuildInfo_SoftwareVersion", "StartTime")
    state, product, maker, version, started = await _values(services, [f"Server_ServerStatus_{name}" for name in names])
    try:
        word = ua.ServerState(state).name if isinstance(state, int) else "unknown"
    except ValueError:
        word = str(state)
    text = " ".join(str(part) for part in (product, version) if part) or "unnamed product"
    what = f"{word}: {text}" + (f" by {maker}" if maker else "")
    if isinstance(started, datetime):
        what += f", since {_utc(started):%Y-%m-%d %H:%M} UTC"
    if state == 0:
        return ProbeStep("server", StepOutcome.OK, what)
    return ProbeStep("server", StepOutcome.NOTE, what, "the server reports that it is not running; check it")


async def _redundancy_step(services: Services) -> ProbeStep | None:
    """The redundant servers by the server's own account; None if it is alone."""
    names = ("ServiceLevel", "ServerRedundancy_RedundancySupport", "ServerRedundancy_RedundantServerArray")
    level, support, servers = await _values(services, [f"Server_{name}" for name in names])
    (uris,) = await _values(services, ["Server_ServerRedundancy_ServerUriArray"])
    if not isinstance(support, int) or not support:
        return None
    known = [str(getattr(server, "ServerId", server)) for server in servers or uris or ()]
    kind = next((mode.name for mode in ua.RedundancySupport if mode.value == support), str(support))
    text = f"{kind}: {', '.join(known) or 'it does not name the others'}"
    if isinstance(level, int):
        text += f"; service level {level}"
    return ProbeStep("redundancy", StepOutcome.OK, text)


async def _clock_step(services: Services) -> ProbeStep:
    before = datetime.now(UTC)
    (server_time,) = await _values(services, ["Server_ServerStatus_CurrentTime"])
    after = datetime.now(UTC)
    if not isinstance(server_time, datetime):
        return ProbeStep(
            "clock", StepOutcome.NOTE, "the server does not give its time", "liveness is judged by any answer"
        )
    difference_s = (_utc(server_time) - (before + (after - before) / 2)).total_seconds()
    ahead = "ahead of" if difference_s >= 0 else "behind"
    what = f"the server's clock is {abs(difference_s):.3f} s {ahead} ours"
    if abs(difference_s) <= CLOCK_DIFFERENCE_S:
        return ProbeStep("clock", StepOutcome.OK, what)
    return ProbeStep("clock", StepOutcome.NOTE, what, "set both by a time server: values carry the server's time")


async def _limits_step(services: Services) -> ProbeStep:
    calls = ("MaxNodesPerRead", "MaxNodesPerBrowse", "MaxMonitoredItemsPerCall", "MaxNodesPerHistoryReadData")
    names = [f"OperationLimits_{name}" for name in calls] + ["MaxSessions", "MaxSubscriptionsPerSession"]
    names += ["MaxMonitoredItemsPerSubscription", "MinSupportedSampleRate"]
    values = await _values(services, [f"Server_ServerCapabilities_{name}" for name in names])
    known = ((name.rpartition("_")[2], value) for name, value in zip(names, values, strict=True))
    lines = [f"{name} {value:g}" for name, value in known if isinstance(value, int | float) and value]
    (history,) = await _values(services, ["HistoryServerCapabilities_AccessHistoryDataCapability"])
    if isinstance(history, bool):
        lines.append(f"history of values: {'yes' if history else 'no'}")
    return ProbeStep("limits", StepOutcome.OK, ", ".join(lines) or "the server declares none")


async def _values(services: Services, names: Sequence[str]) -> list[Any]:
    """Read standard nodes by the names of their ids; None for what the server does not have."""
    nodes = [NodeAddress(STANDARD_URI, getattr(ObjectIds, name)) for name in names if hasattr(ObjectIds, name)]
    answers = await services.read([(node, AttributeIds.Value) for node in nodes])
    found = [value_of(answer) for answer in answers]
    return found + [None] * (len(names) - len(found))


def _endpoint_line(endpoint: ua.EndpointDescription) -> str:
    tokens = sorted({_TOKENS.get(token.TokenType, "unknown") for token in endpoint.UserIdentityTokens or ()})
    return f"{policy_name(endpoint)}, {mode_name(endpoint)}: users {', '.join(tokens) or 'not given'} at {endpoint.EndpointUrl}"


def _certificate_lines(sha1: str, sha256: str, validity: str) -> tuple[str, ...]:
    return f"thumbprint {sha1} (SHA-1)", f"SHA-256 {sha256}", f"valid {validity}"


def _utc(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def section_of(settings: OpcuaSourceSettings) -> str:
    """The `[[opcua]]` section of node.toml for these settings: what differs from the defaults and has a meaning."""
    without: set[str] = {"trust_folder"} if settings.server_certificate_sha256 else set()
    if settings.security_policy == "None":
        without |= _OWN if settings.user_name else _OWN | _SERVERS
    return section(settings, without)


_OWN = {"certificate_file", "private_key_file", "application_uri"}
_SERVERS = {"trust_folder", "crl_required", "server_certificate_file", "server_certificate_sha256"}


def check_settings(settings: OpcuaSourceSettings) -> None:
    """Raise SourceRefused for invalid settings, with the messages of `bsfg check`."""
    problems = [f"{name}: {why}" for name, why in settings.problems()]
    if problems:
        raise SourceRefused("; ".join(problems))
