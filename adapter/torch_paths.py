"""Print "<tag>;<folder of torch>" of the installed PyTorch, e.g. "213;/…/torch", without importing it."""

import importlib.metadata
import importlib.util
import pathlib

major, minor = importlib.metadata.version("torch").split(".")[:2]
spec = importlib.util.find_spec("torch")
print(f"{major}{minor};{pathlib.Path(spec.origin).parent}")
