"""/metrics for Prometheus: what the keeper knows already, in numbers. docs/reference/metrics.md has the table.

A scrape asks nobody: it starts nothing, keeps no model loaded, and looks at no server. Names follow Prometheus's own
rules (prometheus.io/docs/practices/naming): base units, `_total` for what only grows, `_info` for what is 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from supervisor._version import __version__
from supervisor.contract import State
from supervisor.gateway.tally import Ending
from supervisor.health import Verdict
from supervisor.recoveries import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from supervisor.contract import EngineSpec
    from supervisor.gateway.tally import Tally
    from supervisor.recoveries import Recoveries

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"

METRICS: Final[Mapping[str, tuple[str, tuple[str, ...], str]]] = {
    "queenright_build_info": (GAUGE, ("version",), "Always 1; the label says which version keeps the engine."),
    "queenright_keeper_start_time_seconds": (
        GAUGE, (), "When this keeper began, in seconds since 1970. The counters began with it.",
    ),
    "queenright_up": (
        GAUGE, ("group",), "1 while the group runs and all of it answers or computes, else 0. Every group of the contract is here.",
    ),
    "queenright_group_state": (GAUGE, ("group", "state"), "1 for the state that the group is in, 0 for the others."),
    "queenright_members": (GAUGE, (), "Processes that use the engine."),
    "queenright_server_resident_bytes": (
        GAUGE, ("group", "role"), "Memory of the server's process (RSS), mapped weights included. Not there where unknown.",
    ),
    "queenright_server_load_bytes": (
        GAUGE, ("group", "role"), "Of a server that loads: bytes of its model in memory or read. Not there where none loads.",
    ),
    "queenright_server_load_size_bytes": (GAUGE, ("group", "role"), "Of a server that loads: bytes of its model's files."),
    "queenright_restarts_total": (
        COUNTER, ("group", "cause"), "Restarts of the group, or of a server under its proxy, by what ended it.",
    ),
    "queenright_recovery_seconds": (
        HISTOGRAM, ("group",), "From a death, as the keeper noticed it, until all of the group answered again.",
    ),
    "queenright_gateway_requests_total": (
        COUNTER, ("group", "outcome"), "Requests through the gateway that ended, by how.",
    ),
    "queenright_gateway_refused_total": (COUNTER, ("code",), "Requests that the gateway did not let in, by why."),
    "queenright_gateway_held_total": (COUNTER, ("group",), "Requests that waited because their group was down."),
    "queenright_gateway_replayed_total": (COUNTER, ("group",), "Times that a request was sent once more."),
    "queenright_gateway_requests_running": (GAUGE, ("group",), "Requests that the engine is working on."),
    "queenright_gateway_requests_waiting": (GAUGE, ("group",), "Requests that wait for their turn or for the engine."),
    "queenright_gateway_prompt_tokens_total": (
        COUNTER, ("group",), "Tokens read, as far as answers say so.",
    ),
    "queenright_gateway_completion_tokens_total": (
        COUNTER, ("group",), "Tokens written, as far as answers say so.",
    ),
}  # fmt: skip
"""Every metric: its kind, its labels, and what it means."""


class View(Protocol):
    """What of a keeper is counted."""

    spec: EngineSpec | None
    recoveries: Recoveries

    def snapshot(self) -> dict[str, Any]: ...


class Page:
    """The page, with a registry of its own: nobody else's metrics are in it, those of the process included."""

    def __init__(self, keeper: View, tally: Tally) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(keeper, tally))

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text and its type, in the format that the scraper asks for."""
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is no number, in prometheus-client 0.26
            encode, kind = choose_encoder("")
        return encode(self._registry), kind


class _Collector(Collector):
    def __init__(self, keeper: View, tally: Tally) -> None:
        self._keeper, self._tally = keeper, tally

    def describe(self) -> list[Metric]:
        """Nothing is looked at to be registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One look, and everything out of it."""
        samples = dict(self._samples())
        for name, rows in samples.items():
            kind, labels, meaning = METRICS[name]
            family = _KINDS[kind](name.removesuffix("_total"), meaning, labels=labels)
            for row in rows:
                family.add_metric(*row)
            yield family

    def _samples(self) -> Iterator[tuple[str, Iterable[Any]]]:
        """The rows of every metric: the values of its labels, and the value."""
        keeper, tally, past = self._keeper, self._tally, self._keeper.recoveries
        found = keeper.snapshot()
        groups = {group["name"]: group for group in found["groups"]}
        wanted = [group.name for group in keeper.spec.groups] if keeper.spec else []
        names = list(dict.fromkeys([*wanted, *groups]))
        yield "queenright_build_info", [((__version__,), 1)]
        yield "queenright_keeper_start_time_seconds", [((), found["keeper"]["since"])]
        yield "queenright_up", [((name,), int(name in groups and _answers(groups[name]))) for name in names]
        states = {name: groups[name]["state"] if name in groups else State.DOWN.value for name in names}
        yield (
            "queenright_group_state",
            [((name, state.value), int(states[name] == state.value)) for name in names for state in State],
        )
        yield "queenright_members", [((), len(found["members"]))]
        yield (
            "queenright_server_resident_bytes",
            [
                ((name, server["role"]), server["rss_bytes"])
                for name, group in groups.items()
                for server in group["servers"]
                if server["rss_bytes"] is not None
            ],
        )
        loads = {
            (name, server["role"]): server["loading"]
            for name, group in groups.items()
            for server in group["servers"]
            if server["loading"]
        }
        yield "queenright_server_load_bytes", [(who, load["bytes"]) for who, load in loads.items()]
        yield "queenright_server_load_size_bytes", [(who, load["of"]) for who, load in loads.items()]
        yield "queenright_restarts_total", list(past.restarts.items())
        yield (
            "queenright_recovery_seconds",
            [
                ((name,), _buckets(past.seconds.get(name, [0] * (len(BOUNDS) + 1))), past.total.get(name, 0.0))
                for name in names
            ],
        )
        # From the first scrape on, for a counter that begins at 1 has no increase.
        yield (
            "queenright_gateway_requests_total",
            [((name, how.value), tally.ended[name, how]) for name in names for how in Ending],
        )
        yield "queenright_gateway_refused_total", [((code,), count) for code, count in tally.refusals.items()]
        for name, counts in (
            ("queenright_gateway_held_total", tally.held),
            ("queenright_gateway_replayed_total", tally.replayed),
            ("queenright_gateway_requests_running", tally.running),
            ("queenright_gateway_requests_waiting", tally.waiting),
            ("queenright_gateway_prompt_tokens_total", tally.prompt_tokens),
            ("queenright_gateway_completion_tokens_total", tally.completion_tokens),
        ):
            yield name, [((group,), counts[group]) for group in names]


_KINDS: Final[Mapping[str, Any]] = {
    GAUGE: GaugeMetricFamily,
    COUNTER: CounterMetricFamily,
    HISTOGRAM: HistogramMetricFamily,
}


_LIVELY: Final = frozenset({Verdict.HEALTHY.value, Verdict.BUSY.value})


def _answers(group: Mapping[str, Any]) -> bool:
    """Whether it runs and nothing of it is silent without computing. A server that is unloaded is no dead one."""
    parts = [group["proxy"], *group["servers"]] if group["proxy"] else []
    health = [part["health"] for part in parts if part["health"] is not None]
    return group["state"] == State.RUNNING.value and all(each["verdict"] in _LIVELY for each in health)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """As Prometheus has them: each holds those below it as well."""
    sums, bounds = 0, [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    found = []
    for bound, count in zip(bounds, counts, strict=True):
        sums += count
        found.append((bound, float(sums)))
    return found
