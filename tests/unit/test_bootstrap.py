"""The composition root: what is made late is made once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from sluiceway import bootstrap


def test_client_that_threads_ask_for_at_once_is_made_once() -> None:
    made: list[object] = []
    begin, others = threading.Barrier(4), threading.Event()

    def make() -> object:
        others.wait(0.05)  # so that whoever isn't kept out comes in
        made.append(object())
        return made[-1]

    get = bootstrap._made_once(make)

    def ask(_: int) -> object:
        begin.wait(10)
        return get()

    with ThreadPoolExecutor(4) as threads:
        given = list(threads.map(ask, range(4)))

    assert len(made) == 1
    assert given == made * 4


def test_client_is_not_made_before_it_is_asked_for() -> None:
    made: list[int] = []

    bootstrap._made_once(lambda: made.append(1))

    assert made == []
