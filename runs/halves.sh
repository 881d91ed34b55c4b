#!/usr/bin/env bash
# Both stages learn from all pairs of a corpus. A second stage learns nothing from pairs that its first stage was trained on. So a
# Bi-encoder is trained on each half of the pairs, and one Cross-encoder corrects the first on the second half, then the second on the
# first half. It then re-ranks the 25 best of the Bi-encoder of all pairs, with a weight from dev lists.
#   DATA=folder SETS="star sgd ..." STEPS=updates PAIRS=pairs MINUTES=minutes PARALLEL=1 SECOND=late THREADS=1 bash runs/halves.sh
# STEPS: the most updates of a Bi-encoder of all pairs, and three times those of a half. PAIRS: of each half, for the Cross-encoder.
# MINUTES: limit of each of its two trainings. PARALLEL=1 runs trainings side by side. SECOND=late, for machines without a GPU: a late
# Cross-encoder, trained on the second half alone, and neither passes nor sums; with ONWARD=1, "all" continues the Bi-encoder of the
# first half on the second one; with BOTH=1, the late Cross-encoder is trained on the first half too (late-2).
# WEIGHTING=as_said: without correction of frequencies. A stopped run resumes when you start it again.
# Writes runs/work/halves, and stores halves/SET/MODEL (late/SET/MODEL) with runs/record.py, over all test lists (mutual: its dev lists):
#   all, passes: a Bi-encoder of one pass over all pairs, and of four with dropout, whose best version dev lists choose
#   sum: of both, a ConveRT and reply counts, with weights from dev lists; mutual: of both
#   all-cross, sum-cross, all-late: their 25 best, re-ranked; unseen: the losses of both stages on pairs that neither has seen
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
SETS=${SETS:-star sgd ubuntu-irc convai2-valid self-dialogue mutual}
STEPS=${STEPS:-3500}
PAIRS=${PAIRS:-14000}
PARALLEL=${PARALLEL:-}
SECOND=${SECOND:-cross}
ONWARD=${ONWARD:-}
BOTH=${BOTH:-}
WEIGHTING=${WEIGHTING:-logq}
[[ $SECOND == late ]] && STORED=late || STORED=halves
START=${START:-shipped:minilm} # stored figures: runs/work/encoder/average, before its third pass
BACKBONE=${BACKBONE:-embedded} # of START

go() { # COMMAND ...: now, or during the next ones until "ended"
  if [[ $PARALLEL ]]; then
    "$@" &
    started+=($!)
  else
    "$@"
  fi
}
ended() { # waits for all, also if one fails
  local failed=0
  for process in "${started[@]}"; do wait "$process" || failed=$?; done
  started=()
  return "$failed"
}
learn() { # MODEL RECIPE TRAIN [OPTION ...]
  [[ -e $work/$1/result.json ]] && return
  polyrank train "runs/recipes/$2.toml" "${data[@]}" --set "data.train=$3" --set "output=$work/$1" --resume "${@:4}" ${THREADS:+--threads "$THREADS"} \
    >"$work/$1.log" 2>&1
}
judge() { # MODEL SCORER AGAINST [OPTION ...]
  polyrank evaluate "$2" "$test" --scores "$work/$1.scores.jsonl" --overwrite --json ${3:+--against "$work/$3.scores.jsonl"} "${@:4}" \
    >"$work/$1.json" 2>"$work/$1.err"
  python3 runs/record.py "$STORED/$set/$1" "$work/$1.json"
  echo "$set $1 $(cut -c1-150 "$work/$1.json")"
}
cross() { # the two trainings of the Cross-encoder, once the Bi-encoder of the first half exists
  learn cross-first cross "$work/second.jsonl" "${correct[@]}" --set "train.init_from=$work/first/model" \
    --set "train.method.first_stage=$work/first/model"
  [[ $PARALLEL ]] && wait "${started[0]}" # second
  learn cross cross "$work/first.jsonl" "${correct[@]}" --set "train.init_from=$work/cross-first/model" --set 'train.seeds=[2]' \
    --set "train.method.first_stage=$work/second/model"
}
measure() { # MODEL ...: stores how each was trained, and the losses on unseen pairs
  python3 runs/unseen.py "$work/$SECOND"*/metrics.jsonl >"$work/unseen.json"
  python3 runs/record.py "$STORED/$set/unseen" "$work/unseen.json"
  for model in "$@"; do
    [[ ! -e $work/$model/result.json ]] || python3 runs/record.py "$STORED/$set/$model.fit" "$work/$model/result.json"
  done
}
weigh() { # MODEL SCORER: the weight of the second stage that is best on dev lists
  python3 runs/second_weight.py "$2" "$work/$SECOND/model" "$dev" --limit 3000 >"$work/$1-weight.json" 2>"$work/$1-weight.err"
  python3 runs/record.py "$STORED/$set/$1-weight" "$work/$1-weight.json"
}
judge_both() { # MODEL [OPTION ...]: the 25 best of a ranker with these options, re-ranked with that weight, which is at least 0.01
  local weight
  weight=$(python3 -c 'import json, sys; print(round(max(json.load(open(sys.argv[1]))["weight"], 0.01), 3))' "$work/$1-weight.json")
  python3 runs/ranker.py "$work/$1-$SECOND" "${@:2}" --rerank "$work/$SECOND/model" --weight "$weight"
  judge "$1-$SECOND" "$work/$1-$SECOND" "$1"
}

