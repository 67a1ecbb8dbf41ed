"""Drives the elastic protocol through random schedules in virtual time, and checks what it promises.

Every member goes step by step through its part; between two steps anything may happen: a crash, a pause, a message
that overtakes another or comes twice, a restart of the coordinator. Memory of `shm` is shared and outlives members;
`tcp` has messages between members.
"""

import heapq
import random

from paceline.elastic.protocol import COMMIT, LEAVE, WAIT, Registry, Report, verdict_of

STEPS = 6
MOST_EVENTS = 900


class Violation(AssertionError):
    pass


class Memory:
    """What the members of one generation share on shm; under tcp each member's copy of what it has heard."""

    def __init__(self, group):
        self.group = group
        self.contributed = dict.fromkeys(group.members, group.steps)
        self.posted = dict.fromkeys(group.members, group.steps)
        self.fence = False

    def complete(self, step):
        return all(count > step for count in self.contributed.values())

    def all_posted(self, step):
        return [count > step for count in self.posted.values()]


class Member:
    def __init__(self, world, name):
        self.world, self.name = world, name
        self.alive, self.paused_until = True, 0.0
        self.group, self.memory = None, None
        self.committed, self.state = 0, "outside"
        self.holds_state = False
        self.before, self.reported = "waiting", -1

    def send(self):
        ready = False
        suspects = ()
        if self.group is not None:
            posted = self.memory.all_posted(self.committed)
            ready = all(posted) if self.world.rule == "shm" else self.memory.posted[self.name] > self.committed
            suspects = tuple(m for m in self.group.members if self.world.suspected(m))
        generation = self.group.generation if self.group else 0
        report = Report(self.name, generation, self.committed, ready, suspects, self.holds_state)
        self.world.post(report)

    # one event each: anything may happen between two of them ------------------------------------

    def act(self):
        """Make one move; return whether it made one."""
        return getattr(self, self.state)()

    def outside(self):
        self.send()
        self.state = "waiting"
        return True

    def waiting(self):
        return True

    def compute(self):
        if self.committed >= STEPS:
            self.state = "done"
            return True
        self.state = "give"
        return True

    def give(self):
        self.say("contributed")
        self.state = "gather"
        return True

    def gather(self):
        if self.memory.complete(self.committed):
            self.state = "vote"
            return True
        return self.maybe_leave()

    def vote(self):
        self.say("posted")
        self.state = "count"
        return True

    def count(self):
        """Read all votes; the fence is read in a later event, as a processor may be stopped in between."""
        if not self.world.votes:
            self.state = "update"
            return True
        self.seen = self.memory.all_posted(self.committed)
        self.state = "look"
        return True

    def look(self):
        fenced = self.memory.fence and self.world.fencing
        what = verdict_of(self.seen, [True] * len(self.seen), fenced)
        if what == COMMIT:
            self.state = "update"
        elif what == LEAVE:
            self.state = "leave"
        else:
            assert what == WAIT
            self.state = "count"
            return self.maybe_leave()
        return True

    def update(self):
        self.apply(self.committed)
        self.state = "compute"
        return True

    def leave(self):
        self.memory.fence = True
        self.send()
        self.state = "waiting"
        if not self.world.fencing:  # it goes on in a generation that it has left
            self.state, self.reported = self.before, self.group.generation
        return True

    def done(self):
        return self.maybe_leave() if any(self.world.suspected(m) for m in self.group.members) else False

    def maybe_leave(self):
        if self.reported == self.group.generation:
            return False
        self.before = self.state
        if self.memory.fence or any(self.world.suspected(m) for m in self.group.members if m != self.name):
            if self.world.rule == "shm":
                self.memory.fence = True
            self.state = "leave"
            return True
        return False

    def say(self, what):
        """Raise a counter: in shared memory at once, under tcp in the copies of the others some time later."""
        count = self.committed + 1
        getattr(self.memory, what)[self.name] = count
        if self.world.rule == "tcp":
            for peer in self.group.members:
                if peer != self.name:
                    self.world.later(self.world.hear_peer, peer, self.group.generation, what, self.name, count)

    def apply(self, step):
        self.world.applied(self, step)
        self.committed += 1

    def enter(self, group):
        """The coordinator's answer. Whoever has not updated a step that counts does it now, from the old memory."""
        if self.name not in group.members:
            return
        if self.group is not None and group.generation <= self.group.generation and self.world.fencing:
            return  # an old answer
        if self.holds_state and self.name not in group.fresh and group.steps == self.committed + 1:
            self.apply(self.committed)
        elif self.name in group.fresh or not self.holds_state:  # rank 0 of a new beginning has its own
            self.world.copy_state(self, group)
        elif group.steps != self.committed:
            raise Violation(f"{self.name} has {self.committed} steps and enters {group}")
        self.group, self.holds_state = group, True
        if self.world.rule == "shm":
            self.memory = self.world.memories.setdefault(group.generation, Memory(group))
        else:
            self.memory = Memory(group)
            for heard in self.world.early.pop((self.name, group.generation), []):
                self.world.hear_peer(*heard)
        self.state = "compute"


