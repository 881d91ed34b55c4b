"""Response selection, what codes can learn, two encoders at once, intents."""

from collections.abc import Mapping

from report.figures import (
    BACKBONE,
    LEFT,
    Result,
    change,
    compared,
    gain,
    listed,
    p_value,
    percent,
    read,
    read_if_there,
    section,
    share,
    table,
)

SETS = {"star": 100, "ubuntu-irc": 100, "sgd": 100, "convai2-valid": 20}
COUNTS = "reply frequency alone"
SCORERS = {
    "bm25": "BM25",
    "untuned": f"{BACKBONE}, untuned",
    "sentence-transformers-default": "sentence-transformers, its defaults",
    "sentence-transformers-matched": f"sentence-transformers, {LEFT}",
    "bi": "**Bi-encoder**",
    "poly-16": "**Poly-encoder**, 16 learned codes",
    "poly-64": "**Poly-encoder**, 64 learned codes",
    "poly-360": "**Poly-encoder**, 360 learned codes",
    "poly-64-first": "**Poly-encoder**, first 64 tokens",
    "cross": "**Cross-encoder**, 5 candidates each",
    "sentence-transformers-cross-default": "sentence-transformers' CrossEncoder, its defaults",
}
TESTED = ("poly-", "cross", "sentence-transformers-matched")  # compared with the Bi-encoder


def _responses(folder: str = "") -> str:
    results = {name: {key: read_if_there(f"{folder}{name}/{key}") for key in SCORERS} for name in SETS}
    rows = [[title, *(_response(results[name], key) for name in SETS)] for key, title in SCORERS.items()]
    counts = [read_if_there(f"counts/{name}") for name in SETS]
    rows.insert(0, [f"{COUNTS}, all test examples", *(share(one) if one else "" for one in counts)])
    return table(["scorer", *(f"{name} (1 of {size})" for name, size in SETS.items())], rows)


def _response(results: Mapping[str, Result | None], key: str) -> str:
    """R@1 with its interval, the number of examples where it is smaller, and the test against the Bi-encoder."""
    result = results[key]
    if result is None:
        return ""
    text = share(result)
    if result["n_examples"] < max(one["n_examples"] for one in results.values() if one):
        text += f" of {result['n_examples']}"
    if key.startswith(TESTED) and (test := result.get("against")):
        text += f"; {compared(test)}"
    return text


def response_selection() -> str:
    tests = [read(f"{name}/poly-64")["against"] for name in SETS]
    peer = read("star/sentence-transformers-matched")["against"]
    random = {name: read(f"pretraining/post/{name}/unsorted")["against"] for name in ("star", "sgd", "ubuntu-irc")}
    n_random = read("pretraining/post/star/unsorted.fit")["n_examples"]
    return section(
        "Response selection",
        f"""Does a Poly-encoder rank better than a Bi-encoder after the same short training? Not measurably: on the four
        sets, its R@1 differs by {change(min(test["difference"] for test in tests))} to
        {change(max(test["difference"] for test in tests))} points, and the smallest p value is
        {min(test["p"] for test in tests):.2g}. On star, the Bi-encoder is {percent(-peer["difference"])} points above
        sentence-transformers with left truncation and polyrank's learning rate ({p_value(peer["p"])}).""",
        listed(
            """Training: the trained models start from the embedded MiniLM. They train for one pass on the same 11,520
            pairs (180 steps of 64 sorted by length; convai2-valid has 5,470 pairs), with 128 + 48 tokens, no dropout
            and one seed, in fp32.""",
            """Evaluation: R@1 of the first 1,000 test examples of each set with 95% bootstrap intervals. After a
            semicolon: the paired difference from the Bi-encoder of the same column, and its p value.""",
            """Commands: `THREADS=1 bash runs/real.sh` and `python
            runs/peers/sentence_transformers_bi.py matched star --length-window 50`.""",
        ),
        _responses(),
        f"""Codes start near zero, where a Poly-encoder is its mean-pooling Bi-encoder. So short a training hardly
        separates the two. The batches are sorted by length, which was the default. Random batches changed the R@1 of a
        Bi-encoder of {n_random:,} pairs by
        {", ".join(f"{change(one['difference'])} on {key} ({p_value(one['p'])})" for key, one in random.items())}
        ([post-training](#post-training-on-dialogues-without-labels)).""",
    )


def a_sixth() -> str:
    library = {one["name"].removesuffix(".scores.jsonl"): one for one in read("short/star/compare")}
    default = library["sentence-transformers-default"]["against"]
    matched = library["sentence-transformers-matched"]["against"]
    cross = read("short/star/sentence-transformers-cross-default")["against"]
    on_convai2 = read("short/convai2-valid/cross")["against"]
    return section(
        "A sixth of the pairs",
        f"""Which model is best with a sixth of the pairs of [response selection](#response-selection)? No number of
        codes makes a measurable difference. The Cross-encoder is below the Bi-encoder on every
        set (on convai2-valid with {p_value(on_convai2["p"])}), so the papers' order of Bi-, Poly- and Cross-encoder
        does not appear.""",
        """On star, sentence-transformers was trained on the same examples. Its paired differences from polyrank's
        models are:""",
        listed(
            f"""with its defaults (cosine x 20, right-hand truncation, learning rate 5e-5), from the Bi-encoder:
            {gain(default)}""",
            f"with left truncation and polyrank's learning rate, from the Bi-encoder: {gain(matched)}",
            f"its Cross-encoder, from polyrank's Cross-encoder: {gain(cross)}",
        ),
        """The models were trained on 1,920 pairs (30 steps of 64 sorted by length) with the backbone's dropout of 0.1.
        Cross-encoders are evaluated on 200 test examples. After a semicolon: the paired difference from the Bi-encoder
        of the same column. Commands:""",
        listed(
            "`NAME=short BUDGET=1920 DROPOUT=0.1 bash runs/real.sh`",
            """`python runs/peers/sentence_transformers_bi.py default star --budget 1920 --length-window 50
            --name short`, and `matched star ... --dropout 0.1`""",
            """`python runs/peers/sentence_transformers_cross.py default star --length-window 50 --limit 200
            --name short`""",
        ),
        _responses("short/"),
        """A likely reason for the Cross-encoder's result is that MiniLM was trained to compare means of outputs, and a
        Cross-encoder must learn to compare from scratch.""",
    )


