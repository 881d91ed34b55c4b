"""A training recipe as frozen dataclasses, with strict parsing. Creating one checks that its parts fit together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from polyrank.config import checked, models
from polyrank.config.train import NetworkTraining, TrainConfig
from polyrank.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(checked.Settings):
    """The training, validation and test data.

    Args:
        train: file of examples (JSON lines, gzip, CSV or Parquet); None if they are passed in memory.
        valid: file of candidate lists, or of pairs or dialogues, for which lists are drawn; None: no validation.
        test: file of examples to evaluate the finished model on; None: no evaluation.
        kind: of ``train``: "pairs", "dialogues", "candidates"; None: inferred from its first row.
        speaker: for dialogues, the speaker whose turns are responses; "*": all speakers. None: the agents, if they can
            be recognized.
        max_train: use a random subset of this many examples; None: all.
        max_valid: use at most this many examples of ``valid``, from its start.
        valid_candidates: size of each list that is drawn for ``valid``; None: 20, or fewer if there are fewer
            responses.
        skip_bad: count and skip bad rows instead of stopping.
        cache: folder in which the examples of ``train`` are stored and read one by one, for data that does not fit in
            memory; ``train`` may then also be a folder of files, or a pattern such as "data/part-*.parquet". None: keep
            them in memory.
    """

    train: str | None = None
    valid: str | None = None
    test: str | None = None
    kind: Literal["pairs", "dialogues", "candidates"] | None = None
    speaker: str | None = None
    max_train: checked.Count | None = None
    max_valid: checked.Count | None = 1000
    valid_candidates: checked.AtLeastTwo | None = None
    skip_bad: bool = False
    cache: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner(checked.Settings):
    """The second network of a mutual training: a re-ranker, or another encoder. Its texts are cut as the first's.

    Args:
        model: its model settings.
        train: its training settings.
    """

    model: models.BackboneConfig
    train: NetworkTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(checked.Settings):
    """A training: model, text, data and training settings, output folder, and a partner for mutual training."""

    model: models.ModelConfig
    output: str
    data: DataConfig = field(default_factory=DataConfig)
    text: models.TextSettings = field(default_factory=models.TextPolicy)
    train: TrainConfig = field(default_factory=TrainConfig)
    reranker: Partner | None = None

    @property
    def networks(self) -> list[tuple[models.ModelConfig, NetworkTraining]]:
        """Each network with its training settings: one, or the two of a mutual training."""
        first: list[tuple[models.ModelConfig, NetworkTraining]] = [(self.model, self.train)]
        return first if self.reranker is None else [*first, (self.reranker.model, self.reranker.train)]

    def __post_init__(self) -> None:
        model, method, negatives = self.model, self.train.method, self.train.negatives
        if not isinstance(self.text, model.text_kind):
            raise ConfigError(f'text of model.kind = "{model.kind}" is {model.text_kind.__name__}; give that')
        if not (method.ranks_lists or model.encodes):
            raise ConfigError('a Cross-encoder has no in-batch negatives; set train.method.kind = "listwise"')
        if not method.ranks_lists and method.kind != model.training.method.kind:
            raise ConfigError(
                f'train.method.kind = "{method.kind}" is not for model.kind = "{model.kind}"; set'
                f' "{model.training.method.kind}" or a method that ranks lists'
            )
        if (method.kind == "mutual") != (self.reranker is not None):
            raise ConfigError(
                'train.method.kind = "mutual" trains two networks, and the table [reranker] is the second; give both or'
                " neither"
            )
        if method.kind == "mutual" and not isinstance(self.text, models.TextPolicy):
            raise ConfigError('train.method.kind = "mutual" is for networks with a backbone; train a ConveRT alone')
        if method.kind == "rerank" and model.encodes:
            raise ConfigError(f'train.method.kind = "rerank" trains a Cross-encoder, not model.kind = "{model.kind}"')
        if negatives is not None and "mined" in negatives.sources and not any(one.encodes for one, _ in self.networks):
            raise ConfigError(
                'train.negatives.sources has "mined", which needs a network that encodes, because a Cross-encoder would'
                " have to read every pair; mine once with polyrank mine instead"
            )


def recipe_from_dict(values: Mapping[str, Any], inherited: Mapping[str, dict[str, Any]] | None = None) -> Recipe:
    """Build a Recipe from nested tables ``model``, ``text``, ``data``, ``train`` and the key ``output``.

    The kind of model determines the text settings and the defaults of the training. A second network is a table
    ``reranker`` with the keys of a model, and a table ``train`` for the differences.

    Args:
        values: the tables.
        inherited: settings for the tables ``model``, ``text`` and ``reranker`` where ``values`` give none.

    Raises:
        ConfigError: a key is unknown, missing or wrong.

    >>> recipe_from_dict({"model": {"kind": "poly"}, "output": "run"}, {"model": {"n_codes": 16}}).model.n_codes
    16
    """
    inherited, tables = inherited or {}, checked.recipe_tables(Recipe, values, ("model", "output"))
    model: models.ModelConfig = checked.kind_from_dict(
        models.ModelConfig, inherited.get("model", {}) | tables["model"], "model"
    )
    usual = model.training if tables["train"].get("init_from") is None else model.tuning
    train = checked.from_dict(TrainConfig, tables["train"], "train", usual)
    partner = None
    if tables["reranker"] is not None:
        second = inherited.get("reranker", {}) | tables["reranker"]
        checked.check_table(differences := second.pop("train", {}), "reranker.train")
        for key in differences:
            if key in checked.field_types(TrainConfig).keys() - checked.field_types(NetworkTraining).keys():
                raise ConfigError(f"reranker.train.{key} is common to both networks; set it in [train]")
        partner = Partner(
            model=checked.kind_from_dict(models.BackboneConfig, second, "reranker"),
            # init_from names weights of the first network only
            train=checked.from_dict(NetworkTraining, {"init_from": None, **differences}, "reranker.train", train),
        )
    return Recipe(
        model=model,
        data=checked.from_dict(DataConfig, tables["data"], "data"),
        output=tables["output"],
        text=checked.from_dict(model.text_kind, inherited.get("text", {}) | tables["text"], "text"),
        train=train,
        reranker=partner,
    )


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The inverse of ``recipe_from_dict``, ready for JSON."""
    values = checked.to_dict(recipe)
    if (partner := values.pop("reranker")) is not None:
        values["reranker"] = {**partner.pop("model"), **partner}
    return values
