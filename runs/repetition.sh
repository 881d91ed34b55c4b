#!/usr/bin/env bash
# A second stage that compares words: each encoder alone, and its 25 best, re-ranked by `polyrank repetition`.
#   DATA=folder THREADS=2 LIMIT=examples MAX_VALID=lists SETS="star ..." MODELS="shipped=shipped:minilm ..." RERANK=model \
#     bash runs/repetition.sh
# MODELS: NAME=ENCODER; SET in it stands for the set, as in RERANK. LIMIT: of test examples; empty: all.
# RERANK: another second stage, to which the repetition is added with a weight.
# All numbers are chosen on MAX_VALID (2,000) lists of the development part; mutual: on 888 of the training part.
# Writes runs/work/repetition, and stores repetition/SET/NAME (alone), NAME-second and NAME-fit with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
SETS=${SETS:-star sgd ubuntu-irc self-dialogue convai2-valid mutual}
MODELS=${MODELS:-shipped=shipped:minilm}
LIMIT=${LIMIT:-}
MAX_VALID=${MAX_VALID:-}
RERANK=${RERANK:-}

for set in $SETS; do
  work=$PWD/runs/work/repetition/$set
  mkdir -p "$work"
  test=$DATA/$set/test.jsonl.gz valid=$DATA/$set/dev.jsonl.gz
  if [[ $set == mutual ]]; then # its test answers are withheld
    test=$valid valid=$work/valid.jsonl
    zcat "$DATA/mutual/train.jsonl.gz" | tail -n 888 >"$valid"
  fi
  for model in $MODELS; do
    name=${model%%=*} encoder=${model#*=}
    encoder=${encoder//SET/$set}
    python runs/record.py --has "repetition/$set/$name-second" && continue
    polyrank repetition "$encoder" --valid "$valid" ${MAX_VALID:+--max-valid "$MAX_VALID"} -o "$work/$name" --overwrite --json \
      ${RERANK:+--rerank "${RERANK//SET/$set}"} --threads "$THREADS" >"$work/$name-fit.json"
    python runs/record.py "repetition/$set/$name-fit" "$work/$name-fit.json"
    second=() against=()
    for one in "$name" "$name-second"; do
      if [[ $one != "$name" || ! -e $work/$one.scores.jsonl ]]; then # the encoder's own scores stay
        polyrank evaluate "$encoder" "$test" ${LIMIT:+--limit "$LIMIT"} "${second[@]}" --scores "$work/$one.scores.jsonl" --overwrite \
          "${against[@]}" --threads "$THREADS" --json >"$work/$one.json"
        python runs/record.py "repetition/$set/$one" "$work/$one.json"
        echo "$set $one $(cut -c1-200 "$work/$one.json")"
      fi
      second=(--rerank "$work/$name" --n-retrieved 25) against=(--against "$work/$one.scores.jsonl")
    done
  done
done