def frozen_codes() -> str:
    result = read("star/frozen-codes")
    rows = [
        [
            name,
            percent(value["R@1"]),
            f"{100 * value['difference']:+.1f}, {p_value(value['p'])}",
            f"{value['loss before']:.3f}",
            f"{value['loss after']:.3f}",
        ]
        for name, value in result.items()
        if isinstance(value, dict)
    ]
    heat = result["64 codes and a temperature of the last softmax"]["heat"]
    plain = [[name, percent(value), "", "", ""] for name, value in result.items() if isinstance(value, float)]
    return section(
        "What codes can learn",
        """Can codes improve a trained Bi-encoder whose transformer is frozen? In a network that was trained for its
        mean, codes do not measurably raise R@1, and context vectors that do differ from the mean lower it.""",
        f"""The Bi-encoder was trained on 30,720 pairs of star. Contexts become several fixed vectors, or only the
        attention is trained, for {result["steps"]} steps on {result["n_train"]:,} pairs that the Bi-encoder was not
        trained on. The table shows R@1 among 100 of {result["n_test"]:,} test examples, the paired difference from the
        mean, and the loss on held-out pairs. Command: `python runs/frozen_codes.py runs/work/best/star/bi/model TRAIN
        TEST 30720 agent`.""",
        table(["context vectors", "R@1", "difference", "loss before", "loss after"], [*plain, *rows], (1, 3, 4)),
        f"""The temperature is a number by which the last softmax multiplies the products. With 0 the score is the mean
        of the products, with 1 it is a Poly-encoder's score, and with larger numbers it approaches the largest product.
        Training changed the temperature to {heat:.2f}.""",
    )


def two_encoders() -> str:
    both = read("encoders/star/ensemble-start")
    bi, convert = read("encoders/star/retriever-start"), read("encoders/star/reranker-start")
    tests = both["tests"]
    one = tests["ensemble against retriever-start"]
    other = tests["ensemble against reranker-start"]
    return section(
        "Two encoders at once",
        f"""Does the sum of two encoders rank better than each of them? On star it does: {gain(one)} compared with the
        Bi-encoder, and {gain(other)} compared with ConveRT. The two encoders differ in vocabulary, network and training
        data.""",
        f"""The encoders are the Bi-encoder of 11,520 pairs and the included ConveRT. The sum adds their z-scores, a
        scale chosen on {both["n_validation"]} validation lists. R@1 is among 100 candidates, of
        {both["n_examples"]:,} test examples. Command: `bash runs/mutual_encoders.sh`. For your own
        data, `polyrank tune my-run/model shipped:convert` fits the weights.""",
        table(
            ["scorer", "R@1", "MRR"],
            [
                [name, share(result), share(result, "MRR")]
                for name, result in (("Bi-encoder", bi), ("ConveRT, shipped", convert), ("**both, summed**", both))
            ],
        ),
    )


def intents() -> str:
    sets = ("banking77", "clinc150", "hwu64")
    shots = {"full": "all", **{n: f"{n} per intent" for n in ("30", "10", "5")}}
    encoders = {
        "minilm": BACKBONE,
        "convert": "ConveRT, multi-context",
        "shipped": "ConveRT, shipped",
        "minilm-shipped": "MiniLM, shipped",
    }
    results = {
        (encoder, shot, name): read_if_there(f"intents/{encoder}/{name}-{shot}")
        for encoder in encoders
        for shot in shots
        for name in sets
    }
    rows = [
        [title, count, *(_accuracy(results[encoder, shot, name]) for name in sets)]
        for encoder, title in encoders.items()
        for shot, count in shots.items()
        if any(results[encoder, shot, name] for name in sets)
    ]
    full = {name: read(f"intents/minilm/{name}-full") for name in sets}
    outside = full["clinc150"]["out_of_scope"]
    counts = ", ".join(f"{full[name]['n_test']:,} of {name}" for name in sets)
    return section(
        "Intents on frozen encodings",
        f"""How accurate are intent classifiers on frozen encodings? With all training utterances, MiniLM's accuracy is
        {", ".join(f"{percent(full[name]['accuracy'])}% on {name}" for name in sets)}. No other encoder
        has a higher mean for the same number of utterances.""",
        f"""The table shows accuracy in percent on the test parts ({counts}): mean and standard deviation over the
        seeds, and after a semicolon the number of seeds. Command: `bash runs/intents.sh`.""",
        table(["encoder", "training utterances", *sets], rows, (2, 3, 4)),
        f"""clinc150 has {outside["n_out_of_scope"]:,} further utterances that are out of scope. With MiniLM and all
        training utterances, {percent(outside["recall"])}% of them are rejected. {percent(outside["precision"])}% of the
        rejected utterances are out of scope, and {percent(outside["in_scope_accuracy"])}% of the utterances in scope
        still get their intent.""",
    )


def _accuracy(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{percent(result['accuracy'])} ± {percent(result['accuracy_std'])}; {len(result['seeds'])}"
