"""The one tree of errors, grouped by what the caller does about them.

Codes are part of the contract with partners and never change.
"""

from __future__ import annotations

from typing import ClassVar


class SluicewayError(Exception):
    """Any error that the library raises on purpose.

    `code` is stable, for programs; the text is for people and holds no prompt, result or key.
    """

    code: ClassVar[str] = "internal"


# ------------------------------------------------------------------ the request is refused (4xx)


class RejectedError(SluicewayError):
    """The request can't be accepted as it is; sending it again changes nothing."""

    def __init__(self, detail: str, *, errors: tuple[dict[str, str], ...] = ()) -> None:
        """`errors`: one `{"field", "message"}` for each member that is wrong."""
        super().__init__(detail)
        self.errors = errors


class InvalidRequestError(RejectedError):
    """Not JSON, or not the JSON that we take."""

    code = "invalid_request"


class ValidationFailedError(RejectedError):
    """Good JSON that doesn't fit the schema."""

    code = "validation_failed"


class UnauthenticatedError(RejectedError):
    """No usable identity came with the request."""

    code = "unauthenticated"


class ForbiddenError(RejectedError):
    """The key lacks the scope."""

    code = "forbidden"


class FeatureDisabledError(RejectedError):
    """An operator has switched it off, for all or for this model or tenant."""

    code = "feature_disabled"


class JobNotFoundError(RejectedError):
    """No such job for this tenant; another tenant's job is the same."""

    code = "job_not_found"


class ModelNotFoundError(RejectedError):
    """The catalogue has no such model."""

    code = "model_not_found"


class WebhookNotFoundError(RejectedError):
    """No such webhook endpoint for this tenant; another tenant's is the same."""

    code = "webhook_not_found"


class DeliveryNotFoundError(RejectedError):
    """No such delivery of this endpoint, or not any more."""

    code = "delivery_not_found"


class CacheMissError(RejectedError):
    """Only a cached answer was wanted, and there is none."""

    code = "cache_miss"


class BatchNotFoundError(RejectedError):
    """No such batch for this tenant; another tenant's batch is the same."""

    code = "batch_not_found"


class IdempotencyKeyReusedError(RejectedError):
    """The Idempotency-Key came before, with another body."""

    code = "idempotency_key_reused"


class RouteNotFoundError(RejectedError):
    """No such path."""

    code = "route_not_found"


class MethodNotAllowedError(RejectedError):
    """The path exists, but not with this method."""

    code = "method_not_allowed"

    def __init__(self, detail: str, *, allow: tuple[str, ...] = ()) -> None:
        """`allow`: the methods that the path has."""
        super().__init__(detail)
        self.allow = allow


class NotCancellableError(RejectedError):
    """The job has ended otherwise."""

    code = "not_cancellable"


class ResultExpiredError(RejectedError):
    """The job is known, but its result is past its retention, or damaged."""

    code = "result_expired"


class PayloadTooLargeError(RejectedError):
    """The body is over the limit."""

    code = "payload_too_large"


class UnsupportedMediaTypeError(RejectedError):
    """The body is declared as something other than JSON."""

    code = "unsupported_media_type"


# ------------------------------------------------------------------ not now (409, 429, 503)


class BusyError(SluicewayError):
    """The same request may succeed after `retry_after_s` whole seconds."""

    def __init__(self, detail: str, *, retry_after_s: int) -> None:
        """`retry_after_s` is 1 at least."""
        super().__init__(detail)
        self.retry_after_s = max(1, retry_after_s)


class CostLimitError(RejectedError):
    """The job may cost more than it may: by its own `max_cost`, or by what a minute allows."""

    code = "cost_limit"


class IdempotencyInProgressError(BusyError):
    """The first request with this Idempotency-Key is still being answered."""

    code = "idempotency_in_progress"


class RateLimitedError(BusyError):
    """The tenant's minute is used up."""

    code = "rate_limited"


class QuotaExceededError(BusyError):
    """The tenant has as many open jobs, or forced as many past the cache today, as it may."""

    code = "quota_exceeded"


class DegradedError(BusyError):
    """The lanes are far behind; what can wait is to come back later."""

    code = "degraded"


class QueueFullError(BusyError):
    """So many jobs wait in the whole installation that no more are taken."""

    code = "queue_full"


class StillRunningError(BusyError):
    """A held call's time is over, and its job goes on: the same request waits for it again."""

    code = "still_running"

    def __init__(self, detail: str, *, retry_after_s: int, job_id: str = "") -> None:
        """`job_id`: whose answer the next request gets."""
        super().__init__(detail, retry_after_s=retry_after_s)
        self.job_id = job_id


class StoreBusyError(BusyError):
    """The tables refused a write again and again, by conflict or throttle."""

    code = "degraded"


# ------------------------------------------------------------------ the vendor's answer


_REFUSED_STATUSES = frozenset({400, 401, 402, 403, 404, 413, 422, 429})
"""With these a vendor refuses a request before it works on it."""


class VendorError(SluicewayError):
    """A call to a vendor didn't give a usable answer."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool,
        http_status: int | None = None,
        retry_after_s: float | None = None,
        vendor_request_id: str | None = None,
        sent: bool = True,
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        """`code` is one of the job error codes; `retry_after_s` is the vendor's own wish.

        `sent`: whether the vendor may have the request, or a part of it.
        Tokens: what an answer that is of no use costs all the same.
        """
        super().__init__(message)
        self.job_code = code
        self.retryable = retryable
        self.http_status = http_status
        self.retry_after_s = retry_after_s
        self.vendor_request_id = vendor_request_id
        self.sent = sent
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.latency_ms: int | None = None
        """What the call took, once it was made."""

    @property
    def maybe_charged(self) -> bool:
        """Whether the vendor may charge the call: it had the request, and didn't refuse it."""
        return self.sent and not self.overload and self.http_status not in _REFUSED_STATUSES

    @property
    def overload(self) -> bool:
        """Whether it was too much for the vendor: nobody should call for a while."""
        if not self.retryable:
            return False
        busy = self.http_status == 503 and self.retry_after_s is not None  # noqa: PLR2004
        return busy or self.http_status in {429, 529}

    @property
    def down(self) -> bool:
        """Whether the vendor itself seems to fail: after some in a row nobody should call."""
        return self.retryable and self.job_code in {"vendor_unavailable", "vendor_timeout"}


class NotCalledError(VendorError):
    """The vendor wasn't asked, and nothing is known of it."""

    @property
    def maybe_charged(self) -> bool:
        """Nothing was sent."""
        return False

    @property
    def down(self) -> bool:
        """No reason to think so."""
        return False


class DamagedRowError(SluicewayError):
    """A stored row isn't one that this code can work with."""


class CallAbortedError(SluicewayError):
    """The lease was lost or the job cancelled while the vendor was being called."""


# ------------------------------------------------------------------ what the outside is told


class NotPublishedError(SluicewayError):
    """Events or webhooks are left that neither the bus nor the queue has taken."""


class WebhookError(SluicewayError):
    """An attempt at a webhook got no HTTP reply; another may."""

    def __init__(self, reason: str, message: str = "") -> None:
        """`reason`: a word for operators. The text holds no URL, no address and no secret."""
        super().__init__(message or reason)
        self.reason = reason


# ------------------------------------------------------------------ configuration


class ConfigurationError(SluicewayError):
    """Catalogue or flags are malformed or contradict themselves; `errors` names each fault."""

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors
