"""What those that die say last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.simulator.plan import RANKS, Plan

if TYPE_CHECKING:
    from pipeline.simulator.script import Log

TORCHRUN_PID = 4070
RANK_PIDS = {rank: 4081 + rank for rank in RANKS}
API_PID = 4020
ENGINE_PID = 4021
CODE = "/opt/prime-rl/src/prime_rl"
TORCH = "/opt/prime-rl/.venv/lib/python3.12/site-packages/torch"

OUT_OF_MEMORY = f"""Traceback (most recent call last):

  File "<frozen runpy>", line 198, in _run_module_as_main

> File "{CODE}/utils/utils.py", line 71, in sync_wrapper
    ret = func(*args, **kwargs)
          │     │       └ {{{{}}}}
          │     └ (TrainerConfig(model=ModelConfig(name='Qwen/Qwen3-0.6B', seq_len=4096...
          └ <function train at 0x7f03f0db8fe0>

  File "{CODE}/trainer/rl/train.py", line 412, in train
    loss.backward()
    │    └ <function Tensor.backward at 0x7f0407d7d8a0>
    └ tensor(0.0021, device='cuda:{{rank}}', grad_fn=<DivBackward0>)

  File "{TORCH}/autograd/graph.py", line 829, in _engine_run_backward
    return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass

torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU {{rank}} has a total capacity of 79.11 GiB \
of which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.06 GiB memory in use. Of the allocated \
memory 74.90 GiB is allocated by PyTorch, and 1.83 GiB is reserved by PyTorch but unallocated."""

CHILD_FAILED = f"""Traceback (most recent call last):
  File "/opt/prime-rl/.venv/bin/torchrun", line 10, in <module>
    sys.exit(main())
             ^^^^^^
  File "{TORCH}/distributed/run.py", line 901, in run
    elastic_launch(
  File "{TORCH}/distributed/launcher/api.py", line 277, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
prime_rl.trainer.rl.train FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : {{time}}
  host      : node-0
  rank      : {{victim}} (local_rank: {{victim}})
  exitcode  : -15 (pid: {{victim_pid}})
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID {{victim_pid}}
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : {{time}}
  host      : node-0
  rank      : {{rank}} (local_rank: {{rank}})
  exitcode  : 1 (pid: {{pid}})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""

ENGINE_FATAL = """EngineCore encountered a fatal error.
Traceback (most recent call last):
  File "/opt/prime-rl/.venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 1131, in run_engine_core
    engine_core.run_busy_loop()
  File "/opt/prime-rl/.venv/lib/python3.12/site-packages/vllm/v1/core/sched/scheduler.py", line 1067, in _free_blocks
    del self.requests[request.request_id]
KeyError: 'generate-5f0c7c1e'"""

ENGINE_DEAD = """AsyncLLM output_handler failed.
Traceback (most recent call last):
  File "/opt/prime-rl/.venv/lib/python3.12/site-packages/vllm/v1/engine/core_client.py", line 880, in get_output_async
    raise self._format_exception(outputs) from None
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. \
See stack trace (above) for the root cause."""

NOTHING_TRAINABLE = f"""Traceback (most recent call last):

> File "{CODE}/utils/utils.py", line 88, in async_wrapper
    ret = await func(*args, **kwargs)

  File "{CODE}/orchestrator/orchestrator.py", line 521, in main_loop
    raise RuntimeError(

RuntimeError: 10 consecutive zero-output batch equivalents — check algorithm credit and task difficulty."""


def out_of_memory(logs: list[Log], at_s: float, rank: int) -> None:
    """Write the last words of a trainer rank, in each of the files that take them."""
    for log in logs:
        log.record(at_s, "ERROR", "Fatal error in train")
        log.raw(at_s, OUT_OF_MEMORY.format(rank=rank))


def torchrun_gives_up(log: Log, at_s: float, rank: int) -> None:
    """Write how torchrun ends the other rank and reports the one that failed first."""
    plan = log.script.plan
    (victim,) = set(RANKS) - {rank}
    module = "torch/distributed/elastic/multiprocessing/api.py"
    log.raw(at_s, f"{_glog(plan, at_s, 'W')} {module}:1010] {_closing(plan, victim)}")
    who = f"local_rank: {rank} (pid: {plan.pid(RANK_PIDS[rank])})"
    exited = f"failed (exitcode: 1) {who} of binary: /opt/prime-rl/.venv/bin/python"
    log.raw(at_s + 0.6, f"{_glog(plan, at_s + 0.6, 'E')} {module}:984] {exited}")
    block = CHILD_FAILED.format(
        time=f"{plan.clock(at_s):%Y-%m-%d_%H:%M:%S}",
        rank=rank,
        pid=plan.pid(RANK_PIDS[rank]),
        victim=victim,
        victim_pid=plan.pid(RANK_PIDS[victim]),
    )
    log.raw(at_s + 0.7, block)


def torchrun_terminated(log: Log, at_s: float) -> None:
    """Write how torchrun ends when the launcher ends it."""
    plan = log.script.plan
    module = "torch/distributed/elastic/agent/server/api.py"
    for rank in RANKS:
        log.raw(at_s, f"{_glog(plan, at_s, 'W')} {module}:725] {_closing(plan, rank)}")
    agent = f"Process {plan.pid(TORCHRUN_PID)}"
    reason = f"torch.distributed.elastic.multiprocessing.api.SignalException: {agent} got signal: 15"
    log.raw(at_s + 0.5, f'Traceback (most recent call last):\n  File "{TORCH}/distributed/run.py", line 901\n{reason}')


def engine_dies(log: Log, at_s: float) -> None:
    """Write how an engine dies, and how the server in front of it notices."""
    api, engine = vllm_processes(log.script.plan)
    _vllm(log, at_s, engine, "core.py:1140", ENGINE_FATAL)
    _vllm(log, at_s + 0.4, api, "async_llm.py:780", ENGINE_DEAD)
    farewell = "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
    _vllm(log, at_s + 5.0, api, "core_client.py:560", farewell)


def vllm_processes(plan: Plan) -> tuple[str, str]:
    """Return how the server and the engine sign their lines."""
    return f"APIServer pid={plan.pid(API_PID)}", f"EngineCore_DP0 pid={plan.pid(ENGINE_PID)}"


def orchestrator_gives_up(log: Log, at_s: float, ran: str) -> None:
    """Write how the orchestrator ends when nothing trainable arrives any more."""
    log.record(
        at_s - 1.5, "WARNING", f"Orchestrator interrupted after {ran.strip()} — forcing cleanup (not a clean exit)"
    )
    log.record(at_s - 0.5, "WARNING", "Orchestrator cleanup complete (forced).")
    log.record(at_s - 0.2, "ERROR", "Fatal error in run_orchestrator")
    log.raw(at_s - 0.2, NOTHING_TRAINABLE)


def _vllm(log: Log, at_s: float, process: str, place: str, text: str) -> None:
    """Write a record as vLLM does: its header before each line, carriage returns between them."""
    header = f"({process}) ERROR {log.script.plan.clock(at_s):%m-%d %H:%M:%S} [{place}]"
    log.raw(at_s, "\r\n".join(f"{header} {line}" for line in text.split("\n")))


def _glog(plan: Plan, at_s: float, level: str) -> str:
    return f"{level}{plan.clock(at_s):%m%d %H:%M:%S.%f} {plan.pid(TORCHRUN_PID)}"


def _closing(plan: Plan, rank: int) -> str:
    return f"Sending process {plan.pid(RANK_PIDS[rank])} closing signal SIGTERM"
