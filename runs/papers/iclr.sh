#!/usr/bin/env bash
# Humeau et al., Poly-encoders (ICLR 2020): Table 4, its models on stand-ins for its tasks.
#   DATA=folder TASKS="dstc7" MODELS="bi poly-64" SEEDS=[1,2,3] EXTRA="--set train.max_steps=2" bash runs/papers/iclr.sh
# TASKS: convai2, dstc7, ubuntu-v2, wikipedia. MODELS: bi, poly-M, poly-first-M, poly-last-M, poly-last_h1-M, cross.
# WEIGHTS=folder starts from own pre-trained weights (runs/papers/iclr-pretrain.toml), trained as section 5.3 has it; without,
# BACKBONE=name or folder, BERT's otherwise. The papers' own files go into runs/work/papers/data, in place of the stand-ins.
# Writes runs/work/papers (not kept): data, models, and TASK/MODEL.json with R@k, MRR and MAP, mean and deviation over seeds.
set -euo pipefail
cd "$(dirname "$0")/../.."
DATA=$(realpath -m "${DATA:-../shared/data}")
TASKS=${TASKS:-convai2 dstc7 ubuntu-v2}
MODELS=${MODELS:-bi poly-16 poly-64 poly-360 cross}
SEEDS=${SEEDS:-[1,2,3]}
WEIGHTS=${WEIGHTS:-}
BACKBONE=${BACKBONE:-hf:google-bert/bert-base-uncased}
LIMIT=${LIMIT:-}
EXTRA=${EXTRA:-}
WORK=$PWD/runs/work/papers

prepare() { # TASK: its files, imported
  local format=$1 ending=txt every=(--every-turn)
  case $1 in dstc7) ending=json ;; ubuntu-v2) ending=csv ;; esac
  [[ $1 == wikipedia ]] && every=()
  [[ -e $WORK/data/$1/train.$ending ]] || python runs/papers/write_data.py "$DATA" "$WORK/data" "$1"
  for part in train valid test; do
    local options=()
    [[ $part == train ]] && options=("${every[@]}") # v1, 5.1: every utterance is a response
    [[ -e $WORK/data/$1/$part.jsonl ]] ||
      polyrank import "$format" "$WORK/data/$1/$part.$ending" -o "$WORK/data/$1/$part.jsonl" "${options[@]}"
  done
}

for task in $TASKS; do
  prepare "$task"
  for model in $MODELS; do
    recipe=${model%%-*}
    out=$WORK/iclr/$task/$model
    sets=(--set "model.backbone=${WEIGHTS:-$BACKBONE}" --set "train.seeds=$SEEDS" --set "output=$out"
      --set "data.train=$WORK/data/$task/train.jsonl" --set "data.valid=$WORK/data/$task/valid.jsonl")
    [[ $model == poly-* ]] && sets+=(--set "model.n_codes=${model##*-}")
    [[ $model == poly-*-* ]] && kind=${model#poly-} && sets+=(--set "model.codes=${kind%-*}")
    if [[ $task == convai2 && $model == cross ]]; then
      sets+=(--set train.negatives.n=19 --set 'train.negatives.sources=["given", "random"]') # random for the added pairs
    elif [[ $task == convai2 ]]; then
      sets+=(--set train.batch_size=512)
    elif [[ $task == wikipedia ]]; then # a sentence and an article; lengths are not stated
      sets+=(--set text.max_context_tokens=72 --set text.max_candidate_tokens=360)
    fi
    if [[ -n $WEIGHTS ]]; then # 5.3
      sets+=(--set train.optimizer=adamax --set train.weight_decay=0.0 --set train.train_layers=all
        --set "text.turn_separator=[NEWLINE]")
      [[ $model == cross ]] || sets+=(--set model.match_output_std=0.5)
    fi
    # shellcheck disable=SC2086  # EXTRA is several words
    polyrank train "runs/papers/iclr-$recipe.toml" "${sets[@]}" $EXTRA --resume
    lists=()
    [[ $task == wikipedia ]] && lists=(--candidates 10001 --seed 0)
    polyrank evaluate "$out" "$WORK/data/$task/test.jsonl" "${lists[@]}" ${LIMIT:+--limit "$LIMIT"} \
      --metric R@1,R@5,R@10,MRR,MAP --json >"$out.json"
    echo "$task $model $(cat "$out.json")"
  done
done
