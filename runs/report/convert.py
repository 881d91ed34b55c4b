"""ConveRT from scratch, and what a part of it is worth."""

from report.figures import BACKBONE, change, percent, read, read_if_there, section, share, table

SETS = ("self-dialogue", "sgd", "star", "ubuntu-irc")
MODELS = {
    "single": "**ConveRT**, single-context",
    "multi": "**ConveRT**, multi-context",
    "permissive": "**ConveRT, shipped**; never saw sgd",
    "single-tuned": "single-context, fine-tuned on the set",
    "multi-tuned": "multi-context, fine-tuned on the set",
    "shipped-tuned": "shipped, fine-tuned on the set",
}
VARIANTS = {
    "none": "all of it",
    "b": "B: no relative bias",
    "d": "D: one bucket for unknown characters",
    "e": "E: one reduction head",
    "f": "F: no skips in the side networks",
    "sides": "sides start apart",
    "fp32": "no rounding in training",
}


def _changes(key: str) -> str:
    """R@1 of a variant less that of all of it, on each set."""

    def r1(key: str, name: str) -> float:
        return float(read(f"convert/ablation-{key}-{name}")["metrics"]["R@1"])

    return ", ".join(f"{change(r1(key, name) - r1('none', name))} on {name}" for name in SETS[:3])


def convert() -> str:
    known = {"bm25": "BM25", "untuned": f"{BACKBONE}, untuned"}
    rows = [[title, *(share(read_if_there(f"{name}/{key}")) for name in SETS)] for key, title in known.items()]
    rows += [
        [title, *(share(read_if_there(f"convert/{key}-{name}")) for name in SETS)] for key, title in MODELS.items()
    ]
    sizes = {name: read(f"convert/{name}.size") for name in ("single", "multi", "permissive")}
    size_rows = [
        [MODELS[name], f"{size['n_parameters']:,}", f"{size['n_bytes'] / 1e6:.1f}", f"{size['n_bytes_fp32'] / 1e6:.1f}"]
        for name, size in sizes.items()
    ]

    def r1(name: str) -> float:
        value: float = read(name)["metrics"]["R@1"]
        return value

    chat, star = (r1(f"convert/permissive-{name}") - r1(f"{name}/untuned") for name in ("self-dialogue", "star"))
    turns = {name: r1(f"convert/multi-{name}") - r1(f"convert/single-{name}") for name in SETS}
    gains = ", ".join(f"{change(value)} on {name}" for name, value in turns.items())
    return section(
        "ConveRT from scratch",
        """Two layers of 256 dimensions, 8- and 16-bit weights. The first two saw 320,000 pairs of self-dialogue,
        sgd, star and ubuntu-irc (2,500 steps of 128, half an epoch, one seed; fine-tuning is 150 steps of 256). The
        shipped one has more subwords and has seen all but sgd three times (5,319 steps of 256; the best step by R@1
        of 150 validation lists). The training parts of the sets are in its data. R@1 among 100, first 1,000 test
        examples, 95% intervals, in fp32. Made by `bash runs/convert.sh` and `PARTS=permissive bash
        runs/convert.sh`; the paper's network takes tens of thousands of larger steps.""",
        table(["scorer", *SETS], rows),
        f"""Several contexts instead of one are worth {gains}. The shipped one is {change(chat)} points from untuned
        MiniLM on open chat and {change(star)} on star; what it has not read (sgd) it does not know until it is
        fine-tuned, from {percent(r1("convert/permissive-sgd"))} to {percent(r1("convert/shipped-tuned-sgd"))}; and
        ubuntu-irc, the most technical of its sets, it has only begun to learn.""",
        table(["model", "parameters", "megabytes", "in fp32"], size_rows, (1, 2, 3)),
    )


def ablations() -> str:
    sets = SETS[:3]
    rows = [
        [title, *(share(read(f"convert/ablation-{key}-{name}")) for name in sets)] for key, title in VARIANTS.items()
    ]
    rounding = read("convert/rounding-star")
    rounded, exact = rounding["R@1"]["float16"], rounding["R@1"]["none"]
    return section(
        "What a part of ConveRT is worth",
        """A short training of a single-context network, 320 steps of 128, one seed; differences of three points and
        less may be chance. Made by `PARTS=ablations ABLATION_STEPS=320 bash runs/convert.sh`.""",
        table(["variant", *sets], rows),
        f"""Differences from all of it: without skips {_changes("f")}; with one reduction head
        {_changes("e")}, better on all three; with sides that start apart {_changes("sides")}, the one
        change that costs more than three points, twice. Starting both alike is not in the paper. Rounding costs
        nothing that can be seen here; of one fine-tuning's weights on star, rounded and not, R@1 is
        {percent(rounded)} and {percent(exact)} of {rounding["n_examples"]:,} examples, and the same reply is first
        in {percent(rounding["same_first"])}% (`runs/convert_rounding.py`).""",
    )
