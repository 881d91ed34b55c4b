#!/usr/bin/env bash
# Real data: trains every model from one start, the embedded MiniLM, on the same examples and evaluates each on the same test lists.
#   DATA=folder BUDGET=pairs DROPOUT=share LIMIT=test-examples SETS="star ubuntu-irc" MODELS="bi poly-64" bash runs/real.sh
# START: the start of all models. SETTINGS="train.lr=5e-5": further settings of each training. A stopped run resumes when you start it again.
# Writes runs/work/SET/MODEL, and stores SET/MODEL with runs/record.py. NAME=short, for example, writes runs/work/short/SET and
# stores short/SET/MODEL, so that you can compare budgets.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
NAME=${NAME:-}
START=${START:-embedded}
BUDGET=${BUDGET:-11520}
DROPOUT=${DROPOUT:-0.0}
THREADS=${THREADS:-}
SETTINGS=${SETTINGS:-}
LIMIT=${LIMIT:-1000}
CROSS_LIMIT=${CROSS_LIMIT:-200} # a Cross-encoder computes every pair
SETS=${SETS:-star ubuntu-irc sgd convai2-valid}
MODELS=${MODELS:-bm25 untuned bi poly-16 poly-64 poly-360 poly-64-first cross}

settings=()
for one in $SETTINGS; do settings+=(--set "$one"); done
for set in $SETS; do
  test=$DATA/$set/test.jsonl.gz
  [[ $set == mutual ]] && test=$DATA/mutual/dev.jsonl.gz # its test answers are withheld
  training_data "$set"
  place=${NAME:+$NAME/}$set
  mkdir -p "runs/work/$place"
  for model in $MODELS; do
    work=$PWD/runs/work/$place/$model
    case $model in
      bm25) scorer=bm25 ;;
      untuned) scorer=untuned:$START ;;
      *)
        [[ -e $work/result.json ]] || polyrank train "runs/recipes/$model.toml" "${data[@]}" --set "output=$work" \
          --set "model.backbone=$START" --set "data.max_train=$BUDGET" --set "train.dropout=$DROPOUT" --resume \
          "${settings[@]}" ${THREADS:+--threads "$THREADS"}
        scorer=runs/work/$place/$model/model
        ;;
    esac
    limit=$LIMIT
    [[ $model == cross ]] && limit=$CROSS_LIMIT
    against=()
    [[ $model != bi && -e runs/work/$place/bi.scores.jsonl ]] && against=(--against "runs/work/$place/bi.scores.jsonl")
    polyrank evaluate "$scorer" "$test" --limit "$limit" --scores "runs/work/$place/$model.scores.jsonl" --overwrite \
      "${against[@]}" --json >"$work.json"
    python runs/record.py "$place/$model" "$work.json"
    echo "$set $model $(cat "$work.json")"
  done
done
