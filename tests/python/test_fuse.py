"""DeferAndFuse: calls kept back run together as one program once they have come before, and nobody can tell but by the clock.

Values are CPU PyTorch's, or Strict's where numbers are random. A trace runs op by op, is compiled when it comes again, and is one
program from then on: hence what is run three times here.
"""

import sys
import threading
import traceback

import opcase
import opfuse
import pytest
import test_mode
import torch
import torch.nn.functional as F
import view_programs
from child import ROOT

sys.path.insert(0, str(ROOT))
from bench import loops

FUSE, STRICT, DEBUG = torch.tpu.EagerMode.FUSE, torch.tpu.EagerMode.STRICT, torch.tpu.EagerMode.DEBUG
ROUNDS = 3


@pytest.fixture(autouse=True)
def _fuse():
    with torch.tpu.set_eager_mode(FUSE):
        yield
    torch.tpu.compiler.wait()


def stats() -> dict:
    found = torch.tpu.fuse_stats()
    return found | {"cuts": dict(found["cuts"])}


def gained(before: dict) -> dict:
    """What the counts grew by."""
    after = stats()
    cuts = {k: n - before["cuts"].get(k, 0) for k, n in after["cuts"].items() if n != before["cuts"].get(k, 0)}
    return {k: after[k] - before[k] for k in after if k != "cuts"} | {"cuts": cuts}


def again(f):
    """The last of three calls of f, each a trace of its own, the program ready before the third."""
    for _ in range(ROUNDS):
        torch.tpu.flush()
        torch.tpu.compiler.wait()
        got = f()
    return got


# ------------------------------------------------------------------------------------------------------------ plain loops


@pytest.mark.parametrize("name", loops.LOOPS)
def test_loops_have_the_cpus_numbers_and_a_fixed_set_of_programs(name):
    """Programs: no more than a few, all of them asked for by the time that each trace has come twice. Where the machine left Python
    waiting so long that a trace was cut for silence, that says nothing, and the loop runs again at a width of its own."""
    for attempt in range(4):
        width = loops.width_of(name) + 200 * attempt
        want = loops.run(name, "cpu", 40, width)
        torch.tpu.flush()
        asked, before = {}, stats()
        got = loops.run(name, "tpu", 40, width, lambda i, a=asked, b=before: a.setdefault(i, stats()["programs"] - b["programs"]))
        assert loops.difference(got, want) < 1e-4
        torch.tpu.compiler.wait()
        if "idle" not in gained(before)["cuts"] or attempt == 3:
            assert not loops.complaints(name, asked, 0.0, 1), asked
            few = {"chain": 2, "gan": 2, "evaluation": 2, "accumulation": 3, "buckets": 3, "shuffled": 3}
            assert asked[40] == few.get(name, 1), asked
            break
    torch.tpu.flush()
    assert loops.difference(loops.run(name, "tpu", 40, width), want) < 1e-4  # fused by now


@pytest.mark.parametrize("name", ["reads", "accumulation", "gan", "plain", "prepared", "buckets"])
def test_loops_run_fused(name):
    """Also those that read nothing, whether their batches come with each step or were all there before."""
    for _ in range(2):
        torch.tpu.flush()
        loops.run(name, "tpu", 40, loops.width_of(name) + 1)
        torch.tpu.compiler.wait()
    before = stats()
    loops.run(name, "tpu", 40, loops.width_of(name) + 1)
    more = gained(before)
    assert more["fused"] > 0.8 * more["nodes"], more


def test_a_copy_into_a_new_tensor_is_no_part_of_a_trace():
    """A batch comes before or after a cut: the trace is the same."""
    x = torch.ones(5, device="tpu")
    for i in range(6):
        torch.tpu.flush()
        torch.tpu.compiler.wait()
        before = stats()
        if i % 2:
            y = x * 3  # opens a trace
            b = torch.full((5,), float(i)).to("tpu")
        else:
            b = torch.full((5,), float(i)).to("tpu")
            y = x * 3
        z = (y + b).tanh()
        torch.tpu.flush()
        more = gained(before)
        assert more["traces"] == (i == 0) and more["programs"] == (i == 1) and more["hits"] == (i > 1), (i, more)
        torch.testing.assert_close(z.cpu(), torch.full((5,), 3.0 + i).tanh())