run() { # SET
  set=$1 work=$PWD/runs/work/halves/$1 test=$DATA/$1/test.jsonl.gz dev=$DATA/$1/dev.jsonl.gz
  started=()
  mkdir -p "$work"
  training_data "$set"
  pairs=$(realpath "${data[1]#data.train=}")
  data=("${data[@]:2}") # the speaker
  if [[ $set == mutual ]]; then # its test answers are withheld; 888 training lists serve for choices
    test=$dev dev=$work/valid.jsonl
    zcat "$pairs" | tail -n 888 >"$dev"
    zcat "$pairs" | head -n -888 >"$work/pairs.jsonl"
    pairs=$work/pairs.jsonl
  fi
  zcat -f "$pairs" >"$work/whole.jsonl"
  n=$(wc -l <"$work/whole.jsonl")
  head -n $((n / 2)) "$work/whole.jsonl" >"$work/first.jsonl" # contiguous: neighbours may come from one conversation
  tail -n +$((n / 2 + 1)) "$work/whole.jsonl" >"$work/second.jsonl"

  common=(--set "model.backbone=$BACKBONE" --set train.checkpoint_steps=1000 --set train.dropout=0.0)
  bi=("${common[@]}" --set train.length_window=1 --set "train.init_from=$START" --set "train.method.negatives_weighting=$WEIGHTING"
    --set model.normalize=false)
  correct=("${common[@]}" --set train.length_window=1 --set train.new_lr=1e-3 --set train.method.kind=rerank
    --set "train.max_steps=$((PAIRS / 16))" ${MINUTES:+--set "train.minutes=$MINUTES"})
  wrong=(--set train.negatives.n=9 --set train.negatives.weighting=as_said)
  passes=(--set train.epochs=4 --set train.dropout=0.1 --set "data.valid=$dev" --set data.max_valid=1000 --set train.evaluate_per_epoch=2)
  [[ $set == convai2-valid ]] && bi+=(--set train.epochs=2) passes+=(--set train.epochs=8 --set train.evaluate_per_epoch=1)
  if [[ $set == mutual ]]; then # its lists come with three wrong answers
    wrong=(--set 'train.negatives.sources=["given"]' --set train.negatives.n=3 --set text.max_context_tokens=192)
    bi=("${common[@]}" --set "train.init_from=$START" --set train.method.kind=listwise --set train.batch_size=16 --set train.lr=1e-4)
    bi+=("${wrong[@]}" --set model.normalize=false)
  fi
  correct+=("${wrong[@]}")

  half=(--set "train.max_steps=$((STEPS / 3))") whole=(--set "train.max_steps=$STEPS")
  if [[ $SECOND == late ]]; then
    [[ $ONWARD ]] || go learn all bi "$pairs" "${bi[@]}" "${whole[@]}"
    learn first bi "$work/first.jsonl" "${bi[@]}" "${half[@]}" --set 'train.seeds=[2]'
    [[ ! $ONWARD ]] || go learn all bi "$work/second.jsonl" "${bi[@]}" "${half[@]}" --set "train.init_from=$work/first/model"
    learn late late "$work/second.jsonl" "${correct[@]}" --set "train.init_from=$work/first/model" \
      --set "train.method.first_stage=$work/first/model"
    if [[ $BOTH ]]; then
      learn second bi "$work/second.jsonl" "${bi[@]}" "${half[@]}" --set 'train.seeds=[3]'
      learn late-2 late "$work/first.jsonl" "${correct[@]}" --set "train.init_from=$work/late/model" --set 'train.seeds=[2]' \
        --set "train.method.first_stage=$work/second/model"
    fi
    ended
    measure first second all late late-2
    judge all "$work/all/model" ""
    weigh all "$work/all/model"
    judge_both all "$work/all/model"
    return
  fi
  go learn second bi "$work/second.jsonl" "${bi[@]}" "${half[@]}" --set 'train.seeds=[3]'
  learn first bi "$work/first.jsonl" "${bi[@]}" "${half[@]}" --set 'train.seeds=[2]'
  go learn all bi "$pairs" "${bi[@]}" "${whole[@]}"
  go learn passes bi "$pairs" "${bi[@]}" "${passes[@]}" "${whole[@]}" --set 'train.seeds=[4]'
  parts=("$work/all/model" "$work/passes/model")
  case $set in
    mutual) ;;
    ubuntu-irc | convai2-valid)
      go learn convert convert-tune "$pairs" --set train.init_from=shipped:convert --set train.epochs=3
      parts+=("$work/convert/model") ;;
    *)
      go learn convert convert "$pairs" --set text.min_count=10 --set train.epochs=3 --set "data.valid=$dev" --set data.max_valid=500
      parts+=("$work/convert/model" --counts "$pairs" --speaker "${data[1]#data.speaker=}") ;;
  esac
  cross
  ended
  measure first second all passes convert cross-first cross
  go python3 runs/ranker.py "$work/sum" "${parts[@]}" --valid "$dev"
  go judge all "$work/all/model" ""
  go judge passes "$work/passes/model" ""
  go weigh all "$work/all/model"
  ended
  go judge sum "$work/sum" all
  go weigh sum "$work/sum"
  go judge_both all "$work/all/model"
  ended
  judge_both sum "${parts[@]}" --valid "$dev"
}

started=()
for one in $SETS; do go run "$one"; done
ended
