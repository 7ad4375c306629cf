"""Flower carries parcels between a server and its sites. Only modules of this folder import it.

What they use is public (``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp`` and the command line programs), with one
exception, the link of ``asterism.runs.flower.node``, which says what it does where Flower has changed under it.
"""

import os

# Neither Flower nor Ray tells its makers of a run, and Ray leaves a machine's list of GPUs as it is.
for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
    os.environ.setdefault(name, "0")
