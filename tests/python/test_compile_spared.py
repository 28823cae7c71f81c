"""What compiling leaves out, and that it leaves nothing else out."""

import gc
import importlib
import os
import sys
import types
import weakref

import pytest
import torch
import torch._dynamo
from child import good
from test_compile_cache import TRAIN
from torch_tpu import _decompose
from torch_tpu._compile import spared

DEV = "tpu"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a module that nobody has imported."""
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "__init__.py").write_text("")
    (tmp_path / "some_package" / "rare.py").write_text("one = 'real one'\ntwo = 'real two'\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("some_package")
    for name in ("some_package", "some_package.rare"):
        sys.modules.pop(name, None)


def test_a_module_is_not_imported_for_what_is_known(package):
    with spared._unneeded("some_package.rare", one="known"):
        from some_package.rare import one

        assert one == "known"
        assert not hasattr(sys.modules["some_package.rare"], "__file__")
    assert "some_package.rare" not in sys.modules
    assert not hasattr(package, "rare")
    assert importlib.import_module("some_package.rare").one == "real one"


def test_a_module_is_imported_for_what_is_not_known(package):
    with spared._unneeded("some_package.rare", one="known"):
        stand_in = sys.modules["some_package.rare"]
        from some_package.rare import two

        assert two == "real two"
        assert stand_in.two == "real two"
        from some_package.rare import one

        assert one == "real one"
    assert sys.modules["some_package.rare"].one == package.rare.one == "real one"
    with spared._unneeded("some_package.rare", one="known"):
        assert sys.modules["some_package.rare"].one == "real one"


def test_inductors_code_generators_are_not_imported(tmp_path):
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "traces"), "TORCH_TPU_CACHE_DIR": str(tmp_path / "programs")}
    ask = """
    import sys
    names = ("debug", "ir", "scheduler", "codegen.wrapper")
    print([n for n in names if f"torch._inductor.{n}" in sys.modules], "torch.distributed.tensor.experimental" in sys.modules)
    from torch_tpu import _decompose
    print(_decompose._functional_rows.cache_info().misses)
    import torch._inductor.debug
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen, user_defined_triton_kernel_transitive_closure_source_code as f
    print(torch._inductor.debug.enable_aot_logging.__module__, f.__module__)
    """
    losses, _, *cold = good(TRAIN + ask, **env).splitlines()
    same, _, *warm = good(TRAIN + ask, **env).splitlines()
    assert losses == same
    assert warm == ["[] False", "0", "torch._inductor.debug torch._inductor.codegen.wrapper"]
    assert cold[1:] == ["1", warm[2]]


def test_the_log_of_aotautograd_is_written_if_asked_for(tmp_path):
    where = f"""
    import torch._dynamo
    torch._dynamo.config.debug_dir_root = {str(tmp_path)!r}
    """
    good(where + TRAIN, TORCH_COMPILE_DEBUG="1", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "traces"))
    assert any(name.startswith("aot_") for _, _, names in os.walk(tmp_path) for name in names)


def test_local_map_is_still_known():
    from torch._dynamo.variables.higher_order_ops import LocalMapWrappedHigherOrderVariable as kind
    from torch.distributed.tensor.experimental._func_map import _local_map_wrapped

    spared.follow()
    torch._dynamo.reset()
    assert not kind.should_wrap_in_hop(print)
    assert kind.should_wrap_in_hop(_local_map_wrapped) == kind._enabled


def test_decompositions_are_a_mapping():
    table = _decompose.FunctionalTable()
    assert len(table) == len(list(table)) == len({**table}) > 10
    assert torch.ops.aten.ldexp.Tensor in table
    assert torch.ops.aten.add.Tensor not in table


@pytest.fixture
def collector():
    enabled = gc.isenabled()
    gc.enable()
    gc.collect()
    yield
    gc.unfreeze()
    (gc.enable if enabled else gc.disable)()


def cycle():
    a = types.ModuleType("a")
    a.itself = a
    return weakref.ref(a)


def test_a_full_collection_is_put_off_once(collector):
    lost = cycle()
    spared.put_off_collection()
    assert gc.get_count()[2] == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.collect(1)
    assert lost() is not None  # it counts as old
    assert gc.get_count()[2] > 0
    spared.put_off_collection()
    assert gc.get_count()[2] > 0  # no second time
    gc.collect()
    assert lost() is None
    gc.collect(1)
    spared.put_off_collection()
    assert gc.get_count()[2] == 0


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(collector, enabled):
    gc.freeze()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    (gc.enable if enabled else gc.disable)()
    torch._dynamo.reset()
    x = torch.arange(4.0, device=DEV, requires_grad=True)
    torch.compile(lambda x: (x * 3).sin().sum(), backend="tpu")(x).backward()
    assert gc.isenabled() == enabled
    # What is no longer used leaves the frozen objects; nothing else thaws them.
    assert frozen * 0.9 < gc.get_freeze_count() <= frozen
