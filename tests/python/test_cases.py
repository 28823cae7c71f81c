"""Cases of what went wrong in other backends, where TORCH_TPU_CASES names a folder of them: what passes in Strict passes in
DeferAndFuse, while calls run one by one, while programs are made, and once they are there."""

import os
import subprocess
import sys

import pytest
from child import PACKAGE

CASES = os.environ.get("TORCH_TPU_CASES")
CODE = """
import os, sys, warnings
sys.path.insert(0, os.environ["TORCH_TPU_CASES"])
warnings.filterwarnings("ignore")
import run_cases, torch

def outcome(path):
    what, text = run_cases.one(path, "tpu", 100)
    torch.tpu.synchronize()
    torch.tpu.compiler.wait()
    return what, text

assert torch.tpu.eager_mode == torch.tpu.EagerMode.FUSE
failed, before = [], torch.tpu.fuse_stats()
for path in sorted(run_cases.CASES.glob("[0-9]*.py")):
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.STRICT):
        if outcome(path)[0] == "fail":
            print("fails in Strict:", path.stem)
            continue
    for round_ in range(3):
        what, text = outcome(path)
        if what == "fail":
            failed.append(f"{path.stem}, time {round_ + 1}: {text}")
            break
after = torch.tpu.fuse_stats()
print({k: after[k] - before[k] for k in ("nodes", "hits", "fused", "programs", "failed")}, *failed, sep="\\n")
sys.exit(len(failed) != 0 or after["fused"] == before["fused"])
"""


@pytest.mark.skipif(not CASES, reason="TORCH_TPU_CASES names no cases")
def test_cases_pass_in_defer_and_fuse() -> None:
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "TORCH_TPU_DEFER_AND_FUSE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
