"""Handwritten digits (scikit-learn's, 1797 images of 8 x 8 pixels) learned by Flower nodes."""
