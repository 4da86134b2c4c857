"""Publish: what the stream says of ended jobs goes to the event bus and to the webhook queue.

At least once: what fails is repeated with the same event ids, by the stream itself in the end.
"""

from collections.abc import Callable, Sequence

from sluiceway.domain.errors import NotPublishedError
from sluiceway.domain.webhook import JobEvent, deliveries
from sluiceway.ports import EventBus, Telemetry, WebhookQueue

TRIES = 3
"""Within one invocation, for throttles and partial failures. A longer outage is the stream's."""

_PAUSE_S = 0.1


def publish_events(
    events: Sequence[JobEvent],
    *,
    bus: EventBus,
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
    webhooks_to_send = [one for event in events for one in deliveries(event)]
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
    if unsent or unpublished:
        telemetry.event("events_left", events=len(unpublished), webhooks=len(unsent))
        raise NotPublishedError(
            f"{len(unpublished)} events and {len(unsent)} webhooks are not published."
        )
