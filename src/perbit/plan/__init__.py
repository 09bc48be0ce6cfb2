"""Which codec each tensor of a model gets: plans, budgets, and a model as one message."""

from perbit.plan.budget import Budget, Budgeted, fit_budget
from perbit.plan.held import hold
from perbit.plan.message import dumps
from perbit.plan.plan import Chooser, Plan, PlanLike, as_plan

__all__ = [
    "Budget",
    "Budgeted",
    "Chooser",
    "Plan",
    "PlanLike",
    "as_plan",
    "dumps",
    "fit_budget",
    "hold",
]
