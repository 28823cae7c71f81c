"""Check that functions have at most 60 lines, files 800 and headers 400. Where more is right, say why on the first line of the
function or the file, in a comment: `size-waiver: reason`.

    python3 tools/check_sizes.py
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "adapter", "python", "tests", "tools", "bench", "examples")
MAX_FUNCTION, MAX_FILE, MAX_HEADER = 60, 800, 400
WAIVER = re.compile(r"size-waiver: \S")
# In the pinned clang-format style: the line that opens a body, of a function (indent 0) or a C++ member (indent 2).
OPENING = re.compile(
    r"(?P<indent>(?:  )?)(?!\s|#|//|\}|(?:if|for|while|switch|do|else|return|namespace|enum|extern|try|catch)\b)"
    r"[^=]*\).*\{(?:\s*(?://|/\*).*)?$"
)


def c_functions(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First and last line (from 0) of each function."""
    at = 0
    while at < len(lines):
        found = OPENING.match(lines[at])
        if not found:
            # A wrapped signature's last line is indented deeper, and opens a body as well.
            wrapped = re.search(r"\)[^;=]*\{$", lines[at]) and re.match(r"\s{4}", lines[at])
            start = at
            while wrapped and start > 0 and re.match(r"\s{4}", lines[start]):
                start -= 1
            found = re.match(r"(?P<indent>(?:  )?)[A-Za-z_~][^=;]*\([^;]*,$", lines[start]) if wrapped else None
            if not found or re.match(r"\s*(if|for|while|switch|return|else)\b", lines[start]):
                at += 1
                continue
        else:
            start = at
        end = next((k for k in range(at, len(lines)) if lines[k].startswith(found["indent"] + "}")), len(lines) - 1)
        yield start, end
        at = end + 1


def py_functions(text: str) -> Iterator[tuple[int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno - 1, (node.end_lineno or node.lineno) - 1


def offences(file: pathlib.Path) -> Iterator[str]:
    text = file.read_text()
    lines = text.splitlines()
    limit = MAX_HEADER if file.suffix in (".h", ".hpp") else MAX_FILE
    if len(lines) > limit and not WAIVER.search(lines[0]):
        yield f"{file.relative_to(ROOT)}:1: {len(lines)} lines, at most {limit}"
    for start, end in py_functions(text) if file.suffix == ".py" else c_functions(lines):
        if end - start + 1 > MAX_FUNCTION and not WAIVER.search(lines[start]):
            yield f"{file.relative_to(ROOT)}:{start + 1}: function of {end - start + 1} lines, at most {MAX_FUNCTION}"


def main() -> int:
    faults = 0
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".c", ".h", ".cc", ".cpp", ".hpp", ".py") and file.is_file():
                for offence in offences(file):
                    print(offence)
                    faults += 1
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
