#!/usr/bin/env bash
# Search in a pool with one stage and with two: BM25, Bi and Poly alone, and each followed by a Cross-encoder.
#   DATA=folder SETS="ubuntu-irc medquad" BUDGET=pairs LIMIT=contexts bash runs/two_stage.sh
# RERANKER=folder re-ranks with that model instead of the set's Cross-encoder. Models are those of runs/real.sh in runs/work/SET; the
# script trains missing ones.
# Stores SET/stages with runs/record.py, and draws runs/results/SET-stages.svg.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
BUDGET=${BUDGET:-1920}
LIMIT=${LIMIT:-100} # a Cross-encoder computes every pair of a shortlist
SETS=${SETS:-ubuntu-irc medquad}

for set in $SETS; do
  pool=$DATA/$set/pool.jsonl.gz
  [[ $set == medquad ]] && pool=$DATA/$set/answers.jsonl.gz
  mkdir -p "runs/work/$set"
  reranker=${RERANKER:-runs/work/$set/cross/model}
  models="bi poly-64"
  [[ -n ${RERANKER:-} ]] || models+=" cross"
  for model in $models; do
    work=$PWD/runs/work/$set/$model
    [[ -e $work/model ]] || polyrank train "runs/recipes/$model.toml" --set "data.train=$DATA/$set/train.jsonl.gz" \
      --set "output=$work" --set "data.max_train=$BUDGET"
    [[ $model == cross ]] || polyrank index build "runs/work/$set/$model/model" "$pool" -o "runs/work/$set/index/$model" --overwrite
  done
  python runs/stages.py "$DATA/$set/test.pool.jsonl.gz" --index "runs/work/$set/index/bi" --index "runs/work/$set/index/poly-64" \
    --lexical --rerank "$reranker" --combine none --combine z-score \
    -n 10 -n 25 -n 50 --limit "$LIMIT" --plot "runs/results/$set-stages.svg" | python runs/record.py "$set/stages"
done
