"""What leaves a site: the ledger of it."""
