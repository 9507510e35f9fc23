"""What the stand-ins of engines run: next to nothing on a CPU, a few large products on a GPU."""

import torch


def small_model() -> tuple[torch.nn.Module, int, str]:
    """The model, how wide its input is, and where it is."""
    width, layers, device = (4096, 12, "cuda") if torch.cuda.is_available() else (64, 2, "cpu")
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    return model.to(device), width, device
