"""Configuration from AppConfig: the catalogue and the feature flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from sluiceway.domain.errors import ConfigurationError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self._token: str | None = None
        self._received = b""
        """The last content that came, whether or not it was right."""
        self._raw: bytes | None = None
        """That of the value."""
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
            raw = self._asked(self._client() if self._value is None else self._hasty())
        except (BotoCoreError, ClientError) as error:
            if self._raw is None and _nothing_deployed(error):
                return self._undeployed()
            return self._kept(type(error).__name__)
        if not raw:
            return self._undeployed()
        if raw == self._raw and self._value is not None:
            return self._value
        try:
            value = self._parse(raw.decode())
        except (ConfigurationError, ValueError, RecursionError):
            return self._kept("invalid")
        self._raw = raw
        return value

    def _asked(self, client: Any) -> bytes:
        """What is deployed, which AppConfig tells again only when it is new; empty: nothing."""
        # A token serves one call, so one whose reply was lost is of no use any more.
        token, self._token = self._token, None
        if token is None:
            self._received = b""  # a new session tells all there is
            token = client.start_configuration_session(
                ApplicationIdentifier=self._application,
                EnvironmentIdentifier=self._profile,
                ConfigurationProfileIdentifier=self._profile,
            )["InitialConfigurationToken"]
        answer = client.get_latest_configuration(ConfigurationToken=token)
        self._received = answer["Configuration"].read() or self._received
        self._token = answer["NextPollConfigurationToken"]
        return self._received

    def _undeployed(self) -> T:
        return self._otherwise() if self._value is None else self._value

    def _kept(self, reason: str) -> T:
        self._on_failure(self._profile, reason)
        if self._value is None:
            raise StoreBusyError(f"The {self._profile} can't be read.", retry_after_s=5)
        return self._value


def _nothing_deployed(error: BotoCoreError | ClientError) -> bool:
    if not isinstance(error, ClientError):
        return False
    return error.response["Error"]["Code"] == "ResourceNotFoundException"
