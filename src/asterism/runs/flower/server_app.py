"""The app that Flower runs at the server: it brings a federation's life on, over the grid that Flower gives it.

It is sent to every site as well, as Flower has it, and holds nothing but this import. What it is to do stands in the
file that the environment names, which never leaves the server.
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from asterism.errors import AsterismError
from asterism.experiment import load
from asterism.files import locked, write_json
from asterism.runs.flower import pulling
from asterism.runs.flower.fleet import Flower
from asterism.runs.sites.life import Life
from asterism.runs.sites.settings import FILE, FederationFile, read_federation

POLL = "ASTERISM_POLL"  # seconds between two looks for a reply

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Brings the federation on until its last stage is done."""
    file = os.environ.get(FILE)
    if not file:
        raise AsterismError("no federation to serve", fix=f"asterism serve, or {FILE}=federation.toml for this program")
    live(read_federation(Path(file)), grid)


def live(settings: FederationFile, grid: Grid) -> None:
    """The federation's life over a grid; what ends it early is left in its folder, for the one who started it."""
    folder = settings.path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    experiment = load(settings.experiment_source, settings.overrides)
    fleet = Flower(
        grid,
        experiment.name,
        deadline=experiment.federation.deadline,
        rejoin=settings.rejoin,
        largest=settings.largest_reply * 2**20,
        poll=float(os.environ.get(POLL, "0.1")),
    )
    pulling.install(fleet.sender_is_there)
    try:
        with locked(folder):
            Life(settings, experiment, fleet).run()
    except AsterismError as error:
        write_json(folder / "stopped.json", {"what": error.what, "where": error.where, "fix": error.fix})
        raise
