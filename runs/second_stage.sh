#!/usr/bin/env bash
# A general second stage: a late Cross-encoder over shipped:minilm, trained on the corpora of shipped:minilm, evaluated on others.
#   DATA=folder THREADS=2 LATE=pairs LIMIT=examples SETS="sgd convai2-valid ..." PART=test bash runs/second_stage.sh
# PART=dev evaluates on development lists. A stopped run resumes when you start it again.
# Writes runs/work/second, and stores second/SET/PART-one with runs/record.py, for shipped:minilm, and PART-two, with its 25 best re-ranked.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
LATE=${LATE:-32000}
LIMIT=${LIMIT:-1000}
SETS=${SETS:-sgd convai2-valid medquad mutual}
PART=${PART:-test}
work=$PWD/runs/work/second
mkdir -p "$work"

[[ -e $work/train.jsonl.gz ]] || python runs/convert_data.py "$DATA" "$work" star ubuntu-irc self-dialogue:4400 --valid sgd convai2-valid
[[ -e $work/run/result.json ]] || polyrank train runs/recipes/late.toml --set "output=$work/run" --set "data.train=$work/train.jsonl.gz" \
  --set data.speaker=reply --set train.init_from=shipped:minilm --set train.method.first_stage=shipped:minilm \
  --set text.max_candidate_tokens=128 --set train.negatives.weighting=as_said --set train.lr=3e-4 \
  --set "train.max_steps=$((LATE / 16))" --threads "$THREADS" --resume

for set in $SETS; do
  lists=$DATA/$set/$PART.jsonl.gz pool=()
  [[ $set == mutual ]] && lists=$DATA/mutual/dev.jsonl.gz # its test answers are withheld
  [[ $set == medquad ]] && lists=$DATA/medquad/$PART.pool.jsonl.gz pool=(--pool "$DATA/medquad/answers.jsonl.gz")
  judge() { # NAME [OPTION ...]
    polyrank evaluate shipped:minilm "$lists" "${pool[@]}" --limit "$LIMIT" --threads "$THREADS" --json --overwrite \
      --scores "$work/$set-$PART-$1.scores.jsonl" "${@:2}" >"$work/$set-$PART-$1.json"
    python runs/record.py "second/$set/$PART-$1" "$work/$set-$PART-$1.json"
    echo "$set $PART $1 $(cut -c1-200 "$work/$set-$PART-$1.json")"
  }
  judge one
  judge two --rerank "$work/run/model" --n-retrieved 25 --against "$work/$set-$PART-one.scores.jsonl"
done
python runs/record.py second/fit "$work/run/result.json"
