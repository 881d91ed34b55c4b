#!/usr/bin/env bash
# A prior over replies: each reply's frequency in the training dialogues, added to an encoder's scores.
#   DATA=folder THREADS=2 SETS="star sgd ..." MODELS="encoder counts sum" LIMIT=examples bash runs/prior.sh
# The weight is chosen on 500 development lists; all test examples are evaluated once. Stores prior/SET/MODEL with
# runs/record.py: for an encoder alone, counts alone, and their sum. shipped:minilm was trained on the training parts of
# star, ubuntu-irc and self-dialogue, but not on sgd; counts come from each set's own training part.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
SETS=${SETS:-star sgd ubuntu-irc self-dialogue}
ENCODER=${ENCODER:-shipped:minilm}
limit=(${LIMIT:+--limit "$LIMIT"})
WORK=runs/work/prior

for set in $SETS; do
  mkdir -p "$WORK/$set"
  train=$DATA/$set/train.dialogues.jsonl.gz speaker=(--speaker '*')
  case $set in
    star | sgd) speaker=(--speaker agent) ;;
    ubuntu-irc | convai2-valid) train=$DATA/$set/train.jsonl.gz speaker=() ;;
  esac
  polyrank popularity "$train" "${speaker[@]}" -o "$WORK/$set/counts" --overwrite
  for model in ${MODELS:-encoder counts sum}; do
    scorer=$WORK/$set/$model against=()
    if [[ $model == encoder ]]; then scorer=$ENCODER; fi
    if [[ $model == sum ]]; then
      polyrank sum "$ENCODER" "$WORK/$set/counts" -o "$scorer" --valid "$DATA/$set/dev.jsonl.gz" --overwrite --json \
        >"$WORK/$set/weights.json"
      python runs/record.py "prior/$set/weights" "$WORK/$set/weights.json"
      against=(--against "$WORK/$set/encoder.jsonl")
    fi
    polyrank evaluate "$scorer" "$DATA/$set/test.jsonl.gz" "${limit[@]}" --scores "$WORK/$set/$model.jsonl" --overwrite \
      "${against[@]}" --threads "$THREADS" --json >"$WORK/$set/$model.json"
    python runs/record.py "prior/$set/$model" "$WORK/$set/$model.json"
    echo "$set $model $(cut -c1-200 "$WORK/$set/$model.json")"
  done
done
