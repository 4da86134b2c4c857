"""What a partner asks for about webhooks."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from sluiceway.domain.endpoint import DEFAULT_OVERLAP_S, MAX_OVERLAP_S, EventType
from sluiceway.domain.request import WHOLE, Address, Strict, callable_url, validated


class WebhookRequest(Strict):
    """An address to register, and what it is to be told."""

    url: Address
    """https on port 443."""
    events: Annotated[list[EventType], Field(min_length=1)] = Field(
        default_factory=lambda: [*get_args(EventType)]
    )
    """All, unless there are some."""
    description: Annotated[str, StringConstraints(max_length=256)] = ""
    """The partner's own words."""

    @field_validator("url")
    @classmethod
    def _url_may_be_called(cls, url: str, info: ValidationInfo) -> str:
        return callable_url(url, info)

    @field_validator("events")
    @classmethod
    def _each_once(cls, events: list[EventType]) -> list[EventType]:
        return [one for one in get_args(EventType) if one in events]


class RotateRequest(Strict):
    """How long the secrets before the new one go on signing."""

    overlap_s: Annotated[int, Field(ge=0, le=MAX_OVERLAP_S), WHOLE] = DEFAULT_OVERLAP_S
    """Seconds."""


def parse_webhook(value: Any, *, local: bool = False) -> WebhookRequest:
    """What to register, of parsed JSON; `local` as in `parse_submit`.

    Raises ValidationFailedError.
    """
    return validated(WebhookRequest, value, local=local)


def parse_rotation(value: Any) -> RotateRequest:
    """How to rotate, of parsed JSON. Raises ValidationFailedError."""
    return validated(RotateRequest, value)
