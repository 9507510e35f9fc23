"""A CUDA graph captured inside ranges, replayed six times, and once the same work without the graph."""

import nvtx
import torch

torch.manual_seed(0)
layers = [torch.nn.Linear(1024, 1024).cuda().bfloat16() for _ in range(3)]
x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)


def forward(x):
    for i, layer in enumerate(layers):
        with nvtx.annotate(f"block{i}", domain="LLM"):
            with nvtx.annotate("mlp", domain="LLM"):
                x = torch.relu(layer(x))
            with nvtx.annotate("norm", domain="LLM"):
                x = torch.nn.functional.layer_norm(x.float(), (1024,)).bfloat16()
    return x


stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.inference_mode(), torch.cuda.stream(stream):
    for _ in range(3):
        forward(x)
torch.cuda.current_stream().wait_stream(stream)
torch.cuda.synchronize()

graph = torch.cuda.CUDAGraph()
with torch.inference_mode(), torch.cuda.graph(graph), nvtx.annotate("capture", domain="LLM"):
    y = forward(x)
torch.cuda.synchronize()

with nvtx.annotate("replay_all", domain="LLM"):
    for _ in range(6):
        with nvtx.annotate("decode_step", domain="LLM"):
            graph.replay()
    torch.cuda.synchronize()
with torch.inference_mode(), nvtx.annotate("eager", domain="LLM"):
    forward(x)
    torch.cuda.synchronize()
print("ok")