def test_values_held_at_changing_places_of_a_chain():
    """x = x + y for ever, one x of every hundred held: no program per place."""
    x, y = torch.zeros(16, device="tpu"), torch.ones(16, device="tpu")
    torch.tpu.flush()
    before, held = stats(), []
    for i in range(3000):
        x = x + y
        if i % 100 == 50:
            held.append((i + 1, x))
        if i == 1000:
            torch.tpu.compiler.wait()
            middle = stats()
    torch.tpu.flush()
    assert gained(before)["programs"] == 2 and gained(middle)["fused"] > 0.9 * gained(middle)["nodes"]
    assert all(t.tolist() == [float(n)] * 16 for n, t in held)


def test_a_schedule_compiles_nothing():
    x = torch.ones(8, device="tpu")
    got = []
    for i in range(12):
        torch.tpu.flush()
        if i == 3:
            torch.tpu.compiler.wait()
            before = stats()
        y = (x * (1.5 + i / 7) + i).tanh().mul_(0.5)
        y.add_(x, alpha=i * 0.25 + 0.1)
        got.append(y.cpu())
    more = gained(before)
    assert more["programs"] == more["traces"] == 0 and more["hits"] == 9, more
    for i, y in enumerate(got):
        c = torch.ones(8)
        torch.testing.assert_close(y, (c * (1.5 + i / 7) + i).tanh().mul_(0.5).add_(c, alpha=i * 0.25 + 0.1))


# --------------------------------------------------------------------------------------------------------------- counting


def test_the_counts_add_up():
    x = torch.rand(1024, device="tpu")
    torch.tpu.flush()
    seen = []
    for _ in range(4):
        before = stats()
        y = ((x + 1) * 2).tanh()  # 4096 bytes each, two of which nobody holds at the cut
        assert gained(before)["nodes"] == 3
        torch.tpu.flush()
        torch.tpu.flush()  # of nothing
        torch.tpu.compiler.wait()
        seen.append(gained(before))
        torch.testing.assert_close(y.cpu(), ((x.cpu() + 1) * 2).tanh())
    for k, more in enumerate(seen):
        fused = k >= 2
        expected = {"nodes": 3, "runs": 1, "hits": fused, "fused": 3 * fused, "traces": k == 0, "programs": k == 1}
        assert {n: more[n] for n in expected} == expected, (k, more)
        assert more["compiling"] == more["failed"] == 0 and more["cuts"] == {"sync": 1}, more
        assert more["unwritten_nbyte"] == (8192 if fused else 0), more
    total = torch.tpu.fuse_stats()
    assert sum(total["cuts"].values()) == total["runs"] >= total["hits"]
    assert total["nodes"] >= total["fused"] and total["programs"] >= total["compiling"] + total["failed"]


def cut_by(f, x):
    """Why a trace that is open when f is called is cut."""
    torch.tpu.flush()
    before = stats()
    y = (x + 1) * 2
    f(y)
    cuts = gained(before)["cuts"]
    return list(cuts), y


def test_reasons_of_cuts():
    x = torch.ones(4, device="tpu")
    event = torch.Event("tpu")

    def record(_):
        event.record()

    def strict(y):
        with torch.tpu.set_eager_mode(STRICT):
            y + 1

    ways = [
        ("read", lambda y: y.tolist()),
        ("sync", lambda y: torch.tpu.synchronize()),
        ("sync", lambda y: torch.accelerator.synchronize()),
        ("sync", lambda y: torch.tpu.flush()),
        ("event", record),
        ("mode", strict),
        ("call", lambda y: y.resize_(8)),
    ]
    for way, f in ways:
        cuts, y = cut_by(f, x)
        assert cuts == [way], (way, cuts)
        assert y[:4].tolist() == [4] * 4


def test_held_results_are_written_and_others_are_not():
    x = torch.arange(6.0, device="tpu")
    c = torch.arange(6.0)
    for _ in range(ROUNDS):
        torch.tpu.flush()
        torch.tpu.compiler.wait()
        a = x + 1
        b = a * 2
        view = b[1:4]
        d = b.sqrt()
        del b
        torch.tpu.flush()
        for got, want in ((a, c + 1), (view, ((c + 1) * 2)[1:4]), (d, ((c + 1) * 2).sqrt())):
            torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("steps", [8, 13])
