"""Who may come in: a pure decision on the head of a request. docs/reference/access.md says it to an operator.

Three strangers are kept out. A page in somebody's browser, which reaches loopback like any program here: by its `Origin`,
and, where it had its name point at us (DNS rebinding), by its `Host`. Another machine: nobody listens to it unless there
is a key. Another user of this machine: by the key, where there is one, since a port of loopback has no owner.
"""

from __future__ import annotations

import hmac
import ipaddress
import posixpath
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from attrs import field, frozen

from supervisor.errors import GatewayError
from supervisor.loopback import is_loopback_authority, is_loopback_host

if TYPE_CHECKING:
    from supervisor.contract import GatewaySpec


class Route(StrEnum):
    """What a request is about, which says what it takes."""

    HEALTH = "health"
    """Nothing that anybody could use; asked by what cannot keep a secret (load balancers)."""
    METRICS = "metrics"
    MODELS = "models"
    CONTROL = "control"
    """Whatever is not known to be one of the others: what stands behind us has routes that unload models, read logs and
    change templates, and its next version has new ones."""


_BARE: Final = frozenset(
    {"chat/completions", "completion", "completions", "embedding", "embeddings", "rerank", "reranking", "tokenize"}
    | {"detokenize", "apply-template", "infill", "responses", "messages", "models", ""}
)
"""llama-server's names for what it does with a model, besides those below /v1."""
_LOOKS: Final = frozenset({"props", "slots"})
"""Names that only show something when they are asked for with GET."""
_HEADER_NAMES: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,4096}")


@frozen
class Rules:
    """What holds at one listener. `keys` are the API keys, none = no key is asked for; `hosts` are further names in
    `Host` without a port, `origins` pages that may ask although they came from elsewhere: all in lower case."""

    listen: str = "127.0.0.1"
    """The host that the gateway listens on."""
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    body_most_bytes: int = 64 << 20
    """Of one request. A batch of 32 texts of 2 MB passes, and so do four pictures of 10 MB as base64. A request is kept
    until its first byte is delivered, because it may have to be sent again."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback_host(self.listen)


def rules_of(spec: GatewaySpec, address: str, keys: tuple[bytes, ...]) -> Rules:
    """What the configuration says, at a listener that is really on `address`: that may be a listener which somebody else
    made, such as systemd. Raises GatewayError where other machines would come in without a key."""
    rules = Rules(
        address, keys, frozenset({*spec.hosts, spec.host.lower()}), frozenset(spec.origins), spec.body_most_bytes
    )
    if not rules.is_local and not keys:
        raise GatewayError(
            f"{address} can be reached by other machines, and there is no API key to keep them out",
            "set gateway.api_key_file, or listen on 127.0.0.1",
        )
    return rules


@frozen
class Facts:
    """The head of a request. `headers`: the values of each, by its name in lower case. `path` is decoded, no query."""

    method: str
    path: str
    headers: Mapping[str, tuple[str, ...]] = field(repr=False)


class Allowed(NamedTuple):
    """It may come in. `origin` is that of a page which may read the answer, "" where no page asks."""

    origin: str = ""


class Preflight(NamedTuple):
    """A browser asks whether its page may ask (Fetch standard, "CORS-preflight request"): it may."""

    origin: str
    headers: str
    """The names of headers that the page wants to send."""


class Refused(NamedTuple):
    """It may not. `code` is one word for programs, `message` for people."""

    status: int
    code: str
    message: str
    origin: str = ""
    """As of `Allowed`: a page that may ask may also read that its key is wrong."""


HEALTH: Final = ("/health", "/v1/health")
METRICS: Final = "/metrics"
_FOREIGN: Final = frozenset({"cross-site", "same-site"})
"""What Sec-Fetch-Site says of another page's request (W3C Fetch Metadata); another port of this machine is another site."""


