#!/usr/bin/env bash
# Two encoders of similar quality but different kind, and their sum: the Bi-encoder of runs/real.sh and the shipped ConveRT.
#   DATA=folder LIMIT=test-examples SETS=star bash runs/mutual_encoders.sh
# Writes runs/work/encoders/SET, and stores encoders/SET/MODEL and ensembles with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
LIMIT=${LIMIT:-1000}
VALID=${VALID:-300}
SETS=${SETS:-star}

for set in $SETS; do
  work=$PWD/runs/work/encoders/$set
  mkdir -p "$work"
  training_data "$set"

  judge() { # NAME FOLDER AGAINST: scores on validation lists for the ensembles, on test lists for the table
    python runs/record.py --has "encoders/$set/$1" && return
    polyrank evaluate "$2" "$DATA/$set/dev.jsonl.gz" --limit "$VALID" --scores "$work/$1.dev.scores.jsonl" --overwrite --json >/dev/null
    polyrank evaluate "$2" "$DATA/$set/test.jsonl.gz" --limit "$LIMIT" --scores "$work/$1.test.scores.jsonl" \
      ${3:+--against "$work/$3.test.scores.jsonl"} --overwrite --json >"$work/$1.json"
    python runs/record.py "encoders/$set/$1" "$work/$1.json"
  }

  judge retriever-start "runs/work/$set/bi/model" ""
  judge reranker-start shipped:convert ""
  python runs/ensembles.py "$work" retriever-start reranker-start | python runs/record.py "encoders/$set/ensemble-start"
done
