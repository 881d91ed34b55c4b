"""Text policies: turn joining, special tokens, truncation and padding. Only this package turns strings into ids."""

from polyrank.text.convert_policy import ConvertTexts
from polyrank.text.convert_subwords import ConvertSubwords, load_convert_subwords, read_convert_subwords
from polyrank.text.convert_vocabulary import learn_subwords
from polyrank.text.cut import Cut
from polyrank.text.messages import MessageTexts
from polyrank.text.policy import BackboneTexts
from polyrank.text.routed import RoutedTexts
from polyrank.text.subword_learning import learn_bert_subwords
from polyrank.text.subwords import Subwords, is_static, load_subwords, load_tokenizer, read_subwords
from polyrank.text.template import TemplateTexts, load_template_texts
from polyrank.text.texts import Texts
from polyrank.text.tokens import Tokens, pad

__all__ = [
    "BackboneTexts",
    "ConvertSubwords",
    "ConvertTexts",
    "Cut",
    "MessageTexts",
    "RoutedTexts",
    "Subwords",
    "TemplateTexts",
    "Texts",
    "Tokens",
    "is_static",
    "learn_bert_subwords",
    "learn_subwords",
    "load_convert_subwords",
    "load_subwords",
    "load_template_texts",
    "load_tokenizer",
    "pad",
    "read_convert_subwords",
    "read_subwords",
]
