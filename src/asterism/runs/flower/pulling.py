"""How the server waits for the parts of a reply that is still being sent.

Flower's grid looks again after one second, then two, four, up to ten, and waits three minutes for a site that died
while it sent. Both are internals with no setting, so they are replaced where they are found as known, and left as
they are, slower but right, where a release has moved them.
"""

from __future__ import annotations

from collections.abc import Callable

FIRST, LONGEST = 0.05, 0.5  # seconds between two looks for a part


def install(still_there: Callable[[], bool]) -> bool:
    """Lets Flower's grid look often, and no longer than the site that sends is there; False where it cannot be."""
    try:
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects
        from flwr.superlink.grid import http_grid
    except ImportError:
        return False
    if not hasattr(http_grid, "pull_objects"):
        return False

    def pulled(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
        def one(number: str) -> bytes:
            try:
                return pull_object_fn(number)
            except ObjectUnavailableError:
                if still_there():
                    raise
                raise ObjectPullError(number, "the site left while it sent") from None

        return pull_objects(object_ids, one, initial_backoff=FIRST, backoff_cap=LONGEST)

    http_grid.pull_objects = pulled
    return True
