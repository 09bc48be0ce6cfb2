"""The modules of experiments/wan for tests."""

from __future__ import annotations

from experiment_scripts import EXPERIMENTS, script

FOLDER = EXPERIMENTS / "wan"
links = script("wan/links.py")
