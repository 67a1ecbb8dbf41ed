"""Drives the elastic protocol through random schedules in virtual time, and checks what it promises.

Every member goes step by step through its part. Between two steps anything may happen: a crash, a pause, a request to
leave, a newcomer, a wrong suspicion, a cut link, a message that overtakes another or comes twice, the death of all with
a new beginning from a checkpoint, a crash of the coordinator before, during and after an entry of its journal. Memory
of `shm` is shared and outlives members; `tcp` has messages between members. What is decided is decided by the code of
production: verdict_of, ready_of and Registry of paceline/elastic/protocol.py.
"""

import heapq
import random

from paceline.elastic.protocol import COMMIT, LEAVE, WAIT, Registry, Report, ready_of, verdict_of
from paceline.elastic.tasks import at_border, near_border

STEPS = 6
MOST_EVENTS = 1200
MOST_MEMBERS = 4
SHARDS, TASK = 7, 2


class Violation(AssertionError):
    pass


class Memory:
    """What the members of one generation share on shm; under tcp each member's copy of what it has heard."""

    __slots__ = ("changes", "contributed", "fence", "posted")

    def __init__(self, group):
        self.contributed = dict.fromkeys(group.members, group.steps)
        self.posted = dict.fromkeys(group.members, group.steps)
        self.changes = {}  # member -> the step with whose vote it asked for a new group
        self.fence = False

    def complete(self, step):
        return min(self.contributed.values()) > step

    def all_posted(self, step):
        return [count > step for count in self.posted.values()]


class Member:
    __slots__ = (
        *("act", "alive", "asked", "before", "border", "committed", "cut_until", "doubts", "group", "holds_state"),
        *("lineage", "memory", "name", "parting", "paused_until", "reported", "seconds", "seen", "world"),
    )

    def __init__(self, world, name, checkpoint):
        self.world, self.name = world, name
        committed, lineage = checkpoint
        self.lineage = dict(lineage)  # the generations whose gradients led to the state that it has
        self.alive, self.paused_until, self.cut_until = True, 0.0, 0.0
        self.group, self.memory, self.seen = None, None, ()
        self.committed, self.holds_state = committed, False
        self.before, self.reported, self.doubts = self.waiting, -1, set()
        self.parting = self.asked = False  # it was asked to go; the coordinator wants a new group
        self.seconds, self.border = world.dice.choice((1.0, 1.0, 4.0)), 0  # of a shard; the steps of a task
        self.act = self.outside

    @property
    def done(self):
        return self.act == self.finished

    def send(self):
        ready, suspects, generation = False, (), 0
        if self.group is not None:
            voted = self.memory.posted[self.name] > self.committed
            ready = ready_of(
                self.world.rule, voted=voted, all_voted=voted and all(self.memory.all_posted(self.committed))
            )
            suspects = tuple(m for m in self.group.members if self.suspects(m))
            generation = self.group.generation
        self.world.post(Report(self.name, generation, self.committed, ready, suspects, self.holds_state))

    def suspects(self, name):
        return name in self.doubts or (name != self.name and self.world.silent(name, self))

    def suspects_any(self):
        return any(map(self.suspects, self.group.members))

    # one event each: anything may happen between two of them ------------------------------------

    def outside(self):
        self.send()
        self.act = self.waiting

    def waiting(self):
        pass

    def receive(self):
        """Get the state of training from rank 0, which must be there and hold it."""
        donor = self.world.members[self.group.members[0]]
        if donor.alive and donor.holds_state and donor.group.generation == self.group.generation:
            self.committed, self.holds_state, self.lineage = self.group.steps, True, dict(donor.lineage)
            self.act = self.compute
        else:
            self.maybe_leave()

    def compute(self):
        self.act = self.finished if self.committed >= STEPS else self.give

    def give(self):
        self.say("contributed")
        self.act = self.gather

    def gather(self):
        if self.memory.complete(self.committed):
            self.act = self.vote
        else:
            self.maybe_leave()

    def vote(self):
        self.say("posted", changes=self.parting or self.asked or at_border(self.committed + 1, self.border))
        self.act = self.count

    def count(self):
        """Read all votes; the fence is read in a later event, as a processor may be stopped in between."""
        self.seen = self.memory.all_posted(self.committed)
        self.act = self.look if self.world.votes else self.update

    def look(self):
        fenced = self.memory.fence and self.world.fencing and self.world.rule == "shm"
        what = verdict_of(self.seen, [True] * len(self.seen), fenced)
        if what == COMMIT:
            self.act = self.update
        elif what == LEAVE:
            self.act = self.leave
        else:
            assert what == WAIT
            self.act = self.count
            self.maybe_leave()

    def update(self):
        changes = any(step == self.committed for step in self.memory.changes.values())
        self.apply(self.committed)
        self.world.keep(self)
        shards = self.group.lengths[self.group.members.index(self.name)]
        self.world.later(self.world.hear_step, self.name, self.group.generation, self.committed, shards * self.seconds)
        self.act = self.leave if changes and self.world.fencing else self.compute

    def leave(self):
        self.memory.fence = True
        if self.parting and self.world.fencing:
            self.world.part(self)
            return
        self.send()
        self.before, self.act = self.act, self.waiting
        if not self.world.fencing:  # it goes on in a generation that it has left
            self.act, self.reported = self.compute, self.group.generation

    def finished(self):
        if self.suspects_any():
            self.maybe_leave()

    def maybe_leave(self):
        if self.reported == self.group.generation:
            return
        if self.memory.fence or self.suspects_any():
            if self.world.rule == "shm":
                self.memory.fence = True
            self.act = self.leave

    def say(self, what, *, changes=False):
        """Raise a counter: in shared memory at once, under tcp in the copies of the others some time later."""
        count, world = self.committed + 1, self.world
        getattr(self.memory, what)[self.name] = count
        if changes:
            self.memory.changes[self.name] = self.committed
        if world.rule == "tcp":
            for peer in self.group.members:
                if peer != self.name:
                    world.later(world.hear_peer, peer, self.group.generation, what, self.name, count, changes)

    def apply(self, step):
        self.world.applied(self, step)
        self.lineage[step] = (self.group.generation, step)
        self.committed += 1

    def enter(self, group):
        """The coordinator's answer. Whoever has not updated a step that counts does it now, from the old memory."""
        world = self.world
        if self.name not in group.members:
            return
        if self.group is not None and group.generation <= self.group.generation and world.fencing:
            return  # an old answer
        fresh = self.name in group.fresh
        if self.holds_state and not fresh and group.steps == self.committed + 1:
            self.apply(self.committed)
        elif not fresh and group.steps != self.committed:
            raise Violation(f"{self.name} has {self.committed} steps and enters {group}")
        self.group, self.holds_state, self.asked, self.doubts = group, not fresh, False, set()
        self.border = 0
        if world.rule == "shm":
            self.memory = world.memories.setdefault(group.generation, Memory(group))
        else:
            self.memory = Memory(group)
        self.act = self.receive if fresh else self.compute
        if world.rule == "tcp":
            for heard in world.early.pop((self.name, group.generation), ()):
                world.hear_peer(*heard)


