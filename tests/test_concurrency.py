"""Task groups and time limits: each case by hand, and random programs of both, nested and cancelled from outside.

Time is virtual: the loop's clock jumps to the next timer, so that events meet at the same moment as often as one likes.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.concurrency import TaskEnded, TaskGroup, in_own_thread, timeout
from tests.support.virtual_time import run_virtual

COUNTS_RIGHT = sys.version_info >= (3, 13)  # asyncio's own of this version is then the model


class Failure(Exception):
    """What a task of these tests fails with."""


async def elapse(duration_s: float) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(duration_s)  # tidy: the clock jumps


async def fail(after_s: float = 0) -> None:
    """Fail after a time."""
    await elapse(after_s)
    raise Failure


def requests() -> int:
    """How often the running task was asked to cancel."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def times_out() -> bool:
    """Whether a time limit that expires raises TimeoutError here."""
    try:
        async with timeout(1):
            await elapse(9)
    except TimeoutError:
        return True
    return False


async def failed_in_wait() -> None:
    """A child fails while the parent waits at the end of the block."""
    with contextlib.suppress(ExceptionGroup):
        async with TaskGroup() as group:
            group.create_task(fail(1), name="child")


async def failed_in_block() -> None:
    """A child fails while the block runs."""
    with contextlib.suppress(ExceptionGroup):
        async with TaskGroup() as group:
            group.create_task(fail(1), name="child")
            await elapse(9)


async def failed_body() -> None:
    """The block itself fails."""
    with contextlib.suppress(ExceptionGroup):
        async with TaskGroup() as group:
            group.create_task(elapse(9), name="child")
            raise Failure


async def nested_groups() -> None:
    """Two groups, and children of both fail at one moment."""
    with contextlib.suppress(ExceptionGroup):
        async with TaskGroup() as outer:
            outer.create_task(fail(1), name="outer child")
            with contextlib.suppress(ExceptionGroup):
                async with TaskGroup() as inner:
                    inner.create_task(fail(1), name="inner child")
            await elapse(9)


async def group_in_limit() -> None:
    """The limit expires at the moment at which a child fails."""
    with contextlib.suppress(ExceptionGroup, TimeoutError):
        async with timeout(1), TaskGroup() as group:
            group.create_task(fail(1), name="child")


async def limit_in_group() -> None:
    """As before, the limit inside."""
    with contextlib.suppress(ExceptionGroup):
        async with TaskGroup() as group:
            group.create_task(fail(1), name="child")
            with contextlib.suppress(TimeoutError):
                async with timeout(1):
                    await elapse(9)


async def hidden_by_failure() -> None:
    """A failure inside hides the cancellation of the limit, and leaves the limit's block with it."""
    with contextlib.suppress(ExceptionGroup):
        async with timeout(1), TaskGroup() as group:
            group.create_task(fail(2), name="child")
            try:
                await elapse(9)
            finally:
                raise Failure


async def two_limits() -> None:
    """Two limits expire at one moment: the outer one's."""
    with contextlib.suppress(TimeoutError):
        async with timeout(1), timeout(1):
            await elapse(9)


@pytest.mark.parametrize(
    "case",
    [
        *(failed_in_wait, failed_in_block, failed_body, nested_groups, group_in_limit, limit_in_group),
        *(hidden_by_failure, two_limits),
    ],
)
def test_a_failure_leaves_the_count(case: Callable[[], Awaitable[None]]) -> None:
    """After a failure that was dealt with, the task counts no cancellation, gets none, and its limits work."""

    async def program() -> None:
        await case()
        assert requests() == 0
        await asyncio.sleep(0)
        assert await times_out()

    run_virtual(program())


