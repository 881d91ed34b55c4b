#!/usr/bin/env bash
# A ConveRT trained from scratch on four corpora together, evaluated on each of their test parts, then fine-tuned on each.
#   DATA=folder STEPS=updates TUNE_STEPS=updates TUNED="multi single" ABLATION_STEPS=updates LIMIT=test-examples bash runs/convert.sh
# PARTS selects among multi, single, tuned, ablations and permissive. "permissive" trains for three epochs without sgd, whose licence
# is share-alike; runs/ship.py puts that model into the package. TUNED lists the models that "tuned" starts from: names of
# runs/work/convert, or shipped:convert.
# Writes runs/work/convert, and stores convert/NAME-SET and convert/NAME.size with runs/record.py.
# A stopped run resumes when you start it again.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
STEPS=${STEPS:-2500}
TUNE_STEPS=${TUNE_STEPS:-150}
TUNED=${TUNED:-multi single shipped:convert}
ABLATION_STEPS=${ABLATION_STEPS:-500}
LIMIT=${LIMIT:-1000}
PARTS=${PARTS:-multi single tuned ablations}
SETS=${SETS:-self-dialogue sgd star ubuntu-irc}
WORK=runs/work/convert
mkdir -p "$WORK"
[[ -e $WORK/data/valid.jsonl.gz ]] || python runs/convert_data.py "$DATA" "$WORK/data"

train() { # NAME RECIPE [--set ...]
  local name=$1 recipe=$2
  shift 2
  polyrank train "runs/recipes/$recipe.toml" --set "output=$PWD/$WORK/$name" "$@" --threads 1 --resume
  polyrank info "$WORK/$name/model" --json | python runs/record.py "convert/$name.size"
}

evaluate() { # NAME SETS [FOLDER]
  for set in $2; do
    python runs/record.py --has "convert/$1-$set" && continue
    polyrank evaluate "$WORK/${3:-$1}/model" "$DATA/$set/test.jsonl.gz" --limit "$LIMIT" --scores "$WORK/$1-$set.scores.jsonl" \
      --overwrite --json >"$WORK/$1-$set.json"
    python runs/record.py "convert/$1-$set" "$WORK/$1-$set.json"
    echo "$1 $set $(cat "$WORK/$1-$set.json")"
  done
}

everything=(--set "data.train=$PWD/$WORK/data/train.jsonl.gz" --set data.speaker=reply --set "data.valid=$PWD/$WORK/data/valid.jsonl.gz")
alone=(--set model.multi_context=false --set text.max_earlier_tokens=60) # 60: the default
tune() { # MODEL SET
  local name=$1 model=$1 data=(--set "data.train=$DATA/$2/train.dialogues.jsonl.gz")
  [[ $1 == shipped:* ]] && name=shipped || model=$WORK/$1/model
  case $2 in
    star | sgd) data+=(--set data.speaker=agent) ;;
    ubuntu-irc) data=(--set "data.train=$DATA/$2/train.jsonl.gz") ;;
  esac
  python runs/record.py --has "convert/$name-tuned-$2" && return
  train "$name-tuned-$2" convert-tune "${data[@]}" --set "data.valid=$DATA/$2/dev.jsonl.gz" --set data.max_valid=200 \
    --set "train.init_from=$model" --set "train.max_steps=$TUNE_STEPS"
  evaluate "$name-tuned" "$2" "$name-tuned-$2"
}

for part in $PARTS; do
  case $part in
    multi) train multi convert "${everything[@]}" --set "train.max_steps=$STEPS" ;;
    permissive)
      [[ -e $WORK/permissive-data/valid.jsonl.gz ]] || python runs/convert_data.py "$DATA" "$WORK/permissive-data" self-dialogue star ubuntu-irc
      train permissive convert "${everything[@]//$WORK\/data/$WORK\/permissive-data}" --set train.epochs=3 \
        --set train.batch_size=256 --set text.min_count=25
      ;;
    single) train single convert "${everything[@]}" --set "train.max_steps=$STEPS" "${alone[@]}" ;;
    tuned)
      for model in $TUNED; do for set in $SETS; do tune "$model" "$set"; done; done
      continue
      ;;
    ablations)
      short=("${everything[@]}" --set "train.max_steps=$ABLATION_STEPS" --set train.method.scale_steps=$((ABLATION_STEPS / 8)) "${alone[@]}")
      train ablation-none convert "${short[@]}"
      train ablation-b convert "${short[@]}" --set model.relative_bias=false
      train ablation-d convert "${short[@]}" --set text.n_buckets=1
      train ablation-e convert "${short[@]}" --set model.reduction_heads=1
      train ablation-f convert "${short[@]}" --set model.side_skips=false
      train ablation-sides convert "${short[@]}" --set model.equal_sides=false
      train ablation-fp32 convert "${short[@]}" --set model.quantization=none
      for name in none b d e f sides fp32; do evaluate "ablation-$name" "self-dialogue sgd star"; done
      continue
      ;;
  esac
  evaluate "$part" "$SETS"
done
