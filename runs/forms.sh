#!/usr/bin/env bash
# Which second stage is worth its time? Re-rankers over the same first stage, trained for about equally long on the same pairs of
# medquad; after best.sh with SETS=medquad MODELS=half.
#   DATA=folder THREADS=2 LIMIT=examples FORMS="late ..." bash runs/forms.sh
# FORMS:
#   late, late-1: the question's tokens read the answer in the last two layers, and in the last one
#   late-first, late-learnt: late, with a head on the first output, and on a mean with trained weights
#   cross, cross-3: every layer reads both sides; all six layers, and every second one
#   alone: late, trained to rank the same lists alone
#   random: alone, with 31 wrong answers drawn at random
#   kl: alone, distilled from the first stage by its probabilities
# A stopped run resumes when you start it again.
# Writes runs/work/forms, stores forms/fit.FORM, forms/dev and forms/time with runs/record.py, and draws runs/results/forms.svg.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
LIMIT=${LIMIT:-600}
FORMS=${FORMS:-late late-1 late-first late-learnt cross cross-3 alone random kl}
best=$PWD/runs/work/best/medquad
first=$best/half/model
work=$PWD/runs/work/forms
mkdir -p "$work"

[[ -e $work/half ]] || python runs/every_second_layer.py "$first" "$work/half"
[[ -e $best/lists.jsonl ]] || polyrank mine "$best/second.jsonl" --from "$first" --pool "$best/responses.jsonl" -n 8 --ranks 1:12 \
  -o "$best/lists.jsonl"

models=() networks=()
for form in $FORMS; do
  kind=late start=$first steps=160 negatives=8 sources='["given"]' options=()
  method="{kind = \"rerank\", first_stage = \"$first\"}"
  case $form in
    late) ;;
    late-1) options=(--set model.joined_layers=1) ;;
    late-first | late-learnt) options=(--set "model.reduction=${form#late-}") ;;
    cross) kind=cross steps=52 ;;
    cross-3) kind=cross steps=88 start=$work/half ;;
    alone) method='{kind = "listwise"}' ;;
    random) method='{kind = "listwise"}' steps=120 negatives=31 sources='["random"]' ;;
    kl) method="{kind = \"distill\", teacher = \"$first\"}" ;;
    *) echo "unknown form $form; the top of $0 lists them" >&2 && exit 2 ;;
  esac
  [[ $kind == late ]] && options+=(--set model.reader=context)
  [[ $kind == cross ]] && options+=(--set model.reduction=mean)
  [[ -e $work/$form/result.json ]] || polyrank train runs/recipes/late.toml --set "output=$work/$form" --set "model.kind=$kind" \
    "${options[@]}" --set "data.train=$best/lists.jsonl" --set "train.negatives.sources=$sources" \
    --set "train.negatives.n=$negatives" --set text.max_context_tokens=64 --set text.max_candidate_tokens=128 \
    --set "train.init_from=$start" --set "train.method=$method" --set "train.max_steps=$steps" --threads "$THREADS" --resume
  python runs/record.py "forms/fit.$form" "$work/$form/result.json"
  models+=(--rerank "$work/$form/model")
  [[ $form == @(late|late-1|late-first|cross|cross-3) ]] && networks+=(--rerank "$work/$form/model")
done
[[ -e $work/index ]] || polyrank index build "$first" "$DATA/medquad/answers.jsonl.gz" -o "$work/index"
searched=("$DATA/medquad/dev.pool.jsonl.gz" --index "$work/index")
python runs/stages.py "${searched[@]}" "${models[@]}" --precision fp32 --combine raw --combine z-score -n 10 --limit "$LIMIT" \
  | python runs/record.py forms/dev
python runs/stages.py "${searched[@]}" "${networks[@]}" --precision fp32 --precision int8 --combine raw -n 2 -n 5 -n 10 \
  --limit $((LIMIT / 3)) --plot runs/results/forms.svg | python runs/record.py forms/time
