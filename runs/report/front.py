"""The small tables in README.md and docs, by their markers."""

from statistics import fmean

from report.best import summed
from report.convert import MODELS
from report.figures import (
    BACKBONE,
    Result,
    change,
    compared,
    machine,
    ms,
    percent,
    read,
    read_if_there,
    row,
    share,
    table,
    times,
)
from report.general import read_sets, unread_sets
from report.halves import passes
from report.pretraining import starts
from report.quality import COUNTS, SETS
from report.scaling import growth, paper_costs, streamed
from report.second import second_table
from report.serving import comparison, load
from report.sizes import sizes
from report.tune import tuned


def quality() -> str:
    """R@1 of one model of each kind on every set."""
    rows = {
        COUNTS: "counts/{}",
        "BM25": "{}/bm25",
        f"{BACKBONE}, untuned": "{}/untuned",
        "sentence-transformers, polyrank's settings": "{}/sentence-transformers-matched",
        "Bi-encoder": "{}/bi",
        "Poly-encoder, 64 codes": "{}/poly-64",
        "ConveRT, shipped": "convert/permissive-{}",
        f"{BACKBONE}, shipped": "general/{}/encoder",
        "its 25 best, re-ranked by [`shipped:rerank`](docs/results.md#a-general-second-stage)": "second/{}/two",
        "Bi-encoder, trained from `shipped:minilm` on more pairs": "best/{}/bi",
    }
    results: dict[str, list[Result | None]] = {}
    for title, file in rows.items():
        results[title] = [read_if_there(file.format(name)) for name in SETS]
        if file.startswith("second/") and any(chosen := [*map(tuned, SETS)]):
            results[
                "MiniLM, shipped, with [what `polyrank tune` adds](docs/results.md#one-ranker) without a re-ranker"
            ] = chosen
    results["the same over all pairs, with dropout and [several passes](docs/results.md#both-stages-on-all-pairs)"] = [
        *map(passes, SETS)
    ]
    best = "the best [ranker](docs/choosing.md) of up to four encoders; on star and sgd also of reply counts"
    results[best] = [*map(summed, SETS)]
    known = [result for row in results.values() for result in row if result]
    widest = {
        name: max(high - low for row in results.values() if row[i] for low, high in [row[i]["intervals"]["R@1"]])
        for i, name in enumerate(SETS)
    }
    few_logs = percent(widest.pop("ubuntu-irc") / 2)
    counts = {result["n_examples"] for result in known}
    cells = [
        [title, *(percent(result["metrics"]["R@1"]) if result else "" for result in row)]
        for title, row in results.items()
    ]
    head = ["R@1, %", *(f"{name} (1 of {size})" for name, size in SETS.items())]
    *few, most = (f"{n:,}" for n in sorted(counts))
    note = f"Each result is from {', '.join(few)} or {most} test examples. Its 95% interval is at most"
    note += f" ±{percent(max(widest.values()) / 2)}, and ±{few_logs} on ubuntu-irc, whose lists come from a few logs. "
    note += "The shipped models were trained on the training parts of star and ubuntu-irc, not on the other sets. "
    note += "The last row is the best of one to four rankers on these test examples, so it is a little high."
    return f"{table(head, cells, range(1, 5))}\n\n{note}"


def speed() -> str:
    """Times of common operations, compared with other implementations."""
    scoring = {form: row("bench/amx/scoring", what="trained", m=64, form=form) for form in ("papers", "fast")}
    search = {what: row("bench/amx/search", what=what)["ms"] for what in ("exact", "fast", "add 1")}
    respond = {form: row("bench/amx/respond", n=100_000, form=form)["ms"] for form in ("Poly-64", "Poly-64, papers")}
    forms = ("polyrank", "sentence-transformers", "sentence-transformers bf16")
    peers = {what: [row("bench/amx/encode", what=what, form=form) for form in forms] for what in ("bulk", "rerank")}
    (encoded, *others), (ranked, *rankers) = peers["bulk"], peers["rerank"]
    per_second = ", in bf16 ".join(f"{one['per_second']:,.0f}" for one in others)
    rerank = ", in bf16 ".join(ms(one["ms"]) for one in rankers)
    both, whole = (
        row("bench/avx2/late", what="rerank", form=form)["ms"]
        for form in ("Bi-encoder and late Cross-encoder", "sentence-transformers")
    )
    peer = row("bench/avx2/late", what="context", form="sentence-transformers")["ms"]
    rows = [
        [
            "ten best of 100,000, 64 codes, exact",
            f"{ms(scoring['fast']['ms'])} ms",
            f"as in the papers: {ms(scoring['papers']['ms'])} ms",
        ],
        [
            "ten best of a million on disk, int8, 16 codes, exact",
            f"{ms(search['fast'])} ms",
            f"scoring all: {ms(search['exact'])} ms",
        ],
        ["add a candidate to that million, durably, with the lock held", f"{ms(search['add 1'])} ms", ""],
        [
            "encode a context, ten best of 100,000, Poly-64",
            f"{ms(respond['Poly-64'])} ms",
            f"as in the papers: {ms(respond['Poly-64, papers'])} ms",
        ],
        [
            "encode turns of chat",
            f"{encoded['per_second']:,.0f} per second",
            f"sentence-transformers: {per_second}",
        ],
        ["re-rank 100 by a Cross-encoder", f"{ms(ranked['ms'])} ms", f"sentence-transformers: {rerank} ms"],
        [
            "encode a context, re-rank 25 by a late Cross-encoder, on AVX2",
            f"{ms(both)} ms",
            f"sentence-transformers' two models: {ms(peer + whole)} ms",
        ],
    ]
    return table(["two cores with AMX", "polyrank", "compared with"], rows, (1,))


