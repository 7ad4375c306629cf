"""Tests of ``asterism.estimators``, one file per method."""