def decide(facts: Facts, rules: Rules) -> Allowed | Preflight | Refused:
    """What becomes of a request. Total: it never raises, whatever stands in it."""
    hosts = facts.headers.get("host", ())
    host = hosts[0].lower() if len(hosts) == 1 else ""
    if not _is_ours(host, rules):
        return Refused(
            421, "wrong_host", f"this gateway is not called {shown(host)}; if it is, put the name into gateway.hosts"
        )
    origins = facts.headers.get("origin", ())
    origin = ",".join(origins).lower()
    foreign = bool(origins) and not _is_same(origin, host)
    if foreign and origin not in rules.origins:
        return Refused(
            403, "origin_not_allowed",
            f"pages of {shown(origin)} may not use this gateway; if they should, put that into gateway.origins",
        )  # fmt: skip
    page = ",".join(origins) if foreign else ""  # as it was written: a browser compares it letter by letter
    if facts.method == "OPTIONS" and origins and "access-control-request-method" in facts.headers:
        wanted = ", ".join(facts.headers.get("access-control-request-headers", ()))
        return Preflight(",".join(origins), wanted if _HEADER_NAMES.fullmatch(wanted) else "")
    route = route_of(facts.method, facts.path)
    if (
        route in (Route.MODELS, Route.CONTROL)
        and not origins
        and _FOREIGN & set(facts.headers.get("sec-fetch-site", ()))
    ):
        # A picture or a link of some page: browsers name no origin then, and whoever asks for a model loads it.
        return Refused(403, "origin_not_allowed", "pages may not use this gateway unless they stand in gateway.origins")
    if route is Route.HEALTH or (route is Route.METRICS and rules.is_local and is_loopback_authority(host)):
        return Allowed(page)
    if not rules.keys:
        if route is Route.CONTROL:
            return Refused(
                403, "control_needs_key",
                f"{shown(facts.path)} is no route of a model, and others take a key: set gateway.api_key_file", page,
            )  # fmt: skip
        return Allowed(page)
    if _has_key(facts, rules):
        return Allowed(page)
    return Refused(
        401, "invalid_api_key",
        "the API key is missing or wrong: send one that stands in the gateway's api_key_file, as `Authorization: Bearer KEY`",
        page,
    )  # fmt: skip


def route_of(method: str, path: str) -> Route:
    """By its path as whoever gets it may read it: with doubled slashes, dots and letters of either case. What takes no key
    is the gateway's own pages alone, letter by letter: anything that only looks like one of them is passed on."""
    plain = posixpath.normpath("/" + path.lower().lstrip("/")).lstrip("/")
    looks = method in ("GET", "HEAD")
    if plain in ("health", "v1/health"):
        return Route.HEALTH if looks and path in HEALTH else Route.CONTROL
    if plain == "metrics":
        return Route.METRICS if looks and path == METRICS else Route.CONTROL
    if plain.startswith("v1/") or plain in _BARE or (plain in _LOOKS and looks):
        return Route.MODELS
    return Route.CONTROL


def _is_ours(host: str, rules: Rules) -> bool:
    """A loopback name or address; beyond loopback any address: a page reaches us by an address of ours only under that
    address, for it is names that can be rebound. And the names that the operator gave us."""
    if is_loopback_authority(host):
        return True
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname or "", parts.port  # raises for what is no port
    except ValueError:
        return False
    if parts.netloc != host or "@" in host or not name:
        return False
    if name in rules.hosts or name == rules.listen.lower():
        return True
    if rules.is_local:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    """Whether a page is of this very gateway. Another port of this machine is another program, perhaps another user's."""
    scheme, _, authority = origin.partition("://")
    return scheme in ("http", "https") and authority == host


def _has_key(facts: Facts, rules: Rules) -> bool:
    """Each is compared with each, in a time that does not depend on which letter differs."""
    given = [value.encode("latin-1", "replace") for value in facts.headers.get("x-api-key", ())]
    for value in facts.headers.get("authorization", ()):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer":
            given.append(key.strip().encode("latin-1", "replace"))
    return any([hmac.compare_digest(one, key) for one in given for key in rules.keys])


def shown(text: str) -> str:
    """What a stranger sent, short and without what a terminal would act upon."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:100]) or "nothing at all"
