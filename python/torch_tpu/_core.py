"""The core's own functions (``include/ttc_see.h``), for what needs no tensor."""

from __future__ import annotations

import ctypes
import functools
import pathlib

FETCH = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
STORE = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
LINE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)


@functools.cache
def core() -> ctypes.CDLL:
    """The library that the adapter has loaded."""
    lib = ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib" / "libttc.so"))
    lib.ttc_tier_set.argtypes, lib.ttc_tier_set.restype = [FETCH, STORE], None
    lib.ttc_tier_give.argtypes, lib.ttc_tier_give.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t], None
    lib.ttc_tier_hits.argtypes, lib.ttc_tier_hits.restype = [], ctypes.c_uint64
    lib.ttc_cache_dir.argtypes, lib.ttc_cache_dir.restype = [], ctypes.c_char_p
    lib.ttc_cache_used.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    lib.ttc_cache_used.restype = ctypes.c_size_t
    lib.ttc_dump_to.argtypes, lib.ttc_dump_to.restype = [ctypes.c_char_p], None
    lib.ttc_compile_only.argtypes, lib.ttc_compile_only.restype = [ctypes.c_bool], ctypes.c_bool
    lib.ttc_set_line_source.argtypes, lib.ttc_set_line_source.restype = [LINE], None
    lib.ttc_graph_source.argtypes, lib.ttc_graph_source.restype = [ctypes.c_char_p, ctypes.c_int], None
    return lib


def cache_dir() -> pathlib.Path | None:
    """Where programs are kept; None while there is no cache."""
    path = core().ttc_cache_dir().decode()
    return pathlib.Path(path) if path else None


def used() -> set[str]:
    """Names of the programs that this process compiled or loaded."""
    n = core().ttc_cache_used(0, 0, None)
    names = ctypes.create_string_buffer(65 * n + 1)
    n = min(n, core().ttc_cache_used(0, n, names))
    return {names.raw[65 * i : 65 * i + 64].decode() for i in range(n)}
