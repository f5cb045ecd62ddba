"""A snapshot in the words of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_COUNTERS = {
    "rounds": ("sccvfl_rounds", "Rounds between parties"),
    "bytes_sent": ("sccvfl_sent_bytes", "Bytes sent to other parties"),
    "bytes_received": ("sccvfl_received_bytes", "Bytes received from other parties"),
    "bytes_dealer": ("sccvfl_dealer_bytes", "Bytes from and to the dealer, or at the dealer from and to parties"),
}


def exposition(snapshot: Callable[[], dict[str, Any]]) -> Callable[[], bytes]:
    """A function that gives the metrics of the moment, in the text format 0.0.4."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Collected:
        def collect(self) -> Iterable[Any]:
            return families(snapshot())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())  # type: ignore[arg-type,unused-ignore]
    return lambda: bytes(generate_latest(registry))


def families(told: dict[str, Any]) -> list[Any]:
    """Every metric of a snapshot."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    info = GaugeMetricFamily("sccvfl_info", "What runs here", labels=["place", "session", "job", "phase"])
    info.add_metric([told["place"], told["session"], told["job"], told["phase"]], 1)
    made: list[Any] = [
        info,
        GaugeMetricFamily("sccvfl_uptime_seconds", "Seconds since the start", value=told["seconds"]),
    ]
    for key, (name, words) in _COUNTERS.items():
        made.append(CounterMetricFamily(name, words, value=told[key]))
    step = told["step"]
    if step is not None:
        made.append(GaugeMetricFamily("sccvfl_step", "Number of the step in its stage, from 1", step["number"] + 1))
        made.append(GaugeMetricFamily("sccvfl_steps", "Steps of the stage", step["total"]))
        if step["left"] is not None:
            made.append(GaugeMetricFamily("sccvfl_stage_left_seconds", "Estimate for the stage", step["left"]))
    up = GaugeMetricFamily("sccvfl_peer_connected", "Whether a peer is connected", labels=["peer"])
    silent = GaugeMetricFamily("sccvfl_peer_silent_seconds", "Seconds since a peer's last word", labels=["peer"])
    awaited = GaugeMetricFamily("sccvfl_peer_awaited", "Whether this process waits for a peer", labels=["peer"])
    for peer in told["peers"]:
        up.add_metric([peer["name"]], float(peer["connected"]))
        awaited.add_metric([peer["name"]], float(bool(peer["awaited"])))
        if peer["silent"] is not None:
            silent.add_metric([peer["name"]], peer["silent"])
    made += [up, silent, awaited]
    for name, value in told["budget"].items():
        made.append(GaugeMetricFamily(f"sccvfl_budget_{name}", "Privacy budget of the record that spent most", value))
    for name, value in told["memory"].items():
        made.append(GaugeMetricFamily(f"sccvfl_memory_{name}_bytes", "Memory of this process", value))
    made.append(GaugeMetricFamily("sccvfl_problems", "Problems shown on the page", len(told["problems"])))
    return made
