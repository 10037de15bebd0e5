"""PURE: which model a request is for, and how its name is replaced (`useModelName`)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

if TYPE_CHECKING:
    from workers.proxy.downstream import Request

_FORM_FIELD = re.compile(
    rb'content-disposition:[^\r\n]*[; ]name="?model"?(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n', re.IGNORECASE
)


def requested_model(request: Request) -> str:
    """The model named in the query (GET), the JSON body or the form; "" if none is."""
    if request.method in {"GET", "HEAD"}:
        return request.parameter("model") or ""
    kind = request.header("Content-Type")
    if "application/json" in kind:
        return _json_model(request.body)
    if "multipart/form-data" in kind:
        span = _form_span(request.body)
        return request.body[slice(*span)].decode("utf-8", "replace") if span else ""
    return parse_qs(request.body.decode("utf-8", "replace")).get("model", [""])[0]


def with_model_name(request: Request, name: str) -> bytes:
    """The body with the model's name replaced; everything else keeps its meaning, JSON not its spacing."""
    kind = request.header("Content-Type")
    if "application/json" in kind:
        data = json.loads(request.body)
        data["model"] = name
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    if "multipart/form-data" in kind:
        span = _form_span(request.body)
        return request.body if span is None else request.body[: span[0]] + name.encode() + request.body[span[1] :]
    form = parse_qs(request.body.decode("utf-8", "replace"), keep_blank_values=True)
    return urlencode({**form, "model": [name]}, doseq=True).encode()


def _json_model(body: bytes) -> str:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    model = data.get("model") if isinstance(data, dict) else None
    return model if isinstance(model, str) else ""


def _form_span(body: bytes) -> tuple[int, int] | None:
    """Where the value of the form field `model` stands in a multipart body."""
    found = _FORM_FIELD.search(body)
    end = body.find(b"\r\n--", found.end()) if found else -1
    return (found.end(), end) if found and end >= 0 else None
