#!/usr/bin/env bash
# Intents on frozen encodings: banking77, clinc150 and hwu64, with the full training part and with 10 texts per intent.
#   DATA=folder ENCODER=untuned:embedded NAME=minilm SETS="banking77" SHOTS="10" SEEDS=1,2,3 bash runs/intents.sh
# For several concatenated encoders, set PARTS="untuned:embedded shipped:convert" NAME=both instead of ENCODER.
# Writes runs/work/intents (classifiers and encodings), and stores intents/NAME/SET-SHOTS with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
ENCODER=${ENCODER:-untuned:embedded}
NAME=${NAME:-minilm}
SETS=${SETS:-banking77 clinc150 hwu64}
SHOTS=${SHOTS:-10 full}
SEEDS=${SEEDS:-1,2,3}

mkdir -p "runs/work/intents/$NAME"
if [[ -n ${PARTS:-} ]]; then
  ENCODER=runs/work/intents/$NAME/encoder
  read -ra parts <<<"$PARTS"
  polyrank sum "${parts[@]}" -o "$ENCODER" --weights "$(printf ',1%.0s' "${parts[@]}" | cut -c2-)" --overwrite
fi
for set in $SETS; do
  for shots in $SHOTS; do
    few=()
    [[ $shots != full ]] && few=(--few-shot "$shots")
    work=runs/work/intents/$NAME/$set-$shots
    polyrank intents train "$DATA/$set" --encoder "$ENCODER" -o "$work" "${few[@]}" \
      --seeds "$SEEDS" --cache runs/work/intents/cache --overwrite --json >"$work.json"
    python runs/record.py "intents/$NAME/$set-$shots" "$work.json"
    python -c 'import json, sys; f = json.load(open(sys.argv[1])); print(sys.argv[1], f["accuracy"], f["accuracy_std"])' "$work.json"
  done
done
