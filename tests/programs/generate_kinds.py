"""The ways of calling generate()."""

import contextlib
import threading

import torch
from parts import part
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    T5Config,
    TextIteratorStreamer,
)
from transformers import T5ForConditionalGeneration as T5

torch.manual_seed(0)
torch.set_num_threads(1)


def llama(layers: int = 2) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


model, prompt = llama(), torch.randint(1, 128, (1, 8))
options = {"do_sample": False, "max_new_tokens": 4}

part("batch")
model.generate(torch.randint(1, 128, (3, 8)), **options)
part("one token of prompt")
model.generate(prompt[:, :1], **options)
part("one new token")
model.generate(prompt, **{**options, "max_new_tokens": 1})
part("beams")
model.generate(prompt, num_beams=2, **options)
part("pieces of prompt")
model.generate(prompt, prefill_chunk_size=3, **options)
part("static cache")
model.generate(prompt, cache_implementation="static", **options)
part("no cache")
model.generate(prompt, use_cache=False, **options)
part("embeddings")
model.generate(inputs_embeds=model.get_input_embeddings()(prompt), **options)
part("assistant")
model.generate(prompt, assistant_model=llama(1), **{**options, "max_new_tokens": 8})
part("prompt lookup")
model.generate(prompt.repeat(1, 3), prompt_lookup_num_tokens=2, **{**options, "max_new_tokens": 8})


class Fails(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == 10:
            raise ValueError("on purpose")
        return scores


part("failure")
with contextlib.suppress(ValueError):
    model.generate(prompt, logits_processor=LogitsProcessorList([Fails()]), **options)
part("after the failure")
model.generate(prompt, **options)
part("encoder and decoder")
tiny = T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=2, decoder_start_token_id=0)
T5(tiny).eval().generate(prompt, do_sample=False, max_new_tokens=3)


class Tokenizer:
    def decode(self, tokens: list[int], **_: object) -> str:
        return " ".join(str(t) for t in tokens) + "\n"


part("streamed from a thread")
streamer = TextIteratorStreamer(Tokenizer())
thread = threading.Thread(target=model.generate, args=(prompt,), kwargs={**options, "streamer": streamer})
thread.start()
for _ in streamer:
    pass
thread.join()
