"""Reports of the commands that choose weights on validation lists."""

from typing import Any

from polyrank.cli.console import notify


def report_gain(gain: dict[str, Any], over: str, doubt: str) -> None:
    """Show the gain in R@1 over an encoder alone, and a doubt if its interval includes 0, or that it is a loss."""
    if gain["difference"] < 0:
        doubt = doubt.replace("may be no better", "is probably worse")
    points, low, high = (100 * value for value in (gain["difference"], *gain["interval"]))
    notify(
        f"R@1 {points:+.1f} points ({low:+.1f} to {high:+.1f}) over {over} alone, each half of the dialogues with the"
        f" weights of the other half{f'; {doubt}' if low <= 0 else ''}"
    )


def show_fit(metadata: dict[str, Any]) -> None:
    """Print the figures of an encoder alone, and of what was fitted to it."""
    alone, both = metadata["parts"][0], metadata["sum"]
    print(
        f"on {metadata['n_valid']:,} lists of {metadata['valid']}: R@1 {alone['R@1']:.4f} -> {both['R@1']:.4f}, MRR"
        f" {alone['MRR']:.4f} -> {both['MRR']:.4f}"
    )
