"""A Ray cluster of two nodes on this machine, with one processor each, until standard input ends.

It prints its address when it is there. Every line that comes in kills the node that is not the head and starts another one.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from ray.cluster_utils import Cluster

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
TRIES = 10  # Ray gives a node 30 seconds to start, which a busy machine may not have


def added(cluster: Cluster, **options: Any) -> Any:
    """A node that did start."""
    for _ in range(TRIES - 1):
        with suppress(Exception):
            return cluster.add_node(**NODE, **options)
    return cluster.add_node(**NODE, **options)


def main() -> None:
    cluster = Cluster()
    try:
        added(cluster, include_dashboard=False)
        other = added(cluster)
        print(cluster.address, flush=True)
        for _ in sys.stdin:
            cluster.remove_node(other, allow_graceful=False)
            other = added(cluster)
            print("replaced", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
