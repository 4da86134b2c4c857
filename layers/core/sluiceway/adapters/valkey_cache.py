"""Cache entries in Valkey or Redis (port ResultCache).

One hash for each cache key, so that every script has one key and a cluster can hold it:
    values                      the entry's members that never change, as JSON
    result_inline, result_ref   the result's bytes, or its object's name
    asked_at_epoch_ms, stored_at_epoch_ms, refresh_…    what scripts look at or change
    invalidated_at_epoch_ms     of a tombstone, which has nothing else
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from valkey import Valkey
from valkey.backoff import NoBackoff
from valkey.exceptions import ConnectionError as LostError
from valkey.exceptions import TimeoutError as LateError
from valkey.exceptions import ValkeyError
from valkey.retry import Retry

from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.freshness import TOMBSTONE_S, CacheEntry, cool_down_ms
from sluiceway.domain.payload import Payload
from sluiceway.ports import Clock, Found

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sluiceway.adapters.dynamodb import Write
    from sluiceway.domain.job import Job

CONNECT_TIMEOUT_S = 0.5
READ_TIMEOUT_S = 1.0
TRIES = 2
"""Of a command: a connection that slept while Lambda had the process frozen may be dead."""

REST_MS = 5_000
"""After a read that failed: until then each read is a miss at once, and nobody waits for it."""

REFRESH_TRY_MS = 30_000
"""How long a refresh that may not have been queued keeps readers from queueing another."""

_INTEGERS = (
    *("asked_at_epoch_ms", "stored_at_epoch_ms"),
    *("refresh_until_epoch_ms", "refresh_after_epoch_ms", "refresh_failures"),
)
_TEXTS = ("refresh_job_id", "refresh_error")
_PLAIN = tuple(
    field.name for field in fields(CacheEntry) if field.name not in {"result", *_INTEGERS, *_TEXTS}
)

# A worker that lost its lease comes here all the same: nothing fences what isn't in DynamoDB.
#   A: asks the vendor ── pauses ─────────────────────────── stores: refused, B asked later
#   B:                     takes over, asks again ── stores
_STORE = """
local seen = redis.call('HMGET', KEYS[1], 'invalidated_at_epoch_ms', 'asked_at_epoch_ms')
local created, asked, lives_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if seen[1] and tonumber(seen[1]) >= created then return 0 end
if seen[2] and tonumber(seen[2]) > asked then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
redis.call('PEXPIRE', KEYS[1], lives_ms)
return 1
"""

_INVALIDATE = """
local found = redis.call('HEXISTS', KEYS[1], 'values')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'invalidated_at_epoch_ms', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return found
"""

_REFRESH_QUEUED = """
local seen = redis.call('HMGET', KEYS[1], 'stored_at_epoch_ms', 'refresh_job_id',
    'refresh_until_epoch_ms', 'refresh_after_epoch_ms')
local stored, job, now, till = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if seen[1] ~= stored then return 0 end
if (tonumber(seen[4]) or 0) > now then return 0 end
if (tonumber(seen[3]) or 0) > now and seen[2] ~= job then return 0 end
redis.call('HSET', KEYS[1], 'refresh_job_id', job, 'refresh_until_epoch_ms', till)
return 1
"""

_REFRESH_WON = """
local stored, job, till = ARGV[1], ARGV[2], ARGV[3]
if redis.call('HGET', KEYS[1], 'stored_at_epoch_ms') ~= stored then return 0 end
redis.call('HSET', KEYS[1], 'refresh_job_id', job, 'refresh_until_epoch_ms', till)
return 1
"""

# A second time, after a lost reply, the mark is gone, and nothing is counted twice.
_REFRESH_FAILED = """
local seen = redis.call('HMGET', KEYS[1], 'refresh_job_id', 'refresh_until_epoch_ms')
local job, after, failures, code = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if seen[1] ~= job or not seen[2] then return 0 end
redis.call('HDEL', KEYS[1], 'refresh_until_epoch_ms')
redis.call('HSET', KEYS[1], 'refresh_after_epoch_ms', after, 'refresh_failures', failures,
    'refresh_error', code)
