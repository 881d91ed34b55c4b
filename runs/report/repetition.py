"""A second stage that compares words, as runs/repetition.sh measures it."""

from collections.abc import Mapping

from polyrank.tuning.repetition import NUMBER_DEVIATION

from polyrank.ranking.weights import PRIOR_DEVIATION
from report.best import SETS
from report.figures import Trials, change, compared, gain, listed, read_if_there, section, share, table, trials

ENCODERS = {
    "shipped": "`shipped:minilm`",
    "hubs": "the same, [corrected for hubs](#correction-for-hubs)",
    "trained": "the best encoder at hand",
    "general": "the sum of four there",
    "late": "the same, second stage with a late Cross-encoder",
}


PARTS = {"late": " with a late Cross-encoder", "general": ", the sum of four"}
NUMBERS = {"penalty": 1, "overlap": 1, "match": 2, "earlier": 2}
"""The numbers of a fit, and their digits after the point."""


def repetition() -> str:
    """A row for each set and encoder."""
    rows, found = [], {name: trials(f"repetition/{name}", ENCODERS, "second") for name in SETS}
    for name, results in found.items():
        for number, (key, (one, two, fit)) in enumerate(results.items()):
            title = f"{name} ({SETS[name]})" if number == 0 else ""
            said = f"{fit['n_echo']:,} of {fit['n_valid']:,}; {fit['n_echo_right']:,}" if number == 0 else ""
            shares = [share(one), f"{share(two)}; {compared(two['against'])}"]
            numbers = [f"{fit[n]:.{digits}f}" if n in fit else "" for n, digits in NUMBERS.items()]
            rows.append([title, said, ENCODERS[key], *shares, *numbers])
    if not rows:
        return ""
    trained, shipped = (
        "; ".join(f"{name} {gain(one[key][1]['against'])}" for name, one in found.items() if key in one)
        for key in ("trained", "shipped")
    )
    return section(
        "Repetition",
        f"""Does a second stage help that only compares the words of a reply with those of the context? Yes, where wrong
        candidates were already said in the conversation (an encoder reads each side alone, and ranks such replies high
        because they resemble the context), and on texts unlike those the encoder was trained on. `polyrank repetition`
        computes no network. It re-ranks the 25 best and changes R@1 of the best encoders by: {trained}; of
        `shipped:minilm` by: {shipped}. In mutual nobody repeats a turn, and right replies avoid the words of earlier
        turns.""",
        *with_late(found),
        listed(
            """Score: g + m match + e earlier + w overlap - p echo. The match sums the rarity of the words that a reply
            shares with the newest turn or the background, `earlier` that of other words that it shares with the turns
            before; the rarity is the logarithm of the texts per text with the word. The echo is 1 if the reply repeats
            a turn in the same words. The overlap is the greatest share of common words (Jaccard) with a turn. 2,000 dev
            lists (ubuntu-irc: 1,994; convai2-valid: 777; mutual: 888 training lists) choose all numbers by maximum
            likelihood, with a wide prior (10); all may be below 0.""",
            *without_rarity(found),
            """Served pipelines never return a reply that repeats a turn, unless a request allows it, so p does not
            change their answers. In given lists, as in these sets, nothing is removed.""",
            """The best encoders: star and sgd, those of "one pass" in the last table of [both stages on all
            pairs](#both-stages-on-all-pairs); convai2-valid, the sum of four in [more
            pairs](#more-pairs-and-two-encoders-as-one); ubuntu-irc, the sum of three described there, and in the next
            row that of four. `shipped:minilm` was trained on the training parts of star, ubuntu-irc and
            self-dialogue.""",
            """Evaluation: R@1 of all test examples (corrected for hubs: the first 1,000; mutual: 886 of its dev part)
            with 95% intervals; after a semicolon, the paired difference from the encoder
            alone, over dialogues where examples have some.""",
            """Machine and command: bf16 on one busy core of an AMD EPYC (AVX-512 with bf16); `bash runs/repetition.sh`
            with `MODELS=shipped=shipped:minilm` or `MODELS="trained=FOLDER"`; with `LIMIT=1000 MAX_VALID=1000
            MODELS=hubs=runs/work/hubs/SET/shipped`; with `MODELS=late=FOLDER RERANK=FOLDER`;
            [data](../runs/results/repetition.jsonl).""",
        ),
        table(
            ["set", "dev lists with echoes; right ones", "encoder", "R@1 alone, %", "two stages", "p", "w", "m", "e"],
            rows,
            range(5, 9),
        ),
        *with_few_lists(),
    )


def with_late(found: Mapping[str, Trials]) -> list[str]:
    """A late Cross-encoder in the same second stage."""
    rows = {name: one["late"] for name, one in found.items() if "late" in one}
    if not rows:
        return []
    gains = "; ".join(f"{name} {gain(two['against'])}" for name, (_, two, _) in rows.items())
    weights = " and ".join(f"{fit['reranker']['weight']:.2f} on {name}" for name, (*_, fit) in rows.items())
    dev = ", ".join(f"{name} {gain(fit['gain'])}" for name, (*_, fit) in rows.items())
    return [
        f"""With a late Cross-encoder in the same second stage (`--rerank`), R@1 of the best encoder changes by:
        {gains} (on dev lists: {dev}). Its weight is {weights}; the same dev lists choose it, of which each then has the
        25 best. It is the one in the last table of [both stages on all pairs](#both-stages-on-all-pairs); on star, it
        was trained further on the first half of the pairs, where it corrects a Bi-encoder of the second half
        (`BOTH=1`)."""
    ]


def with_few_lists() -> list[str]:
    """The gain from a narrower prior where few lists choose the numbers."""
    if (few := read_if_there("repetition/few")) is None:
        return []
    rows = few["rows"]
    names = list(dict.fromkeys(row["set"] for row in rows))
    cells = [
        [f"{n}", f"{prior:g}", *(change(row["gain"]) for row in rows if (row["n"], row["prior"]) == (n, prior))]
        for n in sorted({row["n"] for row in rows})
        for prior in (PRIOR_DEVIATION, NUMBER_DEVIATION)
    ]
    return [
        f"""Few lists suggest large numbers by chance. So each number now has a narrow prior around 0: what a term adds
        to the log-probabilities of a list has a standard deviation of {NUMBER_DEVIATION:g}. (The table above was made
        before, with {PRIOR_DEVIATION:g}.) The gain in R@1 over `shipped:minilm` on up to 700 other dev lists, mean of
        {few["repeats"]} draws, by `python runs/few_lists.py DATA`:""",
        table(["lists to choose on", "prior", *names], cells, range(2, 2 + len(names))),
    ]


def without_rarity(found: Mapping[str, Trials]) -> list[str]:
    """The same test lists with an earlier version, which had p and w alone."""
    known = {(name, key): read_if_there(f"repetition/{name}/{key}-pw") for name, one in found.items() for key in one}
    gains = [f"{name}{PARTS.get(key, '')} {compared(two['against'])}" for (name, key), two in known.items() if two]
    if not gains:
        return []
    return [
        f"""An earlier version had p and w alone, and was evaluated on the same test lists of the best encoders:
        {"; ".join(gains)}. So these lists were evaluated twice; no number was chosen on them."""
    ]
