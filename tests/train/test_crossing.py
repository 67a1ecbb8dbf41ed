"""Schedules that cross the step give the same weights, which are complete whenever they are read."""

import copy

import pytest
import torch
from torch import nn

from paceline.api.join import Worker
from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.engine.dispatch import Leader
from paceline.errors import WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import schedules
from paceline.train.pace import Pace
from paceline.train.planning import WATCHED
from paceline.types import Unit
from tests.train.problems import batches, build, flat, loss_of, mlp

SMALL = "priority(partition=0.0005, credit=0.001)"
CROSSING = [{"priority": SMALL, "dear": "dear(mb=0.0005)"}.get(name, name) for name in schedules.MENU.names()]
CROSSING = [text for text in CROSSING if schedules.MENU.make(text).crosses_step]
STEPS = WATCHED + 8


class Talk(nn.Module):
    """A shared embedding, attention that uses its output layer without calling it, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.middle = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.ones(1))
        self.idle = nn.Linear(2, 2)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.frozen(x) + self.middle(self.norm(x)) * self.scale
        return self.out(x)


TALK = build(Talk)


def talk_batches(steps):
    dice = torch.Generator().manual_seed(2)
    return [torch.randint(0, 11, (12, 5), generator=dice) for _ in range(steps)]


def two_groups(kind, **settings):
    def make(model):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        decayed = [p for n, p in named if p.dim() > 1]
        plain = [p for n, p in named if p.dim() <= 1]
        return kind([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "lr": 0.003}], lr=0.01, **settings)

    return make


OPTIMIZERS = {
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
    "two groups": two_groups(torch.optim.AdamW),
    "two groups, nesterov": two_groups(torch.optim.SGD, momentum=0.9, nesterov=True, foreach=True),
}


def train(comm, schedule, optimizer="momentum", *, accumulate=1, steps=STEPS, scheduler=True, look=None):
    model = copy.deepcopy(TALK)
    update = OPTIMIZERS[optimizer](model)
    rates = torch.optim.lr_scheduler.ExponentialLR(update, 0.8) if scheduler else None
    axes = compose(Run(workers=comm.size, schedule=schedule, accumulate=accumulate)).axes
    pace = Pace(model, update, comm=comm, axes=axes, accumulate=accumulate)
    for tokens in talk_batches(steps):
        share = len(tokens) // (comm.size * accumulate)
        for micro in range(accumulate):
            mine = tokens[(comm.rank * accumulate + micro) * share :][:share]
            nn.functional.cross_entropy(model(mine[:, :-1]).flatten(0, 1), mine[:, 1:].flatten()).backward()
            pace.step()
        update.zero_grad()
        if rates:
            rates.step()
        if look:
            look(pace)
    pace.finish()
    return flat(model), pace


@pytest.mark.parametrize("schedule", CROSSING)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("size", [1, 3])
def test_weights_equal_those_of_the_run_that_does_not_cross(schedule, optimizer, size):
    expected = run_ranks(size, lambda comm: train(comm, "bsp", optimizer)[0])
    found = run_ranks(size, lambda comm: train(comm, schedule, optimizer)[0])
    for weights in found:
        assert torch.equal(weights, found[0]), "replicas differ"
        # chunks cut elsewhere are added in the same order; only vectorized tails may round differently
        assert (weights - expected[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("schedule", CROSSING)
def test_accumulation_crosses_as_well(schedule):
    expected = run_ranks(2, lambda comm: train(comm, "bsp", accumulate=3)[0])
    found = run_ranks(2, lambda comm: train(comm, schedule, accumulate=3)[0])
    assert (found[0] - expected[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("schedule", CROSSING)
def test_most_of_the_update_happens_in_the_next_forward(schedule):
    """The negative control of all the others: something is really outstanding after step()."""
    left = []

    def look(pace):
        if pace.comm.rank == 0:
            left.append(len(pace.duty._pending))

    run_ranks(2, lambda comm: train(comm, schedule, look=look)[0])
    names = [name for name, p in TALK.named_parameters() if p.requires_grad]
    assert left == [0] * (WATCHED + 1) + [len(names)] * (STEPS - WATCHED - 1)


@pytest.mark.parametrize("schedule", CROSSING)
@pytest.mark.parametrize("looking", ["state_dict", "evaluation", "optimizer", "averaged"])
def test_who_looks_after_the_last_step_sees_the_last_update(schedule, looking):
    tokens = talk_batches(1)[0]

    def seen(pace):
        with torch.no_grad():
            if looking == "evaluation":
                return pace.model.eval()(tokens).flatten()
            if looking == "optimizer":
                state = pace.optimizer.state_dict()["state"]
                return torch.cat(
                    [s["momentum_buffer"].flatten() for s in state.values() if s["momentum_buffer"] is not None]
                )
            if looking == "averaged":
                with pace.averaged():
                    return flat(pace.model)
            return torch.cat([v.flatten() for v in pace.model.state_dict().values()])

    def work(comm, schedule):
        kept = []
        train(
            comm,
            schedule,
            steps=WATCHED + 3,
            look=lambda pace: kept.append(seen(pace)) if pace.steps == WATCHED + 3 else 0,
        )
        return kept[0]

    expected = run_ranks(2, lambda comm: work(comm, "bsp"))
    for found in run_ranks(2, lambda comm: work(comm, schedule)):
        assert (found - expected[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("schedule", CROSSING)
def test_rank_zero_alone_may_save_and_evaluate(schedule):
    def look(pace):
        if pace.comm.rank == 0:
            pace.model.state_dict()
            with torch.inference_mode():
                pace.model.eval()(talk_batches(1)[0])
            pace.model.train()

    expected = run_ranks(3, lambda comm: train(comm, "bsp")[0])
    found = run_ranks(3, lambda comm: train(comm, schedule, look=look)[0])
    assert (found[0] - expected[0]).abs().max() <= 1e-6
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("schedule", CROSSING)
def test_gradients_may_be_changed_between_synchronize_and_step(schedule):
    def work(comm, schedule):
        model = mlp()
        axes = compose(Run(workers=comm.size, schedule=schedule)).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), comm=comm, axes=axes)
        for step, (x, y) in enumerate(batches(steps=STEPS)):
            loss_of(model, x, y).backward()
            if step % 2:
                pace.synchronize()
                for parameter in model.parameters():
                    parameter.grad.mul_(0.5)
            pace.step()
        pace.finish()
        return flat(model)

    expected = run_ranks(2, lambda comm: work(comm, "bsp"))
    for weights in run_ranks(2, lambda comm: work(comm, schedule)):
        assert (weights - expected[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("schedule", CROSSING)
def test_a_checkpoint_goes_on_where_it_was(schedule):
    def resumed(comm):
        data = talk_batches(STEPS)
        model = copy.deepcopy(TALK)
        saved = None
        for part in (data[: WATCHED + 3], data[WATCHED + 3 :]):
            update = torch.optim.Adam(model.parameters(), lr=0.01)
            pace = Pace(model, update, comm=comm, axes=compose(Run(workers=comm.size, schedule=schedule)).axes)
            if saved:
                model.load_state_dict(saved[0])
                update.load_state_dict(saved[1])
                pace.load_state_dict(saved[2])
            for tokens in part:
                mine = tokens[comm.rank * 6 :][:6]
                nn.functional.cross_entropy(model(mine[:, :-1]).flatten(0, 1), mine[:, 1:].flatten()).backward()
                pace.step()
            saved = copy.deepcopy((model.state_dict(), update.state_dict(), pace.state_dict()))
            pace.close()
        return flat(model)

    expected = run_ranks(2, lambda comm: train(comm, "bsp", "adam", scheduler=False)[0])
    for weights in run_ranks(2, resumed):
        assert (weights - expected[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("every", [1, 2])
def test_several_dtypes_cross_in_arenas_of_their_own(every):
    """Used in every second step only, the flags of the second arena matter, which may be back after the first's."""

    def work(comm, schedule):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
        for k, parameter in enumerate(model.parameters()):
            nn.init.constant_(parameter, 0.1 * (k + 1))
        model[1].double()
        axes = compose(Run(workers=comm.size, schedule=schedule)).axes
        update = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
        pace = Pace(model, update, comm=comm, axes=axes)
        for step in range(STEPS):
            x = model[0](torch.full((1, 4), float(comm.rank + step % 3)))
            x = x if step % every else model[1](x.double()).float()
            model[2](x).sum().backward()
            pace.step()
        pace.finish()
        return flat(model)

    expected = run_ranks(2, lambda comm: work(comm, "bsp"))
    for schedule in CROSSING:
        for weights in run_ranks(2, lambda comm, s=schedule: work(comm, s)):
            assert (weights - expected[0]).abs().max() <= 1e-6