def number_of_codes() -> str:
    """R@1 and search time by the number of codes."""
    rows = []
    for n in (16, 64, 360):
        search = row("bench/amx/respond", n=100_000, form=f"Poly-{n}")
        rows.append([str(n), share(read(f"short/star/poly-{n}")), ms(search["ms"] - search["encode_ms"])])
    bi = row("bench/amx/respond", n=100_000, form="Bi")
    rows.insert(0, ["1 (Bi-encoder)", share(read("short/star/bi")), ms(bi["ms"] - bi["encode_ms"])])
    return table(["codes", "R@1 on star, 1,920 pairs", "ms to search 100,000"], rows, (0, 2))


def stages() -> str:
    """A Bi-encoder, and its best replies re-ranked by a late Cross-encoder."""
    kinds = (
        ("medquad", "half", "half-late", "10 of 15,805"),
        ("self-dialogue", "logq", "late", "25 of 100"),
        ("self-dialogue", "sum-more", "sum-late", "25 of 100"),
        ("star", "logq-all", "late", "25 of 100"),
    )
    trained = {"sum-more": "convert-all", "sum-late": "late"}  # the part of most pairs, and the re-ranker
    rows = []
    for name, first, second, n in kinds:
        one, two = read_if_there(f"best/{name}/{first}"), read_if_there(f"best/{name}/{second}")
        if one and two:
            fits = [read(f"best/{name}/{trained.get(key, key)}.fit") for key in (first, second)]
            title = f"{name}, a sum" if first in trained else name
            pairs = [f"{fit['n_examples']:,}" for fit in fits]
            rows.append([title, n, *pairs, share(one), share(two), compared(two["against"])])
    for name, size in (("ubuntu-irc", 100), ("convai2-valid", 20)):
        one, two = (read_if_there(f"halves/{name}/{kind}") for kind in ("all", "all-cross"))
        if one and two:
            fits = {kind: read(f"halves/{name}/{kind}.fit") for kind in ("all", "cross-first", "cross")}
            seen = [fits["all"]["n_examples"], fits["cross-first"]["n_examples"] + fits["cross"]["n_examples"]]
            cells = [*(f"{n:,}" for n in seen), share(one), share(two), compared(two["against"])]
            rows.append([f"{name}, all pairs for both", f"{min(25, size)} of {size}", *cells])
    titles = ["R@1, %", "re-ranked", "pairs of the first stage", "of the second", "one stage", "two", "difference"]
    return table(titles, rows, (1, 2, 3))


def without_training() -> str:
    """Shipped, untuned and fine-tuned models."""
    sets = ("self-dialogue", "sgd", "star", "ubuntu-irc")
    rows = [
        [COUNTS, *(read_if_there(f"counts/{name}") for name in sets)],
        ["BM25", *(read_if_there(f"{name}/bm25") for name in sets)],
        [f"{BACKBONE}, untuned", *(read_if_there(f"{name}/untuned") for name in sets)],
        *(
            [MODELS[key].replace("*", ""), *(read_if_there(f"convert/{key}-{name}") for name in sets)]
            for key in ("permissive", "shipped-tuned")
        ),
        [f"{BACKBONE}, shipped; not trained on sgd", *(read_if_there(f"general/{name}/encoder") for name in sets)],
        [
            "its 25 best, re-ranked by `shipped:rerank`; not trained on sgd",
            *(read_if_there(f"second/{name}/two") for name in sets),
        ],
        [
            "MiniLM, shipped, with [what `polyrank tune` adds](results.md#one-ranker) without a re-ranker",
            *map(tuned, sets),
        ],
    ]
    cells = [
        [title, *(percent(one["metrics"]["R@1"]) if one else "" for one in results)]
        for title, *results in rows
        if any(results)
    ]
    return table(["R@1 of 100, %", *sets], cells, range(1, 5))


