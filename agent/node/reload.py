"""Reads node.toml again while the node runs, one reload at a time: on SIGHUP or on a request at the local socket.

`reload_plan` decides, the node carries out. A file that is not good changes nothing: the settings in force stay, and
the reason goes to the log, to the status, and to the caller. The same holds for tag files, for facts authorities, for
the own signing key, and for the certificates of a broker that would restart. A source that goes on keeps its map if its
tag file is wrong.

A node that started without a part of the file reads it again as soon as it changes: nothing else asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from agent.config import ConfigFile, NotInForce
from agent.errors import BsfgError
from agent.ingest import TagFile, TagMap, load_tag_files
from agent.node.reload_plan import ReloadPlan, plan_reload
from agent.node.trust import TrustFiles
from agent.replication.pki import check_identity
from agent.settings.node import NodeSettings

log = logging.getLogger(__name__)


class ReloadRefused(BsfgError):
    """The file, or a file that it names, cannot be used; the node goes on with the settings before."""

    hint = "the previous settings stay in force; bsfg check lists every problem"


CarryOut = Callable[[ReloadPlan, Mapping[str, TagFile]], Awaitable[None]]


class Reloader:
    """The settings in force, and the result of the last reload."""

    def __init__(
        self,
        settings: NodeSettings,
        file: ConfigFile,
        trust: TrustFiles,
        carry_out: CarryOut,
        is_asked: asyncio.Event,
        *,
        tag_maps: Callable[[], Mapping[str, TagMap]] = dict,
        not_in_force: tuple[NotInForce, ...] = (),
    ) -> None:
        """`tag_maps` gives those in force, `not_in_force` is what the start left out of the file."""
        self.settings = settings
        self.not_in_force = not_in_force
        self._tag_maps = tag_maps
        self.needs_restart: tuple[str, ...] = ()
        self.refused = ""
        self.is_file_changed = False  # as of the last check: the file differs from the settings in force
        self._file = file
        self._trust = trust
        self._carry_out = carry_out
        self._is_asked = is_asked  # set by SIGHUP
        self._waiting: list[asyncio.Future[ReloadPlan]] = []  # bounded by the places of the local socket

    async def check_file(self) -> None:
        """Check whether the file differs from the settings in force."""
        settings = self.settings
        is_changed = await asyncio.to_thread(self._file.is_changed)
        # Not after a reload that ended meanwhile: this read may have been of the file before it.
        if self.settings is settings:
            self.is_file_changed = is_changed
        is_unread = bool(self.not_in_force) and await asyncio.to_thread(self._file.is_unread)
        if is_unread:
            self._is_asked.set()

    async def reload(self) -> ReloadPlan:
        """Reload, and return what was carried out. Raises ReloadRefused."""
        outcome: asyncio.Future[ReloadPlan] = asyncio.get_running_loop().create_future()
        self._waiting.append(outcome)
        self._is_asked.set()
        return await outcome

    async def run(self) -> None:
        """Reload whenever asked, until cancelled."""
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            waiting, self._waiting = self._waiting, []
            try:
                plan, tag_files = await self._planned()
            except BsfgError as error:
                self._refuse(ReloadRefused(str(error)), waiting)
                continue
            self.not_in_force = ()
            await self._carry_out(plan, tag_files)
            self.settings, self.needs_restart, self.refused = plan.settings, plan.needs_restart, ""
            self.is_file_changed = False
            log.info("reloaded", extra={"applied": list(plan.applied), "needs_restart": list(plan.needs_restart)})
            for outcome in waiting:
                if not outcome.done():
                    outcome.set_result(plan)

    def _refuse(self, error: ReloadRefused, waiting: list[asyncio.Future[ReloadPlan]]) -> None:
        self.refused = str(error)
        log.error("reload_refused", extra={"why": str(error), "hint": error.hint})
        for outcome in waiting:
            if not outcome.done():
                outcome.set_exception(error)

    async def _planned(self) -> tuple[ReloadPlan, Mapping[str, TagFile]]:
        """The plan for the present file, and the tag files of the sources that begin or get a new map. Puts its signing
        key in force. Raises BsfgError."""
        plan = plan_reload(self.settings, await asyncio.to_thread(self._file.load))
        if plan.refused:
            what = ", ".join(plan.refused)
            raise ReloadRefused(f"{self._file.file}: {what} cannot change: this file describes another node")
        sources = plan.settings.sources
        going_on = {source.name for source in sources} - plan.sources
        tag_files = await asyncio.to_thread(load_tag_files, sources, self._tag_maps(), going_on)
        await asyncio.to_thread(self._check_identities, plan)
        signer = await asyncio.to_thread(self._trust.check, plan.settings)
        # The last step that can fail. Nothing else has been changed yet.
        if await self._trust.sign_with(signer):
            key = "no key" if signer is None else signer.key_id.hex()
            plan = replace(plan, applied=(*plan.applied, f"signing with {key}"))
        return plan, tag_files

    def _check_identities(self, plan: ReloadPlan) -> None:
        """Raise ReloadRefused if a broker that would restart has unusable certificates: its link may work at
        present."""
        problems = [
            str(problem)
            for broker in plan.settings.broker
            if broker.name in plan.brokers
            for problem in check_identity(broker.cert_file, broker.key_file, broker.ca_file, plan.settings.node.name)
        ]
        if problems:
            raise ReloadRefused("\n  ".join([f"{len(problems)} problems of certificates", *problems]))