def test_the_gates_are_gone_after_close():
    def work(comm):
        _, pace = train(comm, SMALL, steps=WATCHED + 2)
        pace.close()
        model = pace.model
        return sum(
            len(m._forward_pre_hooks) + len(m._forward_hooks) + len(m._state_dict_pre_hooks) for m in model.modules()
        )

    assert run_ranks(2, work) == [0, 0]


# the order in which pieces leave --------------------------------------------------------------------------


def inversions(events, plan):
    """Chunks that left while a more urgent one was ready, and the most bytes that were under way, step by step."""
    found, most = [], 0
    for kind, step, what in events:
        if kind == "begin":
            ready, waiting, flying, urgent = set(), {k: set(n) for k, n in enumerate(plan["needs"])}, set(), set()
        elif kind == "ready":
            ready.add(what)
        elif kind == "need":
            urgent.update(chunk for chunk in waiting if what in plan["needs"][chunk])
        elif kind == "leave":
            order = {chunk: -1 if chunk in urgent else plan["urgency"][chunk] for chunk in waiting}
            better = [c for c, needs in waiting.items() if needs <= ready and order[c] < order[what]]
            found += [(step, what, better)] if better else []
            del waiting[what]
            flying.add(what)
            most = max(most, sum(plan["nbytes"][chunk] for chunk in flying))
        elif kind == "back":
            flying.remove(what)
    return found, most


