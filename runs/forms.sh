#!/usr/bin/env bash
# Which second stage is worth its time? Forms of re-ranker, trained for about as long on the same lists of medquad; after best.sh with
# SETS=medquad MODELS="half half-late".
#   DATA=folder THREADS=2 LIMIT=examples FORMS="late ..." bash runs/forms.sh
# FORMS:
#   late, late-1: two and one joined layers
#   cross, cross-3: every layer reads both sides; all six layers, and every second one
# STEPS_FORM=steps gives a form more or fewer steps. A stopped run resumes when you start it again.
# Writes runs/work/forms, stores forms/fit.FORM and forms/medquad with runs/record.py, and draws runs/results/medquad-forms.svg.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
LIMIT=${LIMIT:-500}
FORMS=${FORMS:-late late-1 cross cross-3}
first=$PWD/runs/work/best/medquad/half/model
work=$PWD/runs/work/forms
mkdir -p "$work"

[[ -e $work/half ]] || python runs/every_second_layer.py "$first" "$work/half"
models=()
for form in $FORMS; do
  steps=STEPS_${form//-/_}
  options=(--set model.kind=cross --set model.reduction=mean) start=$first
  case $form in
    late) options=(--set model.reader=context) ;;
    late-1) options=(--set model.reader=context --set model.joined_layers=1) ;;
    cross-3) start=$work/half ;;
  esac
  [[ -e $work/$form/result.json ]] || polyrank train runs/recipes/late.toml --set "output=$work/$form" "${options[@]}" \
    --set "data.train=$PWD/runs/work/best/medquad/lists.jsonl" --set 'train.negatives.sources=["given"]' \
    --set text.max_context_tokens=64 --set text.max_candidate_tokens=128 --set "train.init_from=$start" \
    --set "train.method.first_stage=$first" --set "train.max_steps=${!steps:-200}" --threads "$THREADS" --resume
  python runs/record.py "forms/fit.$form" "$work/$form/result.json"
  models+=(--rerank "$work/$form/model")
done
[[ -e $work/index ]] || polyrank index build "$first" "$DATA/medquad/answers.jsonl.gz" -o "$work/index"
python runs/stages.py "$DATA/medquad/test.pool.jsonl.gz" --index "$work/index" "${models[@]}" --precision fp32 --precision int8 \
  --ensemble raw -n 2 -n 5 -n 10 --limit "$LIMIT" --plot runs/results/medquad-forms.svg | python runs/record.py forms/medquad
