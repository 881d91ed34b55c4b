"""Speed; all compared forms take turns in one run."""

from report.figures import described, listed, machine, ms, percent, read, row, section, table, times

AMX, BARE, AVX = "bench/amx/scoring", "bench/amx/scoring-without-loops", "bench/avx512/scoring"
AVX2, VNNI = "bench/avx2/scoring", "bench/avx512-vnni/scoring"
VECTORS = {
    "trained": "like a trained Poly-encoder's",
    "isotropic": "without structure",
    "wide": "wide logits",
}


def scoring() -> str:
    rows = []
    for kind, title in VECTORS.items():
        for m in (16, 64, 360) if kind != "wide" else (360,):
            cells = []
            for name in (AMX, BARE, AVX):
                papers, plain, exact = (row(name, what=kind, m=m, form=form) for form in ("papers", "exact", "fast"))
                cells += [ms(papers["ms"]), *(f"{ms(one['ms'])} ({times(one['ratio'])})" for one in (plain, exact))]
            rows.append([title, str(m), *cells])
    forms = [f"{where}: {form}" for where in ("AMX", "no loops", "AVX-512") for form in ("papers'", "plain", "exact")]
    plain, exact = (row("bench/amx/growth", n=1_000_000, form=form) for form in ("exact", "fast"))
    usual = row(AMX, what="isotropic", m=360, form="papers")["ms"]
    wide = [usual / row(AMX, what="wide", m=360, form=form)["ms"] for form in ("exact", "fast")]
    amd = [row("bench/avx512-vnni/flushed", what="wide", m=360, form=form) for form in ("papers", "papers, flushed")]
    return section(
        "Speed: the ten best of 100,000",
        f"""How fast is exact search among 100,000 candidates? For vectors like a trained Poly-encoder's, it is
        {_ratios(AMX)} times as fast as the papers' form on AMX, {_ratios(BARE)} times without compiled loops, and
        {_ratios(AVX)} times on AVX-512.""",
        listed(
            """Vectors have 768 dimensions. Times are milliseconds; in parentheses, how many times as fast as the
            papers' form (attention weights, attended vectors, products; chunked).""",
            """`plain` computes every score in fp32. `exact` is exact search, which returns the same. (In the data
            files, `exact` is the plain scan and `fast` exact search.)""",
            f"""Machines: first with the compiled loops of `kernels/` ({machine(AMX)}), then without them, then with
            them on the other machine ({machine(AVX)}).""",
            "Command: `python runs/timing/scoring.py`; [data](../runs/results/bench.jsonl).",
        ),
        table(["vectors", "context vectors", *forms], rows, range(1, 11)),
        f"""The ratios of wide logits overstate the methods. With these logits, the papers' form has attention weights
        below 1e-38, denormal numbers, which may slow those processors (not measured). The same operations on vectors
        without structure produce none and take {ms(usual)} ms on AMX. Compared with this time, the plain scan of wide
        logits is {times(wide[0])} times as fast and exact search {times(wide[1])} times. On the third machine below
        (AMD), flushing denormal numbers to zero has no effect beyond the noise of a busy machine ({ms(amd[0]["ms"])} ms
        with them, {ms(amd[1]["ms"])} without). `python runs/timing/scoring.py` prints both.""",
        """On AVX-512 without bf16, the plain scan is sometimes faster than exact search for vectors without
        structure.""",
        f"""A million candidates of {plain["d"]} dimensions with {plain["m"]} trained vectors (`--growth 1000000`) take
        {ms(plain["ms"])} ms plain and {ms(exact["ms"])} ms exact on AMX ({times(exact["ratio"])} times as fast as the
        papers' form). A search needs {exact["peak_mb"]:.0f} MB in addition to the int8 copy, which is made once.""",
    )


def _ratios(name: str, form: str = "fast") -> str:
    """How many times as fast exact search is for a trained Poly-encoder's vectors: the least and the most."""
    found = [row(name, what="trained", m=m, form=form)["ratio"] for m in (16, 64, 360)]
    return f"{times(min(found))} to {times(max(found))}"


