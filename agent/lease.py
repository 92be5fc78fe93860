"""Leases: which of several instances that use one name may go on. Core, without IO; the same rule for whoever keeps the lease.

A name (a consumer, a producer) is one reader or writer by intent. Where there are two after all, a machine that was cloned or a
process that was started twice, whoever keeps the name's state gives each that begins a higher epoch than the one before: the
newer goes on, and the older is *fenced* at its next request, which is final for it. No clock is involved and nothing runs out:
an instance that was away for a week goes on if nobody took its place.

    shown                              who shows it     becomes of it
    ---------------------------------  ---------------  ------------------------------------------------------
    anything, nothing too              the holder       goes on, the lease stands
    0: asks for a lease                somebody else    the next epoch is his
    0, after another than is in force  somebody else    nothing changes; he is told which is, and asks after that
    an epoch above the one in force    somebody else    his, as he shows it: the keeper has forgotten (restored)
    the epoch in force                 somebody else    goes on, the lease stands: one that asks by several ways
    a lower epoch, or none             somebody else    fenced
    none                               nobody has one   goes on without

A request may arrive long after it was sent, when whoever sent it is dead and his successor holds the lease. So who begins first asks
which epoch is in force and then for the one *after* it: what he sent before he died names an epoch that his successor has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.message import JSON_INTEGER_MAX

LEASE_EPOCH_MAX = JSON_INTEGER_MAX
"""Above it JSON's readers disagree about a number."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease in force under a name; epoch 0 where nobody ever asked for one."""

    epoch: int = 0
    holder: str = ""


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """What an instance shows: its own name, which no other instance has, and the epoch it was given. 0 asks for one, None knows
    nothing of leases. `after` is the epoch after which it asks, None for any."""

    holder: str
    epoch: int | None = None
    after: int | None = None


NO_LEASE = Lease()


def decide_lease(held: Lease, shown: LeaseClaim) -> Lease | None:
    """The lease in force from now on, `held` itself where nothing changes; None for whoever is fenced. Who asks after another epoch than
    the one in force has none yet (`must_claim_again`)."""
    epoch = shown.epoch
    if held == NO_LEASE and epoch is None:
        return held
    if shown.holder == held.holder:
        return held
    if epoch == 0 and shown.after not in {None, held.epoch}:
        return held
    if epoch == 0 and held.epoch < LEASE_EPOCH_MAX:
        return Lease(held.epoch + 1, shown.holder)
    if epoch is None or epoch < held.epoch:
        return None
    return held if epoch == held.epoch else Lease(epoch, shown.holder)


def must_claim_again(lease: Lease, shown: LeaseClaim) -> bool:
    """Whether the lease that is in force now is not his who asked for one, because he asked after another epoch."""
    return shown.epoch == 0 and shown.after is not None and lease.holder != shown.holder