def test_what_is_made_before_a_cut_and_used_after_it_is_written(steps):
    """Steps of a recurrent net on one input are cut as a loop's, in the middle of a trace, where nobody but the next step has the
    state any more; backwards, only the next call has the gradient."""
    torch.manual_seed(0)
    cell, x = torch.nn.LSTMCell(6, 8), torch.randn(4, 6)
    parameters = list(cell.parameters())

    def run(x, *parameters):
        h = c = torch.zeros(4, 8, device=x.device)
        held = dict(zip([n for n, _ in cell.named_parameters()], parameters, strict=True))
        out = []
        for _ in range(steps):
            h, c = torch.func.functional_call(cell, held, (x, (h, c)))
            out.append(h)
        return torch.autograd.grad(sum(h.sum() for h in out), parameters)

    want = run(x, *parameters)
    on = [t.detach().to("tpu").requires_grad_() for t in parameters]
    x, before = x.to("tpu"), stats()
    for _ in range(5):
        for a, b in zip(run(x, *on), want, strict=True):
            torch.testing.assert_close(a.cpu(), b)
        torch.tpu.compiler.wait()
    assert gained(before)["cuts"]["loop"] > 0


def test_what_is_held_may_differ_from_time_to_time():
    x = torch.arange(6.0, device="tpu")
    c = torch.arange(6.0)
    held = []
    for i in range(12):
        parts = [x + 1]
        for _ in range(4):
            parts.append(parts[-1] * 2)
        held.append({k: t for k, t in enumerate(parts) if (i >> k) & 1 or k == 4})
        del parts
        torch.tpu.flush()
        torch.tpu.compiler.wait()
    for ts in held:
        for k, t in ts.items():
            torch.testing.assert_close(t.cpu(), (c + 1) * 2**k)


# ----------------------------------------------------------------------------------------------------- modes and threads


def steps(device):
    """A piece of training in small pieces: functions to call in order, and what they leave."""
    s = {"x": torch.arange(12.0, device=device).reshape(3, 4), "w": torch.ones(4, 4, device=device).requires_grad_()}

    def do(name, f):
        def run():
            s[name] = f()

        return run

    return s, [
        do("y", lambda: s["x"] @ s["w"]),
        do("z", lambda: s["y"].relu() * 0.5),
        do("c", lambda: s["x"].clone()),
        do("v", lambda: s["c"][1]),
        do("_", lambda: s["v"].add_(1)),
        do("loss", lambda: ((s["z"] + s["x"]) ** 2).mean()),
        do("_", lambda: s["loss"].backward()),
        do("g", lambda: s["w"].grad.t()),
        do("_", lambda: s["w"].data.sub_(s["w"].grad, alpha=0.01)),
        do("_", lambda: s["w"].grad.zero_()),
        do("u", lambda: torch.cat([s["x"], s["x"].flip(0)])[::2]),
        do("_", lambda: s["u"].mul_(s["v"])),
    ]


def left(s):
    return {k: t.detach().cpu() for k, t in s.items() if isinstance(t, torch.Tensor) and k != "_"}


@pytest.mark.parametrize("other", [STRICT, DEBUG], ids=["strict", "debug"])
def test_modes_switched_between_any_two_calls(other):
    s, fs = steps("cpu")
    for f in fs:
        f()
    want = left(s)
    for first in range(len(fs)):
        for last in (first + 1, len(fs)):
            s, fs = steps("tpu")
            for k, f in enumerate(fs):
                with torch.tpu.set_eager_mode(other if first <= k < last else FUSE):
                    f()
            for name, got in left(s).items():
                torch.testing.assert_close(got, want[name], rtol=1e-5, atol=1e-5, msg=lambda m, n=(first, last, name): f"{n}: {m}")


