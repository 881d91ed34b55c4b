#!/usr/bin/env bash
# Intents on frozen encodings: banking77, clinc150 and hwu64, with the full training part and with 10 texts per intent.
#   DATA=folder ENCODER=untuned:embedded NAME=minilm SETS="banking77" SHOTS="10" SEEDS=3 bash runs/intents.sh
# Writes runs/work/intents (classifiers), and stores intents/NAME/SET-SHOTS with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
ENCODER=${ENCODER:-untuned:embedded}
NAME=${NAME:-minilm}
SETS=${SETS:-banking77 clinc150 hwu64}
SHOTS=${SHOTS:-10 full}
SEEDS=${SEEDS:-3}

mkdir -p "runs/work/intents/$NAME"
for set in $SETS; do
  for shots in $SHOTS; do
    few=()
    [[ $shots != full ]] && few=(--few-shot "$shots")
    work=runs/work/intents/$NAME/$set-$shots
    polyrank intents train "$DATA/$set" --encoder "$ENCODER" -o "$work" "${few[@]}" \
      --seeds "$SEEDS" --overwrite --json >"$work.json"
    python runs/record.py "intents/$NAME/$set-$shots" "$work.json"
    python -c 'import json, sys; f = json.load(open(sys.argv[1])); print(sys.argv[1], f["accuracy"], f["accuracy_std"])' "$work.json"
  done
done
