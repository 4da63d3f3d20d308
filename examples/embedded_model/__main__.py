"""`python -m examples.embedded_model`: train the embedded model."""

import argparse
from pathlib import Path

from examples.embedded_model.train import TrainConfig, train
from jaxengine.embedded import checkpoint_path


def main() -> None:
    """Read the command line and train."""
    defaults = TrainConfig(output=checkpoint_path())
    parser = argparse.ArgumentParser(prog="python -m examples.embedded_model", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=defaults.output, metavar="DIR", help="checkpoint directory to write"
    )
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--minutes", type=float, default=None, help="end the schedule after this time at the latest")
    parser.add_argument("--batch", type=int, default=defaults.batch, help="rows per step")
    parser.add_argument("--length", type=int, default=defaults.length, help="tokens per row")
    parser.add_argument("--peak-rate", type=float, default=defaults.peak_rate, help="highest learning rate")
    parser.add_argument("--start-from", type=Path, default=None, metavar="DIR", help="go on from this checkpoint")
    parser.add_argument("--save-every", type=int, default=defaults.save_every, help="steps between checkpoints")
    train(TrainConfig(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
