#!/usr/bin/env bash
# A Cross-encoder that corrects a Bi-encoder's scores: is the sum of both better than the Bi-encoder?
#   DATA=folder SET=star FIRST=pairs PAIRS=pairs LISTS=test lists THREADS=2 bash runs/rerank.sh
# Trains the Bi-encoder on FIRST pairs, and the Cross-encoder on PAIRS other pairs at random. The version of the Cross-encoder is
# chosen on 200 dev lists. A stopped run resumes when you start it again.
# Writes runs/work/rerank, and stores rerank/SET with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
SET=${SET:-star}
FIRST=${FIRST:-7680}
PAIRS=${PAIRS:-2560}
LISTS=${LISTS:-500}
THREADS=${THREADS:-2}
work=$PWD/runs/work/rerank/$SET
mkdir -p "$work"

training_data "$SET"
BI=${BI:-$work/bi/model} # of an earlier run
[[ -e $BI ]] || polyrank train runs/recipes/bi.toml "${data[@]}" --set "output=$work/bi" --set data.max_train="$FIRST" \
  --set train.init_from=shipped:minilm --set train.length_window=1 --set train.dropout=0.0 --set model.normalize=false \
  --set train.method.negatives_weighting=logq --set train.checkpoint_steps=20 --threads "$THREADS" --resume
polyrank train runs/recipes/rerank.toml "${data[@]}" --set "output=$work/cross" --set data.max_train="$PAIRS" \
  --set "data.valid=$DATA/$SET/dev.jsonl.gz" --set data.max_valid=200 --set "train.init_from=$BI" \
  --set "train.method.first_stage=$BI" --threads "$THREADS" --resume
judge() { # NAME [OPTION ...]
  polyrank evaluate "$BI" "$DATA/$SET/test.jsonl.gz" --limit "$LISTS" --scores "$work/$1.scores.jsonl" --overwrite \
    --threads "$THREADS" --json "${@:2}" >"$work/$1.json"
  python runs/record.py "rerank/$SET/$1" "$work/$1.json"
}
judge bi
judge both --rerank "$work/cross/model" --n-retrieved 6 --against "$work/bi.scores.jsonl"
python runs/record.py "rerank/$SET/fit" "$work/cross/result.json"