def weighting() -> str:
    """R@1 on frozen encodings by how negatives are weighted, mean and range over seeds."""
    rows = []
    for name in ("star", "sgd", "self-dialogue", "ubuntu-irc"):
        seeds = {kind: [read_if_there(f"weighting/{name}/{kind}/{seed}") for seed in (1, 2, 3)] for kind in KINDS}
        known = {kind: [one for one in results if one] for kind, results in seeds.items()}
        if any(len(results) < 3 for results in known.values()):
            continue
        first, means = known["as_said"][0], []
        for results in known.values():
            figures = [one["R@1"] for one in results]
            means.append(f"{percent(fmean(figures))} ({percent(min(figures))}-{percent(max(figures))})")
        repeats = f"{first['n_train'] / first['n_responses']:.1f}"
        gain = read_if_there(f"weighting/{name}/logq-difference")
        gained = f"{change(gain['mean'])} ({change(gain['low'])} to {change(gain['high'])})" if gain else ""
        sizes = [f"{first['n_train']:,}", repeats, f"{first['n_test']}"]
        rows.append([f"{name} (1 of {first['n_candidates']})", *sizes, *means, gained])
    head = [
        "R@1, %, mean and range of three seeds",
        "pairs",
        "per distinct reply",
        "test lists",
        *(f'`"{kind}"`' for kind in KINDS),
        '`"logq"` minus `"as_said"`',
    ]
    return table(head, rows, range(1, 8))


def runtimes() -> str:
    """Encoding by torch and by exports."""
    forms = {"polyrank": "torch", "polyrank openvino": "OpenVINO", "polyrank onnx": "ONNX"}
    rows = []
    for form, title in forms.items():
        pair = [row(f"bench/{where}/encode", what="bulk", form=form) for where in ("amx", "avx512")]
        rows.append([title, *(f"{one['per_second']:,.0f} ({times(one['ratio'])})" for one in pair)])
    return table(["encode turns, per second", "AMX", "AVX-512"], rows, (1, 2))


def int8() -> str:
    """Exports on a processor without bf16."""
    titles = {"polyrank": "torch", "polyrank onnx": "ONNX", "polyrank onnx-int8": "ONNX, weights in 8 bits"}
    rows = [
        [title, *(ms(row("bench/avx2/encode", what=what, form=form)["ms"]) for what in ("bulk", "context"))]
        for form, title in titles.items()
    ]
    n = row("bench/avx2/encode", what="bulk", form="polyrank")["n"]
    note = f"Milliseconds of MiniLM limited to AVX2 ({machine('bench/avx2/encode')}). Made by"
    note += (
        " `bash runs/timing/limit.sh avx2 python runs/peers/speed.py encode POOL --limit 500 --backend onnx --backend"
    )
    note += " onnx-int8`."
    return f"{note}\n\n{table(['', f'{n:,} turns of chat', 'one context'], rows, (1, 2))}"


def filters() -> str:
    """Searches through filters by the share of matching candidates."""
    rows = read("bench/filter")["rows"]
    times_of: dict[float, dict[str, str]] = {}
    for one in rows:
        times_of.setdefault(one["share"], {})[one["what"]] = ms(one["ms"])
    whats = ("first", "next", "after a change", "without")
    cells = [[f"{share:.1%}", *(known[what] for what in whats)] for share, known in times_of.items()]
    head = ["match", "first search", "next search", "after adding one candidate", "without a filter"]
    one = rows[0]
    note = f"Milliseconds to find the ten best of {one['n']:,} candidates in {one['form']} ({one['d']} dimensions)"
    note += f" for a context of {one['m']} vectors, and to read their texts"
    note += f" ({machine('bench/filter')}, with other work on the machine; medians)."
    note += " Made by `python runs/timing/filters.py"
    note += f" -n {one['n']} -d {one['d']} -m {one['m']}`."
    return f"{note}\n\n{table(head, cells, range(1, 5))}"


KINDS = ("as_said", "logq", "uniform")

BLOCKS = {
    "weighting": weighting,
    "sets-read": read_sets,
    "sets-unread": unread_sets,
    "filters": filters,
    "quality": quality,
    "second-stage": second_table,
    "sizes": sizes,
    "speed": speed,
    "number-of-codes": number_of_codes,
    "stages": stages,
    "without-training": without_training,
    "growth": growth,
    "streamed": streamed,
    "paper-costs": paper_costs,
    "int8": int8,
    "starts": starts,
    "runtimes": runtimes,
    "serving": load,
    "serving-compared": comparison,
}