def plan_of(engine):
    sizes = [chunk.numel * engine.arenas[chunk.arena].layout.itemsize for chunk in engine.chunks]
    return {"needs": engine.needs, "urgency": engine.urgency, "nbytes": sizes}


def logged(comm):
    log = []

    def look(pace):
        if pace.steps == WATCHED + 1:
            pace.record_events(log)

    _, pace = train(comm, SMALL, look=look)
    events = [(kind, step, what) for _, kind, step, what, _ in log if step > WATCHED + 1]
    return events, plan_of(pace.engines[0]), list(pace.engines[0].arenas[0].layout.slots)


def test_no_piece_leaves_before_a_more_urgent_one_that_is_ready():
    found = run_ranks(3, logged)
    events, plan, _ = found[0]
    wrong, most = inversions(events, plan)
    assert wrong == []
    assert 0 < most <= int(0.001 * 2**20)
    assert max(plan["nbytes"]) <= int(0.0005 * 2**20)
    assert sorted(plan["urgency"]) == list(range(len(plan["nbytes"]))), "every chunk has a place"
    orders = [[(step, what) for kind, step, what in events if kind == "leave"] for events, _, _ in found]
    assert orders[0] == orders[1] == orders[2], "ranks called in different orders"


def test_the_check_for_inversions_can_fail():
    events, plan, _ = run_ranks(1, logged)[0]
    backwards = {**plan, "urgency": [-place for place in plan["urgency"]]}
    assert inversions(events, backwards)[0]


def test_the_layers_that_forward_needs_first_are_the_most_urgent():
    _, plan, slots = run_ranks(1, logged)[0]
    names = [slot.name for slot in slots]
    place = {
        name: min(u for n, u in zip(plan["needs"], plan["urgency"], strict=True) if k in n and len(n) < len(names))
        for k, name in enumerate(names)
    }
    assert place["words.weight"] < place["attention.in_proj_weight"] < place["middle.2.weight"]
    flags = [u for n, u in zip(plan["needs"], plan["urgency"], strict=True) if len(n) == len(names)]
    assert flags == [0]


def test_a_recorded_run_replayed_gives_the_same_decisions():
    events, plan, _ = run_ranks(2, logged)[0]
    leader = Leader(plan["needs"], urgency=plan["urgency"], nbytes=plan["nbytes"], credit=int(0.001 * 2**20))
    replayed = []
    for kind, step, what in events:
        if kind == "begin":
            replayed += leader.begin(step)
        elif kind in ("ready", "need"):
            replayed += getattr(leader, kind)(what)
        elif kind == "back":
            replayed += leader.back(Unit(step, what))
    assert replayed == [Unit(step, what) for kind, step, what in events if kind == "leave"]


