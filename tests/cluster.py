"""A real Ray cluster on this machine, for tests: every node is a `ray start` process of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import rwalk
from processes import until

TASK = "ray::rwalk"  # what a worker process calls itself while it trains


class Cluster:
    """Nodes with a folder, a port and a token of their own; nothing of the user's is touched."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # a socket's path must be short
        self.nodes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        (self.folder / "token").write_text(secrets.token_hex(32))
        # Workers find rwalk, but not the tests: what they need of those has to travel. Two threads, to no effect.
        path = str(Path(rwalk.__file__).parents[1])
        self.environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2", "RAY_AUTH_MODE": "token"}
        self.environ |= {"RAY_AUTH_TOKEN_PATH": str(self.folder / "token"), "RAY_USAGE_STATS_ENABLED": "0"}
        # A lost node is noticed at once by its closed connection; these are for when it is not.
        self.environ |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "5"}
        self.environ.pop("RAY_ADDRESS", None)

    def start(self, cores: int, hide: Sequence[Path] = ()) -> subprocess.Popen[bytes]:
        """One more node, which does not see some folders."""
        port = self.address.partition(":")[2]
        head = ["--head", f"--port={port}", f"--temp-dir={self.folder}", "--include-dashboard=false"]
        role = [f"--address={self.address}"] if self.nodes else head
        program = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *role, f"--num-cpus={cores}"]
        program += ["--object-store-memory=100000000", "--disable-usage-stats"]
        if hide:
            masks = " && ".join(f"mount -t tmpfs none '{folder}'" for folder in hide)
            program = ["unshare", "--mount", "sh", "-c", f'{masks} && exec "$@"', "sh", *program]
        log = open(self.folder / f"node-{len(self.nodes)}.log", "wb")  # noqa: SIM115 - until the node ends
        node = subprocess.Popen(
            program, cwd=self.folder, env=self.environ, stdout=log, stderr=log, start_new_session=True
        )
        self.nodes.append(node)
        until(lambda: b"Ray runtime started" in (self.folder / log.name).read_bytes() or node.poll() is not None)
        assert node.poll() is None, (self.folder / log.name).read_text()
        return node

    def driver_environ(self) -> dict[str, str]:
        """For the process that runs a study on the cluster."""
        return {**self.environ, "RAY_ADDRESS": self.address}

    def tasks(self) -> list[int]:
        """The worker processes that are training."""
        return [pid for pid in self.processes() if _says(pid, TASK)]

    def raylet_of(self, node: subprocess.Popen[bytes]) -> int:
        (found,) = [pid for pid in processes_of(node.pid) if _says(pid, "raylet/raylet")]
        return found

    def processes(self) -> list[int]:
        return [pid for node in self.nodes for pid in processes_of(node.pid)]

    def stop(self) -> None:
        for node in self.nodes:
            for pid in processes_of(node.pid):
                kill(pid)
            node.wait()
        until(lambda: not self.processes())
        shutil.rmtree(self.folder, ignore_errors=True)


def processes_of(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _says(pid: int, words: str) -> bool:
    try:
        return words.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
