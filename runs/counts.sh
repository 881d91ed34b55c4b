#!/usr/bin/env bash
# Reply frequency alone: each reply's count in the set's own training dialogues.
#   DATA=folder SETS="star sgd ..." bash runs/counts.sh
# Stores counts/SET with runs/record.py, over all test examples.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")

for set in ${SETS:-star sgd ubuntu-irc self-dialogue convai2-valid}; do
  train=$DATA/$set/train.dialogues.jsonl.gz speaker=(--speaker '*')
  case $set in
    star | sgd) speaker=(--speaker agent) ;;
    ubuntu-irc | convai2-valid) train=$DATA/$set/train.jsonl.gz speaker=() ;;
  esac
  python runs/counts.py "$DATA/$set/test.jsonl.gz" --counts "$train" "${speaker[@]}" | python runs/record.py "counts/$set"
done
