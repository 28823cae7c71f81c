"""Print the folder of pjrt_c_api.h inside the installed xla-cpu-pjrt wheel (used by CMakeLists.txt at configure time)."""

import importlib.metadata
import pathlib
import sys

try:
    files = importlib.metadata.files("xla-cpu-pjrt") or []
except importlib.metadata.PackageNotFoundError:
    files = []
for file in files:
    if file.name == "pjrt_c_api.h":
        print(pathlib.Path(str(file.locate())).resolve().parent)
        sys.exit(0)
sys.exit("xla-cpu-pjrt is not installed")
