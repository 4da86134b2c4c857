"""Addresses that webhooks go to: which URLs are taken, and which hosts are called."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from sluiceway.domain.job import MAX_URL_CHARACTERS

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
    """The URL in one form, so that one address is one callback of a job and told once.

    Scheme and host are in lower case, the scheme's own port is left out, and there is a path.
    Raises ValueError as `target_of` does.
    """
    target = target_of(url, local=local)
    return f"{target.scheme}://{target.authority}{target.path}"


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
