"""The partner API, as the command line uses it."""

from typing import Any
from urllib.parse import urlsplit

import httpx

TIMEOUT_S = 60.0
DEFAULT_RETRY_AFTER_S = 1.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ApiError(Exception):
    """The API refused; `problem` is its problem+json."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        """`status`: of HTTP."""
        super().__init__(problem.get("detail", ""))
        self.status = status
        self.problem = problem


class Api:
    """One partner's view of one installation."""

    def __init__(
        self, base_url: str, key: str, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        """`base_url` ends in the stage; `transport` replaces the network in tests."""
        self._client = httpx.Client(
            base_url=base_url + "/",
            headers={"authorization": f"Bearer {key}"},
            timeout=TIMEOUT_S,
            transport=transport,
            # No proxy of the environment reaches our own loopback.
            trust_env=urlsplit(base_url).hostname not in LOOPBACK,
        )
        self.retry_after_s = DEFAULT_RETRY_AFTER_S
        """What the last answer said of when to ask again."""

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        """The accepted job, the open one that it is the same as, or the cache hit."""
        return self._json("POST", "jobs", json=body)

    def dry_run(self, body: dict[str, Any]) -> dict[str, Any]:
        """What the submit would get."""
        return self._json("POST", "jobs", json=body, params={"dry_run": "true"})

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as it is now."""
        return self._json("GET", f"jobs/{job_id}")

    def jobs(
        self, *, status: str | None, model: str | None, limit: int, after: str | None
    ) -> dict[str, Any]:
        """A page of the jobs, newest first: `data`, `has_more`, `last_id`."""
        wanted = {"status": status, "model": model, "limit": str(limit), "after": after}
        given = {name: value for name, value in wanted.items() if value is not None}
        return self._json("GET", "jobs", params=given)

    def cancel(self, job_id: str) -> dict[str, Any]:
        """The cancelled job."""
        return self._json("POST", f"jobs/{job_id}/cancel")

    def health(self) -> bool:
        """Whether the API answers."""
        return self._client.get("health").is_success

    def _json(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            raise RuntimeError(
                f"the API doesn't answer at {self._client.base_url}: {type(error).__name__}"
            ) from error
        try:
            body: dict[str, Any] = answer.json()
        except ValueError:
            body = {"code": "unreadable", "detail": "The API's answer is not JSON."}
        if not answer.is_success:
            raise ApiError(answer.status_code, body)
        self.retry_after_s = float(answer.headers.get("retry-after", DEFAULT_RETRY_AFTER_S))
        return body


def error_text(error: ApiError) -> str:
    """A refusal in words: the code, the sentence, and each wrong member."""
    problem = error.problem
    lines = [f"{problem.get('detail', '')} ({error.status} {problem.get('code', '')})"]
    lines += [f"  {fault['field']}: {fault['message']}" for fault in problem.get("errors", ())]
    return "\n".join(lines)
