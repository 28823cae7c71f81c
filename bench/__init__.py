"""Benchmarks of the device `tpu` beside native CPU, and beside TorchTPU and JAX where their environments are named."""
