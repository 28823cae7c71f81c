"""Check that includes point down the layers: a file sees its own folder and lower ranks. Besides, pjrt_c_api.h is seen by
src/pjrt and the fake plugin alone, and adapter/ sees ttc.h alone.

    python3 tools/check_layers.py
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = {"base": 0, "type": 1, "shlo": 2, "pjrt": 2, "op": 3, "graph": 4, "cache": 4, "run": 5, "plan": 6, "api": 7}
SUFFIXES = {".c", ".h", ".cc", ".cpp", ".hpp", ".inc"}
INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')


def fault(path: pathlib.PurePath, included: str) -> str | None:
    """Why `path` (from the repository's root) may not include `included`, or None if it may."""
    top, folder = path.parts[0], path.parts[1] if len(path.parts) > 2 else ""
    name = pathlib.PurePath(included).name
    if name == "pjrt_c_api.h" or name.startswith("pjrt_c_api_"):
        allowed = (top, folder) == ("src", "pjrt") or path.as_posix().startswith("tests/core/fake_")
        return None if allowed else "only src/pjrt and the fake plugin (tests/core/fake_*) know pjrt_c_api.h"
    # "dtype.h" beside the includer, or "type/dtype.h", or "../type/dtype.h"
    beside = (ROOT / path).parent / included
    target = beside if beside.exists() else ROOT / "src" / included
    try:
        parts = target.resolve().relative_to(ROOT / "src").parts
    except ValueError:
        return None
    if not target.exists() or len(parts) < 2:
        return None
    if top in ("adapter", "include"):
        return "sees no header of the core but ttc.h"
    if top != "src" or parts[0] == folder:
        return None
    if folder not in RANKS or parts[0] not in RANKS:
        return f"no rank for {folder if folder not in RANKS else parts[0]}"
    if RANKS[parts[0]] >= RANKS[folder]:
        return f"{folder} has rank {RANKS[folder]}, {parts[0]} has {RANKS[parts[0]]}"
    return None


def main() -> int:
    faults = 0
    for top in ("include", "src", "adapter", "tests"):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                found = INCLUDE.match(line)
                why = fault(file.relative_to(ROOT), found[1]) if found else None
                if found and why:
                    print(f"{file.relative_to(ROOT)}:{number}: includes {found[1]}: {why}")
                    faults += 1
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