def registers() -> str:
    rows = []
    for kind, title in VECTORS.items():
        for m in (16, 64, 360) if kind != "wide" else (360,):
            cells = []
            for name in (AVX2, VNNI):
                papers, plain, exact = (row(name, what=kind, m=m, form=form) for form in ("papers", "plain", "exact"))
                cells += [ms(papers["ms"]), *(f"{ms(one['ms'])} ({times(one['ratio'])})" for one in (plain, exact))]
                cells.append(exact["ways"])
            rows.append([title, str(m), *cells])
    forms = [f"{where}: {form}" for where in ("AVX2", "AVX-512") for form in ("papers'", "plain", "exact", "by")]
    return section(
        "Speed: the same in registers of AVX2 and AVX-512",
        f"""Do the compiled loops help with other registers? They have a form for every kind. For vectors like a trained
        Poly-encoder's, exact search is {_ratios(AVX2, "exact")} times as fast as the papers' form with AVX2, and
        {_ratios(VNNI, "exact")} times with AVX-512.""",
        f"""The measurement is as above, on one thread of a third machine ({described(VNNI)[0]}, AVX-512 with VNNI, no
        AMX). It is first limited to AVX2 (`bash runs/timing/limit.sh avx2 python runs/timing/scoring.py`, which limits
        torch and its libraries too), then uses all instructions. Other work kept the cores busy several times over, so
        only the ratios are meaningful; forms take turns.""",
        table(["vectors", "context vectors", *forms], rows, (1, 2, 3, 4, 6, 7, 8)),
    )


def million() -> str:
    def cells(what: str) -> list[str]:
        return [ms(row(f"bench/{where}/search", what=what)["ms"]) for where in ("amx", "avx512")]

    titles = {
        "build": "build",
        "open": "open and verify",
        "exact": "the ten best, every score computed",
        "fast": "**the ten best, exact search**",
        "add 1": "one more candidate, durable",
        "add 100 while searching": "a hundred more, durable, during a search",
        "search while adding": "that search",
        "remove 20": "remove twenty",
    }
    built, best = row("bench/amx/search", what="build"), row("bench/amx/search", what="fast")
    return section(
        "Speed: a million candidates on disk",
        f"""How fast is an index on disk? Exact search finds the ten best of {built["n"]:,} candidates in
        {ms(best["ms"])} ms on AMX, compared with {cells("exact")[0]} ms if every score is computed.""",
        f"""The candidates have {built["d"]} dimensions in int8, with their texts, {built["bytes"] / 1e9:.1f} GB, and
        contexts {built["m"]} vectors. Times are milliseconds on the same two machines as in [the ten best of
        100,000](#speed-the-ten-best-of-100000). Command: `python runs/timing/search.py -n 1000000 -m 16 --precision
        int8`.""",
        table(["what", "AMX", "AVX-512"], [[title, *cells(what)] for what, title in titles.items()], (1, 2)),
        f"""Exact search scores {best["n_scored"]} candidates in full on AMX. Its ten best hold
        {percent(best["recall_at_10"])}% of the ten best in fp32, because stored vectors are rounded.""",
    )


def answers() -> str:
    kinds = ("Bi", "Poly-16", "Poly-64", "Poly-360", "Cross")
    small, base = "bench/amx/respond", "bench/amx/respond-base"

    def cells(name: str, n: int, suffix: str = "") -> list[str]:
        result = []
        for kind in kinds:
            if kind == "Cross" and (suffix or name == base):
                result.append("")
                continue
            one = row(name, n=n, form=kind + suffix)
            result.append(ms(one["ms"]) + (f" ({ms(one['encode_ms'])})" if one["encode_ms"] else ""))
        return result

    def faster(name: str) -> list[str]:
        return [times(row(name, n=100_000, form=kind)["papers_ratio"]) if kind != "Cross" else "" for kind in kinds]

    poly = row(small, n=100_000, form="Poly-64")
    return section(
        "Speed: from text to the ten best",
        f"""How long does an answer take from text to the ten best? With MiniLM and 100,000 candidates, a Poly-encoder
        of 64 codes takes {ms(poly["ms"])} ms, {times(poly["papers_ratio"])} times as fast as the papers' form.""",
        f"""The table has the shape of the Poly-encoder paper's Table 5: a context of 100 words through MiniLM, then
        candidates of 384 dimensions. Then follows a network of BERT-base's size with 768 dimensions (`--backbone base`,
        random weights). Times are milliseconds, with the context's encoding in parentheses. The papers' form is all in
        fp32 with attended vectors. The Cross-encoder's times are extrapolated from a part. On {machine(small)}.
        Command: `python runs/timing/respond.py`.""",
        table(
            ["", *kinds],
            [
                ["MiniLM, 1,000 candidates", *cells(small, 1_000)],
                ["MiniLM, 100,000", *cells(small, 100_000)],
                ["the same in the papers' form", *cells(small, 100_000, ", papers")],
                ["times faster", *faster(small)],
                ["BERT-base, 100,000", *cells(base, 100_000)],
                ["the same in the papers' form", *cells(base, 100_000, ", papers")],
                ["times faster", *faster(base)],
            ],
            range(1, 6),
        ),
    )


