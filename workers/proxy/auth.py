"""apiKeys: who may speak to the proxy. Bearer, the password of Basic, or x-api-key (llama-swap's order)."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

OPEN_PATHS = frozenset({"/", "/health", "/wol-health", "/favicon.ico"})


def offered_key(authorization: str, x_api_key: str) -> str:
    """The key a request carries, or ""."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(credentials, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            decoded = ""
        password = decoded.partition(":")[2]
        if password:
            return password
    if scheme.lower() == "bearer" and credentials:
        return credentials
    return x_api_key


def allowed(keys: Sequence[str], path: str, authorization: str, x_api_key: str) -> bool:
    """Whether a request for `path` may pass. Without keys everybody may."""
    if not keys or path in OPEN_PATHS:
        return True
    offered = offered_key(authorization, x_api_key).encode("utf-8", "surrogateescape")
    # Every key is compared, in constant time, so that timing tells nothing about which was nearly right.
    return any([hmac.compare_digest(offered, key.encode()) for key in keys])
