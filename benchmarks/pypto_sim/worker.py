"""The simulator's process: ``python -m benchmarks.pypto_sim.worker``, requests on stdin, results on stdout.

What pypto does not offer without CANN is put in place here, in this process only: it copies the inputs of
the verification from a device, so that they would all be zeros; it builds its calculator anew; it asks
torch_npu for the layout of a tensor.
"""

import contextlib
import csv
import ctypes
import json
import os
import pickle
import re
import select
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from benchmarks.pypto_sim.calculator import calculator
from benchmarks.pypto_sim.simulator import Case, PassCheck, Request, Result, Task

CYCLES = 1800  # a microsecond of the cost model
TAIL = 3000  # characters of output that an error message keeps


def main() -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    import pypto  # noqa: F401
    import torch

    torch.set_num_threads(1)  # a fork does not take over the threads of a pool
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(fork(request), answers)
        answers.flush()


def fork(request: Request) -> Result | str:
    """The answer of a child process, or what is known of its death."""
    folder = Path(tempfile.mkdtemp(prefix="pypto-sim-"))
    try:
        child = os.fork()
        if child == 0:
            _child(request, folder)
        status = _wait(child, request.timeout)
        answer = folder / "answer"
        if answer.exists():
            result: Result | str = pickle.loads(answer.read_bytes())
            return result
        return f"the process {status}\n{_tail(folder / 'log')}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(child: int, timeout: float) -> str:
    """Wait for the child and say how it ended; end it when the time is over."""
    watch = os.pidfd_open(child)
    try:
        if not select.select([watch], [], [], timeout)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"took more than {timeout:.0f} s"
    finally:
        os.close(watch)
    return f"ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"


def _child(request: Request, folder: Path) -> None:
    log = os.open(folder / "log", os.O_CREAT | os.O_RDWR, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        answer: Result | str = _simulate(request, folder)
    except Exception as error:
        _flush()
        answer = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-TAIL:]}{_tail(folder / 'log')}"
    (folder / "answer.new").write_bytes(pickle.dumps(answer))
    (folder / "answer.new").rename(folder / "answer")
    os._exit(0)


def _simulate(request: Request, folder: Path) -> Result:
    import pypto
    from pypto import pypto_impl
    from pypto.runtime import set_verify_golden_data

    os.environ["TILE_FWK_OUTPUT_DIR"] = str(folder)
    case = request.case(**request.arguments)
    _patch(set(case.nz))
    kernel = case.kernel
    kernel._runtime_options = {**(kernel._runtime_options or {}), "run_mode": int(pypto.RunMode.SIM)}
    if request.passes is not None:
        kernel._verify_options = {
            "enable_pass_verify": True,
            "pass_verify_pass_filter": list(request.passes),
            "pass_verify_error_tol": list(request.tolerance),
        }
        # The interpreter writes out only tensors for which it was given something to compare with.
        set_verify_golden_data(
            goldens=[t.clone() if i in case.written else None for i, t in enumerate(case.tensors)]
        )
    before = {i: t.clone() for i, t in enumerate(case.tensors) if i not in case.written}
    kernel(*case.tensors, *case.scalars)
    _flush()
    home = Path(pypto_impl.LogTopFolder())
    text = (folder / "log").read_text(errors="replace")
    elapsed = re.search(r"AICore End-to-End Time: ([\d.]+)", text)
    used = re.search(r"AICore Utilization:\s+([\d.]+)", text)
    if elapsed is None or used is None:
        raise RuntimeError("pypto reported no simulated time")
    changed = [i for i, old in before.items() if not _same(old, case.tensors[i])]
    if changed:
        raise RuntimeError(f"the kernel wrote into its inputs {changed}")
    outputs, checks = None, ()
    if request.passes is not None:
        outputs, checks = _verified(case, home)
    return Result(outputs, float(elapsed[1]), float(used[1]), _tasks(home), checks)


def _same(old: Any, new: Any) -> bool:
    import torch

    return torch.equal(old.reshape(-1).view(torch.uint8), new.reshape(-1).view(torch.uint8))


def _patch(nz: set[str]) -> None:
    import pypto
    from pypto import pypto_impl
    from pypto._utils import BuildOnlineManager
    from pypto.frontend.parser import entry
    from pypto.runtime import _pto_verify_datas

    def load(self: Any) -> None:
        if not self.calculator_loaded:
            ctypes.CDLL(str(calculator()), mode=ctypes.RTLD_GLOBAL)
            self.calculator_loaded = True

    def hand_over(tensors: Any) -> None:
        if pypto.get_verify_options().get("enable_pass_verify"):
            BuildOnlineManager().build_and_load_calculator()
            datas = entry._pto_to_tensor_data(tensors)
            pypto_impl.SetVerifyData(datas, [], _pto_verify_datas.get_data())

    def convert(tensors: Any, definitions: Any) -> list[Any]:
        return [_convert(t, d, d.name in nz) for t, d in zip(tensors, definitions, strict=True)]

    BuildOnlineManager.build_and_load_calculator = load
    entry.JitCallableWrapper._setup_verify_data = staticmethod(hand_over)
    if nz:
        entry.JitCallableWrapper._convert_tensors_with_metadata = staticmethod(convert)


def _convert(tensor: Any, definition: Any, nz: bool) -> Any:
    import pypto

    dynamic = [
        i
        for i, size in enumerate(definition.shape)
        if isinstance(size, pypto.SymbolicScalar) or size in (pypto.StatusType.DYN, pypto.StatusType.DYNAMIC)
    ]
    return pypto.from_torch(
        tensor,
        name=definition.name,
        dynamic_axis=dynamic or None,
        dtype=None if definition.status_dtype is None else definition.dtype,
        tensor_format=pypto.TileOpFormat.TILEOP_NZ if nz else None,
    )


def _verified(case: Case, home: Path) -> tuple[tuple[Any, ...], tuple[PassCheck, ...]]:
    """The outputs of the tensor graph, and how each pass compared with it."""
    import torch

    folder = max(home.glob("verify_*"))
    outputs: dict[int, Any] = {}
    checks = []
    with (folder / "verify_result_brief.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        if row["passName"] != "tensor_graph":
            checks.append(PassCheck(row["passName"], row["outputTensor"], _passed(row), str(row)))
            continue
        position = int(row["ioflag"][6:])
        if position in case.written:
            like = case.tensors[position]
            raw = bytearray(next(folder.rglob(row["outputTensor"])).read_bytes())
            outputs[position] = torch.frombuffer(raw, dtype=like.dtype).reshape(like.shape)
    return tuple(outputs[i] for i in case.written), tuple(checks)


def _passed(row: dict[str, str]) -> bool:
    return any(value == "PASS" for value in row.values())


def _tasks(home: Path) -> tuple[Task, ...]:
    lanes = json.loads(next(home.rglob("_simulate.swim.json")).read_text())
    tasks = [
        (f"{lane['coreType']}{lane['blockIdx']}", task["subGraphId"], task["execStart"], task["execEnd"])
        for lane in lanes
        for task in lane["tasks"]
    ]
    zero = min((start for _, _, start, _ in tasks), default=0)
    return tuple(
        Task(core, graph, (start - zero) / CYCLES, (end - zero) / CYCLES)
        for core, graph, start, end in sorted(tasks, key=lambda task: task[2])
    )


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # pypto keeps its files open and buffered


def _tail(log: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return log.read_text(errors="replace")[-TAIL:]
    return ""


if __name__ == "__main__":
    main()
