"""Run the numerical tests as other CPUs would: the same numbers, other last bits.

Libraries choose their code by CPU: vectors of other lengths, with or without fused multiply-add, sums in
another order. Each setting below makes torch, MKL, oneDNN, NumPy, OpenBLAS and Numba choose as on another
machine, and every test must hold there too. Three more move last bits whatever the CPU: see nudge.py.
`make test-cpus`, or for one folder and some settings `python tests/cpus.py tests/server --only sse avx2`.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parent
FOLDERS = [
    "server",
    "theory",
    "device",
    "kernels",
    "uplink",
    "simulation",
    "experiments/workers/test_shards.py",
]


def without(*words: str) -> dict[str, str]:
    """Settings for NumPy and Numba that switch off every CPU feature whose name holds one of the words."""
    import llvmlite.binding
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    def named(feature: str) -> bool:
        return any(word in feature.upper() for word in words)

    numpy_has = [name for name in __cpu_dispatch__ if __cpu_features__.get(name) and named(name)]
    numba_has = llvmlite.binding.get_host_cpu_features()
    kept = [f"{'+' if has and not named(name) else '-'}{name}" for name, has in numba_has.items()]
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(numpy_has), "NUMBA_CPU_FEATURES": ",".join(kept)}


def settings() -> dict[str, dict[str, str]]:
    """Environment variables by name of the setting."""
    one = {"OMP_NUM_THREADS": "1"}
    found = {
        "one-thread": one,
        "two-threads": dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2"),
        "numba-generic": one | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
    }
    for salt in "123":
        found[f"nudged-{salt}"] = one | {"NUDGE": salt}
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return found
    avx512 = {"OPENBLAS_CORETYPE": "SkylakeX", "MKL_CBWR": "AVX512", "NUMBA_CPU_NAME": "skylake-avx512"}
    avx2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    avx2 |= {"OPENBLAS_CORETYPE": "Haswell", "NUMBA_CPU_NAME": "haswell"} | without("512", "X86_V4")
    torch_sse = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    sse = torch_sse | {"OPENBLAS_CORETYPE": "Prescott", "NUMBA_CPU_NAME": "x86-64"}
    sse |= without("512", "X86_V4", "X86_V3", "AVX", "FMA", "F16C", "VAES", "VPCLMUL")
    more = {"avx512": avx512, "avx2": avx2, "torch-sse": torch_sse, "sse": sse}
    return found | {name: one | values for name, values in more.items()}


def main() -> int:
    """Run pytest once a setting; return 1 if any run failed."""
    every = settings()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", help="by default the numerical folders")
    parser.add_argument("--only", nargs="+", choices=every, default=list(every), help="some settings")
    options = parser.parse_args()
    failed = []
    for name in options.only:
        # Compiled code of its own: a cache shared with other settings would be used in place of it.
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | every[name] | {"NUMBA_CACHE_DIR": cache}
            paths, plugin = options.paths or [str(TESTS / folder) for folder in FOLDERS], []
            if "NUDGE" in environment:  # not what is compared bit by bit with compiled code
                paths = options.paths or [str(TESTS / folder) for folder in FOLDERS[:2]]
                plugin = ["-p", "nudge"]
                environment["PYTHONPATH"] = f"{TESTS}{os.pathsep}{environment.get('PYTHONPATH', '')}"
            print(f"== {name}: {' '.join(f'{k}={v[:60]}' for k, v in every[name].items())}", flush=True)
            began = time.monotonic()
            command = [sys.executable, "-m", "pytest", *plugin, *paths]
            code = subprocess.run(command, env=environment).returncode
        print(
            f"== {name}: {'passed' if code == 0 else 'FAILED'}, {time.monotonic() - began:.0f} s", flush=True
        )
        failed += [name] if code != 0 else []
    print(f"failed: {', '.join(failed)}" if failed else f"all {len(options.only)} settings passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
