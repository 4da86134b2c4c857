"""What can go wrong: one tree, grouped by what the caller does about it.

`code` is stable, for programs. The texts are for people; they hold no API key, prompt or result.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from sluiceway_client.models import Batch, Job


class SluicewayError(Exception):
    """Any error that the client raises on purpose, besides ValueError for its own arguments."""


# ------------------------------------------------------------------------------------ the API's


class ApiError(SluicewayError):
    """The API refused. Subclasses say what to do about it."""

    advice: ClassVar[str] = ""

    def __init__(
        self,
        code: str,
        status: int,
        detail: str = "",
        *,
        retryable: bool = False,
        request_id: str | None = None,
        errors: Sequence[Mapping[str, str]] = (),
        retry_after_s: float | None = None,
    ) -> None:
        """`errors`: one `{"field", "message"}` for each wrong member of the request.

        `retryable`: the same request may succeed later, after `retry_after_s` if it is known.
        """
        self.code = code
        self.status = status
        self.detail = detail
        self.retryable = retryable
        self.request_id = request_id
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s
        super().__init__(self._text())

    def _text(self) -> str:
        faults = "; ".join(f"{one.get('field')}: {one.get('message')}" for one in self.errors)
        later = f"Try again in {self.retry_after_s:g} s." if self.retry_after_s else ""
        request = f"[request {self.request_id}]" if self.request_id else ""
        ours = not self.code.startswith("http_")
        parts = (self.detail, faults, later or (self.advice if ours else ""), request)
        return f"{self.code} ({self.status}): " + " ".join(part for part in parts if part)


class InvalidRequestError(ApiError):
    """The request is wrong; sending it again changes nothing."""


class ValidationFailedError(InvalidRequestError):
    """Members of the request are wrong; `errors` names them."""


class CostLimitError(InvalidRequestError):
    """The job may cost more than it may."""

    advice = "Raise max_cost, or ask for less."


class AuthenticationError(ApiError):
    """The API key is missing, unknown, expired or revoked."""

    advice = "Check the API key."


class PermissionDeniedError(ApiError):
    """The API key lacks a scope, or the feature is off."""

    advice = "Use a key that has the scope."


class FeatureDisabledError(PermissionDeniedError):
    """Operators have switched it off: `detail` says what, and whether for this tenant or model."""

    advice = "No key helps: the operators know when it is on again."


class NotFoundError(ApiError):
    """This tenant has no such job, batch, webhook, model or path."""


class CacheMissError(NotFoundError):
    """Only a cached answer was wanted, and there is none."""


class ConflictError(ApiError):
    """What is there stands against it: a job that has ended, an Idempotency-Key that is in use."""


class ResultExpiredError(ApiError):
    """The job is known, but its result is no longer kept."""

    advice = "Submit the job again."


class RateLimitedError(ApiError):
    """Too many requests for now."""


class QuotaExceededError(ApiError):
    """As many open jobs as there may be, or a budget of the day is spent."""


class UnavailableError(ApiError):
    """The server can't for now."""


_BY_CODE: Mapping[str, type[ApiError]] = {
    "invalid_request": InvalidRequestError,
    "unauthenticated": AuthenticationError,
    "forbidden": PermissionDeniedError,
    "feature_disabled": FeatureDisabledError,
    "job_not_found": NotFoundError,
    "model_not_found": NotFoundError,
    "batch_not_found": NotFoundError,
    "webhook_not_found": NotFoundError,
    "delivery_not_found": NotFoundError,
    "route_not_found": NotFoundError,
    "cache_miss": CacheMissError,
    "method_not_allowed": InvalidRequestError,
    "not_cancellable": ConflictError,
    "job_cancelled": ConflictError,
    "idempotency_in_progress": ConflictError,
    "idempotency_key_reused": ConflictError,
    "result_expired": ResultExpiredError,
    "payload_too_large": InvalidRequestError,
    "unsupported_media_type": InvalidRequestError,
    "validation_failed": ValidationFailedError,
    "cost_limit": CostLimitError,
    "rate_limited": RateLimitedError,
    "quota_exceeded": QuotaExceededError,
    "internal": UnavailableError,
    "degraded": UnavailableError,
    "queue_full": UnavailableError,
    "still_running": UnavailableError,
}

