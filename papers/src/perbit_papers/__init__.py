"""The paper reproductions of perbit: their data sets, models and comparisons, recorded gradients, and a convex test bed.

perbit finds them by entry point (perbit.plugins): `perbit convex`, `perbit data`, `perbit compare cnn`,
`load("cifar10")`, `models.build("resnet20", …)`.
"""