def in_threads(*fs):
    """Run each in a thread of its own; their results, or the first exception."""
    got, errors = [None] * len(fs), []

    def body(k):
        try:
            got[k] = fs[k]()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=body, args=(k,)) for k in range(len(fs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return got


def test_two_threads():
    def train(name, mode):
        with torch.tpu.set_eager_mode(mode):
            return loops.run(name, "tpu", 25, 20)

    for first, second in ((FUSE, FUSE), (FUSE, STRICT)):
        got = in_threads(lambda m=first: train("accumulation", m), lambda m=second: train("gan", m))
        for name, values in zip(("accumulation", "gan"), got, strict=True):
            assert loops.difference(values, loops.run(name, "cpu", 25, 20)) < 1e-4, (name, first, second)


def test_one_thread_uses_what_another_has_in_its_trace():
    for mode in (FUSE, STRICT, DEBUG):
        for _ in range(ROUNDS):
            x = torch.arange(8.0, device="tpu")
            y = (x + 1) * 2
            view = y[2:5]

            def other(y=y, view=view, mode=mode):
                with torch.tpu.set_eager_mode(mode):
                    view.add_(100)
                    return (y - 1).cpu()

            [got] = in_threads(other)
            want = (torch.arange(8.0) + 1) * 2
            want[2:5] += 100
            assert torch.equal(got, want - 1)
            assert torch.equal((y * 2).cpu(), want * 2)
            torch.tpu.compiler.wait()


def test_threads_write_the_same_tensor_in_turn():
    x = torch.zeros(16, device="tpu")
    lock = threading.Lock()

    def work():
        with torch.tpu.set_eager_mode(FUSE):
            for i in range(200):
                with lock:
                    x.add_(1)
                    x[i % 16].add_(1)

    in_threads(work, work, work)
    want = torch.full((16,), 600.0)
    for i in range(200):
        want[i % 16] += 3
    assert torch.equal(x.cpu(), want)


# ------------------------------------------------------------------------------------------------------ views and writes


def test_random_programs_of_views():
    """`make views-fuse` runs thousands."""
    bad, counts = view_programs.run_fused(range(60))
    assert not bad, next(iter(bad.values()))
    assert sum(counts.values()) > 600


def test_in_place_writes_inside_one_trace():
    def body(device):
        x = torch.arange(12.0, device=device).reshape(3, 4)
        before = x.clone()
        x[1].mul_(10)
        row = x[1]
        x.t()[0].add_(row[:3])
        y = x + before
        x.zero_()
        z = x.view(-1)[::2]
        z.fill_(7)
        return [before, row, y, x, z]

    want = body("cpu")
    for got in (again(lambda: [t.cpu() for t in body("tpu")]),):
        for g, w in zip(got, want, strict=True):
            assert torch.equal(g, w)


def test_a_write_after_a_read_inside_one_trace():
    """The old value is what earlier calls of the trace saw, also where buffers are reused."""

    def body(device):
        x = torch.ones(64, device=device)
        olds = []
        for i in range(6):
            olds.append(x * 1)
            x.add_(i)
        return [*olds, x]

    want = body("cpu")
    for _ in range(ROUNDS):
        got = body("tpu")
        assert all(torch.equal(g.cpu(), w) for g, w in zip(got, want, strict=True))
        torch.tpu.compiler.wait()


def test_the_same_calls_wired_otherwise_are_another_trace():
    a, b = torch.full((4,), 2.0, device="tpu"), torch.full((4,), 5.0, device="tpu")
    ways = [
        (lambda: (a + b) - b, 2.0),
        (lambda: (a + b) - a, 5.0),
        (lambda: (b + a) - a, 5.0),
        (lambda: (a + a) - b, -1.0),
        (lambda: (a + a) - a, 2.0),
    ]
    for _ in range(4):
        for f, want in ways:
            torch.tpu.flush()
            assert f().tolist() == [want] * 4
        torch.tpu.compiler.wait()
    x, y = torch.ones(4, device="tpu"), torch.ones(4, device="tpu")
    for _ in range(4):  # the same tensor for both, then two
        torch.tpu.flush()
        x.add_(x)
        x.add_(y)
        torch.tpu.flush()
        x.add_(y)
        x.add_(x)
        torch.tpu.compiler.wait()
    want = torch.ones(4)
    for _ in range(4):
        want = ((want * 2 + 1) + 1) * 2
    assert torch.equal(x.cpu(), want)


def test_reads_through_every_door():
    """A value kept back is there for whoever looks."""
    c = (torch.arange(4.0) + 1) * 3
    doors = {
        "item": lambda t: t[0].item() == c[0].item(),
        "tolist": lambda t: t.tolist() == c.tolist(),
        "cpu": lambda t: torch.equal(t.cpu(), c),
        "repr": lambda t: "12" in repr(t),
        "bool": lambda t: bool((t == c.to("tpu")).all()),
        "equal": lambda t: torch.equal(t, c.to("tpu")),
        "copy_": lambda t: torch.equal(torch.empty(4).copy_(t), c),
        "numpy": lambda t: t.cpu().numpy().sum() == c.sum().item(),
        "nonzero": lambda t: t.nonzero().shape == (4, 1),
        "mask": lambda t: t[t > 4].shape == (3,),
        "iteration": lambda t: [float(v) for v in t] == c.tolist(),
        "deepcopy": lambda t: torch.equal(__import__("copy").deepcopy(t).cpu(), c),
        "storage": lambda t: torch.equal(torch.tensor([], device="tpu").set_(t.untyped_storage(), 0, (4,)).cpu(), c),
        "non_blocking": lambda t: (torch.equal(t.to("cpu", non_blocking=True), c), torch.tpu.synchronize())[1] is None,
    }
    for name, look in doors.items():
        for _ in range(ROUNDS):
            t = (torch.arange(4.0, device="tpu") + 1) * 3
            assert look(t), name


# ---------------------------------------------------------------------------------------------------------------- random


def test_random_numbers_are_those_of_strict():
    def body():
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.4), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(
            "tpu"
        )
        x = torch.randn(6, 8, device="tpu")
        out = []
        for _ in range(4):
            y = model(x + torch.rand(6, 8, device="tpu"))
            y.sum().backward()
            out += [y.detach(), torch.bernoulli(torch.full((6,), 0.5, device="tpu")), torch.randint(0, 9, (5,), device="tpu")]
            out += [torch.empty(3, device="tpu").normal_(), torch.randperm(7, device="tpu")]
        return [t.cpu() for t in [*out, *(p.grad for p in model.parameters())]]

    with torch.tpu.set_eager_mode(STRICT):
        want = body()
    for _ in range(ROUNDS):
        for k, (g, w) in enumerate(zip(body(), want, strict=True)):
            torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-6, msg=lambda m, k=k: f"result {k}: {m}")
        torch.tpu.compiler.wait()


