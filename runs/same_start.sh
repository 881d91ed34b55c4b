#!/usr/bin/env bash
# polyrank, sentence-transformers and PyLate trained from the same encoder, shipped:minilm, on the same pairs in batches of 64.
#   DATA=folder SET=star PAIRS=3840 LISTS=test lists THREADS=2 MODELS="bi bi-logq matched distinct guided" bash runs/same_start.sh
# MODELS: bi and bi-logq: polyrank, with negatives_weighting = "as_said" and "logq"; colbert: runs/peers/pylate_colbert.py, by the
# Python that PYLATE names, which has PyLate; the others: variants of runs/peers/sentence_transformers_bi.py. Both begin from
# polyrank's export of the same encoder.
# A stopped run resumes when you start it again, each of the library's models from its start.
# Writes runs/work/same, and stores same/SET/MODEL with runs/record.py, with tests against bi.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
SET=${SET:-star}
PAIRS=${PAIRS:-3840}
LISTS=${LISTS:-100000}
export OMP_NUM_THREADS=${THREADS:-2}
work=$PWD/runs/work/same/$SET
start=$PWD/runs/work/same/start
mkdir -p "$work"
[[ -e $start ]] || polyrank export shipped:minilm --to sentence-transformers -o "$start"

training_data "$SET"
for model in ${MODELS:-bi bi-logq matched distinct guided}; do
  case $model in
    bi | bi-logq)
      python runs/record.py --has "same/$SET/$model" && continue
      weighting=as_said against=()
      [[ $model == bi-logq ]] && weighting=logq against=(--against "$work/bi.scores.jsonl")
      polyrank train runs/recipes/bi.toml "${data[@]}" --set "output=$work/$model" --set data.max_train="$PAIRS" \
        --set train.init_from=shipped:minilm --set train.length_window=1 --set train.dropout=0.0 \
        --set train.method.negatives_weighting=$weighting --set train.checkpoint_steps=20 --threads "$OMP_NUM_THREADS" --resume
      polyrank evaluate "$work/$model/model" "$DATA/$SET/test.jsonl.gz" --limit "$LISTS" --scores "$work/$model.scores.jsonl" \
        --overwrite "${against[@]}" --threads "$OMP_NUM_THREADS" --json >"$work/$model.json"
      python runs/record.py "same/$SET/$model" "$work/$model.json" ;;
    colbert)
      python runs/record.py --has "same/$SET/pylate-colbert" && continue
      PYTHONPATH=src "${PYLATE:?names no Python with PyLate}" runs/peers/pylate_colbert.py colbert "$SET" --data "$DATA" \
        --budget "$PAIRS" --limit "$LISTS" --name same --start "$start" ;;
    *)
      python runs/record.py --has "same/$SET/sentence-transformers-$model" && continue
      python runs/peers/sentence_transformers_bi.py "$model" "$SET" --data "$DATA" --budget "$PAIRS" --limit "$LISTS" \
        --name same --start "$start" ;;
  esac
done