return 1
"""


def connect(url: str) -> Valkey:
    """A client that makes its connection when it is first used.

    `valkeys://host:port` is TLS, `valkey://host:port` is not. ElastiCache Serverless answers for
    all slots at its one endpoint, so no cluster client is needed where a command has one key.
    """
    of_tls = {"ssl_check_hostname": True} if url.startswith("valkeys://") else {}
    client: Valkey = Valkey.from_url(
        url,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=READ_TIMEOUT_S,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), TRIES - 1),
        retry_on_error=[LostError, LateError],
        lib_name=None,  # the client's own name would cost two commands at each connection
        lib_version=None,
        **of_tls,
    )
    return client


class ValkeyCache:
    """Weakness: nothing here is in a job's transaction, and what it holds may go at any time.

    An entry is written before its job is completed: a worker that dies in between leaves the paid
    answer to whoever runs or waits next. A worker that lost its lease may write one, too, unless
    somebody asked the vendor later. Single flight is the claim in DynamoDB; the marks of a refresh
    only spare readers the attempt. A full Valkey evicts entries, and tombstones with them.

    When it can't be reached a read is a miss, and a store or a mark is lost: no job ever waits for
    it or fails by it. An invalidation fails then, since nobody would do it later.
    """

    def __init__(
        self, client: Valkey, *, clock: Clock, on_failure: Callable[[str, str], None]
    ) -> None:
        """`on_failure` is told what could not be done, and the class of the error."""
        self._client = client
        self._clock = clock
        self._on_failure = on_failure
        self._rests_until_ms = 0

    def read(self, cache_key: str) -> CacheEntry | None:
        """See ResultCache."""
        return self.look(cache_key).entry

    def look(self, cache_key: str) -> Found:
        """See ResultCache."""
        if self._clock.now_ms() < self._rests_until_ms:
            return Found()
        try:
            values: Any = self._client.hgetall(_key(cache_key))
        except (ValkeyError, OSError) as error:
            self._rests_until_ms = self._clock.now_ms() + REST_MS
            self._on_failure("read", type(error).__name__)
            return Found()
        tombstone = values.get(b"invalidated_at_epoch_ms")
        return Found(_entry_of(values), None if tombstone is None else int(tombstone))

    def invalidate(self, cache_key: str, *, now_ms: int) -> bool:
        """See ResultCache. Raises StoreBusyError when it can't be reached."""
        try:
            return bool(self._run(_INVALIDATE, cache_key, now_ms, TOMBSTONE_S * 1000))
        except (ValkeyError, OSError) as error:
            self._on_failure("invalidate", type(error).__name__)
            raise StoreBusyError("The cache can't be reached.", retry_after_s=5) from error

    # ------------------------------------------------------------------ parts of transitions

    def store(self, entry: CacheEntry, job: Job) -> list[Write]:
        """See CacheWrites. Refused, too, when the entry that is there was asked for later."""
        # Lambda's clock and the server's differ, and only ours is compared with anything.
        lives_ms = entry.kept_until_epoch_ms - self._clock.now_ms()
        pairs = [item for pair in _values_of(entry).items() for item in pair]
        asked_ms = entry.asked_at_epoch_ms
        self._attempt(
            "store", _STORE, entry.cache_key, job.created_at_epoch_ms, asked_ms, lives_ms, *pairs
        )
        return []

    def refresh_queued(self, entry: CacheEntry, job: Job) -> list[Write] | None:
        """See CacheWrites. A short mark: nobody knows yet whether the job will be written."""
        now_ms = job.created_at_epoch_ms
        marked = self._attempt(
            "mark",
            _REFRESH_QUEUED,
            entry.cache_key,
            entry.stored_at_epoch_ms,
            job.job_id,
            now_ms,
            min(job.deadline_epoch_ms, now_ms + REFRESH_TRY_MS),
        )
        return None if marked == 0 else []

    def refresh_won(self, entry: CacheEntry, job: Job) -> None:
        """See CacheWrites."""
        self._attempt(
            "mark",
            _REFRESH_WON,
            entry.cache_key,
            entry.stored_at_epoch_ms,
            job.job_id,
            job.deadline_epoch_ms,
        )

    def refresh_failed(self, job: Job) -> list[Write]:
        """See CacheWrites."""
        entry = self.read(job.cache_key)
        if entry is not None and entry.refresh_job_id == job.job_id:
            failures = entry.refresh_failures + 1
            self._attempt(
                "mark",
                _REFRESH_FAILED,
                job.cache_key,
                job.job_id,
                (job.failed_at_epoch_ms or job.completed_at_epoch_ms or 0) + cool_down_ms(failures),
                failures,
                job.error.code if job.error else "not_cacheable",
            )
        return []

    # ------------------------------------------------------------------ scripts

    def _attempt(self, what: str, script: str, cache_key: str, *arguments: Any) -> Any:
        """What the script says; None when it can't be run, which is told and forgotten."""
        try:
            return self._run(script, cache_key, *arguments)
        except (ValkeyError, OSError) as error:
            self._on_failure(what, type(error).__name__)
            return None

    def _run(self, script: str, cache_key: str, *arguments: Any) -> Any:
        # The text each time, not its digest: a proxy may ask another shard than it told the script.
        answer: Any = self._client.eval(script, 1, _key(cache_key), *arguments)
        return answer


def _key(cache_key: str) -> str:
    return f"entry:{cache_key}"


def _values_of(entry: CacheEntry) -> dict[str, bytes | str | int]:
    """The hash; None is left out."""
    plain = {name: getattr(entry, name) for name in _PLAIN}
    values = {
        "values": json.dumps(plain, separators=(",", ":")),
        "result_inline": entry.result.inline,
        "result_ref": entry.result.ref,
        **{name: getattr(entry, name) for name in (*_INTEGERS, *_TEXTS)},
    }
    return {name: value for name, value in values.items() if value is not None}


def _entry_of(values: Mapping[bytes, bytes]) -> CacheEntry | None:
    """None for a tombstone, for nothing, and for what this code can't read.

    What newer code wrote besides is left alone.
    """
    found = {name.decode(): value for name, value in values.items()}
    ref = found.get("result_ref")
    result = Payload(found.get("result_inline"), None if ref is None else ref.decode())
    if result == Payload():
        return None
    try:
        plain: dict[str, Any] = json.loads(found["values"])
        known = {name: plain[name] for name in _PLAIN if name in plain}
        known |= {name: int(found[name]) for name in _INTEGERS if name in found}
        known |= {name: found[name].decode() for name in _TEXTS if name in found}
        return CacheEntry(result=result, **known)
    except (KeyError, TypeError, ValueError):
        return None
