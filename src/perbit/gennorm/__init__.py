"""The GenNorm model of gradients: the distribution, fits, quantizers, priors and bounds built on it.

>>> from perbit.gennorm import GenNorm, fit, interval_masses, nearest_beta_index, normalise, table_levels
>>> f = fit(GenNorm.with_std(beta=0.7, std=0.01).sample(100_000, seed=1))        # one pass over the values
>>> index = nearest_beta_index(f.dist.beta)                                      # goes into the frame
>>> levels = table_levels(index, m=2, bits=2)                                    # the same float32 at both ends
>>> masses = interval_masses(index, (levels[1:] + levels[:-1]) / 2)              # the same integers at both ends
>>> frequencies = normalise(masses)
>>> index, len(levels), int(frequencies.sum())
(24, 4, 16384)
"""

from perbit.gennorm.bounds import distortion_rate, shannon_lower_bound
from perbit.gennorm.distance import kurtosis, wasserstein
from perbit.gennorm.distribution import GenNorm
from perbit.gennorm.fit import Fit, fit, fit_laplace, fit_normal, fit_stats
from perbit.gennorm.lloyd import design
from perbit.gennorm.lowfloat import optimal_scale, paper_scale_fp4, paper_scale_fp8
from perbit.gennorm.priors import interval_masses, normalise
from perbit.gennorm.tables import BETAS, nearest_beta_index, table_levels, table_scale

__all__ = [
    "BETAS",
    "Fit",
    "GenNorm",
    "design",
    "distortion_rate",
    "fit",
    "fit_laplace",
    "fit_normal",
    "fit_stats",
    "interval_masses",
    "kurtosis",
    "nearest_beta_index",
    "normalise",
    "optimal_scale",
    "paper_scale_fp4",
    "paper_scale_fp8",
    "shannon_lower_bound",
    "table_levels",
    "table_scale",
    "wasserstein",
]
