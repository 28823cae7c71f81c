"""Small programs that run on the device `tpu`, and with --device cpu on native CPU. `python -m examples.demo` runs them all."""
