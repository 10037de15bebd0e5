"""What counts as this machine talking to itself: in a URL, and in the headers by which a browser tells where it is."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback_host(host: str) -> bool:
    """`localhost`, or an address of 127.0.0.0/8 or ::1 (RFC 6761, RFC 1122). No name is looked up: whoever rebinds a
    DNS name to 127.0.0.1 still sends that name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_authority(text: str) -> bool:
    """The same for `host[:port]`, as in a Host header (RFC 9110, 7.2). Whatever else stands in it is refused."""
    try:
        parts = urlsplit(f"//{text}")
        _ = parts.port  # raises for what is no port
    except ValueError:
        return False
    return parts.netloc == text and "@" not in text and is_loopback_host(parts.hostname or "")


def is_loopback_url(text: str) -> bool:
    """The same for an http URL, or for an Origin header (RFC 6454): without user, query or fragment."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    plain = parts.scheme in ("http", "https") and not (parts.query or parts.fragment)
    return plain and is_loopback_authority(parts.netloc)
