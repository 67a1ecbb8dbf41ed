"""The names people know, each one line of axes."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UnknownName
from paceline.run import REFERENCES


@dataclass(frozen=True)
class Strategy:
    """A bundle of axes. `stands_for` is the published system; `same_result` as all-reduce or not.

    `across` replaces the exchange where ranks are on several nodes, if the published system did so.
    """

    name: str
    stands_for: str
    rule: str = "grad"
    exchange: str = "allreduce"
    schedule: str = "fusion"
    compressor: str = "none"
    membership: str = "fixed"
    same_result: bool = True
    across: str = ""


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("allreduce", "paceline's default: every rank applies the mean gradient"),
        Strategy("horovod", "Horovod: all-reduce of fused tensors", schedule="fusion(mb=64)"),
        Strategy("replicated", "tf_cnn_benchmarks and tensorpack: variable update replicated"),
        Strategy(
            "parameter_server",
            "tf_cnn_benchmarks and ddl-benchmarks: one server sums, workers pull",
            exchange="ps(servers=1, colocated=false)",
        ),
        Strategy("byteps", "BytePS: servers beside workers share the sum", exchange="ps(servers=1)"),
        Strategy(
            "hierarchical_allreduce", "BlueFog: all-reduce in levels, inside the node first", exchange="hierarchical"
        ),
        Strategy("ddl", "IBM DDL: multi-dimensional all-reduce", exchange="hierarchical"),
        Strategy(
            "neighbor_allreduce",
            "BlueFog: averaging with one neighbor per step",
            rule="awc",
            exchange="neighbor(one_peer(exp2))",
            across="neighbor(inner_outer)",
            same_result=False,
        ),
        Strategy(
            "hierarchical_neighbor_allreduce",
            "BlueFog: the mean inside a node, one neighbor node per step",
            rule="awc",
            exchange="hierarchical(neighbor(one_peer(exp2)))",
            same_result=False,
        ),
        Strategy("local_sgd", "local SGD: eight steps, then the mean", rule="atc(every=8)", same_result=False),
        Strategy("diloco", "DiLoCo: local steps, then an outer Nesterov step", rule="diloco", same_result=False),
        Strategy(
            "push_sum",
            "stochastic gradient push: averaging on directed graphs",
            rule="push_sum",
            exchange="neighbor(one_peer(exp2))",
            same_result=False,
        ),
        Strategy(
            "win_put",
            "BlueFog: one-sided averaging, with whatever has arrived",
            rule="awc",
            exchange="window(one_peer(exp2))",
            same_result=False,
        ),
        Strategy("signsgd", "signSGD: one bit per element, the majority decides", compressor="sign", same_result=False),
        Strategy("signum", "Signum: the sign of a momentum", compressor="sign(momentum=0.9)", same_result=False),
        Strategy(
            "topk_sgd",
            "top-k SGD: the largest elements, the rest waits",
            compressor="feedback(topk(ratio=0.01))",
            same_result=False,
        ),
        Strategy(
            "gtopk_sgd",
            "gTop-k SGD: the largest elements of the sum",
            compressor="feedback(gtopk(ratio=0.01))",
            same_result=False,
        ),
        Strategy("dgc", "deep gradient compression", compressor="dgc", same_result=False),
        Strategy(
            "powersgd", "PowerSGD: low-rank gradients", compressor="feedback(powersgd(rank=2))", same_result=False
        ),
        Strategy("bsp", "ddl-benchmarks BSP-A2A: one message after backward", schedule="bsp"),
        Strategy("wfbp", "ddl-benchmarks WFBP-A2A: every tensor when it is ready", schedule="wfbp"),
        Strategy("mg_wfbp", "MG-WFBP: merged so that the last chunk arrives first", schedule="mgwfbp"),
        Strategy(
            "bytescheduler",
            "ByteScheduler: what the next forward needs first leaves first",
            schedule="priority",
        ),
        Strategy("dear", "DeAR: reduce-scatter in backward, all-gather in the next forward", schedule="dear"),
        Strategy("bsp_ps", "ddl-benchmarks BSP-PS: one message after backward", exchange="ps", schedule="bsp"),
        Strategy("wfbp_ps", "ddl-benchmarks WFBP-PS: every tensor when it is ready", exchange="ps", schedule="wfbp"),
        Strategy(
            "bytescheduler_ps",
            "ByteScheduler with parameter servers",
            exchange="ps",
            schedule="priority",
        ),
        Strategy("p3", "P3: the same with small pieces", schedule="priority(0.2, 0.8)"),
    )
}


def find(name: str) -> Strategy:
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, [*STRATEGIES, *REFERENCES])
    return STRATEGIES[name]
