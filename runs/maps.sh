#!/usr/bin/env bash
# A frozen encoder with a trained map of its response vectors, compared with plain similarity on the same test lists.
#   DATA=folder ENCODER=untuned:embedded NAME=untuned SETS="star" BUDGET=1920 LIMIT=1000 bash runs/maps.sh
# Writes runs/work/SET/map-NAME, and stores SET/map-NAME and SET/map-NAME.fit with runs/record.py. Plain similarity
# is the row "untuned" of runs/real.sh, or `polyrank evaluate ENCODER`.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
ENCODER=${ENCODER:-untuned:embedded}
NAME=${NAME:-untuned}
SETS=${SETS:-star ubuntu-irc}
BUDGET=${BUDGET:-1920}
VALID=${VALID:-200}
LIMIT=${LIMIT:-1000}

for set in $SETS; do
  case $set in
    star | sgd) data=("$DATA/$set/train.dialogues.jsonl.gz" --speaker agent) ;;
    *) data=("$DATA/$set/train.jsonl.gz") ;;
  esac
  mkdir -p "runs/work/$set"
  work=runs/work/$set/map-$NAME
  polyrank map "${data[@]}" --valid "$DATA/$set/dev.jsonl.gz" --encoder "$ENCODER" -o "$work" \
    --max-train "$BUDGET" --max-valid "$VALID" --overwrite --json >"$work.fit.json"
  python runs/record.py "$set/map-$NAME.fit" "$work.fit.json"
  against=()
  [[ $NAME == untuned && -e runs/work/$set/untuned.scores.jsonl ]] && against=(--against "runs/work/$set/untuned.scores.jsonl")
  polyrank evaluate "$work" "$DATA/$set/test.jsonl.gz" --limit "$LIMIT" \
    --scores "$work.scores.jsonl" "${against[@]}" --json >"$work.json"
  python runs/record.py "$set/map-$NAME" "$work.json"
  echo "$set map-$NAME $(cat "$work.json")"
done
