"""A thread with an event loop, for synchronous callers. Start at `Portal` and `Face`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from ._errors import UsageError

#: How many times a batch is extended at most before it is returned.
_ROUNDS = 16

#: How many times in a row nothing may arrive before a batch is returned.
_MISSES = 3

T = TypeVar("T")
R = TypeVar("R")


class Portal:
    """Runs coroutines on the event loop of another thread."""

    _shared: ClassVar[Portal | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name="remex", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> Portal:
        """Returns the portal of this process; the first call makes it."""
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    @classmethod
    def forget_parent(cls) -> None:
        """Resets the state after a fork: the child has neither the thread nor a holder of the lock."""
        cls._shared, cls._lock = None, threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine; an interrupt cancels it."""
        try:
            self._check_caller()
        except UsageError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _check_caller(self) -> None:
        """Raises `UsageError` for a caller that would wait forever."""
        if self._pid != os.getpid():
            raise UsageError("this connection belongs to the process that forked this one", "connect again")
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a callback cannot make calls: it runs on the thread that would serve them",
                "make them before or after the call that takes the callback, or use the asynchronous client",
            )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Portal.forget_parent)


class Face(Generic[T]):
    """The synchronous face of an object that lives on the event loop of a portal."""

    def __init__(self, portal: Portal, inner: T) -> None:
        self._portal = portal
        self._inner = inner
        self._taken: Iterator[Any] = iter(())

    def __repr__(self) -> str:
        return repr(self._inner)

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._portal.run(work)

    def _call(self, work: Callable[[], R]) -> R:
        async def run() -> R:
            return work()

        return self._portal.run(run())

    def _wrap(self, value: Any, *faces: type[Face[Any]]) -> Any:
        """Returns the face of a value, which is the one of `faces` that has the name of its class."""
        return next(face for face in faces if face.__name__ == type(value).__name__)(self._portal, value)

    def _next(self, items: AsyncIterator[R]) -> R:
        item: R
        for item in self._each(items):
            return item
        raise StopIteration

    def _each(self, items: AsyncIterator[R]) -> Iterator[R]:
        while True:
            # Shared by all loops over this object, so that one that ends early loses nothing.
            yield from self._taken
            pulled: list[R] = []
            # Set before the call, so that an interrupt loses nothing either.
            self._taken = iter(pulled)
            try:
                self._portal.run(_pull(items, pulled))
            except StopAsyncIteration:
                return

    def _iterate(self, items: AsyncIterator[R]) -> Iterator[R]:
        while True:
            pulled: list[R] = []
            try:
                self._portal.run(_pull(items, pulled))
            except StopAsyncIteration:
                return
            yield from pulled


async def _pull(items: AsyncIterator[R], pulled: list[R]) -> None:
    """Adds the next item and all that have arrived: changing threads costs more than many items."""
    pulled.append(await items.__anext__())
    arrived: Callable[[], list[R]] | None = getattr(items, "_take_arrived", None)
    if arrived is None:
        ready: deque[Any] | None = getattr(items, "_ready", None)
        while ready and not isinstance(ready[0], Exception):
            pulled.append(ready.popleft())
        return

    def take() -> bool:
        more = arrived()
        pulled.extend(more)
        return bool(more)

    await take_arrived(take)


async def take_arrived(take: Callable[[], bool]) -> None:
    """Takes what has arrived until nothing more does, or it is much; `take` returns whether there was something."""
    misses = 0
    for _ in range(_ROUNDS):
        # Lets the connection receive more.
        await asyncio.sleep(0)
        misses = 0 if take() else misses + 1
        if misses > _MISSES:
            return