class World:
    def __init__(self, seed, *, rule="shm", members=3, fencing=True, votes=True, journal=True):
        self.dice = random.Random(seed)
        self.rule, self.fencing, self.votes, self.journal = rule, fencing, votes, journal
        self.now, self.heap, self.tick = 0.0, [], 0
        self.registry = self.new_registry(members)
        self.disk, self.tear = [], ""
        self.up, self.lives = True, 0
        self.members, self.made = {}, 0
        self.memories, self.early = {}, {}
        self.history = {}  # step -> generation whose gradient was applied
        self.checkpoint = (0, {})  # steps, and the history that led to them
        self.withdrawn = 0  # the last generation whose further steps a rollback has withdrawn
        self.rollbacks = self.deals = 0
        self.formed = []
        for _ in range(members):
            self.make_member()

    def new_registry(self, start):
        return Registry(start=start, maximum=MOST_MEMBERS, rule=self.rule, task=TASK, shards=SHARDS)

    def make_member(self):
        self.made += 1
        member = Member(self, f"m{self.made}", self.checkpoint)
        self.members[member.name] = member
        self.later(self.drive, member)

    def later(self, call, *what, least=0.0):
        self.tick += 1
        heapq.heappush(self.heap, (self.now + least + self.dice.expovariate(1.0), self.tick, call, what))

    def drive(self, member):
        if not member.alive:
            return
        if member.paused_until > self.now:
            self.later(self.drive, member, least=member.paused_until - self.now)
            return
        member.act()
        self.later(self.drive, member)

    def silent(self, name, observer):
        """Whether a member looks dead or silent to another one, which may be wrong."""
        member = self.members[name]
        if not member.alive or member.paused_until > self.now:
            return True
        return (member.cut_until > self.now) != (observer.cut_until > self.now)

    def held_up(self, member, call, *what):
        """Deliver something to or from a member whose link is cut when it is healed; return whether it is cut."""
        if member.cut_until <= self.now:
            return False
        self.later(call, *what, least=member.cut_until - self.now)
        return True

    # the coordinator ----------------------------------------------------------------------------

    def post(self, report):
        for _ in range(1 + (self.dice.random() < 0.1)):  # now and then a message comes twice
            self.later(self.arrive, report)

    def arrive(self, report):
        member = self.members[report.member]
        if not member.alive or self.held_up(member, self.arrive, report):
            return
        if not self.up:
            self.later(self.arrive, report, least=1.0)  # it is sent again until somebody takes it
            return
        known = self.registry.answer_to(report) if self.fencing else None
        if known is not None:
            self.answer(report.member, known)
            return
        self.registry.arrive(report)
        group = self.registry.group
        if group is not None and report.generation == group.generation:  # the others may still wait for it
            for name in group.members:
                self.later(self.hear_lost, name, group.generation)
        self.look_around()

    def look_around(self):
        if not self.up:
            return
        for name, member in self.members.items():
            if not member.alive:
                self.registry.lose(name, dead=True)
        group = self.registry.form()
        if group is None:
            if self.registry.wants_change:
                for name in self.registry.group.members:
                    self.later(self.hear_change, name, self.registry.group.generation)
            return
        tear, self.tear = self.tear, ""
        if tear == "torn":  # killed while it wrote: the entry is absent for all, and nobody has heard of it
            self.stop_coordinator()
            return
        self.check_generation(group)
        self.formed.append(group)
        if self.journal:
            self.disk.append(group)
        if tear == "whole":  # killed after it wrote, before anybody heard of it
            self.stop_coordinator()
            return
        for place, name in enumerate(group.members):
            if tear == "some" and place:
                self.stop_coordinator()
                return
            self.answer(name, group)

    def answer(self, name, group):
        self.later(self.hear, name, group)

    def hear(self, name, group):
        member = self.members[name]
        if not member.alive or self.held_up(member, self.hear, name, group):
            return
        if member.act == member.waiting or not self.fencing:
            member.enter(group)

    def hear_lost(self, name, generation):
        """The coordinator has lost a member of the group, or one has left it."""
        member = self.members[name]
        if not member.alive or self.held_up(member, self.hear_lost, name, generation):
            return
        if member.group is not None and member.group.generation == generation and self.fencing:
            member.memory.fence = True

    def hear_change(self, name, generation):
        member = self.members[name]
        if member.alive and member.group is not None and member.group.generation == generation:
            member.asked = True

    def hear_step(self, name, generation, steps, seconds):
        """A member has committed a step: a slow one gets fewer tasks from the next border on."""
        if not self.up or not self.members[name].alive:
            return
        registry = self.registry
        registry.tell(generation, steps)
        registry.time(name, generation, seconds)
        if near_border(registry.watermark, TASK) and registry.wants_deal:
            self.deals += 1
            for member in registry.group.members:
                self.later(self.hear_deal, member, registry.group.generation)

    def hear_deal(self, name, generation):
        member = self.members[name]
        if member.alive and member.group is not None and member.group.generation == generation:
            member.border = TASK

    def hear_peer(self, name, generation, what, peer, count, changes):
        member = self.members[name]
        if not member.alive:
            return
        for end in (member, self.members[peer]):
            if self.held_up(end, self.hear_peer, name, generation, what, peer, count, changes):
                return
        current = member.group.generation if member.group else 0
        if generation > current:
            self.early.setdefault((name, generation), []).append((name, generation, what, peer, count, changes))
        elif generation == current or not self.fencing:  # a message of an old generation is refused
            memory = member.memory
            heard = getattr(memory, what)
            if peer in heard and (member.act != member.waiting or not self.fencing):
                heard[peer] = max(heard[peer], count)
                if what == "posted":  # whoever has the result had everything that it is made of
                    memory.contributed[peer] = max(memory.contributed[peer], count)
                if changes:
                    memory.changes[peer] = count - 1

    def keep(self, member):
        """Rank 0 writes a checkpoint now and then."""
        if member.group.members[0] == member.name and self.dice.random() < 0.3:
            self.checkpoint = (member.committed, dict(member.lineage))

    def part(self, member):
        """A member that was asked to go has gone; its goodbye arrives some time later."""
        member.alive = False
        self.later(self.look_around)

    # faults -------------------------------------------------------------------------------------

    def living(self):
        return [member for member in self.members.values() if member.alive]

    def crash(self):
        alive = self.living()
        if len(alive) > 1:
            self.dice.choice(alive).alive = False
            self.later(self.look_around, least=0.1)

    def crash_all(self):
        """Everything is killed; as many come back and load the last checkpoint."""
        alive = self.living()
        for member in alive:
            member.alive = False
        if self.up:
            self.stop_coordinator()
        for _ in alive:
            self.make_member()

    def pause(self):
        member = self.dice.choice(list(self.members.values()))
        member.paused_until = self.now + self.dice.uniform(1, 25)

    def cut(self):
        if self.rule == "tcp" and self.living():  # members of one host share its memory
            self.dice.choice(self.living()).cut_until = self.now + self.dice.uniform(1, 25)

    def slander(self):
        """A member suspects another one that lives."""
        member = self.dice.choice(list(self.members.values()))
        if member.group is not None:
            member.doubts.add(self.dice.choice(member.group.members))
            member.doubts.discard(member.name)

    def ask_to_go(self):
        alive = self.living()
        if len(alive) > 1:
            self.dice.choice(alive).parting = True

    def come(self):
        if sum(m.alive for m in self.members.values()) < 5:
            self.make_member()

    def tear_journal(self):
        """The coordinator dies while it forms the next group."""
        self.tear = self.dice.choice(("torn", "whole", "some"))

    def stop_coordinator(self):
        if self.up:
            self.up = False
            self.later(self.start_coordinator, least=2.0)

    def start_coordinator(self):
        self.registry = self.new_registry(self.registry.start)
        last = self.disk[-1] if self.disk else None
        if last is not None:
            self.registry.start = 1
        self.registry.resume(last, last.steps if last else 0)
        self.up = True
        for name in self.members:
            self.later(self.greet, name)
        self.later(self.give_up, self.registry, least=5.0)

    def greet(self, name):
        """Whoever is at work connects again."""
        member = self.members[name]
        if self.up and member.alive and member.paused_until <= self.now and member.cut_until <= self.now:
            self.registry.hear(name)
            if member.act == member.waiting:
                member.send()

    def give_up(self, registry):
        if registry is self.registry:
            registry.forget_unseen()
            self.look_around()

    # promises -----------------------------------------------------------------------------------

    def applied(self, member, step):
        group, memory = member.group, member.memory
        content = (group.generation, step)
        if group.generation <= self.withdrawn:
            return  # a member that was cut off before; it comes back as a newcomer
        if not memory.complete(step):
            raise Violation(
                f"G1: {member.name} applies step {step} from half a result of generation {group.generation}"
            )
        if self.history.setdefault(step, content) != content:
            raise Violation(f"G3, G12: step {step} is committed by generation {content[0]} and {self.history[step][0]}")
        for later in reversed(self.formed):
            if later.generation <= group.generation:
                break
            if later.steps <= step:
                raise Violation(f"G7: {member.name} commits step {step} in generation {group.generation} after its end")

    def check_generation(self, group):
        if len(group.lengths) != len(group.members) or min(group.lengths) < 1 or sum(group.lengths) != SHARDS:
            raise Violation(f"generation {group.generation} deals {SHARDS} shards as {group.lengths}")
        if not self.formed:
            return
        last = self.formed[-1]
        if last.generation >= group.generation:
            raise Violation(f"G12: generation {group.generation} comes after {last.generation}")
        if not any(self.members[name].alive and self.members[name].holds_state for name in last.members):
            self.roll_back(group)  # nobody is left who could go on
        elif group.steps < last.steps:
            raise Violation(f"G3: generation {group.generation} starts with {group.steps} of {last.steps} steps")

    def roll_back(self, group):
        """The journal withdraws what was committed after the checkpoint that rank 0 has loaded."""
        lineage = self.members[group.members[0]].lineage
        self.rollbacks += len(lineage) < len(self.history)
        self.history, self.withdrawn = dict(lineage), self.formed[-1].generation

    def check_end(self):
        """Whoever has made all steps has made each of them once, and all have made the same ones."""
        for member in self.members.values():
            if member.alive and member.done and member.lineage != self.history:
                raise Violation(f"G3: {member.name} has made {member.lineage}, and the history is {self.history}")

    def run(self):
        faults = (
            *(self.crash, self.crash, self.pause, self.pause, self.come, self.come, self.stop_coordinator),
            *(self.tear_journal, self.cut, self.slander, self.ask_to_go, self.crash_all),
        )
        for _ in range(self.dice.randint(1, 8)):
            self.later(self.dice.choice(faults), least=self.dice.uniform(0, 90))
        for _ in range(MOST_EVENTS):
            if not self.heap or all(m.done for m in self.members.values() if m.alive):
                break
            self.now, _, call, what = heapq.heappop(self.heap)
            call(*what)
            if self.dice.random() < 0.02:
                self.look_around()
        self.check_end()
        return self
