import random
from bisect import bisect_right

from agent.ingest.completeness import Moment
from agent.ingest.opcua.subscriptions.liveness import Liveness
from tests.sim import first_seed, scaled

S = 1_000_000_000


def opened(opened_ns: int, now_s: float = 0.0) -> Liveness:
    """Of a subscription that was created then."""
    life = Liveness(now_s)
    life.open(Moment(opened_ns))
    return life


def answer(life: Liveness, now_s: float, sent_ns: int, clock_ns: int | None, *, is_proof: bool, more: bool) -> None:
    """An answer, by a clock that is not set."""
    clock = None if clock_ns is None else Moment(clock_ns)
    life.note_answer(now_s, Moment(sent_ns), clock, is_proof=is_proof, more=more)


def complete_ns(life: Liveness) -> int:
    """The time of completeness; 0: not known."""
    return 0 if life.complete is None else life.complete.time_ns


def test_a_clock_that_never_moves_is_given_up() -> None:
    """It came once: after some time any answer counts, and dates a loss. One that never came, or has moved, proves
    something by its silence."""
    life = Liveness(0.0)
    answer(life, 1.0, 10 * S, None, is_proof=False, more=False)
    assert not life.give_up_clock(20.0, 15.0)
    assert life.note_clock("a")
    answer(life, 2.0, 11 * S, 11 * S, is_proof=True, more=False)
    assert not life.give_up_clock(14.0, 15.0)
    answer(life, 19.0, 28 * S, None, is_proof=False, more=False)
    assert (life.silent_s(20.0), life.give_up_clock(20.0, 15.0), life.silent_s(20.0)) == (18.0, True, 1.0)
    answer(life, 21.0, 30 * S, None, is_proof=False, more=False)
    answer(life, 22.0, 31 * S, None, is_proof=False, more=False)
    assert (life.alive_s, complete_ns(life), life.proven_s) == (22.0, 30 * S, 2.0)
    moving = Liveness(0.0)
    assert moving.note_clock("a")
    assert moving.note_clock("b")
    assert not moving.give_up_clock(20.0, 15.0)


def test_a_server_that_is_held_back_is_excused_but_proves_nothing() -> None:
    """The silence starts anew; a loss is still dated at the last proof."""
    life = opened(1 * S, 100.0)
    answer(life, 101.0, 2 * S, None, is_proof=True, more=False)
    life.excuse(120.0)
    assert (life.silent_s(121.0), complete_ns(life)) == (1.0, 1 * S)


# --- up to when everything is delivered -------------------------------------------------------------------------------


def complete(
    *answers: tuple[int, int | None], opened_ns: int = -(10**15), sampling_ns: int = 0, has_clock: bool = True
) -> int:
    """The time of completeness after answers that bear these times of sending and of the server's clock, in a
    subscription that was created at `opened_ns`, by default long before."""
    life = opened(opened_ns)
    life.has_clock, life.sampling_ns = has_clock, sampling_ns
    for sent_ns, clock_ns in answers:
        answer(life, 0.0, sent_ns, clock_ns, is_proof=True, more=False)
    return complete_ns(life)


