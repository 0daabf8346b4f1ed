"""Makes the run queue's runs on the machines of a Ray cluster, `pip install 'dpp[cluster]'`.

Ray places runs, each with a CPU, a GPU where the cluster has any, and the memory that it takes, and
starts those of a lost machine again elsewhere, where they resume from their last checkpoint. Runs
live in folders that all machines share. A run's lock is the kernel's, or the file server's: it is
released when its machine is lost, and until then the queue waits for it.

Before anything is spent, every machine is checked (`dpp.paper.cluster`), and one that joins later
before it makes its first run.
"""

import functools
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

import torch

from dpp.paper import cluster, engines, photo
from dpp.paper.cluster import Cluster
from dpp.paper.engines import Finished
from dpp.paper.photo import Plan
from dpp.runs import limits
from dpp.system import worker_pool
from dpp.system.errors import UserError, one_line
from dpp.training.experiments import Experiment

USUAL_ADDRESS = "127.0.0.1:6379"  # of a cluster whose head is this machine
RETRIES = 3  # of a run whose machine or process was lost
MOST_RUNS = 1000  # at a time: each has a thread here, which waits for it
REPLY = 5.0  # seconds in which an address must reply
CHECKED = 300.0  # seconds in which every machine must have been checked
SEEN = 90.0  # seconds until a file that was written elsewhere is seen: file systems cache
GRACE = 20.0  # seconds in which stopped runs may save what they are doing
SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # of HTTP/2


class RayEngine:
    """An `engines.Engine` of a cluster that is running.

    Args:
        jobs: runs at a time; 0 for one for each GPU, or core, of the cluster.
        address: host:port; `RAY_ADDRESS` or this machine by default.
    """

    def __init__(self, jobs: int = 0, address: str = ""):
        limits.check_jobs(min(jobs, 0))  # how many fit is up to the cluster
        self.ray = import_ray()
        self.jobs = jobs or MOST_RUNS
        self.address = address or os.environ.get("RAY_ADDRESS") or USUAL_ADDRESS
        check_address(self.address)
        self.remote = functools.cache(self.ray.remote)
        self.tasks: set = set()  # that are not known to have ended
        self.caches: dict[tuple, object] = {}  # tasks that compute trunk features

    @contextmanager
    def started(self, plans: Sequence[Plan], root: Path) -> Iterator[None]:
        with ExitStack() as stack:
            connect(self.ray, self.address)
            stack.callback(self.ray.shutdown)
            gpus = bool(self.ray.cluster_resources().get("GPU"))
            self.cluster = stack.enter_context(cluster.assembled(plans, root, gpus))
            self.check_nodes()
            nodes = len(self.nodes())
            print(
                f"Ray cluster at {self.address}: {nodes} machine{'s' * (nodes != 1)}, "
                f"{self.slots()} runs at a time; shared folders: "
                f"{', '.join(f'{name}={folder}' for name, folder in self.cluster.shared.items())}",
                flush=True,
            )
            self.threads = ThreadPoolExecutor(MOST_RUNS)
            stack.callback(self.threads.shutdown)
            stack.enter_context(worker_pool.interruptible())
            try:
                yield
            except KeyboardInterrupt as stop:
                raise KeyboardInterrupt(worker_pool.describe_stop(engines.SAVED)) from stop
            finally:
                self.stop()

    def nodes(self) -> list[dict]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def slots(self) -> int:
        kind = "GPU" if self.cluster.gpus else "CPU"
        return min(int(self.ray.cluster_resources().get(kind, 0)), self.jobs)

    def check_nodes(self) -> None:
        """Raises a `UserError` unless every machine can make these runs."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        errors, checks = self.ray.exceptions, []
        check = self.ray.remote(num_cpus=0, max_retries=0)(cluster.check_here)
        for node in self.nodes():
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = check.options(scheduling_strategy=there).remote(self.cluster, node["NodeID"])
            checks.append((node, task))
        deadline = time.monotonic() + CHECKED
        for node, task in checks:
            try:
                problem = self.ray.get(task, timeout=max(deadline - time.monotonic(), 0.1))
            except errors.GetTimeoutError:
                problem = f"it did not reply within {CHECKED:.0f} s"
            except errors.RayError as error:
                reason = one_line(getattr(error, "cause", None) or error)
                problem = f"it cannot run this code ({reason[-300:]}): install the same dpp there"
            if problem := problem or cluster.find_unseen(self.cluster, node["NodeID"]):
                name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
                raise UserError(f"machine {name} cannot make runs: {problem}")

    def cache_features(self, experiment: Experiment) -> str:
        key = engines.values_of(experiment, engines.FEATURES)
        self.caches[key] = self.start(cache_there, experiment)
        return ""

    def submit(self, plan: Plan, root: Path) -> Future[Finished]:
        problem = ""  # or the task that returns what is wrong with the trunk features
        if isinstance(plan, Experiment):
            problem = self.caches.get(engines.values_of(plan, engines.FEATURES), "")
        task = self.start(make_there, plan, root.resolve(), problem)
        return self.threads.submit(self.wait_for, task)

    def start(self, function: Callable, plan: Plan, *given):
        """Starts a task with what it needs of its machine; it waits for tasks among `given`."""
        gpus, members = self.cluster.gpus, photo.members(plan)
        largest = max((node["Resources"].get("memory", 0) for node in self.nodes()), default=0)
        expected = max(limits.expected_memory(member, gpus) for member in members)
        options = self.remote(function).options(
            num_cpus=1,
            num_gpus=int(gpus),
            memory=min(expected, int(largest)),  # what cannot fit is refused when it is begun
            max_retries=RETRIES,
            scheduling_strategy="SPREAD",
        )
        task = options.remote(self.cluster, plan, *given)
        self.tasks.add(task)
        return task

    def wait_for(self, task) -> Finished:
        """The run that a task makes, when this machine sees it; or what went wrong there."""
        errors = self.ray.exceptions
        try:
            run = self.ray.get(task)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            raise UserError(
                f"its process or machine was lost {RETRIES + 1} times, perhaps because memory ran "
                f"out ({type(error).__name__}); its last checkpoint is kept"
            ) from error
        finally:
            self.tasks.discard(task)
        wait_until_seen(run.folder / "manifest.json")
        return run

    def stop(self) -> None:
        """Interrupts the tasks that have not ended; runs save what they are doing."""
        tasks = list(self.tasks)
        for task in tasks:
            self.ray.cancel(task)
        if tasks:
            _, late = self.ray.wait(tasks, num_returns=len(tasks), timeout=GRACE)
            for task in late:
                self.ray.cancel(task, force=True)


# ---- On this machine


def import_ray() -> ModuleType:
    """Ray, which says nothing and sends nothing to its makers; a `UserError` without the extra."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no warning about it
    try:
        import ray
        import ray._private.worker
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed, which the engine ray needs: run "
            "pip install 'dpp[cluster]'"
        ) from error
    ray._private.worker._worker_logs_enabled = False  # its errors are this engine's to report
    return ray


