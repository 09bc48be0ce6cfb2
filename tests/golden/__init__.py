"""Frames that must decode for ever; `python tests/golden/make.py` adds those of new codecs."""
