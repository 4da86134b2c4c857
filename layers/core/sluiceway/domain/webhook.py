"""What the outside is told of a job: events, and the webhooks that carry them to partners.

An event is thin: ids, status, code, times and usage, never prompt, result or metadata. Its id is a
digest of the job and the transition, so that whoever sees it twice knows.

Webhooks follow Standard Webhooks (github.com/standard-webhooks/standard-webhooks, spec 1.0).
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

SOURCE = "sluiceway"

DETAIL_TYPES = {
    "completed": "JobCompleted",
    "failed": "JobFailed",
    "dead_lettered": "JobDeadLettered",
    "cancelled": "JobCancelled",
}
"""The statuses that are told, and their names on the event bus."""

MAX_URL_CHARACTERS = 2048
MAX_CALLBACKS = 10
"""Of one job: each duplicate of an open job may bring another."""

RETRY_DELAYS_S = (5.0, 60.0, 300.0, 1800.0, 7200.0, 21_600.0)
"""After the first failed attempt, the second and so on; close to nine hours in all."""

MAX_RECEIVES = len(RETRY_DELAYS_S) + 1
"""The webhook queue's maxReceiveCount (template.yaml): one attempt each."""

RETRY_JITTER = 0.1
TIMEOUT_S = 15.0
"""Of one attempt in all: name, connection, TLS, request and the head of the reply."""

GONE = 410

SECRET_PREFIX = "whsec_"  # noqa: S105 - of every secret, no secret itself
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
"""The bounds of Standard Webhooks."""

