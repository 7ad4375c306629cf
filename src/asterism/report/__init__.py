"""Pictures and the self-contained page of a run, drawn from its folder alone."""