class World:
    def __init__(self, seed, *, rule="shm", members=3, fencing=True, votes=True, journal=True):
        self.dice = random.Random(seed)
        self.rule, self.fencing, self.votes, self.journal = rule, fencing, votes, journal
        self.now, self.heap, self.tick = 0.0, [], 0
        self.registry = Registry(start=members, maximum=4, rule=rule)
        self.disk = []
        self.up = True
        self.members, self.made = {}, 0
        self.memories, self.early = {}, {}
        self.history = {}  # step -> generation whose gradient was applied
        self.withdrawn = 0  # the last generation whose further steps a rollback has withdrawn
        self.formed = []
        for _ in range(members):
            self.make_member()

    def make_member(self):
        self.made += 1
        member = Member(self, f"m{self.made}")
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

    def suspected(self, name):
        member = self.members[name]
        return not member.alive or member.paused_until > self.now

    # the coordinator ----------------------------------------------------------------------------

    def post(self, report):
        for _ in range(1 + (self.dice.random() < 0.1)):  # now and then a message comes twice
            self.later(self.arrive, report)

    def arrive(self, report):
        member = self.members[report.member]
        if not member.alive:
            return
        if not self.up:
            self.later(self.arrive, report, least=1.0)  # it is sent again until somebody takes it
            return
        known = self.registry.group
        here = known is not None and report.member in known.members
        if self.fencing and known is not None and here and report.generation < known.generation:
            self.answer(report.member, known)  # an answer was lost, or this is a copy
            return
        self.registry.arrive(report)
        self.look_around()

    def look_around(self):
        if not self.up:
            return
        for name, member in self.members.items():
            if not member.alive:
                self.registry.lose(name, dead=True)
        group = self.registry.form()
        if group is None:
            return
        self.check_generation(group)
        self.formed.append(group)
        if self.journal:
            self.disk.append(group)
        for name in group.members:
            self.answer(name, group)

    def answer(self, name, group):
        self.later(self.hear, name, group)

    def hear(self, name, group):
        member = self.members[name]
        if member.alive and (member.state == "waiting" or not self.fencing):
            member.enter(group)

    def hear_peer(self, name, generation, what, peer, count):
        member = self.members[name]
        if not member.alive:
            return
        current = member.group.generation if member.group else 0
        if generation > current:
            self.early.setdefault((name, generation), []).append((name, generation, what, peer, count))
        elif generation == current or not self.fencing:  # a message of an old generation is refused
            heard = getattr(member.memory, what)
            if peer in heard and (member.state != "waiting" or not self.fencing):
                heard[peer] = max(heard[peer], count)
                if what == "posted":  # whoever has the result had everything that it is made of
                    member.memory.contributed[peer] = max(member.memory.contributed[peer], count)

    def copy_state(self, member, group):
        """A newcomer gets the state of a holder at the steps that the group starts with."""
        member.committed = group.steps

    # faults -------------------------------------------------------------------------------------

    def crash(self):
        alive = [m for m in self.members.values() if m.alive]
        if len(alive) > 1:
            self.dice.choice(alive).alive = False
            self.later(self.look_around, least=0.1)

    def pause(self):
        member = self.dice.choice(list(self.members.values()))
        member.paused_until = self.now + self.dice.uniform(1, 25)

    def come(self):
        if sum(m.alive for m in self.members.values()) < 5:
            self.make_member()

    def stop_coordinator(self):
        self.up = False
        self.later(self.start_coordinator, least=2.0)

    def start_coordinator(self):
        before = self.registry
        self.registry = Registry(start=before.start, maximum=4, rule=self.rule)
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
        if self.up and not self.suspected(name):
            self.registry.hear(name)
            if self.members[name].state == "waiting":
                self.members[name].send()

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
        if not memory.complete(step) and self.rule == "shm":
            raise Violation(
                f"G1: {member.name} applies step {step} from half a result of generation {group.generation}"
            )
        if self.history.setdefault(step, content) != content:
            raise Violation(f"G3, G12: step {step} is committed by generation {content[0]} and {self.history[step][0]}")
        for later in self.formed:
            if later.generation > group.generation and later.steps <= step:
                raise Violation(f"G7: {member.name} commits step {step} in generation {group.generation} after its end")

    def check_generation(self, group):
        for before in self.formed:
            if before.generation >= group.generation:
                raise Violation(f"G12: generation {group.generation} comes after {before.generation}")
        if not self.formed:
            return
        last = self.formed[-1]
        if not any(self.members[name].alive for name in last.members):
            self.roll_back(group.steps)  # nobody is left who could go on
        elif group.steps < last.steps:
            raise Violation(f"G3: generation {group.generation} starts with {group.steps} of {last.steps} steps")

    def roll_back(self, steps):
        """The journal withdraws what was committed after a checkpoint; here there is none, and all begins anew."""
        self.history = {step: content for step, content in self.history.items() if step < steps}
        self.withdrawn = self.formed[-1].generation

    def run(self):
        for _ in range(self.dice.randint(1, 8)):
            fault = self.dice.choice([self.crash, self.pause, self.come, self.stop_coordinator])
            self.later(fault, least=self.dice.uniform(0, 90))
        for _ in range(MOST_EVENTS):
            if not self.heap or all(m.state == "done" for m in self.members.values() if m.alive):
                break
            self.now, _, call, what = heapq.heappop(self.heap)
            call(*what)
            if self.dice.random() < 0.02:
                self.look_around()
        return self
