"""The gateway of a real keeper, over fake llama-servers."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.engine.fronts import PATIENCE
from tests.support import free_port

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process


def serving(place: Place) -> dict[str, Any]:
    """What the snapshot says of the gateway, once it serves."""

    def there() -> dict[str, Any] | None:
        found: dict[str, Any] = place.snapshot()["gateway"]
        return found if found["state"] == "serving" else None

    found = place.until(there, within=PATIENCE, what="the gateway serves")
    assert found is not None
    return found


def test_the_models_of_an_engine_are_listed(place: Place) -> None:
    port = free_port()
    place.configure(gateway={"listen": f"127.0.0.1:{port}"})
    place.member()
    assert serving(place) == {"url": f"http://127.0.0.1:{port}", "state": "serving", "reason": ""}
    found = httpx.get(f"http://127.0.0.1:{port}/v1/models").json()
    assert [row["id"] for row in found["data"]] == ["chat", "embed"]
    assert found["data"][0]["meta"]["n_ctx"] == 4096
    assert httpx.get(f"http://127.0.0.1:{port}/health").json()["groups"] == {"chat": "running", "embed": "running"}
    assert f'"gateway": "http://127.0.0.1:{port}"' in place.slot.keeper_record.read_text()


def test_no_client_is_refused_while_keepers_are_killed__and_a_gateway_that_is_switched_off_refuses(
    place: Place,
) -> None:
    port = free_port()
    place.configure(gateway={"listen": f"127.0.0.1:{port}"})
    place.member()
    url = serving(place)["url"]
    for _ in range(2):
        keeper = place.snapshot()["keeper"]["pid"]
        os.kill(keeper, signal.SIGKILL)
        with httpx.Client(timeout=PATIENCE) as client:  # each its own connection, and each is taken in the end
            assert client.get(f"{url}/v1/models").status_code == 200
    place.configure(gateway={"enabled": False})
    assert place.cli("apply").returncode == 0
    place.until(lambda: place.snapshot()["gateway"]["state"] == "off", within=PATIENCE, what="the gateway is off")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v1/models")
    place.configure(gateway={"listen": f"127.0.0.1:{port}"})
    assert place.cli("apply").returncode == 0
    assert serving(place)["url"] == url
    assert httpx.get(f"{url}/v1/models").status_code == 200
