"""What a comparison looks like: figures and one page that needs nothing else."""

from perbit.report.page import write

__all__ = ["write"]
