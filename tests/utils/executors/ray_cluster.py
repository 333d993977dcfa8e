"""A Ray cluster of this machine for tests: `python ray_cluster.py FOLDER PORT` starts a head and a second node.

It prints a line with the process of each node's raylet, and ends it all when its input does. Everything listens on the
loopback interface.
"""

import os
import sys
from pathlib import Path
from typing import Any

# Read when Ray is imported.
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_TMPDIR": sys.argv[1],
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}


def main() -> None:
    """Hold a cluster."""
    from ray.cluster_utils import Cluster

    (Path(sys.argv[1]) / "ray").mkdir(parents=True)
    node: dict[str, Any] = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "ray_client_server_port": int(sys.argv[2])})
    nodes = [cluster.head_node, cluster.add_node(**node)]
    processes = [nodes[0].all_processes["gcs_server"][0].process.pid]
    processes += [one.all_processes["raylet"][0].process.pid for one in nodes]
    print(*processes, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
