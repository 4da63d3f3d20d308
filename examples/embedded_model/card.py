"""What is told about a training run: the model card and the loss curve."""

from dataclasses import dataclass
from pathlib import Path

from examples.embedded_model.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of a run."""

    seed: int
    steps: int
    tokens: int
    minutes: float
    losses: tuple[float, ...]
    num_params: int
    batch: int
    length: int
    done: bool


def model_card(run: Run, model: ModelConfig) -> str:
    """The model card as Markdown."""
    recent = run.losses[-50:]
    return f"""# The embedded model of jaxengine

A small chat model of the Llama architecture ({run.num_params:,} parameters) for examples, tests and demonstrations.
It tells short stories, does small sums, greets people by name, knows the made-up valley of Willowmere, and calls tools.
It knows nothing else.

Text: written by the programs in `examples/embedded_model` (templates, word lists, facts); no other text was used.

| | |
|---|---|
| hidden size, layers, heads, KV heads, feed-forward | {model.hidden_size}, {model.num_layers}, {model.num_heads}, \
{model.num_kv_heads}, {model.ffn_size} |
| vocabulary, trained length, context | {model.vocab_size}, {run.length}, {model.max_positions} |
| seed, steps, rows per step | {run.seed}, {run.steps}, {run.batch} |
| tokens seen | {run.tokens:,} |
| time | {run.minutes:.0f} minutes on a CPU |
| training loss, mean of the last {len(recent)} steps | {sum(recent) / len(recent):.3f} nats per token |
| finished | {"yes" if run.done else "no, an intermediate checkpoint"} |

Made with `python -m examples.embedded_model --seed {run.seed} --steps {run.steps}`; `loss_curve.png` shows the way.
Measured with `python -m examples.embedded_model.evaluate DIR`, which adds its figures below.
"""


def plot_losses(losses: list[float], path: Path) -> None:
    """The loss curve as a small PNG, written aside then renamed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3), dpi=80)
    axes.plot(range(1, len(losses) + 1), losses, linewidth=0.8)
    axes.set(xlabel="step", ylabel="loss, nats per token", yscale="log")
    axes.grid(alpha=0.3, which="both")
    figure.tight_layout()
    aside = path.with_suffix(".partial.png")
    figure.savefig(aside)
    pyplot.close(figure)
    aside.replace(path)
