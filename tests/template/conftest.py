"""What the tests of the template share."""

from __future__ import annotations

import pytest

from tests.template.calls import Calls, record


@pytest.fixture(scope="session")
def calls(_nobodys_account: None) -> Calls:
    """What the adapters do to AWS."""
    return record()
