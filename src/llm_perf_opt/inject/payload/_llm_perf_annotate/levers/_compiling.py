"""What the levers that compile share. `Module.compile()` leaves the module the one the program made."""

from __future__ import annotations

from typing import Any


def compile_models(program: Any, **options: Any) -> None:
    def compile_model(module: Any) -> None:
        if module.__dict__.get("_compiled_call_impl") is not None or type(module).__name__ == "OptimizedModule":
            program.count("models compiled by the program")
            return
        if module.training:  # dropout as the program draws it, or no loss could be compared
            import torch._inductor.config as inductor

            inductor.fallback_random = True
        module.compile(**options)
        program.count("models compiled")

    program.on_model(compile_model)


def evidence(program: Any, *, graphs: bool = False) -> tuple[bool, str]:
    """By torch's own counts. `graphs`: CUDA graphs are part of it."""
    if program.counts.get("models compiled by the program"):
        return False, "the program compiles its model itself"
    if not program.counts.get("models compiled"):
        return False, "no model was called"
    from torch._dynamo.utils import counters

    compiled, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    if not compiled:
        why = next(iter(counters["graph_break"]), "") or "nothing was compiled"
        return False, f"torch.compile fell back: {why[:200]}"
    text = f"{compiled} graph{'s' * (compiled > 1)} compiled"
    text += f", {breaks} graph break{'s' * (breaks > 1)}" if breaks else ""
    replays = program.counts.get("graph replays", 0)
    if not graphs:
        return True, text
    if replays:
        return True, f"{text}, CUDA graphs replayed {replays} times"
    why = counters["inductor"].get("cudagraph_skips", 0)
    on_gpu = program.torch.cuda.is_initialized()
    return False, f"{text}, but no CUDA graph was replayed: " + (
        f"skipped {why} times" if why else "mutated inputs or changing shapes" if on_gpu else "there is no GPU"
    )
