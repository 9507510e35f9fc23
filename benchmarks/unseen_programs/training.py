"""Programs that train. Each function sets up and returns a Program; what is true of it stands in truth.toml."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from parts import Bench, LanguageModel, Program, SwiGlu, next_token_loss, some_text, wordpiece
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


def adamw(model: nn.Module, **how: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, **how)


class Texts(Dataset):
    """JSON lines that are parsed and tokenised when they are asked for."""

    def __init__(self, words: int, length: int) -> None:
        self.lines = [json.dumps({"id": i, "text": some_text(words, i)}) for i in range(64)]
        self.pieces = {some_text(1, i)[:size] for i in range(3000) for size in (1, 2, 3)}
        self.length = length

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        text = json.loads(self.lines[index % len(self.lines)])["text"]
        return torch.tensor(wordpiece(text, self.pieces, self.length))


def sft_dataloader(bench: Bench) -> Program:
    length = bench.size(512, 32)
    batch, dim = bench.size(8, 2), bench.size(1024, 64)
    model = bench.build(lambda: LanguageModel(32000, dim, bench.size(6, 1), bench.size(16, 2)))
    optimizer = adamw(model, fused=True)
    loader = DataLoader(Texts(bench.size(1200, 100), length), batch_size=batch, num_workers=0)

    def endless() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    batches = endless()
    ready = bench.ids(30000, batch, length)

    def train(ids: torch.Tensor) -> None:
        loss = next_token_loss(model(ids), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def step() -> None:
        with bench.host("data"):
            ids = next(batches)
        train(ids.to(bench.device, non_blocking=True))

    return Program(step, lambda: train(ready), marks_steps=True)


class LoraLinear(nn.Module):
    def __init__(self, dim: int, out: int, rank: int = 16) -> None:
        super().__init__()
        self.base = nn.Linear(dim, out, bias=False)
        self.base.weight.requires_grad_(False)
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x)) * 2.0


def lora_grad_logging(bench: Bench) -> Program:
    dim, layers = bench.size(2048, 64), bench.size(6, 1)
    model = bench.build(lambda: LanguageModel(32000, dim, layers, bench.size(16, 2)))
    model.requires_grad_(False)
    for block in model.blocks:
        for module, name in (
            (block.attention, "qkv"),
            (block.attention, "out"),
            (block.mlp, "up"),
            (block.mlp, "down"),
        ):
            old = getattr(module, name)
            setattr(module, name, bench.build(lambda old=old: LoraLinear(old.in_features, old.out_features)))
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = adamw(model, fused=True)
    ids = bench.ids(32000, bench.size(4, 1), bench.size(1024, 32))
    log: dict[str, float] = {}

    def train() -> torch.Tensor:
        with bench.stage("forward"):
            loss = next_token_loss(model(ids), ids)
        with bench.stage("backward"):
            loss.backward()
        return loss

    def update() -> None:
        with bench.stage("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    def step() -> None:
        loss = train()
        with bench.stage("log_metrics"):
            log["loss"] = loss.item()
            for name, parameter in named:
                log[f"grad_norm/{name}"] = parameter.grad.norm().item()
                log[f"weight_norm/{name}"] = parameter.norm().item()
                log[f"grad_max/{name}"] = parameter.grad.abs().max().item()
        update()

    def mended() -> None:
        loss = train()
        with bench.stage("log_metrics"):
            gradients = [p.grad for _, p in named]
            values = [*torch._foreach_norm(gradients), *torch._foreach_norm([p.detach() for _, p in named]),
                      *torch._foreach_norm(gradients, math.inf), loss.detach()]  # fmt: skip
            log["all"] = sum(torch.stack(values).tolist())
        update()

    return Program(step, mended)


def pretrain_tuned(bench: Bench) -> Program:
    model = bench.build(lambda: LanguageModel(32768, bench.size(2048, 64), bench.size(8, 1), bench.size(16, 2)))
    optimizer = adamw(model, fused=True)
    batches = [bench.ids(32768, bench.size(16, 1), bench.size(1024, 32)) for _ in range(4)]
    count = 0

    def step() -> None:
        nonlocal count
        ids = batches[count % 4]
        count += 1
        with bench.stage("forward"):
            loss = next_token_loss(model(ids), ids)
        with bench.stage("backward"):
            loss.backward()
        with bench.stage("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return Program(step, marks_steps=True)


def fp32_training(bench: Bench) -> Program:
    model = bench.build(
        lambda: LanguageModel(16384, bench.size(1024, 64), bench.size(6, 1), bench.size(16, 2), causal=False),
        torch.float32,
    )
    optimizer = adamw(model, fused=True)
    ids = bench.ids(16384, bench.size(8, 1), bench.size(512, 32))

    def train(precision: str) -> None:
        torch.set_float32_matmul_precision(precision)
        with bench.stage("train/forward"):
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        with bench.stage("train/backward"):
            loss.backward()
        with bench.stage("train/optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        torch.set_float32_matmul_precision("highest")

    return Program(lambda: train("highest"), lambda: train("high"))


def grad_accumulation(bench: Bench) -> Program:
    model = bench.build(
        lambda: LanguageModel(16384, bench.size(1024, 64), bench.size(7, 1), bench.size(16, 2)), torch.float32
    )
    slow, fused = adamw(model, foreach=False, fused=False), adamw(model, fused=True)
    ids = bench.ids(16384, bench.size(12, 1), bench.size(512, 32))
    losses: list[float] = []

    def train(optimizer: torch.optim.Optimizer) -> None:
        total = torch.zeros((), device=bench.device)
        for _ in range(2):
            with torch.autocast(bench.device.type, torch.bfloat16):
                loss = next_token_loss(model(ids), ids) / 2
            loss.backward()
            total += loss.detach()
        losses.append(total.item())
        optimizer.step()
        optimizer.zero_grad()

    return Program(lambda: train(slow), lambda: train(fused), marks_steps=True)


def checkpointed(bench: Bench) -> Program:
    model = bench.build(lambda: LanguageModel(32768, bench.size(2048, 64), bench.size(8, 1), bench.size(16, 2)))
    optimizer = adamw(model, fused=True)
    ids = bench.ids(32768, bench.size(8, 1), bench.size(1024, 32))

    def train(saving: bool) -> None:
        with bench.stage("forward"):
            x = model.embed(ids)
            for block in model.blocks:
                x = checkpoint(block, x, use_reentrant=False) if saving else block(x)
            loss = next_token_loss(model.head(model.norm(x)), ids)
        with bench.stage("backward"):
            loss.backward()
        with bench.stage("optimizer_step"):
            optimizer.step()
            optimizer.zero_grad()

    return Program(lambda: train(True), lambda: train(False))


def big_vocabulary_loss(bench: Bench) -> Program:
    vocabulary = bench.size(151936, 2048)
    model = bench.build(lambda: LanguageModel(vocabulary, bench.size(512, 64), bench.size(2, 1), bench.size(8, 2)))
    optimizer = adamw(model, fused=True)
    ids = bench.ids(vocabulary, bench.size(8, 1), bench.size(1024, 32))

    def train(upcast: bool) -> None:
        with bench.stage("backbone"):
            hidden = model.hidden(ids)
        with bench.stage("lm_head"):
            logits = model.head(hidden)
        with bench.stage("loss"):
            logits = logits.float() if upcast else logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        with bench.stage("backward"):
            loss.backward()
        with bench.stage("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return Program(lambda: train(True), lambda: train(False))


def odd_hidden(bench: Bench) -> Program:
    dim = bench.size(2048, 64)

    def trainer(vocabulary: int, hidden: int) -> Callable[[], None]:
        model = bench.build(
            lambda: LanguageModel(vocabulary, dim, bench.size(4, 1), bench.size(16, 2), hidden=hidden, mlp=SwiGlu)
        )
        optimizer = adamw(model, fused=True)
        ids = bench.ids(vocabulary, bench.size(8, 1), bench.size(1024, 32))

        def train() -> None:
            next_token_loss(model(ids), ids).backward()
            optimizer.step()
            optimizer.zero_grad()

        return train

    return Program(trainer(32001, int(dim * 8 / 3)), trainer(32064, (int(dim * 8 / 3) + 63) // 64 * 64))


def empty_cache(bench: Bench) -> Program:
    model = bench.build(lambda: LanguageModel(32768, bench.size(1024, 64), bench.size(8, 1), bench.size(16, 2)))
    optimizer = adamw(model, fused=True)
    ids = bench.ids(32768, bench.size(16, 1), bench.size(512, 32))

    def train(tidy: bool) -> None:
        loss = next_token_loss(model(ids), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
        if tidy and bench.cuda:
            torch.cuda.empty_cache()

    return Program(lambda: train(True), lambda: train(False), marks_steps=True)


def rlhf(bench: Bench) -> Program:
    vocabulary, dim = bench.size(32000, 512), bench.size(1024, 64)
    policy = bench.build(lambda: LanguageModel(vocabulary, dim, bench.size(6, 1), bench.size(16, 2)))
    reward = bench.build(lambda: LanguageModel(64, dim, bench.size(4, 1), bench.size(16, 2), causal=False))
    optimizer = adamw(policy, fused=True)
    prompts = bench.ids(64, bench.size(32, 2), bench.size(112, 12))

    @torch.no_grad()
    def rollout() -> torch.Tensor:
        cache: list[list[torch.Tensor]] = [[] for _ in policy.blocks]
        tokens = [prompts]
        for _ in range(bench.size(16, 4)):
            chances = torch.softmax(policy(tokens[-1], cache)[:, -1].float() / 0.9, dim=-1)
            tokens.append((chances / torch.empty_like(chances).exponential_(1)).argmax(-1, keepdim=True))
        return torch.cat(tokens, dim=1)

    def step() -> None:
        with bench.stage("rollout"):
            sequences = rollout()
        with bench.stage("reward"), torch.no_grad():
            scores = reward.hidden(sequences % 64).float().mean((1, 2))
            advantage = (scores - scores.mean()) / (scores.std() + 1e-5)
        with bench.stage("ppo_update"):
            logits = policy(sequences[:, :-1])
            chosen = -F.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten(), reduction="none")
            loss = -(chosen.view(len(sequences), -1).mean(1) * advantage).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return Program(step, marks_steps=True)