class Server:
    """A model of a server's subscription: one loop serves what is due in its order, samples, collects at the publishing
    interval, and sends when a request is there. The loop stalls; meanwhile the world goes on, and its values change."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.clock_interval = rng.choice([0.5, 1.0])
        self.intervals = [rng.choice([0.0, 0.1, 1.0, rng.uniform(0.05, 4.0)]) for _ in range(rng.randint(1, 4))]
        self.timer = rng.choice(["catches up", "keeps its grid", "begins anew"])  # after a stall
        self.collects_late = rng.random() < 0.5  # when a request comes, instead of at the publishing interval
        self.chunk = rng.randint(1, 6)
        self.changes: list[list[float]] = [[] for _ in self.intervals]  # of each item: when its value changed
        self.due = {"publish": rng.choice([0.1, 3.0]), "clock": self.clock_interval} | {
            f"item {n}": rng.random() for n in range(len(self.intervals))
        }
        self.queues: dict[str, list[tuple[str, float]]] = {name: [] for name in self.due if name != "publish"}
        self.queues["clock"] = [("clock", 0.0)]  # sampled when it is created, before the items
        self.ready: list[list[tuple[str, float]]] = []
        self.requests = 2
        self.sampled = [0.0] * len(self.intervals)

    def step(self) -> list[tuple[float, list[tuple[str, float]], bool]]:
        """Serve what is due next, perhaps after a stall. What is sent: its time, its content, whether more is there."""
        name = min(self.due, key=self.due.__getitem__)
        before = self.now
        self.now = max(self.now, self.due[name]) + self.rng.choice([0.0, 0.0, 0.001, self.rng.uniform(0, 2)])
        for changes in self.changes:
            while (at := self.rng.uniform(0.02, 0.6) + max([before, *changes[-1:]])) < self.now:
                changes.append(at)
        self.expect_events()
        interval = {"publish": 0.2, "clock": self.clock_interval}.get(name) or self.intervals[int(name.split()[1])]
        self.serve(name)
        if interval:
            missed = max(0.0, (self.now - self.due[name]) // interval) * interval
            at = self.due[name] + interval
            ways = {"catches up": max(at, self.now), "keeps its grid": at + missed, "begins anew": self.now + interval}
            self.due[name] = ways[self.timer]
        if self.rng.random() < 0.3:  # the client answers in its own time
            self.requests = min(2, self.requests + 1)
        return self.send()

    def serve(self, name: str) -> None:
        """One timer."""
        if name == "clock":
            self.queues[name] = [(name, self.now)]
        elif name == "publish":
            self.collect()
        else:
            number = int(name.split()[1])
            changed = self.unsampled(number)
            taken = changed[-1:] if self.intervals[number] else changed[:1]
            self.queues[name] += [(name, at) for at in taken]
            self.sampled[number] = max([self.sampled[number], *taken])
            self.expect_events()

    def unsampled(self, number: int) -> list[float]:
        """When an item changed since its last sample."""
        return self.changes[number][bisect_right(self.changes[number], self.sampled[number]) :]

    def expect_events(self) -> None:
        """A device that reports each change (interval 0) is served when that happens."""
        for number, interval in enumerate(self.intervals):
            if not interval:
                self.due[f"item {number}"] = min(self.unsampled(number), default=1e9)

    def lost(self) -> list[float]:
        """What the server had and has not sent, and what it would have sampled."""
        held = [at for part in [*self.ready, *self.queues.values()] for name, at in part if name != "clock"]
        return held + [at for number in range(len(self.intervals)) for at in self.unsampled(number)]

    def collect(self) -> None:
        """Make messages of what is queued, in the order of the items."""
        content = [value for queue in self.queues.values() for value in queue]
        for queue in self.queues.values():
            queue.clear()
        self.ready += [content[at : at + self.chunk] for at in range(0, len(content), self.chunk)]

    def send(self) -> list[tuple[float, list[tuple[str, float]], bool]]:
        """Answer the requests that are there."""
        found = []
        if self.requests and self.collects_late and not self.ready:
            self.collect()
        while self.requests and self.ready:
            self.requests -= 1
            found.append((self.now, self.ready.pop(0), bool(self.ready)))
        return found


def test_no_lost_value_is_older_than_the_time_of_completeness() -> None:
    """Whatever a server samples, collects, holds back and sends late, and whenever it is cut off: each value that it
    had and that did not arrive is younger than the time from which on values count as missing."""
    seed = first_seed()
    for round_ in range(scaled(100, 20_000)):
        rng = random.Random(seed + round_)
        server, life = Server(rng), opened(0)
        life.sampling_ns = int(max(server.intervals) * S)
        for _ in range(rng.randint(20, 300)):
            for sent, content, more in server.step():
                clock = [int(at * S) for name, at in content if name == "clock"]
                answer(life, 0.0, int(sent * S), clock[-1] if clock else None, is_proof=True, more=more)
        older = [at for at in server.lost() if at * S < complete_ns(life)]
        assert not older, f"SEED={seed + round_}: lost values older than {complete_ns(life) / S}: {older}"
