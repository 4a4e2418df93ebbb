"""A Ray cluster on this machine, in a process of its own: Ray leaves files and processes open.

The nodes share a machine, so a test shows which node runs a case and what becomes of its record;
it does not show that times on separate machines are undisturbed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

# Ray then takes the loopback address, as on systems where it has no clusters
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
_STORE_BYTES = 80 * 2**20  # Ray's smallest is 75 MiB


class RayCluster:
    """A head without CPUs, and nodes of two CPUs that are added by name and killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **LOOPBACK},
        )
        self.address: str = self._reply()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def add(self, *names: str, **environment: str) -> None:
        """Add nodes; their processes see NAME_OF_NODE, and these variables too."""
        self._ask("add", [*names], environment)

    def kill(self, name: str) -> None:
        """Kill a node, as if its machine had lost its power."""
        self._ask("kill", name)

    def _ask(self, *request: Any) -> None:
        print(json.dumps(request), file=self._process.stdin, flush=True)
        assert self._reply() == "done"

    def _reply(self) -> str:
        for line in self._process.stdout:
            if line.startswith("reply "):  # Ray prints too
                return line.split()[1]
        raise RuntimeError("the process of the cluster has ended")


def _serve() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": _STORE_BYTES}
    )
    nodes = {}
    print("reply", cluster.address, flush=True)  # noqa: T201 - to the parent process
    for line in sys.stdin:
        match json.loads(line):
            case "add", names, environment:
                for name in names:
                    nodes[name] = cluster.add_node(
                        num_cpus=2,
                        object_store_memory=_STORE_BYTES,
                        wait=False,
                        env_vars={**environment, "NAME_OF_NODE": name},
                    )
                cluster.wait_for_nodes()
            case "kill", name:
                cluster.remove_node(nodes.pop(name), allow_graceful=False)
        print("reply done", flush=True)  # noqa: T201
    cluster.shutdown()


if __name__ == "__main__":
    _serve()
