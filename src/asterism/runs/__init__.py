"""Everything that touches the world: fleets, the driver, run folders."""
