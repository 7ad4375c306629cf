"""A table or a figure of the paper as one file: planned, run in pieces, and told beside the printed numbers."""