def test_a_module_that_uses_a_layer_without_calling_it_waits_for_it():
    def work(comm):
        _, pace = train(comm, SMALL)
        gates = pace.duty._gates
        names = [name for name, _ in pace._named]
        return {names[k] for k in gates._uses[pace.model.attention]}

    assert "attention.out_proj.weight" in run_ranks(1, work)[0]


# what cannot be updated tensor by tensor ----------------------------------------------------------------


def crossing_pace(comm, model, optimizer, **settings):
    return Pace(model, optimizer, comm=comm, axes=compose(Run(workers=comm.size, schedule=SMALL)).axes, **settings)


def test_lbfgs_is_refused():
    def work(comm):
        model = mlp()
        crossing_pace(comm, model, torch.optim.LBFGS(model.parameters()))

    with pytest.raises(
        WrongCommand, match="LBFGS with a schedule that crosses the step: tensors are updated one by one"
    ):
        run_ranks(1, work)


def test_a_closure_is_refused():
    def work(comm):
        model = mlp()
        pace = crossing_pace(comm, model, torch.optim.SGD(model.parameters(), lr=0.1))
        x, y = next(batches())

        def closure():
            loss = loss_of(model, x, y)
            loss.backward()
            return loss

        pace.step(closure)

    with pytest.raises(WrongCommand, match="a closure needs all parameters at once"):
        run_ranks(1, work)


def test_an_optimizer_that_counts_in_its_groups_is_refused():
    class Counts(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                group["calls"] = group.get("calls", 0) + 1
            return super().step(closure)

    def work(comm):
        model = mlp()
        pace = crossing_pace(comm, model, Counts(model.parameters(), lr=0.1))
        for x, y in batches(steps=2):
            loss_of(model, x, y).backward()
            pace.step()

    with pytest.raises(WrongCommand, match=r"Counts with a schedule .* changes values of a parameter group"):
        run_ranks(1, work)


def train_late(comm, **settings):
    """With an optimizer that writes into gradients when the plan is made."""

    class Late(torch.optim.SGD):
        calls = 0

        def step(self, closure=None):
            self.calls += 1
            if self.calls > WATCHED + 2:
                self.param_groups[0]["params"][0].grad.mul_(2.0)
            return super().step(closure)

    model = mlp()
    pace = crossing_pace(comm, model, Late(model.parameters(), lr=0.1), **settings)
    for x, y in batches(steps=STEPS):
        loss_of(model, x, y).backward()
        pace.step()
    pace.finish()
    return flat(model)


@pytest.mark.parametrize("private", [False, True])
def test_an_optimizer_may_start_to_write_gradients_at_any_time(private):
    alone = run_ranks(1, lambda comm: train_late(comm, private_gradients=private))[0]
    for weights in run_ranks(2, lambda comm: train_late(comm, private_gradients=private)):
        assert (weights - alone).abs().max() <= 1e-6


@pytest.mark.parametrize("schedule", CROSSING)
def test_a_collective_of_the_user_comes_after_what_is_under_way(schedule):
    def work(comm, schedule):
        worker = Worker(comm, CpuDevice())
        model = copy.deepcopy(TALK)
        axes = compose(Run(workers=comm.size, schedule=schedule)).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
        worker._paces.append(pace)
        sums = []
        for tokens in talk_batches(STEPS):
            mine = tokens[comm.rank * 4 :][:4]
            nn.functional.cross_entropy(model(mine[:, :-1]).flatten(0, 1), mine[:, 1:].flatten()).backward()
            pace.step()
            total = torch.empty(2)
            worker.comm.all_sum(torch.full((2,), float(comm.rank)), total).wait()
            sums.append(total[0].item())
        pace.finish()
        return sums, flat(model)

    expected = run_ranks(3, lambda comm: work(comm, "bsp"))
    for sums, weights in run_ranks(3, lambda comm: work(comm, schedule)):
        assert sums == [3.0] * STEPS
        assert (weights - expected[0][1]).abs().max() <= 1e-6
