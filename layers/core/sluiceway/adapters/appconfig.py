"""The catalogue and the feature flags from AppConfig."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aws_lambda_powertools.utilities.feature_flags import FeatureFlags
from aws_lambda_powertools.utilities.feature_flags.base import StoreProvider
from aws_lambda_powertools.utilities.feature_flags.exceptions import SchemaValidationError
from aws_lambda_powertools.utilities.feature_flags.schema import SchemaValidator
from aws_lambda_powertools.utilities.parameters import AppConfigProvider
from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError
from botocore.exceptions import ClientError

from sluiceway.domain import flags
from sluiceway.domain.errors import ConfigurationError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluiceway.ports import Clock

KEPT_MS = 30_000
"""How long a process works with what it has before it asks again."""

T = TypeVar("T")


class AppConfigReader(Generic[T]):
    """One configuration profile, in the environment of the same name.

    What can't be read or isn't right leaves the last one in force.
    Weakness: a process that starts while AppConfig can't be reached can do nothing.
    """

    def __init__(
        self,
        client: Callable[[], Any],
        application: str,
        profile: str,
        *,
        hasty: Callable[[], Any],
        parse: Callable[[str], T],
        otherwise: Callable[[], T],
        clock: Clock,
        on_failure: Callable[[str, str], None],
    ) -> None:
        """`client` and `hasty` give clients of `appconfigdata`, the same each time.

        The second is asked when there is a value to go on with: a request waits meanwhile.
        `parse` raises ConfigurationError; `otherwise` is what holds before the first deployment;
        `on_failure` is told of the profile and of a word for what is wrong.
        """
        self._client = client
        self._hasty = hasty
        self._application = application
        self._profile = profile
        self._parse = parse
        self._otherwise = otherwise
        self._clock = clock
        self._on_failure = on_failure
        self._provider: AppConfigProvider | None = None
        self._raw: bytes | None = None
        self._value: T | None = None
        self._read_at_ms = -KEPT_MS

    def __call__(self) -> T:
        """What is deployed, at most 30 s ago; the same object until it changes.

        Raises StoreBusyError when nothing was ever read.
        """
        now_ms = self._clock.now_ms()
        # A clock that went back makes it old, too.
        if self._value is None or not 0 <= now_ms - self._read_at_ms < KEPT_MS:
            self._value = self._latest()
            self._read_at_ms = now_ms
        return self._value

    def _latest(self) -> T:
        try:
            client = self._client() if self._value is None else self._hasty()
            if self._provider is None:
                self._provider = AppConfigProvider(
                    self._profile, self._application, boto3_client=client
                )
            self._provider.client = client
            raw: Any = self._provider.get(self._profile, force_fetch=True)
        except GetParameterError as error:
            # A token serves one call, so one whose reply was lost is of no use any more.
            self._provider = None
            cause = error.__context__
            if self._raw is None and _nothing_deployed(cause):
                return self._otherwise() if self._value is None else self._value
            return self._kept(type(cause).__name__)
        if raw is self._raw and self._value is not None:  # AppConfig had nothing new
            return self._value
        try:
            value = self._parse(raw.decode())
        except (ConfigurationError, ValueError, RecursionError):
            return self._kept("invalid")
        self._raw = raw
        return value

    def _kept(self, reason: str) -> T:
        self._on_failure(self._profile, reason)
        if self._value is None:
            raise StoreBusyError(f"The {self._profile} can't be read.", retry_after_s=5)
        return self._value


def _nothing_deployed(cause: BaseException | None) -> bool:
    """AppConfig says so, or gives no content (the provider's KeyError)."""
    if isinstance(cause, ClientError):
        return cause.response["Error"]["Code"] == "ResourceNotFoundException"
    return isinstance(cause, KeyError)


class PowertoolsFlags:
    """A document of flags, which Powertools evaluates (port Flags)."""

    def __init__(self, document: flags.Document) -> None:
        """Of `parse_flags`."""
        self._document = document
        self._features = FeatureFlags(_Fixed(document))

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


def parse_flags(
    text: str, *, on_unknown: Callable[[Sequence[str]], None] | None = None
) -> PowertoolsFlags:
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
        if document:  # Powertools warns of one that switches nothing
            SchemaValidator(document).validate()
    except ValueError as error:
        raise ConfigurationError((f"not JSON: {error}",)) from error
    except SchemaValidationError as error:
        raise ConfigurationError((str(error),)) from error
    return PowertoolsFlags(document)


class _Fixed(StoreProvider):
    """A document that is here already."""

    def __init__(self, document: flags.Document) -> None:
        self._document = document

    @property
    def get_raw_configuration(self) -> flags.Document:
        return self._document

    def get_configuration(self) -> flags.Document:
        return self._document
