"""Train the embedded model: corpus, tokenizer, steps, checkpoint, loss curve. Everything follows from the seed."""

import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path

import jax
from tokenizers import Tokenizer
from tqdm import tqdm

from examples.embedded_model import lexicon
from examples.embedded_model.batches import batches
from examples.embedded_model.card import Run, model_card, plot_losses
from examples.embedded_model.corpus import documents
from examples.embedded_model.evaluate import load_checkpoint
from examples.embedded_model.export import write_checkpoint
from examples.embedded_model.induction import add_induction
from examples.embedded_model.model import ModelConfig, Params, init, num_params
from examples.embedded_model.optimizer import learning_rate, make_optimizer, make_step
from examples.embedded_model.tokenizer import load, train_tokenizer


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """What a training run is given."""

    output: Path
    seed: int = 0
    steps: int = 3450
    minutes: float | None = None  # a time budget that brings the end of the schedule forward on a busy machine
    batch: int = 4
    length: int = 512
    peak_rate: float = 0.004
    warmup: float = 0.03
    weight_decay: float = 0.01
    vocab_size: int = 2048
    tokenizer_documents: int = 12000
    save_every: int = 200
    start_from: Path | None = None  # a checkpoint to go on from: its parameters and its tokenizer


def make_tokenizer(config: TrainConfig) -> Tokenizer:
    """The tokenizer of this run, trained on the first documents of another stream of the same seed."""
    texts = itertools.islice(documents(config.seed + 1_000_000), config.tokenizer_documents)
    # A name that is one token is copied in one look; the list makes each frequent enough to become one.
    names = " ".join(("", *lexicon.GIRLS, *lexicon.BOYS, *lexicon.CHAT_NAMES, *lexicon.CITIES))
    return train_tokenizer(itertools.chain(texts, [names] * 400), config.vocab_size)


def train(config: TrainConfig, model: ModelConfig | None = None) -> Params:
    """Run the training and write the checkpoint directory; returns the parameters."""
    if config.start_from is not None:
        tokenizer = load(config.start_from)
        params, model = load_checkpoint(config.start_from)
    else:
        tokenizer = make_tokenizer(config)
        model = replace(model or ModelConfig(vocab_size=0), vocab_size=tokenizer.get_vocab_size())
        params = add_induction(init(jax.random.key(config.seed), model), model)
    optimizer = make_optimizer(weight_decay=config.weight_decay)
    state, step = optimizer.init(params), make_step(optimizer, model)
    stream = batches(tokenizer, seed=config.seed, batch=config.batch, length=config.length + 1)
    losses: list[float] = []
    tokens_seen, started, progress = 0, time.monotonic(), 0.0

    def save(*, done: bool) -> None:
        run = Run(
            seed=config.seed, steps=len(losses), tokens=tokens_seen, minutes=(time.monotonic() - started) / 60,
            losses=tuple(losses), num_params=num_params(model), batch=config.batch, length=config.length, done=done,
        )  # fmt: skip
        write_checkpoint(config.output, params, model, tokenizer, model_card(run, model))
        plot_losses(losses, config.output / "loss_curve.png")

    with tqdm(total=config.steps, unit="step", mininterval=10) as bar:
        while len(losses) < config.steps and progress < 1.0:
            tokens, segments = next(stream)
            rate = learning_rate(progress, peak=config.peak_rate, warmup=config.warmup)
            params, state, value = step(params, state, tokens, segments, rate)
            losses.append(float(value))
            tokens_seen += int((segments >= 0).sum())
            progress = len(losses) / config.steps
            if config.minutes is not None:
                progress = max(progress, (time.monotonic() - started) / 60 / config.minutes)
            bar.update()
            bar.set_postfix(loss=f"{sum(losses[-20:]) / len(losses[-20:]):.3f}", rate=f"{rate:.4f}", refresh=False)
            if len(losses) % config.save_every == 0:
                save(done=False)
    save(done=True)
    return params
