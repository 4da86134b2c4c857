"""Each test of a client is one of both clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.client.server import Async, Sync

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=[Sync, Async])
def client_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a client of a server; its calls take and give the same, whichever it is."""
    kind: Callable[..., Any] = request.param
    return kind
