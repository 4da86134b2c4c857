"""What the tests of the template share."""

from __future__ import annotations

import pytest

from tests.template.calls import BACKENDS, Calls, record


@pytest.fixture(scope="session")
def calls_with(_nobodys_account: None) -> dict[str, Calls]:
    """What the adapters do to AWS, by where the cache is."""
    return {backend: record(backend) for backend in BACKENDS}


@pytest.fixture(scope="session")
def calls(calls_with: dict[str, Calls]) -> Calls:
    """What they do by default."""
    return calls_with["dynamodb"]
