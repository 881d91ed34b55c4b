#!/usr/bin/env bash
# Intents on frozen encodings: banking77, clinc150 and hwu64, with the full training part and with 10 of each intent.
#   DATA=folder ENCODER=untuned:embedded NAME=minilm SETS="banking77" SHOTS="10" SEEDS=1,2,3 bash runs/intents.sh
# Of several encoders side by side, PARTS="untuned:embedded shipped:convert" NAME=both instead of ENCODER.
# Writes runs/work/intents (classifiers and encodings, not kept) and runs/results/intents/NAME/SET-SHOTS.json (kept).
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
ENCODER=${ENCODER:-untuned:embedded}
NAME=${NAME:-minilm}
SETS=${SETS:-banking77 clinc150 hwu64}
SHOTS=${SHOTS:-10 full}
SEEDS=${SEEDS:-1,2,3}

mkdir -p "runs/results/intents/$NAME" "runs/work/intents/$NAME"
if [[ -n ${PARTS:-} ]]; then
  ENCODER=runs/work/intents/$NAME/encoder
  read -ra parts <<<"$PARTS"
  polyrank sum "${parts[@]}" -o "$ENCODER" --weights "$(printf ',1%.0s' "${parts[@]}" | cut -c2-)" --overwrite
fi
for set in $SETS; do
  for shots in $SHOTS; do
    few=()
    [[ $shots != full ]] && few=(--few-shot "$shots")
    result=runs/results/intents/$NAME/$set-$shots.json
    polyrank intents train "$DATA/$set" --encoder "$ENCODER" -o "runs/work/intents/$NAME/$set-$shots" "${few[@]}" \
      --seeds "$SEEDS" --cache runs/work/intents/cache --overwrite --json >"$result.part"
    mv "$result.part" "$result"
    python -c 'import json, sys; f = json.load(open(sys.argv[1])); print(sys.argv[1], f["accuracy"], f["accuracy_std"])' "$result"
  done
done
