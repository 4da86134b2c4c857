"""Feature flags as Powertools evaluates them.

Its module is imported when a document switches something: it brings boto3, a twelfth of a start.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sluiceway.domain import flags
from sluiceway.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aws_lambda_powertools.utilities.feature_flags import FeatureFlags

    from sluiceway.ports import Flags


class PowertoolsFlags:
    """A document of flags, which Powertools evaluates (port Flags)."""

    def __init__(self, document: flags.Document) -> None:
        """Of `parse_flags`."""
        self._document = document
        self._features = _features(document)

    def on(self, feature: str, *, model: str = "", tenant: str = "") -> bool:
        """See Flags."""
        if feature not in self._document:
            return flags.FEATURES[feature]
        return bool(
            self._features.evaluate(
                name=feature,
                context={"model": model, "tenant": tenant},
                default=flags.FEATURES[feature],
            )
        )


def parse_flags(text: str, *, on_unknown: Callable[[Sequence[str]], None] | None = None) -> Flags:
    """The flags of a document.

    A feature that there isn't is a fault; with `on_unknown` it is left out and told to it, as newer
    code may have let it through. Raises ConfigurationError with what is wrong.
    """
    try:
        document = json.loads(text)
        if on_unknown is not None and (unknown := flags.unknown(document)):
            on_unknown(unknown)
            document = {name: document[name] for name in document if name not in unknown}
        if faults := flags.check(document):
            raise ConfigurationError(faults)
    except ValueError as error:
        raise ConfigurationError((f"not JSON: {error}",)) from error
    return PowertoolsFlags(document) if document else flags.Defaults()


def _features(document: flags.Document) -> FeatureFlags:
    """Raises ConfigurationError for what Powertools can't evaluate."""
    from aws_lambda_powertools.utilities.feature_flags import FeatureFlags  # noqa: PLC0415
    from aws_lambda_powertools.utilities.feature_flags.base import StoreProvider  # noqa: PLC0415
    from aws_lambda_powertools.utilities.feature_flags.exceptions import (  # noqa: PLC0415
        SchemaValidationError,
    )
    from aws_lambda_powertools.utilities.feature_flags.schema import (  # noqa: PLC0415
        SchemaValidator,
    )

    class Fixed(StoreProvider):
        """A document that is here already."""

        @property
        def get_raw_configuration(self) -> flags.Document:
            return document

        def get_configuration(self) -> flags.Document:
            return document

    try:
        SchemaValidator(document).validate()
    except SchemaValidationError as error:
        raise ConfigurationError((str(error),)) from error
    return FeatureFlags(Fixed())