def peers() -> str:
    library, package = "sentence-transformers", "polyrank"

    def cells(what: str, figure: str) -> list[str]:
        forms = {one: row("bench/amx/encode", what=what, form=one) for one in (library, f"{library} bf16", package)}
        usual, bf16, own = forms.values()
        slow = row("bench/avx512/encode", what=what, form=package)
        other = {}
        for backend in ("openvino", "onnx"):
            if not (what == "rerank" and backend == "openvino"):  # its export was refused
                other[backend] = row("bench/amx/encode", what=what, form=f"{package} {backend}")

        def against(one: dict[str, float] | None) -> str:
            if one is None:
                return ""
            return f"{ms(one[figure])} ({times(usual['ms'] / one['ms'])} / {times(bf16['ms'] / one['ms'])})"

        first = [ms(usual[figure]), ms(bf16[figure]), against(own)]
        return [*first, *(against(other.get(backend)) for backend in ("openvino", "onnx")), f"({times(slow['ratio'])})"]

    train = {one: row("bench/amx/train", form=one) for one in (library, f"{package}, like lengths")}
    slow = row("bench/avx512/train", form=f"{package}, like lengths")
    trained = train[f"{package}, like lengths"]
    bulk = row("bench/amx/encode", what="bulk", form=package)
    convert = row("bench/avx512/encode", what="context", form="runs/work/convert/multi/model")
    rows = [
        ["encode 1,000 turns of chat, per second", *cells("bulk", "per_second")],
        ["encode one context of 100 words, ms", *cells("context", "ms")],
        ["re-rank 100 candidates by a Cross-encoder, ms", *cells("rerank", "ms")],
        [
            "train a Bi-encoder in batches of 32, pairs per second",
            "",
            f"{train[library]['per_second']:.1f}",
            f"{trained['per_second']:.1f} (- / {times(trained['ratio'])})",
            "",
            "",
            f"({times(slow['ratio'])})",
        ],
    ]
    return section(
        "Speed: against sentence-transformers",
        f"""How fast is polyrank compared with sentence-transformers 6.2 for the same MiniLM? On AMX, it encodes turns
        {times(bulk["ratio"])} times as fast as the library's default. It trains {times(trained["ratio"])} times as fast
        as the library in bf16, on batches of similar length.""",
        f"""In parentheses: times as fast as the library's default and, after the slash, as the library with bf16
        weights. polyrank and OpenVINO use bf16 automatically. On {machine("bench/amx/encode")}; the last column is on
        {machine("bench/avx512/encode")}. Commands: `python runs/peers/speed.py encode POOL --backend onnx --backend
        openvino` and `python runs/peers/speed.py train DATA --limit 256`.""",
        table(
            ["what", "sentence-transformers", "in bf16", "polyrank", "OpenVINO", "ONNX", "polyrank, AVX-512"],
            rows,
            range(1, 7),
        ),
        *without_bf16(library, package),
        *training(library, package),
        *on_a_gpu(library, package),
        f"""OpenVINO's export of this Cross-encoder, whose head is untrained, is not faithful in bf16, and polyrank
        refused it. A multi-context ConveRT encodes a context {times(convert["ratio"])} times as fast as the library's
        MiniLM on AVX-512 alone.""",
    )