# ------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A job has reached a final state. Times are epoch milliseconds."""

    tenant: str
    job_id: str
    model: str
    lane: str
    status: str
    at_epoch_ms: int
    """When the job reached the status."""
    created_at_epoch_ms: int
    request_id: str
    correlation_id: str
    attempts: int
    redrives: int
    discarded: bool = False
    """An operator gave up on the job, which had failed before."""
    started_at_epoch_ms: int | None = None
    completed_at_epoch_ms: int | None = None
    result_source: str | None = None
    error_code: str | None = None
    error_retryable: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_nanos: int | None = None
    saved_nanos: int | None = None
    callback_urls: tuple[str, ...] = ()

    @property
    def event_id(self) -> str:
        """The same however often this transition of this job is told: 36 characters.

        A redriven job comes to an end again, and a discarded one fails twice, so both count.
        """
        transition = [self.tenant, self.job_id, self.status, self.redrives, self.discarded]
        digest = hashlib.sha256(json.dumps(transition).encode()).digest()
        return "evt_" + base64.b32encode(digest[:20]).decode().lower()

    @property
    def detail_type(self) -> str:
        """Its name on the event bus."""
        return DETAIL_TYPES[self.status]

    def data(self) -> dict[str, Any]:
        """What a partner is told. The result is fetched from the API."""
        data: dict[str, Any] = {
            "job_id": self.job_id,
            "status": self.status,
            "model": self.model,
            "priority": self.lane,
            "correlation_id": self.correlation_id,
            "attempts": self.attempts,
            "created_at": rfc3339(self.created_at_epoch_ms),
            "started_at": rfc3339(self.started_at_epoch_ms),
            "completed_at": rfc3339(self.completed_at_epoch_ms),
        }
        if self.error_code is not None:
            data["error"] = {"code": self.error_code, "retryable": self.error_retryable}
        if self.status == "completed":
            data["usage"] = {
                "input_tokens": self.input_tokens,
                "output_tokens": self.output_tokens,
                "cost": (self.cost_nanos or 0) / 1e9,
                "saved": (self.saved_nanos or 0) / 1e9,
            }
        return data

    def detail(self) -> dict[str, Any]:
        """What the event bus is told: `data` with whose job it is."""
        return {
            "id": self.event_id,
            "tenant": self.tenant,
            "request_id": self.request_id,
            "redrives": self.redrives,
            "result_source": self.result_source,
            "at": rfc3339(self.at_epoch_ms),
            **self.data(),
        }

    def webhook_body(self) -> str:
        """The body of a webhook, the same in every attempt: what is signed must not change."""
        body = {
            "type": f"job.{self.status}",
            "timestamp": rfc3339(self.at_epoch_ms),
            "data": self.data(),
        }
        return json.dumps(body, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Delivery:
    """One webhook to one address; `body` is ASCII."""

    event_id: str
    tenant: str
    job_id: str
    url: str
    body: str


def deliveries(event: JobEvent) -> list[Delivery]:
    """A webhook for each address that the job was given."""
    return [
        Delivery(event.event_id, event.tenant, event.job_id, url, event.webhook_body())
        for url in event.callback_urls
    ]


def rfc3339(epoch_ms: int | None) -> str | None:
    """`2026-01-01T00:00:00.000Z` for epoch milliseconds."""
    if epoch_ms is None:
        return None
    moment = datetime.fromtimestamp(epoch_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{epoch_ms % 1000:03d}Z"


def retry_delay_s(receives: int, *, rand: float) -> float:
    """Seconds from the failed attempt of this receive (from 1) to the next; 0 after the last.

    `rand` in [0, 1) adds up to a tenth, so that what failed together doesn't come back together.
    After the last attempt the message is made visible at once, and SQS moves it at that receive.
    """
    if receives > len(RETRY_DELAYS_S):
        return 0.0
    return RETRY_DELAYS_S[max(1, receives) - 1] * (1 + RETRY_JITTER * rand)


# ------------------------------------------------------------------------------------ signature


def secret_keys(text: str) -> tuple[bytes, ...]:
    """The keys in a tenant's secret: `whsec_<base64>`, several with white space between.

    Each signs, so that a partner can change from one to the other. Raises ValueError, without the
    secret in its text.
    """
    keys = []
    for part in text.split():
        try:
            key = base64.b64decode(part.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("the webhook secret is not base64") from None
        if not part.startswith(SECRET_PREFIX):
            raise ValueError(f"the webhook secret doesn't begin with {SECRET_PREFIX}")
        if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
            raise ValueError(f"a webhook secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes")
        keys.append(key)
    if not keys:
        raise ValueError("the webhook secret is empty")
    return tuple(keys)


def signed_headers(delivery: Delivery, keys: Sequence[bytes], *, now_s: int) -> dict[str, str]:
    """The headers of one attempt. `now_s`: epoch seconds, against replays."""
    signed = f"{delivery.event_id}.{now_s}.{delivery.body}".encode()
    signatures = [
        "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        for key in keys
    ]
    return {
        "webhook-id": delivery.event_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": " ".join(signatures),
    }


# ------------------------------------------------------------------------------------ address

_URL = re.compile(
    r"(?P<scheme>(?i:https?))://"
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:[/?][!$-\[\]^-~]*)?)",
    re.ASCII,
)
"""No user, no password, no fragment, no backslash, no white space, ASCII only: what parsers
disagree on is not taken. International names come in their `xn--` form."""

_DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a webhook goes. Taken apart once: nobody else parses the URL."""

    scheme: str
    """In lower case, as the host."""
    host: str
    """Without brackets."""
    port: int
    path: str
    """With the query, and a slash at its beginning."""

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def target_of(url: str, *, local: bool) -> Target:
    """Takes a callback's URL apart.

    Raises ValueError, with a reason that repeats nothing of the URL, for one that is never called.
    Outside local mode that is all but https on port 443, and hosts that are addresses of no public
    network. A name is looked up at each attempt, so what it says is not checked here.
    """
    if len(url) > MAX_URL_CHARACTERS:
        raise ValueError(f"may have {MAX_URL_CHARACTERS} characters at most")
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError("is no plain http(s) URL without user, password and fragment")
    scheme, host, path = found["scheme"].lower(), found["host"].strip("[]").lower(), found["path"]
    port = int(found["port"] or _DEFAULT_PORTS[scheme])
    if not 0 < port < 2**16:
        raise ValueError("has a port that doesn't exist")
    if not local and (scheme != "https" or port != _DEFAULT_PORTS["https"]):
        raise ValueError("must be https on port 443")
    if ":" in host and not _is_address(host):
        raise ValueError("has an address that doesn't exist")
    if _is_address(host) and not may_call(host, local=local):
        raise ValueError("is in no public network")
    return Target(scheme, host, port, path if path.startswith("/") else f"/{path}")


def callback_of(url: str, *, local: bool) -> str:
    """The URL with scheme and host in lower case, so that one address is one callback of a job.

    Raises ValueError as `target_of` does.
    """
    target_of(url, local=local)
    return re.sub(r"^[^/]+//[^/?]+", lambda found: found[0].lower(), url)


# IANA's special-purpose registries (RFC 6890 and its updates), with multicast. Written out, since
# what Python's is_global says differs between its versions.
_REFUSED_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local: the metadata of clouds, and Lambda's own services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
"""All that is handed out. Loopback, IPv4-mapped and -compatible, NAT64 (64:ff9b::/96 and
64:ff9b:1::/48), unique local, link-local, site-local and multicast addresses are outside."""
_REFUSED_V6 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",  # documentation
    )
)


def may_call(address: str, *, local: bool) -> bool:
    """Whether a webhook may go to this IP address: public ones only, in local mode any."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if local:
        return True
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _REFUSED_V4)
    if parsed.scope_id is not None:
        return False
    return parsed in _PUBLIC_V6 and not any(parsed in network for network in _REFUSED_V6)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
