#!/usr/bin/env bash
# Mutual learning of two encoders of similar quality but different kind: the Bi-encoder of runs/real.sh and the shipped ConveRT
# train further separately (alpha = 0, which equals two plain trainings) and together, on the same lists.
#   DATA=folder BUDGET=contexts TEMPERATURES="3" LIMIT=test-examples SETS=star bash runs/mutual_encoders.sh
# Writes runs/work/encoders/SET, stores encoders/SET/MODEL and ensembles with runs/record.py, and draws curves.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
BUDGET=${BUDGET:-1920}
TEMPERATURES=${TEMPERATURES:-3}
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

  both() { # TAG
    for side in retriever reranker; do
      against=
      [[ $1 == apart ]] || against=$side-apart
      judge "$side-$1" "$work/$1/$side/model" "$against"
      python runs/record.py "encoders/$set/$side-$1.metrics" "$work/$1/$side/metrics.jsonl"
    done
    python runs/ensembles.py "$work" "retriever-$1" "reranker-$1" | python runs/record.py "encoders/$set/ensemble-$1"
  }

  learn() { # TAG [OPTION ...]
    polyrank train runs/recipes/mutual-convert.toml "${data[@]}" --set "data.max_train=$BUDGET" \
      --set "data.valid=$DATA/$set/dev.jsonl.gz" --set "data.max_valid=$VALID" --set "output=$work/$1" \
      --set "train.init_from=runs/work/$set/bi/model" --set train.checkpoint_steps=20 --resume "${@:2}"
    both "$1"
  }

  judge retriever-start "runs/work/$set/bi/model" ""
  judge reranker-start shipped:convert ""
  python runs/ensembles.py "$work" retriever-start reranker-start | python runs/record.py "encoders/$set/ensemble-start"
  learn apart --set train.method.alpha=0
  for temperature in $TEMPERATURES; do
    learn "mutual-$temperature" --set train.method.alpha=1 --set "train.method.temperature=$temperature"
  done
  polyrank curves "$work"/{apart,mutual-*}/{retriever,reranker}/metrics.jsonl -o "runs/results/encoders-$set-curves.svg" --overwrite
done