@pytest.mark.parametrize("when_s", [0.5, 1, 1.5])
@pytest.mark.parametrize(
    "case", [failed_in_wait, failed_in_block, nested_groups, group_in_limit, limit_in_group, hidden_by_failure]
)
def test_a_cancellation_from_outside_arrives(case: Callable[[], Awaitable[None]], when_s: float) -> None:
    """Before, at and after the moment of the failure, also where the task deals with the failure and goes on."""

    async def goes_on() -> None:
        await case()
        await elapse(20)

    async def program() -> None:
        task = asyncio.get_running_loop().create_task(goes_on())
        await elapse(when_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run_virtual(program())


def test_a_limit_in_the_clean_up_of_a_cancelled_task_expires() -> None:
    """A request that stands already is not taken for a new one."""

    async def cleans_up() -> bool:
        try:
            await elapse(9)
        except asyncio.CancelledError:
            return await times_out()
        return False

    async def program() -> None:
        task = asyncio.get_running_loop().create_task(cleans_up())
        await elapse(1)
        task.cancel()
        assert await task

    run_virtual(program())


def test_a_cancelled_group_lets_its_tasks_clean_up() -> None:
    """A second cancellation of the parent does not end the clean-up of its tasks, and the block ends cancelled."""
    cleaned = []

    async def child() -> None:
        try:
            await elapse(99)
        finally:
            await elapse(5)
            cleaned.append(asyncio.get_running_loop().time())

    async def parent() -> None:
        async with TaskGroup() as group:
            group.create_task(child(), name="child")

    async def program() -> None:
        task = asyncio.get_running_loop().create_task(parent())
        for _ in range(3):
            await elapse(1)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(program())
    assert cleaned == [6.0]


def test_all_failures_are_raised_together() -> None:
    """Those of the block and of every task, also of one that fails in its clean-up."""

    async def fails_in_clean_up() -> None:
        try:
            await elapse(9)
        finally:
            raise ValueError

    async def program() -> None:
        async with TaskGroup() as group:
            group.create_task(fails_in_clean_up(), name="child")
            await asyncio.sleep(0)
            raise Failure

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(program())
    assert [type(error) for error in caught.value.exceptions] == [ValueError, Failure]


def test_an_exit_of_the_process_is_not_wrapped() -> None:
    """SystemExit of a task ends the process with its status."""

    async def leave() -> None:
        raise SystemExit(3)

    async def program() -> None:
        # Nothing retrieves the exception of this task: it would be logged when it is collected, within another test.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with TaskGroup() as group:
            group.create_task(leave(), name="child")
            group.create_task(elapse(9), name="sibling")

    with pytest.raises(SystemExit) as caught:
        run_virtual(program())
    assert caught.value.code == 3


def test_an_ending_group_takes_no_task() -> None:
    """It would outlive the block; the refused coroutine is closed."""

    async def program() -> None:
        with pytest.raises(RuntimeError, match="late cannot start: its group is not entered"):
            TaskGroup().create_task(elapse(1), name="late")
        async with TaskGroup() as group:
            pass
        with pytest.raises(RuntimeError, match="late cannot start: its group is ending"):
            group.create_task(elapse(1), name="late")

    run_virtual(program())


async def cancel_itself() -> None:
    """What a library does whose future nobody fulfils any more."""
    asyncio.get_running_loop().call_later(1, (waiting := asyncio.get_running_loop().create_future()).cancel)
    await waiting


def alarms(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The lines of the log that are ours."""
    return [(line.levelname, line.message) for line in caplog.records if line.name == "agent.concurrency"]


@pytest.mark.parametrize("ends, how", [(elapse(1), "returned"), (cancel_itself(), "was cancelled")])
def test_a_permanent_task_that_ends_is_a_failure(
    ends: Coroutine[Any, Any, None], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the group down, and one line in the log says which task it was."""

    async def program() -> None:
        async with TaskGroup() as group:
            group.create_permanent(ends, name="link", until=asyncio.Event())
            await elapse(99)

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(program())
    assert caught.group_contains(TaskEnded, match=f"the task 'link' {how}, and nothing had asked it to end")
    assert alarms(caplog) == [("CRITICAL", "task_ended")]


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_permanent_task_may_end_when_asked(is_cancelled: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its event is set; whether it returns then or is cancelled is the same."""

    async def program() -> None:
        asked = asyncio.Event()
        async with TaskGroup() as group:
            work = elapse(99) if is_cancelled else asked.wait()
            task = group.create_permanent(work, name="link", until=asked)
            asked.set()
            if is_cancelled:
                task.cancel()

    run_virtual(program())
    assert alarms(caplog) == []


def test_permanent_tasks_end_with_their_group(caplog: pytest.LogCaptureFixture) -> None:
    """Only the failure of another task is reported, or the cancellation of the parent."""

    async def program(sibling: Coroutine[Any, Any, None]) -> None:
        async with TaskGroup() as group:
            group.create_permanent(elapse(99), name="link")
            group.create_task(sibling, name="sibling")

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(program(fail(1)))
    assert [type(error) for error in caught.value.exceptions] == [Failure]

    async def limited() -> None:
        async with timeout(1):
            await program(elapse(99))

    with pytest.raises(TimeoutError):
        run_virtual(limited())
    assert alarms(caplog) == []


def test_no_limit_and_an_expired_one() -> None:
    """None waits; 0 ends the block at its first await; a block that needs none ends well."""

    async def program() -> None:
        async with timeout(None):
            await elapse(1)
        async with timeout(0):
            pass
        with pytest.raises(TimeoutError):
            async with timeout(0):
                await asyncio.sleep(0)

    run_virtual(program())


# --- random programs


@dataclass(frozen=True)
class Step:
    """A program: a word, a time, and the steps inside."""

    word: str
    ticks: int = 0
    inside: tuple["Step", ...] = ()


TICKS = st.integers(0, 4)
LEAVES = st.one_of(st.builds(Step, st.just("wait"), TICKS), st.just(Step("fail")))


def programs(steps: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
    """Programs around programs. The first step inside a group is its block, the others are its tasks."""
    few = st.lists(steps, min_size=1, max_size=3).map(tuple)
    words = st.sampled_from(["sequence", "group", "limit", "handle", "clean up"])
    return st.builds(Step, words, TICKS, few)


PROGRAMS = st.recursive(LEAVES, programs, max_leaves=8)


@dataclass
class Interpreter:
    """Runs a program on one pair of constructs and writes down what happens when."""

    group: Callable[[], Any]
    limit: Callable[[float], Any]
    cancels: list[int]
    trace: list[tuple[float, int, str, str]] = field(default_factory=list)
    main: asyncio.Task[None] = field(init=False)
    requests_made: int = 0
    requests_left: int = 0

    async def observe(self, program: Step) -> None:
        """Run the program in a task that is cancelled from outside at the given times."""
        loop = asyncio.get_running_loop()
        self.main = loop.create_task(self.handle_and_wait(program))
        for tick in self.cancels:
            loop.call_later(tick, self.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await self.main
        self.note("end", "cancelled" if self.main.cancelled() else "returned")

    def cancel(self) -> None:
        """Ask the program to end, from outside."""
        self.requests_made += self.main.cancel()

    async def handle_and_wait(self, program: Step) -> None:
        """The program, its failure dealt with, and an await at which a cancellation still to come is delivered."""
        await self.run(Step("handle", 0, (program,)))
        self.requests_left = requests() - self.requests_made
        await elapse(100)

    def note(self, word: str, what: str) -> None:
        """One line of the trace."""
        self.trace.append((asyncio.get_running_loop().time(), requests(), word, what))

    async def run(self, step: Step) -> None:
        """One step."""
        try:
            await self.do(step)
        except BaseException as error:
            self.note(step.word, describe(error))
            raise
        self.note(step.word, "ended")

    async def do(self, step: Step) -> None:
        """One step."""
        match step.word:
            case "wait":
                await elapse(step.ticks)
            case "fail":
                raise Failure
            case "sequence":
                for inside in step.inside:
                    await self.run(inside)
            case "group":
                async with self.group() as group:
                    for number, inside in enumerate(step.inside[1:]):
                        group.create_task(self.run(inside), name=str(number))
                    await self.run(step.inside[0])
            case "limit":
                async with self.limit(step.ticks):
                    await self.run(step.inside[0])
            case "handle":
                with contextlib.suppress(Exception):
                    await self.run(step.inside[0])
            case "clean up":
                try:
                    await self.run(step.inside[0])
                finally:
                    await self.run(step.inside[-1])


def describe(error: BaseException) -> str:
    """The kind of an error, and of what it holds, without regard to order."""
    if isinstance(error, BaseExceptionGroup):
        return f"({' '.join(sorted(map(describe, error.exceptions)))})"
    return type(error).__name__


def observed(program: Step, cancels: list[int], group: Any, limit: Any) -> Interpreter:
    """The interpreter after the program."""
    interpreter = Interpreter(group, limit, cancels)
    run_virtual(interpreter.observe(program))
    return interpreter


CANCELS = st.lists(st.integers(0, 6), max_size=2)


@settings(max_examples=300, deadline=None)
@given(PROGRAMS, CANCELS)
def test_random_programs_keep_the_count(program: Step, cancels: list[int]) -> None:
    """A program that ends leaves no request behind and takes no foreign one back; a cancelled one ends cancelled,
    unless its clean-up failed and so replaced the cancellation."""
    interpreter = observed(program, cancels, TaskGroup, timeout)
    assert interpreter.requests_left == 0
    if interpreter.requests_made == 0:
        assert not interpreter.main.cancelled()
    elif "clean up" not in str(program):
        assert interpreter.main.cancelled()


@pytest.mark.skipif(not COUNTS_RIGHT, reason="asyncio counts right from 3.13 on")
@settings(max_examples=1000, deadline=None)
@given(PROGRAMS, CANCELS)
def test_random_programs_run_as_on_asyncio(program: Step, cancels: list[int]) -> None:
    """The constructs do at each moment what asyncio's own do in the versions that count right."""
    ours = observed(program, cancels, TaskGroup, timeout)
    model = observed(program, cancels, asyncio.TaskGroup, asyncio.timeout)
    assert sorted(ours.trace) == sorted(model.trace)  # a group cancels its tasks in the order of a set


async def test_what_a_call_in_its_own_thread_returns_or_raises() -> None:
    """It reaches the task that waits, also an assertion, which must end the process."""

    def call(value: int) -> int:
        assert value, "a mistake of ours"
        return value

    assert await in_own_thread(partial(call, 1), name="right") == 1
    with pytest.raises(AssertionError, match="of ours"):
        await in_own_thread(partial(call, 0), name="wrong")
