"""TorchTPU: a native PyTorch device named ``tpu``.

``import torch`` is enough: PyTorch loads this package through the entry point group ``torch.backends``. Loading registers the
device and its ops; the PJRT plugin (libtpu on a TPU machine, XLA:CPU anywhere else) is loaded when a ``tpu`` tensor is first made.

Example:
    >>> import torch
    >>> x = torch.ones(3, device="tpu")
    >>> (x + 1).cpu()
    tensor([2., 2., 2.])
"""


def _autoload() -> None:
    """Called by ``import torch`` (entry point ``torch.backends``). Importing this package does the work. Where this package is
    imported first, that is in the midst of it: hence before any import here."""


from torch_tpu._load import load  # noqa: E402

__version__ = "0.1.0"

_C = load()
