"""Ours beside other frameworks, on the same work: see ``__main__``."""
