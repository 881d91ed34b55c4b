#!/usr/bin/env bash
# Correction for hubs: each encoder alone, and corrected with 1,000 contexts of the training data, whose right answers are not used.
#   DATA=folder THREADS=2 LIMIT=examples SETS="star sgd ..." MODELS="shipped=shipped:minilm ..." bash runs/hubs.sh
# MODELS: NAME=ENCODER; SET in it stands for the set. LIMIT: of test examples; empty: all.
# The scale and the weight are chosen on 500 lists of the development part; mutual: of the training part, medquad: drawn from its pairs.
# COUNTS=1: also with reply counts, added to the encoder (NAME-counts) and to the encoder corrected with the weight 1 (NAME-both).
# Writes runs/work/hubs, and stores hubs/SET/NAME (alone), NAME-hubs (corrected) and NAME-fit with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
SETS=${SETS:-star sgd ubuntu-irc self-dialogue convai2-valid mutual medquad}
MODELS=${MODELS:-untuned=untuned:embedded shipped=shipped:minilm}
LIMIT=${LIMIT:-}
COUNTS=${COUNTS:-}

for set in $SETS; do
  work=$PWD/runs/work/hubs/$set
  mkdir -p "$work"
  training_data "$set"
  contexts=${data[1]#data.train=} speaker=()
  for one in "${data[@]}"; do [[ $one != data.speaker=* ]] || speaker=(--speaker "${one#*=}"); done
  test=$DATA/$set/test.jsonl.gz valid=$DATA/$set/dev.jsonl.gz options=(${LIMIT:+--limit "$LIMIT"})
  case $set in
    mutual) # its test answers are withheld
      test=$valid valid=$work/valid.jsonl
      zcat "$contexts" | tail -n 888 >"$valid" ;;
    medquad)
      valid=$work/valid.jsonl test=$DATA/medquad/test.pool.jsonl.gz options+=(--pool "$DATA/medquad/answers.jsonl.gz")
      zcat "$contexts" | shuf -n 500 --random-source=<(yes) >"$valid" ;;
  esac
  for model in $MODELS; do
    name=${model%%=*} encoder=${model#*=}
    encoder=${encoder//SET/$set}
    if [[ $COUNTS ]]; then
      scale=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["scale"])' "$work/$name-fit.json")
      polyrank popularity "$contexts" "${speaker[@]}" -o "$work/counts" --overwrite
      polyrank hubs "$encoder" "$contexts" --weight 1 --scale "$scale" -o "$work/$name-1" --overwrite --threads "$THREADS" "${speaker[@]}"
      against=()
      for one in "$name-counts=$encoder" "$name-both=$work/$name-1"; do
        polyrank sum "${one#*=}" "$work/counts" -o "$work/${one%%=*}" --valid "$valid" --overwrite --threads "$THREADS"
        polyrank evaluate "$work/${one%%=*}" "$test" "${options[@]}" --scores "$work/${one%%=*}.scores.jsonl" --overwrite "${against[@]}" \
          --threads "$THREADS" --json >"$work/${one%%=*}.json"
        python runs/record.py "hubs/$set/${one%%=*}" "$work/${one%%=*}.json"
        against=(--against "$work/${one%%=*}.scores.jsonl")
      done
    fi
    python runs/record.py --has "hubs/$set/$name-hubs" && continue
    polyrank hubs "$encoder" "$contexts" --valid "$valid" -o "$work/$name" --overwrite --json --threads "$THREADS" "${speaker[@]}" \
      >"$work/$name-fit.json"
    python runs/record.py "hubs/$set/$name-fit" "$work/$name-fit.json"
    against=()
    for one in "$name=$encoder" "$name-hubs=$work/$name"; do
      polyrank evaluate "${one#*=}" "$test" "${options[@]}" --scores "$work/${one%%=*}.scores.jsonl" --overwrite "${against[@]}" \
        --threads "$THREADS" --json >"$work/${one%%=*}.json"
      python runs/record.py "hubs/$set/${one%%=*}" "$work/${one%%=*}.json"
      echo "$set ${one%%=*} $(cut -c1-200 "$work/${one%%=*}.json")"
      against=(--against "$work/${one%%=*}.scores.jsonl")
    done
  done
done
