"""Everything one does with a model, and how it comes out: printed, to be compared with a run without annotation."""

import copy
import gc
import inspect
import io
import pickle
import weakref

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(0, 128, (1, 8))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


small, x = Small().eval(), torch.randn(2, 4)
with torch.no_grad():
    logits, out = model(prompt).logits, small(x)
print("signature", inspect.signature(model.forward))
print("generate", list(inspect.signature(model.generate).parameters))
print("state", list(model.state_dict()))
print("modules", [name for name, _ in model.named_modules()])


def equal(other: nn.Module) -> bool:
    with torch.no_grad():
        return torch.equal(other(x), out)


print("deepcopy", equal(copy.deepcopy(small)), "copy", equal(copy.copy(small)))
buffer = io.BytesIO()
torch.save(small, buffer)
print("saved", equal(torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)), b"llm_perf" in buffer.getvalue())
print("pickle", pickle.dumps(model).count(b"_compiled_call_impl"), b"llm_perf" in pickle.dumps(model))

shallow = Small.__new__(Small)
shallow.__dict__ = small.__dict__.copy()
shallow._modules = {**small._modules, "first": nn.Linear(4, 4, bias=False)}
print("shares the dictionary", not equal(shallow))
replica = small._replicate_for_data_parallel()
replica._modules = {**small._modules, "first": nn.Linear(4, 4, bias=False)}
print("replica", not equal(replica))

print("fx", [(n.op, str(n.target)) for n in torch.fx.symbolic_trace(small).graph.nodes])
print("script", equal(torch.jit.script(small)), torch.jit.script(small).code.count("\n"))
traced = torch.jit.trace(small, x)
print("trace", equal(traced), str(traced.inlined_graph).count("aten::"))
exported = torch.export.export(small, (x,))
print("export", equal(exported.module()), [n.name for n in exported.graph.nodes])
symbolic = torch.export.export(small, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
print("export of any batch", symbolic.module()(torch.randn(7, 4)).shape[0])
print("functional", torch.equal(torch.func.functional_call(small, dict(small.named_parameters()), (x,)), out))
print("vmap", torch.allclose(torch.vmap(small)(x), out))
gradient = torch.func.grad(lambda p: torch.func.functional_call(small, p, (x,)).sum())
print("grad", sorted(gradient(dict(small.named_parameters()))))

seen: list[str] = []
handle = small.first.register_forward_hook(lambda *_: seen.append("hook"))
small(x)
handle.remove()
small(x)
print("hooks", seen)
with torch.no_grad():
    small.rest.append(nn.Identity())
    small.rest.append(nn.Sequential(nn.Identity()))
    print("grown", equal(small), equal(small))
    print("same again", torch.equal(model(prompt).logits, logits))

gc.collect()
gc.disable()
short_lived = Small()
short_lived(x)
alive = weakref.ref(short_lived)
del short_lived
print("freed without the garbage collector", alive() is None)
