"""Both stages on all pairs of a corpus, on a GPU, from runs/halves.sh."""

from report import best
from report.figures import Result, compared, gain, listed, read_if_there, section, share, table

SETS = {name: size for name, size in best.SETS.items() if name != "medquad"}
ONWARD = ("ubuntu-irc",)  # whose Bi-encoder of all pairs continues that of the first half
MODELS = ("all", "passes", "sum", "all-cross", "sum-cross")


def halves() -> str:
    """One stage and two, and what the second gains on pairs that no stage has seen."""
    results = {name: {key: read_if_there(f"halves/{name}/{key}") for key in MODELS} for name in SETS}
    unseen = {name: read_if_there(f"halves/{name}/unseen") for name in SETS}
    if not all(unseen.values()):
        return ""
    known = {name: one for name, one in unseen.items() if one}
    least, most = (
        f"{known[name]['loss'] - known[name]['first_stage_loss']:+.2f} on {name}" for name in _by_gain(known)
    )
    gains = "; ".join(f"{name} {gain(one['against'])}" for name in SETS if (one := results[name]["all-cross"]))
    missing = [name for name in SETS if not results[name]["all-cross"]]
    return section(
        "Both stages on all pairs",
        f"""Does a Cross-encoder help that has corrected its first stage only on pairs which that stage had not seen? On
        such pairs it lowers the loss on all six sets, from {least} to {most}. On test lists it changes R@1 of the
        Bi-encoder by: {gains}. On {_listed_names(missing)}, two stages were trained but not evaluated: the GPU's memory
        was full, then its time ended. The last table has late second stages.""",
        """More passes help where replies repeat: four with dropout instead of one raise R@1 on star and sgd, and lower
        it on ubuntu-irc and convai2-valid, where one was best.""",
        listed(
            """Both stages use all pairs. A Bi-encoder is trained on each half. A Cross-encoder corrects the first
            Bi-encoder on up to 14,000 pairs of the second half, then, with its head at zero again, the second one on as
            many of the first half (at most 1.9 minutes each, so its first training ended early on four sets), in one
            pass. It re-ranks the 25 best of the Bi-encoder of all pairs.""",
            """The score is g + w s. Up to 3,000 dev lists choose w by maximum likelihood, and 500 the weights of a
            sum.""",
            """Lists have the nine best of 300 wrong answers, drawn as often as they were said; a list without the right
            answer among the ten best is skipped. On mutual they are the three given ones.""",
            """Bi-encoders start from `shipped:minilm` before its third pass, with corrected frequencies, in batches of
            64 (mutual: lists, in batches of 16; convai2-valid: two passes instead of one), at most 3,500 updates.
            "Four passes" (sgd: two; self-dialogue: 224,000 of 322,210 pairs, as in "one pass"; convai2-valid: eight)
            has dropout 0.1, and 1,000 dev lists choose the best version. The sum is of both and a ConveRT of the same
            pairs; on star, sgd and self-dialogue also of reply counts; on mutual of both alone.""",
            """bf16 on one NVIDIA H100, all sets side by side in six minutes; one seed. Intervals are over dialogues,
            except on mutual, whose dev part is judged (888 training lists serve for choices).""",
            """Command: `START=runs/work/encoder/average PARALLEL=1 MINUTES=1.9 bash runs/halves.sh`;
            [data](../runs/results/halves.jsonl).""",
        ),
        table(
            ["R@1, %", "one pass", "four passes", "sum", "w", "one pass, re-ranked", "w of the sum", "sum, re-ranked"],
            [_row(f"{name} ({size})", name, results[name]) for name, size in SETS.items()],
            range(1, 8),
        ),
        """The loss of lists in the second half of both trainings, each list before the update that learns from it:""",
        table(
            ["loss", "lists", "first stage", "both stages", "difference"],
            [
                [
                    name,
                    f"{one['n']:,}",
                    f"{one['first_stage_loss']:.3f}",
                    f"{one['loss']:.3f}",
                    f"{one['loss'] - one['first_stage_loss']:+.3f}"
                    f" ({one['interval'][0]:+.3f} to {one['interval'][1]:+.3f})",
                ]
                for name, one in known.items()
            ],
            range(1, 5),
        ),
        *_late(),
    )


def _late() -> list[str]:
    """Late second stages, which machines without a GPU can train; nothing without results."""
    found = {name: read_if_there(f"late/{name}/all-late") for name in SETS}
    rows = []
    for name, both in found.items():
        first, unseen, weight, fit = (
            read_if_there(f"late/{name}/{key}") for key in ("all", "unseen", "all-weight", "all.fit")
        )
        if both and first and unseen and weight and fit:
            losses = f"{unseen['first_stage_loss']:.3f} to {unseen['loss']:.3f}"
            title = f"{name} ({SETS[name]})"
            earlier = (read_if_there(f"late/{name}/first.fit") or {}).get("n_examples", 0) if name in ONWARD else 0
            rows.append(
                [
                    title,
                    f"{fit['n_examples'] + earlier:,}",
                    share(first),
                    f"{weight['weight']:.2f}",
                    _against(both),
                    losses,
                ]
            )
    if not rows:
        return []
    return [
        """Without a GPU: a late Cross-encoder, trained for one pass on up to 14,000 pairs of the second half alone, in
        the same way. On one busy core each of an AMD EPYC (AVX-512), both trainings run side by side; one seed. The
        loss is that of unseen lists, of the first stage and of both. Command: `SECOND=late PARALLEL=1 THREADS=1
        START=runs/work/encoder/average SETS=star bash runs/halves.sh` (sgd: `STEPS=540`; ubuntu-irc: `ONWARD=1
        WEIGHTING=as_said PAIRS=20000`, from the first pass of `shipped:minilm`);
        [data](../runs/results/late.jsonl).""",
        table(["R@1, %", "pairs of the Bi-encoder", "one pass", "w", "re-ranked", "loss"], rows, range(1, 6)),
        f"""On ubuntu-irc, the late Cross-encoder hardly lowers the loss of a Bi-encoder that was trained without
        corrected frequencies, and dev lists choose a weight below 0. That loss was lower from the start than the one of
        the Bi-encoder above, so a part of the gain above may only undo the correction, which does not help in lists
        whose replies hardly repeat. The best single Bi-encoder there ([more
        pairs](#more-pairs-and-two-encoders-as-one)) has {share(read_if_there("best/ubuntu-irc/bi"))}, without
        re-ranking.""",
    ]


def passes(name: str) -> Result | None:
    """The Bi-encoder of several passes."""
    return read_if_there(f"halves/{name}/passes")


def _row(title: str, name: str, found: dict[str, Result | None]) -> list[str]:
    weights = [read_if_there(f"halves/{name}/{key}-weight") for key in ("all", "sum")]
    alone, summed = (f"{one['weight']:.2f}" if one else "" for one in weights)
    first, more, together, two, both = (found[key] for key in MODELS)
    return [title, share(first), share(more), _against(together), alone, _against(two), summed, _against(both)]


def _against(result: Result | None) -> str:
    """A result, and its difference from the model that it builds on: the one pass, or the stage alone."""
    if result is None:
        return ""
    return f"{share(result)}; {compared(result['against'])}"


def _by_gain(known: dict[str, Result]) -> tuple[str, str]:
    """The sets on which the second stage gains least and most."""
    order = sorted(known, key=lambda name: float(known[name]["first_stage_loss"] - known[name]["loss"]))
    return order[0], order[-1]


def _listed_names(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
