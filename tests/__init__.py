"""The test suite; what several of its files share is imported as ``tests.synthetic``."""