def test_random_numbers_differ_from_step_to_step():
    seen = set()
    for _ in range(6):
        torch.tpu.flush()
        seen.add(tuple(F.dropout(torch.ones(32, device="tpu"), 0.5).add(torch.rand(32, device="tpu")).tolist()))
        torch.tpu.compiler.wait()
    assert len(seen) == 6


# ---------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", [*test_mode.INDEXED, *test_mode.OTHERS])
def test_wrong_data_raises_when_read(name):
    """Also where the call is fused: good data first, so that its program is there, with another call before and after."""
    indexed = name in test_mode.INDEXED
    f = test_mode.INDEXED.get(name) or (lambda d, v: test_mode.OTHERS[name](d))
    want = test_mode._kind(lambda: f("cpu", 5))
    assert want is not None

    def body(v):
        one = torch.ones(2, device="tpu") * 2
        return f("tpu", v) * 1, one + 1

    for round_ in range(ROUNDS):
        torch.tpu.compiler.wait()
        torch.tpu.flush()
        if indexed and round_ < 2:
            body(0)[0].cpu()
            continue
        bad, other = body(5)
        with pytest.raises(want):
            bad.cpu()
        assert other.tolist() == [3, 3]
    test_mode._check_works()


def line_here(ago):
    """The caller's line so many lines before."""
    return sys._getframe(1).f_lineno - ago


def test_an_error_in_a_fused_program_names_the_op_and_its_line():
    x = torch.arange(12.0, device="tpu").reshape(3, 4)
    for at in (0, 1, 2, 1, 7):
        torch.tpu.flush()
        torch.tpu.compiler.wait()
        y = x.index_select(0, torch.full((2,), at, device="tpu")) * 2
        line = line_here(1)
        if at < 3:
            y.cpu()
        else:
            with pytest.raises((IndexError, RuntimeError), match=rf"index_select: .*index 7.*called at .*test_fuse.py:{line}\)"):
                y.cpu()
    assert (x + 1).sum().item() == 78


