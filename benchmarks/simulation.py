"""A model of many workers that share a study by its folder: what breaks first, long before one has the machines.

    python -m benchmarks.simulation

Discrete events, in simulated seconds. Workers claim runs, renew their leases, look for the outcomes of the others,
and fail; a lost run is taken over from its last checkpoint once its lease has run out. Every access to the folder
waits for one file server, which serves one operation at a time: that is the pessimistic assumption, and the one
that makes the model worth having. Not modelled: bandwidth, caches, several servers.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Setting:
    """Times in seconds; the folder's are those of rwalk.studies.work_claims and executors.join."""

    workers: int
    runs: int
    mean_run: float = 60.0  # runs are log-normally distributed
    spread: float = 0.5
    lease: float = 60.0
    beats: int = 5
    pause: float = 0.5
    share: float = 0.1
    operation: float = 0.0002  # of the file server: five thousand operations per second
    entry: float = 0.000002  # of a folder that is listed
    between_failures: float = 10 * 3600.0  # per worker
    restart: float = 120.0
    checkpoints: float = 10.0
    everyone_reads: bool = False  # if no process gathered the outcomes, every process would read every one


@dataclass
class Result:
    ideal: float  # all work divided evenly among workers that never fail or wait
    trained: float  # when the last run was finished
    makespan: float  # when the last process has all rows
    failures: int
    repeated: float  # seconds of training that were lost with their workers
    late_beats: int  # leases that ran out because the server was slow, not the owner
    busy: float  # the share of its time that the server worked
    longest_wait: float  # for the server


class Server:
    def __init__(self) -> None:
        self.free_at = self.worked = self.longest = 0.0

    def serve(self, now: float, work: float) -> float:
        """When an access that comes now is done."""
        self.longest = max(self.longest, self.free_at - now)
        self.free_at = max(now, self.free_at) + work
        self.worked += work
        return self.free_at


def simulate(setting: Setting, seed: int = 0) -> Result:
    model = _Model(setting, seed)
    return model.run()


class _Model:
    def __init__(self, setting: Setting, seed: int) -> None:
        self.s, self.draw, self.server = setting, random.Random(seed), Server()
        mu_shift = -(setting.spread**2) / 2
        self.left = [
            setting.mean_run * self.draw.lognormvariate(mu_shift, setting.spread) for _ in range(setting.runs)
        ]
        self.total = sum(self.left)
        # Every process begins elsewhere. A process that has finished its own runs continues with those of others.
        self.own = [list(range(worker, setting.runs, setting.workers)) for worker in range(setting.workers)]
        self.others = list(range(setting.workers))
        self.draw.shuffle(self.others)
        self.lost: list[int] = []
        self.done = 0
        self.seen = [0] * setting.workers  # outcomes that a worker has read
        self.next_look = [0.0] * setting.workers
        self.fails_at = [self.draw.expovariate(1 / setting.between_failures) for _ in range(setting.workers)]
        self.events: list[tuple[float, int, str, int, int]] = []
        self.count = self.failures = self.late = 0
        self.repeated = self.trained_at = 0.0
        self.ended = [0.0] * setting.workers

    def add(self, when: float, kind: str, worker: int, run: int = -1) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, kind, worker, run))

    def run(self) -> Result:
        for worker in range(self.s.workers):
            self.add(self.draw.uniform(0, 1), "ready", worker)
        while self.events:
            now, _, kind, worker, run = heapq.heappop(self.events)
            getattr(self, kind)(now, worker, run)
        makespan = max(self.ended)
        return Result(
            self.total / self.s.workers, self.trained_at, makespan, self.failures, self.repeated, self.late,
            self.server.worked / makespan, self.server.longest,
        )  # fmt: skip

    def ready(self, now: float, worker: int, run: int) -> None:
        """A worker has nothing to do: it looks, claims and trains, or waits."""
        if not self.own[worker] and now >= self.next_look[worker]:
            begun, now = now, self.look(now, worker)
            self.next_look[worker] = now + max(self.s.pause, (now - begun) / self.s.share)
        if self.done == self.s.runs:
            self.ended[worker] = self.look(now, worker)
        elif (run := self.next_run(worker)) is not None:
            # Claims are listed, one is created, and the outcome is read.
            begun = self.server.serve(now, 2 * self.s.operation + min(self.s.workers, self.s.runs) * self.s.entry)
            self.train(begun, worker, run)
        else:
            self.add(now + self.s.pause, "ready", worker)

    def next_run(self, worker: int) -> int | None:
        if self.own[worker]:
            return self.own[worker].pop()
        while self.others and not self.own[self.others[-1]]:
            self.others.pop()
        if self.others:
            return self.own[self.others[-1]].pop()
        return self.lost.pop() if self.lost else None

    def look(self, now: float, worker: int) -> float:
        """List the outcomes; the one that gathers them reads those that are new."""
        new, self.seen[worker] = self.done - self.seen[worker], self.done
        reads = new if self.s.everyone_reads or worker == 0 else 0
        return self.server.serve(now, reads * self.s.operation + self.done * self.s.entry)

    def train(self, begun: float, worker: int, run: int) -> None:
        end = begun + self.left[run]
        if self.fails_at[worker] < end:
            self.add(max(begun, self.fails_at[worker]), "fail", worker, run)
            done = max(0.0, self.fails_at[worker] - begun)
            kept = done // self.s.checkpoints * self.s.checkpoints
            self.repeated += done - kept
            self.left[run] -= kept
            end = self.fails_at[worker]
        else:
            self.add(end, "finish", worker, run)
        period = self.s.lease / self.s.beats
        for beat in range(1, int(max(0.0, end - begun) / period) + 1):
            self.add(begun + beat * period, "beat", worker, run)

    def beat(self, now: float, worker: int, run: int) -> None:
        if self.server.serve(now, 3 * self.s.operation) - now > self.s.lease * (1 - 1 / self.s.beats):
            self.late += 1

    def fail(self, now: float, worker: int, run: int) -> None:
        self.failures += 1
        self.add(now + self.s.lease, "abandoned", worker, run)
        back = now + self.s.restart
        self.fails_at[worker] = back + self.draw.expovariate(1 / self.s.between_failures)
        self.seen[worker] = 0  # a new process has read nothing
        self.add(back, "ready", worker)

    def abandoned(self, now: float, worker: int, run: int) -> None:
        self.lost.append(run)

    def finish(self, now: float, worker: int, run: int) -> None:
        written = self.server.serve(now, 5 * self.s.operation)  # the outcome, flushed and renamed; the claim
        self.done += 1
        self.trained_at = max(self.trained_at, written)
        self.add(written, "ready", worker)


def table() -> str:
    """The settings that docs/scaling.md shows."""
    names = ["workers × runs", "", "ideal", "trained", "rows everywhere"]
    names += ["server busy", "longest wait", "failures", "late beats"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    small = Setting(workers=10, runs=1_000)
    large = replace(small, workers=1_000, runs=100_000)
    settings = [
        ("", small),
        ("", replace(small, workers=100, runs=10_000)),
        ("", large),
        ("a run takes ten minutes", replace(large, mean_run=600.0)),
        ("nobody gathers outcomes", replace(large, everyone_reads=True)),
    ]
    for remark, setting in settings:
        found = simulate(setting)
        lines.append(
            f"| {setting.workers:,} × {setting.runs:,} | {remark} | {found.ideal:,.0f} s "
            f"| {found.trained / found.ideal:.2f} × | {found.makespan / found.ideal:.2f} × | {found.busy:.0%} "
            f"| {found.longest_wait:,.1f} s | {found.failures} | {found.late_beats:,} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
