"""Flower carries parcels between a server and its sites. Only modules of this folder import it.

What they use is public (``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp`` and the command line programs), with one
exception, the link of ``asterism.runs.flower.node``, which says what it does where Flower has changed under it.
"""
