"""Text policies: turn joining, special tokens, truncation and padding. Only this package turns strings into ids."""

from polyrank.text.convert_policy import ConvertTexts as ConvertTexts
from polyrank.text.convert_subwords import (
    ConvertSubwords as ConvertSubwords,
    load_convert_subwords as load_convert_subwords,
    read_convert_subwords as read_convert_subwords,
)
from polyrank.text.convert_vocabulary import learn_subwords as learn_subwords
from polyrank.text.cut import Cut as Cut
from polyrank.text.messages import MessageTexts as MessageTexts
from polyrank.text.policy import BackboneTexts as BackboneTexts
from polyrank.text.routed import RoutedTexts as RoutedTexts
from polyrank.text.subword_learning import learn_bert_subwords as learn_bert_subwords
from polyrank.text.subwords import (
    Subwords as Subwords,
    is_static as is_static,
    load_subwords as load_subwords,
    load_tokenizer as load_tokenizer,
    read_subwords as read_subwords,
)
from polyrank.text.template import TemplateTexts as TemplateTexts, load_template_texts as load_template_texts
from polyrank.text.texts import Texts as Texts
from polyrank.text.tokens import Tokens as Tokens, pad as pad
