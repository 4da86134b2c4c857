"""Publish: what the stream says of ended jobs goes to the event bus and to the webhook queue.

At least once: what fails is repeated with the same event ids, by the stream itself in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluiceway.domain.errors import NotPublishedError, StoreBusyError
from sluiceway.domain.webhook import JobEvent, deliveries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sluiceway.domain.endpoint import Endpoints
    from sluiceway.ports import EventBus, Telemetry, WebhookEndpoints, WebhookQueue

TRIES = 3
"""Within one invocation, for throttles and partial failures. A longer outage is the stream's."""

_PAUSE_S = 0.1


def publish_events(
    events: Sequence[JobEvent],
    *,
    bus: EventBus,
    endpoints: WebhookEndpoints,
    webhooks: WebhookQueue,
    telemetry: Telemetry,
    pause: Callable[[float], None],
) -> None:
    """Tells everybody. `pause` waits that many seconds.

    Raises NotPublishedError when something is left: the stream must bring its records again, and
    who was told already is told again. Neither the bus nor the queue stands in the other's way.
    """
    if not events:
        return
    listed = _endpoints_of({event.tenant for event in events}, endpoints)
    webhooks_to_send = [
        one
        for event in events
        if event.tenant in listed
        for one in deliveries(event, listed[event.tenant])
    ]
    unknown = len([event for event in events if event.tenant not in listed])
    unsent, unpublished = webhooks_to_send, list(events)
    for turn in range(TRIES):
        if turn:
            pause(_PAUSE_S * 2**turn)
        unsent = webhooks.send(unsent) if unsent else []
        unpublished = bus.put(unpublished) if unpublished else []
        if not unsent and not unpublished:
            break
    telemetry.event(
        "events_published",
        events=len(events) - len(unpublished),
        webhooks=len(webhooks_to_send) - len(unsent),
    )
    if unsent or unpublished or unknown:
        telemetry.event(
            "events_left", events=len(unpublished), webhooks=len(unsent), unaddressed=unknown
        )
        raise NotPublishedError(
            f"{len(unpublished)} events and {len(unsent)} webhooks are not published, and it isn't "
            f"known who wants {unknown} events."
        )


def _endpoints_of(tenants: Iterable[str], endpoints: WebhookEndpoints) -> dict[str, Endpoints]:
    """Of each tenant until one's can't be had: the events of the others are left to the stream.

    Read anew each time, so that whoever registers is told of whatever ends after it.
    """
    listed: dict[str, Endpoints] = {}
    for tenant in sorted(tenants):
        try:
            listed[tenant] = endpoints.read(tenant)
        except StoreBusyError:  # the next one would fail as slowly, and the bus waits
            return listed
    return listed