def test_an_error_names_all_lines_that_it_may_come_from():
    x = torch.arange(12.0, device="tpu").reshape(3, 4)
    for at in (0, 1, 2, 1, 7):
        torch.tpu.flush()
        torch.tpu.compiler.wait()
        i = torch.full((2,), at, device="tpu")
        y = x.index_select(0, i * 0)
        z = x.index_select(0, i)
        line = line_here(1)
        both = y + z
        if at < 3:
            both.cpu()
        else:
            with pytest.raises((IndexError, RuntimeError), match=rf"index 7.*called at .*:{line - 1} or at .*:{line}\)"):
                both.cpu()


def test_lines_are_asked_for_in_one_round_only():
    from torch_tpu import _mode
    from torch_tpu._core import core

    asked = []

    @_mode.LINE
    def ask(out, nbyte):
        asked.append(nbyte)
        _mode._tell_line(out, nbyte)

    core().ttc_set_line_source(ask)
    try:
        x, counts = torch.ones(6, device="tpu"), []
        for _ in range(70):  # what other tests asked for, and came no more, is given up
            x + 1
            torch.tpu.flush()
        asked.clear()
        for _ in range(8):
            torch.tpu.flush()
            torch.tpu.compiler.wait()
            ((x + 1) * 3).tanh().cpu()
            counts.append(len(asked))
    finally:
        core().ttc_set_line_source(_mode._tell_line)
    assert counts == [0, 0, *[3] * 6]


def test_a_wrong_shape_raises_at_its_own_line():
    a, b = torch.ones(3, 4, device="tpu"), torch.ones(5, 4, device="tpu")
    for _ in range(ROUNDS):
        y = (a + 1) * 2
        try:
            y @ b  # here
        except RuntimeError as e:
            frame = traceback.extract_tb(e.__traceback__)[-1]
            assert "# here" in frame.line and frame.filename == __file__, frame
        else:
            raise AssertionError("no error")
        with pytest.raises(RuntimeError):
            y + b
        with pytest.raises(TypeError):
            y.add_("1")
        assert (y * 3).tolist() == [[12.0] * 4] * 3  # the trace goes on
        torch.tpu.compiler.wait()


def test_anomaly_mode_and_hooks():
    w = torch.ones(4, device="tpu").requires_grad_()
    seen = []
    for _ in range(ROUNDS):
        w.grad = None
        y = w * 2
        y.register_hook(lambda g: seen.append(g.sum().item()) or g * 3)
        y.sum().backward()
        assert w.grad.tolist() == [6.0] * 4
        torch.tpu.compiler.wait()
    assert seen == [4.0] * ROUNDS


def test_a_loop_of_training_does_not_grow():
    def losses():
        model = torch.nn.Linear(64, 64).to("tpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(60):
            optimizer.zero_grad()
            model(torch.ones(8, 64, device="tpu")).square().mean().backward()
            optimizer.step()
        torch.tpu.synchronize()

    losses()
    before = torch.tpu.memory_allocated()
    losses()
    assert torch.tpu.memory_allocated() <= before + (1 << 16)


# -------------------------------------------------------------------------------------------------------------- every op


@pytest.mark.parametrize("case", opfuse.sampled_cases(), ids=lambda c: c.id.replace(" ", "-"))
def test_op(case):
    """`make fuse` runs every op."""
    try:
        opfuse.Runner(case, count=2).run()
    except opcase.Nothing as e:
        pytest.skip(str(e))


# --------------------------------------------------------------------------------------------- beside other ways to run


def test_compiled_functions_in_the_midst_of_a_trace():
    compiled = torch.compile(lambda a, b: (a * b).relu() + 1, backend="tpu")
    x, y = torch.arange(4.0, device="tpu"), torch.full((4,), 2.0, device="tpu")
    for _ in range(4):
        a = x + 1
        b = compiled(a, y) * 2
        a.mul_(10)
        torch.tpu.flush()
        assert b.tolist() == [6.0, 10.0, 14.0, 18.0] and a.tolist() == [10.0, 20.0, 30.0, 40.0]
        torch.tpu.compiler.wait()


def test_autocast_and_checkpoints():
    def body(device):
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
        x = torch.linspace(-1, 1, 16).reshape(2, 8).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        y.float().sum().backward()
        return [y.detach().float().cpu(), *(p.grad.cpu() for p in model.parameters())]

    want = body("cpu")
    for got in (again(lambda: body("tpu")),):
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=3e-2, atol=3e-2)
