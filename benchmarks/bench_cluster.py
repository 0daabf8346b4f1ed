"""What the Ray engine costs beyond the runs themselves: many tasks that sleep for a second.

    PYTHONPATH=build/cluster python benchmarks/bench_cluster.py [--tasks 100] [--slots 10]

A Ray cluster of one node is started on this machine. As in the run queue, as many tasks are under
way as there are slots, and the next one is submitted when one has ended. Ray starts as many
processes at a time as there are cores, each for seconds of a processor, and keeps them: the tasks
are timed when all are up, and what that took is printed too. Sleeping takes no processor, but Ray
does: a busy machine makes the overhead larger.
"""

import argparse
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from dpp.paper import ray_engine
from dpp.system.paths import ROOT

sys.path.insert(0, str(ROOT / "tests"))
from ray_nodes import nodes  # noqa: E402

SECONDS = 1.0  # that a task sleeps


def sleep() -> int:
    time.sleep(SECONDS)
    return os.getpid()


def run_tasks(ray, number: int, slots: int) -> set[int]:
    """Runs tasks, as many at a time as there are slots; returns the processes that they had."""
    task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(sleep)
    processes, running = set(), set()
    with ThreadPoolExecutor(slots) as threads:
        while number or running:
            while number and len(running) < slots:
                running.add(threads.submit(ray.get, task.remote()))
                number -= 1
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            processes |= {future.result() for future in ended}
    return processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--slots", type=int, default=10)
    arguments = parser.parse_args()
    ray = ray_engine.import_ray()
    with nodes() as cluster:
        cluster.add(cpus=arguments.slots)
        begun = time.perf_counter()
        ray_engine.connect(ray, cluster.address)
        joined = time.perf_counter()
        try:
            while len(run_tasks(ray, arguments.slots, arguments.slots)) < arguments.slots:
                pass
            ready = time.perf_counter()
            run_tasks(ray, arguments.tasks, arguments.slots)
            ended = time.perf_counter()
        finally:
            ray.shutdown()
    ideal = -(-arguments.tasks // arguments.slots) * SECONDS
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"joining the cluster: {joined - begun:.1f} s")
    print(f"until all of {arguments.slots} processes were up: {ready - joined:.1f} s")
    print(
        f"{arguments.tasks} tasks of {SECONDS:g} s, {arguments.slots} at a time: "
        f"{ended - ready:.2f} s, at best {ideal:g} s: overhead {(ended - ready) / ideal - 1:.1%} "
        f"(load {load} on {os.cpu_count()} cores)"
    )


if __name__ == "__main__":
    main()
