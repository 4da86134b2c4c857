"""Signals that end the program, as exceptions: what was begun is cleaned up before it ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Windows lacks the last."""


class Interruptions:
    """Raises in place of dying: KeyboardInterrupt for SIGINT, else SystemExit with 128 + number.

    What the environment has us ignore, as `nohup` does, stays ignored. Weakness: only the main
    thread may set handlers; in another one signals do what they did before.
    """

    def __init__(self) -> None:
        self._holds = 0
        self._waiting: int | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catches and holds the signals; one that came raises at the end."""
        with ExitStack() as handlers:
            if threading.current_thread() is threading.main_thread():
                for name in ENDING:
                    number = getattr(signal, name, None)
                    before = None if number is None else signal.getsignal(number)
                    if number is not None and before not in {None, signal.SIG_IGN}:
                        handlers.callback(signal.signal, number, before)
                        signal.signal(number, self._take)
            with self.held():
                yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """A signal waits until this is over."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._raise_what_waits()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Within `caught`: a signal raises at once."""
        holds, self._holds = self._holds, 0
        try:
            self._raise_what_waits()
            yield
        finally:
            self._holds = holds

    def _take(self, number: int, _: Any) -> None:
        if self._holds:
            self._waiting = number
        else:
            _end(number)

    def _raise_what_waits(self) -> None:
        if self._waiting is not None and not self._holds:
            number, self._waiting = self._waiting, None
            _end(number)


def _end(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
