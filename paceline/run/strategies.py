"""The named strategies, each a set of axes."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UnknownName
from paceline.run.reference import REFERENCES


@dataclass(frozen=True)
class Strategy:
    """A named set of axes. `stands_for` is the published system.

    `same_result` says whether it gives the result of all-reduce.

    `choose` says when it is worth trying. `across` replaces the exchange if ranks are on several nodes, where the
    published system did so.
    """

    name: str
    stands_for: str
    choose: str
    rule: str = "grad"
    exchange: str = "allreduce"
    schedule: str = "fusion"
    compressor: str = "none"
    membership: str = "fixed"
    same_result: bool = True
    across: str = ""

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the values of all axes of this strategy."""
        return self.rule, self.exchange, self.schedule, self.compressor, self.membership, self.across


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            "allreduce",
            "paceline's default: every rank applies the mean gradient",
            "first; the other strategies are compared with it",
        ),
        Strategy(
            "horovod",
            "Horovod: all-reduce of fused tensors",
            "to compare with Horovod's fusion of 64 MB",
            schedule="fusion(mb=64)",
        ),
        Strategy(
            "replicated",
            "tf_cnn_benchmarks and tensorpack: variable update replicated",
            "to read results of those benchmarks",
        ),
        Strategy(
            "parameter_server",
            "tf_cnn_benchmarks and ddl-benchmarks: one server sums, workers pull",
            "to see what one server costs",
            exchange="ps(servers=1, colocated=false)",
        ),
        Strategy(
            "byteps",
            "BytePS: servers beside workers share the sum",
            "if servers can run on the machines of the workers",
            exchange="ps(servers=1)",
        ),
        Strategy(
            "hierarchical_allreduce",
            "BlueFog: all-reduce in levels, inside the node first",
            "if links inside a node are faster than links between nodes",
            exchange="hierarchical",
        ),
        Strategy("ddl", "IBM DDL: multi-dimensional all-reduce", "to compare with IBM DDL", exchange="hierarchical"),
        Strategy(
            "neighbor_allreduce",
            "BlueFog: averaging with one neighbor per step",
            "with many workers on slow links, if accuracy holds",
            rule="awc",
            exchange="neighbor(one_peer(exp2))",
            across="neighbor(inner_outer)",
            same_result=False,
        ),
        Strategy(
            "hierarchical_neighbor_allreduce",
            "BlueFog: the mean inside a node, one neighbor node per step",
            "with many nodes on slow links, if accuracy holds",
            rule="awc",
            exchange="hierarchical(neighbor(one_peer(exp2)))",
            same_result=False,
        ),
        Strategy(
            "local_sgd",
            "local SGD: eight steps, then the mean",
            "if links are slow and rare averaging keeps the accuracy",
            rule="atc(every=8)",
            same_result=False,
        ),
        Strategy(
            "diloco",
            "DiLoCo: local steps, then an outer Nesterov step",
            "if links are very slow, such as between sites",
            rule="diloco",
            same_result=False,
        ),
        Strategy(
            "push_sum",
            "stochastic gradient push: averaging on directed graphs",
            "if links work in one direction only, or peers change",
            rule="push_sum",
            exchange="neighbor(one_peer(exp2))",
            same_result=False,
        ),
        Strategy(
            "win_put",
            "BlueFog: one-sided averaging with the values that have arrived",
            "if some workers are slower and the others should not wait",
            rule="awc",
            exchange="window(one_peer(exp2))",
            same_result=False,
        ),
        Strategy(
            "signsgd",
            "signSGD: one bit per element, the majority decides",
            "if links are slow: messages are 32 times smaller",
            compressor="sign",
            same_result=False,
        ),
        Strategy(
            "signum",
            "Signum: the sign of a momentum",
            "like signsgd, with less noisy signs",
            compressor="sign(momentum=0.9)",
            same_result=False,
        ),
        Strategy(
            "topk_sgd",
            "top-k SGD: send the largest elements, add the rest to later gradients",
            "if links are slow and most gradients are small",
            compressor="feedback(topk(ratio=0.01))",
            same_result=False,
        ),
        Strategy(
            "gtopk_sgd",
            "gTop-k SGD: the largest elements of the sum",
            "like topk_sgd, with many workers: messages keep their size",
            compressor="feedback(gtopk(ratio=0.01))",
            same_result=False,
        ),
        Strategy(
            "dgc",
            "deep gradient compression",
            "like topk_sgd, with an optimizer without momentum",
            compressor="dgc",
            same_result=False,
        ),
        Strategy(
            "powersgd",
            "PowerSGD: low-rank gradients",
            "if links are slow and the model has large matrices",
            compressor="feedback(powersgd(rank=2))",
            same_result=False,
        ),
        Strategy(
            "bsp",
            "ddl-benchmarks BSP-A2A: one message after backward",
            "to see how much overlap of backward and exchange gains",
            schedule="bsp",
        ),
        Strategy(
            "wfbp", "ddl-benchmarks WFBP-A2A: every tensor when it is ready", "with few large tensors", schedule="wfbp"
        ),
        Strategy(
            "mg_wfbp",
            "MG-WFBP: tensors merged so that the last chunk arrives early",
            "with many small tensors, on links with a high latency",
            schedule="mgwfbp",
        ),
        Strategy(
            "bytescheduler",
            "ByteScheduler: send first what the next forward needs first",
            "if the next forward waits for large first layers",
            schedule="priority",
        ),
        Strategy(
            "dear",
            "DeAR: reduce-scatter in backward, all-gather in the next forward",
            "if the forward pass is long enough to hide the all-gather",
            schedule="dear",
        ),
        Strategy(
            "bsp_ps",
            "ddl-benchmarks BSP-PS: one message after backward",
            "to see how much overlap gains with parameter servers",
            exchange="ps",
            schedule="bsp",
        ),
        Strategy(
            "wfbp_ps",
            "ddl-benchmarks WFBP-PS: every tensor when it is ready",
            "with parameter servers and few large tensors",
            exchange="ps",
            schedule="wfbp",
        ),
        Strategy(
            "bytescheduler_ps",
            "ByteScheduler with parameter servers",
            "like bytescheduler, with parameter servers",
            exchange="ps",
            schedule="priority",
        ),
        Strategy(
            "p3",
            "P3: small pieces; send first what the next forward needs first",
            "like bytescheduler, if one large tensor blocks the others",
            schedule="priority(0.2, 0.8)",
        ),
    )
}


def find(name: str) -> Strategy:
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, [*STRATEGIES, *REFERENCES])
    return STRATEGIES[name]
