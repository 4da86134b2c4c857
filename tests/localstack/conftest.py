"""One pair for all: it takes a while to make, and every test has prompts of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.localstack.pair import built

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.localstack.pair import Pair


@pytest.fixture(scope="session")
def pair(
    tmp_path_factory: pytest.TempPathFactory, localstack_url: str, dynamodb_local_url: str
) -> Iterator[Pair]:
    """LocalStack and DynamoDB Local, with the template's resources, the functions and a vendor."""
    with built(
        tmp_path_factory.mktemp("pair"),
        localstack_url=localstack_url,
        dynamodb_local_url=dynamodb_local_url,
    ) as made:
        yield made
