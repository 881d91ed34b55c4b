"""R@1 with slots and without, on conversations into which customers' data are planted.

    python runs/planted.py LISTS [--model MODEL] [--limit N] | python runs/record.py slots/planted-NAME
    python runs/planted.py LISTS --train DIALOGUES --valid LISTS | python runs/record.py slots/planted-NAME-trained

Each conversation gets a customer whose name, order and date are in its first turn; three of four replies repeat some of
them. A catalogue holds replies to other customers, so each candidate has another customer's data, and the dates, times,
amounts and numbers that a right reply already had are those of other replies. In training pairs all data are the
customer's own, as in conversations. "own" are lists whose right reply has the data of its context, which no catalogue
has: there, equal values give the answer away.

The first command scores with a model as it is. The second one trains it twice, without and with `text.slots`. Both
print R@1 in percent, and for slots also the 95% interval, by dialogue, of the difference.
"""

import argparse
import json
import random
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polyrank
from polyrank.data import read_examples
from polyrank.evaluation.tables import dialogues_of, mean_with_interval
from polyrank.records import Example
from polyrank.slots import data_in
from slots import FIRST, MONTHS, hits, with_slots

ASKED = "Hi, I'm {first}. It is about order {order} of {date}. {text}"
ANSWERED = (
    "Hi {first}, {text}",
    "{text} Your order is {order}.",
    "Thanks {first}. {text} I have noted {order} for {date}.",
    "{text}",
)
Data = dict[str, str]


def customer(chance: random.Random) -> Data:
    """The data of a made-up customer."""
    return {
        "first": chance.choice(FIRST["en"]),
        "order": f"{chance.choice(('AR-', '#', 'ORD', ''))}{chance.randint(10_000, 99_999_999)}",
        "date": f"{chance.randint(1, 28)} {chance.choice(MONTHS['en'])}",
    }


def answered(text: str, data: Data, values: Mapping[str, Sequence[str]], chance: random.Random) -> str:
    """A reply with some of the data, and with others of the values for its own; equal replies have the same kinds."""
    form = ANSWERED[zlib.crc32(text.encode()) % len(ANSWERED)]
    for found in reversed(data_in(text)):
        text = f"{text[: found.start]}{chance.choice(values.get(found.kind, [found.value]))}{text[found.end :]}"
    return form.format(text=text, **data)


def values_in(examples: Iterable[Example]) -> dict[str, list[str]]:
    """The dates, times and other values of right replies, by kind."""
    values: dict[str, list[str]] = defaultdict(list)
    for example in examples:
        for found in (found for i in example.relevant for found in data_in(example.candidates[i])):
            values[found.kind].append(found.value)
    return values


def planted(examples: Sequence[Example], seed: int = 0, *, own: bool = False) -> list[Example]:
    """Examples with data in contexts and candidates; in right candidates those of another customer unless ``own``."""
    made, values = [], values_in(examples)
    for example in examples:
        said = customer(random.Random(f"{seed} {example.id.rpartition('#')[0]}"))
        chance = random.Random(f"{seed} {example.id}")
        candidates = list(example.candidates)
        for i, text in enumerate(candidates):
            is_right = i in example.relevant
            data = said if is_right and own else customer(chance)
            candidates[i] = answered(text, data, values if is_right and not own else {}, chance)
        first, *rest = example.context
        context = (ASKED.format(text=first, **said), *rest)
        made.append(replace(example, context=context, candidates=tuple(candidates)))
    return made


def measure(examples: list[Example], forms: dict[str, Callable[[], tuple[str, list[Example]]]]) -> dict[str, Any]:
    """R@1 of each form, a model and its examples, and the differences from the first form."""
    dialogues = dialogues_of([example.id for example in examples])
    result: dict[str, Any] = {"n": len(examples), "n_dialogues": int(dialogues.max()) + 1}
    base = None
    for name, make in forms.items():
        model, lists = make()
        found = hits(polyrank.load(model, device="cpu"), lists)
        base = found if base is None else base
        gain = mean_with_interval(found - base, dialogues)
        values = [found.mean(), *((gain["low"], gain["high"]) if found is not base else ())]
        result[name] = [round(100 * float(value), 2) for value in values]
    return result


def trained(folder: Path, model: str, pairs: list[Example], valid: list[Example], *, slots: bool) -> str:
    """The folder of a model that was trained on the pairs."""
    recipe: dict[str, Any] = {
        "output": str(folder / f"slots-{slots}"),
        "model": {"kind": "convert" if model == "shipped:convert" else "bi"},
        "text": {"slots": slots},
        "train": {"init_from": model, "epochs": 2, "batch_size": 50},
    }
    (run,) = polyrank.train(recipe, pairs, valid, device="cpu")
    return str(run.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", help="a test file with lists of candidates")
    parser.add_argument("--model", default="shipped:convert")
    parser.add_argument("--limit", type=int, default=600)
    parser.add_argument("--train", help="dialogues to train on")
    parser.add_argument("--valid", help="lists to choose the best update by")
    parser.add_argument("--pairs", type=int, default=1500)
    arguments = parser.parse_args()
    read = read_examples(arguments.lists).examples[: arguments.limit]
    lists, own = planted(read), planted(read, own=True)
    with tempfile.TemporaryDirectory() as folder:
        models = [arguments.model] * 2
        if arguments.train:
            said = read_examples(arguments.train, speaker="agent").examples
            random.Random(0).shuffle(said)
            pairs = planted(said[: arguments.pairs], own=True)
            valid = planted(read_examples(arguments.valid).examples[:100])
            models = [trained(Path(folder), arguments.model, pairs, valid, slots=slots) for slots in (False, True)]
        result = measure(
            lists,
            {
                "plain": lambda: (models[0], lists),
                "slots in candidates": lambda: (models[0], [with_slots(each, contexts=False) for each in lists]),
                "slots": lambda: (models[1], [*map(with_slots, lists)]),
                "own, plain": lambda: (models[0], own),
                "own, slots": lambda: (models[1], [*map(with_slots, own)]),
            },
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