def check_address(address: str) -> None:
    """Raises a `UserError` unless a gRPC server replies: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    advice = 'start one with "ray start --head", or give the HOST:PORT of its head as address'
    if not host or not port.isdigit():
        raise UserError(f"{address!r} is no address of a Ray cluster: {advice}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REPLY) as connection:
            connection.sendall(SETTINGS)
            reply = connection.recv(len(SETTINGS))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise UserError(f"no Ray cluster at {address} ({reason}): {advice}") from error
    if reply[3:4] != b"\x04" and os.environ.get("RAY_USE_TLS") != "1":  # the server's settings
        raise UserError(f"what listens at {address} is no Ray cluster: {advice}")


def connect(ray: ModuleType, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # of many kinds, such as another version of Ray or Python there
        raise UserError(
            f"the Ray cluster at {address} cannot be joined ({one_line(error)[:300]}): run this on "
            "one of its machines, with the same versions of Python and Ray"
        ) from error


def wait_until_seen(path: Path) -> None:
    """Waits for a file that another machine wrote: network file systems remember what was not."""
    deadline = time.monotonic() + SEEN
    while not path.is_file() and time.monotonic() < deadline:
        time.sleep(0.5)


# ---- On the cluster's machines

CHECKED_FOR: set[str] = set()  # tokens, of this process


def begin(wanted: Cluster) -> None:
    """Sets up a process that makes runs; raises a `UserError` if its machine cannot."""
    if wanted.token not in CHECKED_FOR:
        if problem := cluster.find_problem(wanted):  # of a machine that joined later
            raise UserError(f"machine {platform.node()} cannot make runs: {problem}")
        CHECKED_FOR.add(wanted.token)
    if not wanted.gpus:
        torch.set_num_threads(1)


def cache_there(wanted: Cluster, experiment: Experiment) -> str:
    begin(wanted)
    return engines.cache_features(experiment)


def make_there(wanted: Cluster, plan: Plan, root: Path, problem: str) -> Finished:
    begin(wanted)
    if problem:  # with its trunk features
        raise UserError(problem)
    return engines.make(plan, root, "cuda" if wanted.gpus else "cpu")
