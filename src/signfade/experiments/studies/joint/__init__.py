"""The joint posterior: its error on Gaussian gradients, its predictions on MNIST, its worth in training."""