def without_bf16(library: str, package: str) -> list[str]:
    """8-bit weights without bf16 instructions, and a late Cross-encoder, whose candidates are encoded in advance."""
    there, joined = "bench/avx2/late", "late Cross-encoder"
    forms = (library, package, f"{package} int8", joined, f"{joined} int8", f"Bi-encoder and {joined}")
    usual, cross, narrow, own, fastest, both = (row(there, what="rerank", form=form) for form in forms)
    one, n = row(there, what="context", form=package)["ms"], row(there, what="bulk", form=package)["n"]

    def encoding(what: str) -> str:
        plain, rounded = (row(there, what=what, form=form) for form in (package, f"{package} int8"))
        alone = row(f"{there}-one-thread", what=what, form=f"{package} int8")
        return f"""{times(plain["ratio"])} times as fast as the library, in int8 {times(rounded["ratio"])} times (on one
            thread {times(alone["ratio"])})"""

    return [
        f"""Without bf16 instructions, with replies of star, on {machine(there)} (`python runs/peers/speed.py encode
        POOL --pairs {usual["n"]} --precision int8 --repeats 9`; in parentheses, times as fast as the library's
        Cross-encoder):""",
        listed(
            f"encode {n:,} replies: {encoding('bulk')}",
            f"encode one context of 100 words: {encoding('context')}",
            f"re-rank {usual['n']} replies by the library's Cross-encoder: {ms(usual['ms'])} ms",
            f"""by polyrank's: {ms(cross["ms"])} ms ({times(cross["ratio"])}), in int8 {ms(narrow["ms"])} ms
            ({times(narrow["ratio"])})""",
            f"""by a late Cross-encoder that keeps the replies: {ms(own["ms"])} ms ({times(own["ratio"])}), in int8
            {ms(fastest["ms"])} ms ({times(fastest["ratio"])})""",
            f"""by two stages, a Bi-encoder and the late Cross-encoder that starts from it, which read the context once:
            {ms(both["ms"])} ms. The Bi-encoder alone takes {ms(one)} ms, so re-ranking adds {ms(both["ms"] - one)}.""",
        ),
    ]


def training(library: str, package: str) -> list[str]:
    """Batches of 64 compared with sentence-transformers, and 512 contexts at once in the memory of 64."""
    there = "bench/avx512-vnni/train"
    usual, random, alike = (row(there, form=form) for form in (library, package, f"{package}, like lengths"))
    many = {form: row("bench/train-cache", form=form)["ms"] for form in (package, f"{package}, like lengths")}
    cached = row("bench/train-cache", form=f"{package}, like lengths, 512 in chunks")["ms"]
    longer = [f"{cached / ms:.2f}" for ms in many.values()]
    return [
        f"""Training in batches of 64, all in bf16, on {machine(there)} (`python runs/peers/speed.py train DATA --limit
        256 --batch 64`):""",
        listed(
            f"a plain loop around the library's model and loss: {usual['per_second']:.1f} pairs a second",
            f"polyrank on random batches: {random['per_second']:.1f} ({times(random['ratio'])} times)",
            f"polyrank on batches of similar length: {alike['per_second']:.1f} ({times(alike['ratio'])} times)",
        ),
        f"""512 contexts at once, in chunks of 64 through the gradient cache, take {longer[0]} times as long per pair as
        random batches of 64, and {longer[1]} times as long as batches of similar length (`python
        runs/peers/speed.py train DATA --batch 64 --cache 512 --limit 512`).""",
    ]


def on_a_gpu(library: str, package: str) -> list[str]:
    """The same on a GPU, with random weights of MiniLM's size."""
    there = "bench/h100/encode"
    whats = ("bulk", "context", "rerank")
    usual, bf16, own = (
        [row(there, what=what, form=form) for what in whats] for form in (library, f"{library} bf16", package)
    )
    joined = row(there, what="rerank", form="late Cross-encoder")

    def than(number: int) -> str:
        ratios = (one[number]["ms"] / own[number]["ms"] for one in (usual, bf16))
        return " / ".join(times(ratio) for ratio in ratios)

    return [
        f"""On an {read(there)["machine"]["gpu"]}, with sentence-transformers 6.0, random weights of MiniLM's size and
        both libraries' own batches (`python runs/peers/speed.py encode POOL --limit 2000 --device cuda --backbone
        FOLDER`; in parentheses, times as fast as the library's default and as the library with bf16 weights):""",
        listed(
            f"encode {own[0]['n']:,} turns of chat: {own[0]['per_second']:,.0f} a second ({than(0)})",
            f"encode one context of 100 words: {ms(own[1]['ms'])} ms ({than(1)})",
            f"""re-rank {own[2]["n"]} candidates by a Cross-encoder: {ms(own[2]["ms"])} ms ({than(2)}), by a late one
            that keeps the candidates: {ms(joined["ms"])} ms""",
        ),
    ]
