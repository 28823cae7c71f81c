"""Seeing what is compiled: what ``torch.tpu.compile_stats`` tells of graphs, dumps, and the lines of Python that ops come from."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

from torch import fx

from torch_tpu._core import core
from torch_tpu._decompose import GraphBuilder, Untraceable

made = {"graphs": 0, "loaded": 0}
"""Graphs that the backend was given, and those of them that PyTorch's cache had."""

# ------------------------------------------------------------------------------------------------------------- lines

_FRAME = re.compile(r'File "(.+)", line (\d+)')


def line_of(node: fx.Node) -> tuple[str, int] | None:
    """File and line of the Python code that asked for ``node``, as far as tracing knows."""
    stack = node.meta.get("stack_trace")
    found = _FRAME.match(stack, max(stack.rfind('File "'), 0)) if stack else None
    return (found[1], int(found[2])) if found else None


def told(node: fx.Node) -> str:
    """The op and its line, for messages."""
    where = line_of(node)
    return f"{node.target} at {where[0]}:{where[1]}" if where else str(node.target)


def source(node: fx.Node | None) -> None:
    """Nodes that are appended to graphs from now on come from this one's line."""
    where = line_of(node) if node is not None else None
    core().ttc_graph_source(*((where[0].encode(errors="replace"), where[1]) if where else (None, 0)))


def add(builder: GraphBuilder, node: fx.Node) -> None:
    """Append ``node`` to the graph, with the line it comes from.

    Raises:
        Untraceable, NotImplementedError: if it has no place in a graph.
        RuntimeError: for any other fault, which is ours.
    """
    source(node)
    try:
        builder.call(node)
    except (Untraceable, NotImplementedError) as e:
        raise type(e)(f"{e} ({told(node)})") from e
    except Exception as e:
        raise RuntimeError(
            f"{told(node)} could not be made part of a program: {type(e).__name__}: {e}\n"
            "This is a fault of torch_tpu: please report it, with the folder that TORCH_TPU_DUMP=<folder> fills. "
            "Until it is mended, torch.compiler.disable runs the function that it is in op by op."
        ) from e
    finally:
        source(None)


# ------------------------------------------------------------------------------------------------------------- dumps

_dumps: list[pathlib.Path] = []
if os.environ.get("TORCH_TPU_DUMP"):
    _dumps.append(pathlib.Path(os.environ["TORCH_TPU_DUMP"]).absolute())


def dump_to(folder: str | os.PathLike[str] | None) -> None:
    """Dump what is compiled from now on into ``folder``; None ends the last such call."""
    if folder is None:
        _dumps.pop()
    else:
        path = pathlib.Path(folder).absolute()
        path.mkdir(parents=True, exist_ok=True)
        _dumps.append(path)
    core().ttc_dump_to(os.fsencode(_dumps[-1]) if _dumps else None)


@contextlib.contextmanager
def dumping(folder: str | None) -> Iterator[None]:
    """Dump what is compiled in the block into ``folder``, if there is one."""
    if folder is not None:
        dump_to(folder)
    try:
        yield
    finally:
        if folder is not None:
            dump_to(None)


def dump_graph(name: str, module: fx.GraphModule) -> None:
    """Write the graph under this name, if anything is dumped."""
    if _dumps:
        text = module.print_readable(print_output=False, include_stride=True, include_device=True)
        (_dumps[-1] / f"graph_{made['graphs']:04d}_{name}.py.txt").write_text(text)


# ------------------------------------------------------------------------------------------------------------- Dynamo


def recompiles() -> list[dict[str, str]]:
    """The functions that Dynamo compiled again, oldest first: which, where it begins, and the guard that did not hold."""
    from torch._dynamo.utils import get_compilation_metrics

    return [
        {"function": m.co_name or "", "line": f"{m.co_filename}:{m.co_firstlineno}", "reason": m.recompile_reason}
        for m in get_compilation_metrics()
        if m.recompile_reason
    ]
