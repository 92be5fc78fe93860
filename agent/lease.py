"""Leases with fencing tokens: which of several instances that use one name may continue. Core: no IO.

A name (of a consumer or a producer) belongs to one instance. If there are two, because a machine was cloned or a
process was started twice, each instance that starts gets a higher epoch than the one before (decision 0036). The newer
one continues; the older one is *fenced* at its next request, which is final. Leases do not expire: an instance that was
away for a week continues if no other took its place.

    claim of an instance               made by            result
    ---------------------------------  -----------------  ------------------------------------------------------------
    any, or none                       the holder         the lease stays in force
    0: requests a lease                another instance   it gets the next epoch; the first one is after `base`
    0, after an epoch not in force     another instance   no change; it claims again after the epoch in force
    an epoch above the one in force    another instance   unknown: the keeper has not granted it; request a new one
    an epoch up to `base`              another instance   unknown: it was granted before the name was registered again
    the epoch in force                 another instance   the lease stays in force: one instance on several connections
    a lower epoch, or none             another instance   fenced
    none                               no lease in force  accepted without a lease

A request may arrive after its sender has ended and a successor holds the lease. So an instance that starts first asks
which epoch is in force, then requests the one *after* it: a late request of its predecessor names an epoch that is no
longer in force.

A name that was removed and is registered again begins with epochs that it never had (`base`). Otherwise a broker that
has kept signed requests of ended instances could take the lease with them, and fence the running instance.

Only the keeper of the leases grants an epoch. An epoch that was never granted is refused: if the keeper accepted it,
one request with the highest possible epoch would block the name forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agent.message import JSON_INTEGER_MAX

LEASE_EPOCH_MAX = JSON_INTEGER_MAX
"""Larger integers are not exact in all JSON readers."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease in force under a name; epoch 0 if none was ever requested."""

    epoch: int = 0
    holder: str = ""


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """The claim of an instance: its unique name, and the epoch it was granted. Epoch 0 requests a lease, None uses
    none. `after`: the request is valid only while this epoch is in force; None: always."""

    holder: str
    epoch: int | None = None
    after: int | None = None


NO_LEASE = Lease()


class Denied(Enum):
    """Why a claim is refused."""

    FENCED = "a newer instance holds the lease"
    UNKNOWN = "this epoch was never granted here"


def decide_lease(held: Lease, claim: LeaseClaim, base: int = 0) -> Lease | Denied:
    """The lease in force after a claim, `held` itself if nothing changes; or why the claim is refused. `base`: no epoch
    up to it was granted since the name was registered.

    A claim after an epoch that is not in force changes nothing, and must be repeated (`must_claim_again`).
    """
    epoch = claim.epoch
    if epoch is None and held == NO_LEASE:
        return held
    if claim.holder == held.holder:
        return held
    if epoch == 0 and claim.after not in {None, held.epoch}:
        return held
    if epoch == 0 and held.epoch < LEASE_EPOCH_MAX:
        return Lease((held.epoch or base) + 1, claim.holder)
    if epoch and epoch <= base < held.epoch:
        return Denied.UNKNOWN
    if epoch is None or epoch < held.epoch or epoch == 0:
        return Denied.FENCED
    return held if epoch == held.epoch else Denied.UNKNOWN


def must_claim_again(lease: Lease, claim: LeaseClaim) -> bool:
    """Whether a request for a lease was not granted because it came after an epoch that is not in force."""
    return claim.epoch == 0 and claim.after is not None and lease.holder != claim.holder
