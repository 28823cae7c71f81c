"""The short way into compiled functions: the same as Dynamo's, whatever changes between calls."""

import gc
import threading

import pytest
import torch
import torch._dynamo
import torch_tpu
from torch_tpu._compile import entry

DEV = "tpu"
pytestmark = pytest.mark.usefixtures("untraced")
FACTOR = 2.0


@pytest.fixture
def runs(monkeypatch):
    """How often the short way was taken."""
    count = []
    original = entry._Way.__init__

    def init(self, fn, e):
        original(self, fn, e)
        run = self.run
        self.run = lambda *args: (count.append(1), run(*args))[1]

    monkeypatch.setattr(entry._Way, "__init__", init)
    return count


def ones(*sizes):
    return torch.ones(*sizes, device=DEV)


def test_taken_from_the_second_call_and_again_after_other_shapes(runs):
    g = torch.compile(lambda x, y: x + y, backend="tpu", dynamic=False)
    for _ in range(3):
        assert g(ones(3), ones(3)).tolist() == [2.0] * 3
    assert len(runs) == 2
    assert g(ones(4), ones(4)).tolist() == [2.0] * 4
    assert len(runs) == 2
    assert g(ones(4), ones(4)).tolist() == [2.0] * 4
    assert g(ones(3), ones(3)).tolist() == [2.0] * 3
    assert len(runs) == 4
    assert g(ones(3).int(), ones(3)).dtype == torch.float32
    assert g(torch.ones(3), torch.ones(3)).device.type == "cpu"


def test_globals_closures_defaults_and_keywords(runs):
    global FACTOR
    inner = 3.0

    def f(x, k=1.0):
        return x * FACTOR + inner * k

    g = torch.compile(f, backend="tpu")
    for _ in range(2):
        assert g(ones(1)).item() == 5.0
        assert g(ones(1), 2.0).item() == 8.0
        assert g(ones(1), k=3.0).item() == 11.0
    FACTOR, inner = 10.0, 0.5
    try:
        assert g(ones(1), 1.0).item() == 10.5
        assert g(ones(1), 2.0).item() == 11.0
    finally:
        FACTOR = 2.0


def test_structures_none_and_given_tensors_come_back(runs):
    def f(x, y):
        return {"sum": x + y, "given": x, "none": None, "pair": (x - y, 7)}

    g = torch.compile(f, backend="tpu")
    x, y = ones(2), ones(2)
    for _ in range(3):
        got = g(x, y)
        assert got["given"] is x
        assert got["none"] is None
        assert got["sum"].tolist() == [2.0, 2.0]
        assert got["pair"][0].tolist() == [0.0, 0.0] and got["pair"][1] == 7
    assert len(runs) == 2


def test_views_and_writes(runs):
    def f(x):
        x.add_(1)
        return x.view(-1)

    g = torch.compile(f, backend="tpu")
    x = torch.zeros(2, 2, device=DEV)
    for k in range(3):
        version = x._version
        y = g(x)
        assert x._version > version
        assert y.tolist() == [k + 1.0] * 4
        assert y.data_ptr() == x.data_ptr()


def test_gradients_and_grad_mode(runs):
    g = torch.compile(lambda x: (x * x).sum(), backend="tpu")
    x = ones(3).requires_grad_()
    for _ in range(3):
        x.grad = None
        g(x).backward()
        assert x.grad.tolist() == [2.0] * 3
    with torch.no_grad():
        for _ in range(3):
            assert not g(x).requires_grad
    with torch.inference_mode():
        for _ in range(3):
            assert g(x).is_inference()
    assert g(x).requires_grad


def test_graph_breaks_take_dynamos_way(runs):
    seen = []

    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        seen.append(1)
        return y * 2

    g = torch.compile(f, backend="tpu")
    for _ in range(3):
        assert g(ones(1)).item() == 4.0
    assert len(seen) == 3
    assert runs == []


def test_reset_stance_and_another_backend(runs):
    def f(x):
        return x + 1

    g, h = torch.compile(f, backend="tpu"), torch.compile(f, backend="eager")
    for _ in range(3):
        assert g(ones(1)).item() == h(ones(1)).item() == 2.0
    assert len(runs) == 2
    torch._dynamo.reset()
    assert g(ones(1)).item() == 2.0
    assert len(runs) == 2
    with torch.compiler.set_stance("force_eager"):
        assert g(ones(1)).item() == 2.0
    assert len(runs) == 2
    assert g(ones(1)).item() == 2.0
    assert len(runs) == 3


def test_inside_another_compiled_function():
    inner = torch.compile(lambda x: x * 2, backend="tpu")
    for _ in range(2):
        inner(ones(1))
    outer = torch.compile(lambda x: inner(x) + 1, backend="tpu", fullgraph=True)
    for _ in range(3):
        assert outer(ones(1)).item() == 3.0


def test_faults_and_errors_leave_the_next_call_right():
    g = torch.compile(lambda x, i: x[i], backend="tpu")
    i = torch.tensor([1], device=DEV)
    for _ in range(2):
        assert g(ones(3), i).item() == 1.0
    with pytest.raises(IndexError):
        g(ones(3), i + 7).cpu()
    assert g(ones(3), i).item() == 1.0
    with pytest.raises(TypeError):
        g(ones(3), i, i)
    assert torch._C._dynamo.eval_frame.set_eval_frame(None) is None


def test_threads():
    g = torch.compile(lambda x, y: x * y + 1, backend="tpu")
    g(ones(4), ones(4))
    bad = []

    def work(k):
        x = ones(4) * k
        bad.extend(k for _ in range(200) if g(x, x).tolist() != [k * k + 1.0] * 4)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert bad == []


def test_compiled_again_after_what_it_was_compiled_for_has_gone():
    def made():
        (p,) = params = [torch.nn.Parameter(ones(3))]
        p.grad = ones(3)
        optimizer = torch.optim.NAdam(params, lr=0.1)
        step = optimizer.step.__wrapped__.__wrapped__  # without what ends the graph
        return torch.compile(lambda: step(optimizer), backend="tpu"), p

    seen = []
    with torch.no_grad():
        for _ in range(3):
            g, p = made()
            g()
            g()
            seen.append(p.tolist())
            del g, p
            gc.collect()
    assert seen[1:] == seen[:2]


def test_a_fake_tensor_is_refused_by_a_program():
    from torch._subclasses.fake_tensor import FakeTensorMode

    g = torch.compile(lambda x: x + 1, backend="tpu")
    g(ones(2))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
    graph = torch_tpu._C.graph_new("g")
    x = torch_tpu._C.graph_input(graph, 0, 0, (12, (2,)))
    (y,) = torch_tpu._C.graph_node(graph, "add.Tensor", [x, x, 1], [(12, (2,))])
    program = torch_tpu._C.Program(torch_tpu._C.graph_finish(graph, [y]), [0], [], None)
    assert program(ones(2))[0].tolist() == [2.0, 2.0]
    for wrong, error in ((fake, TypeError), ("x", TypeError), (torch.ones(2), RuntimeError)):
        with pytest.raises(error, match="compiled graph"):
            program(wrong)
    with pytest.raises(TypeError, match="1 arguments"):
        program()
