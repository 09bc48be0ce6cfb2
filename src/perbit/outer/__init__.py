"""Training over slow links: workers take many local steps, then average what they have learned as coded bytes (docs/outer.md)."""

from perbit import extras

try:
    from perbit.outer.localsteps import LocalSteps
    from perbit.outer.presets import PRESETS, Preset, preset
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.outer") from error

__all__ = ["PRESETS", "LocalSteps", "Preset", "preset"]