_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: ResultExpiredError,
    422: ValidationFailedError,
    429: RateLimitedError,
}
"""For codes of a newer server, and for what stands before it and knows no codes."""

RETRYABLE_STATUS = frozenset({429, 502, 503, 504})


_NOT_OURS = (
    "a reply without a code is none of this API's own: check base_url, which ends in the stage, "
    "and what stands between."
)


def api_error(status: int, headers: Mapping[str, str], body: Any) -> ApiError:
    """The error that a reply means. `body`: its JSON value, None when it has none."""
    problem = body if isinstance(body, dict) else {}
    code = problem.get("code")
    if not isinstance(code, str) or not code:
        # Nothing of the problem is believed: what answers without a code isn't this API.
        problem, code = {"detail": _NOT_OURS}, f"http_{status}"
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or _by_class(status)
    faults = problem.get("errors")
    return kind(
        code,
        status,
        str(problem.get("detail") or ""),
        retryable=(
            problem.get("retryable") is True
            or status in RETRYABLE_STATUS
            or code == "idempotency_in_progress"
        ),
        request_id=problem.get("request_id") or headers.get("x-request-id"),
        errors=[one for one in faults if isinstance(one, dict)] if isinstance(faults, list) else (),
        retry_after_s=retry_after_s(headers),
    )


def _by_class(status: int) -> type[ApiError]:
    if status >= 500:  # noqa: PLR2004
        return UnavailableError
    return InvalidRequestError if status >= 400 else ApiError  # noqa: PLR2004


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The server's Retry-After: whole seconds, the only form that it sends. None for all else."""
    text = headers.get("retry-after", "").strip()
    return float(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


# ------------------------------------------------------------------------------------ no reply


class ConnectionFailedError(SluicewayError):
    """No reply came. Whether the request arrived is unknown."""

    retryable: ClassVar[bool] = True
    retry_after_s: ClassVar[float | None] = None


class BadReplyError(SluicewayError):
    """The reply is not one of this API: check `base_url`, and what stands between."""


# ------------------------------------------------------------------------------------ the job's


class JobFailedError(SluicewayError):
    """The job has failed; `code` says why."""

    def __init__(self, job: "Job") -> None:
        """`job` has failed."""
        self.job = job
        self.code = job.error.code if job.error is not None else job.status
        self.retryable = job.error is not None and job.error.retryable
        message = job.error.message if job.error is not None else ""
        super().__init__(f"{job.id} failed: {self.code}" + (f": {message}" if message else ""))


class JobCancelledError(SluicewayError):
    """The job was cancelled."""

    code: ClassVar[str] = "cancelled"

    def __init__(self, job: "Job") -> None:
        """`job` is cancelled."""
        self.job = job
        super().__init__(f"{job.id} was cancelled")


class NoResultError(SluicewayError):
    """The object has no result: the job is open, it failed, or its result has to be fetched."""

    def __init__(self, job: "Job") -> None:
        """`job`: as it was when it was asked for."""
        self.job = job
        todo = "result() fetches it" if job.status == "completed" else "wait() waits for its end"
        super().__init__(f"no result here: {job.id} is {job.status}; {todo}")


class WaitTimeoutError(SluicewayError, TimeoutError):
    """The time to wait is over. What was waited for goes on: it can be waited for again."""

    def __init__(self, last: "Job | Batch") -> None:
        """`last`: as it was when it was looked at last."""
        self.last = last
        super().__init__(f"{last.id} is still {last.status}; it goes on, and can be waited for")


# ------------------------------------------------------------------------------------ webhooks


class WebhookVerificationError(SluicewayError):
    """The webhook was not signed with this secret, or not lately. Answer 400, and do nothing."""
