#!/usr/bin/env bash
# The gain from pre-training on unlabelled dialogues, and the papers' ranking of models on a backbone that was not trained for mean
# pooling.
#   DATA=folder THREADS=2 BUDGET=pairs SETS="star sgd" STAGES="post scratch" MODELS="bi cross" bash runs/pretraining.sh
# post: post-trains MiniLM on the dialogues of star, sgd and ubuntu-irc; then trains a Bi-encoder for each corpus. MODELS:
#   plain: from the original MiniLM; unsorted: the same with batches not sorted by length; queue: unsorted with the 512 latest
#     candidates as further negatives
#   post: from the post-trained MiniLM
#   contrastive: from shipped:minilm, trained with in-batch negatives on the dialogues of star, ubuntu-irc and self-dialogue
#   sum: contrastive and shipped:convert, for star
# scratch: trains a BERT with 4 layers of 256 from scratch on four corpora, then MODELS of star and ubuntu-irc from it.
# A stopped run resumes when you start it again. Writes runs/work/pretraining, and stores with runs/record.py the curves of both
# pre-trainings, and pretraining/STAGE/SET/MODEL over all test examples, with tests against plain and against bi.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
BUDGET=${BUDGET:-5120}
STAGES=${STAGES:-post scratch}
START=${START:-shipped:minilm} # the stored figures used runs/work/encoder/run/model, the output of its first pass
LIMIT=${LIMIT:-}
CROSS_LIMIT=${CROSS_LIMIT:-$LIMIT} # a Cross-encoder computes every pair
WORK=$PWD/runs/work/pretraining

pretrain() { # STAGE RECIPE CORPORA...
  local stage=$1 recipe=$2
  [[ -e $WORK/$stage/valid.jsonl.gz ]] || python runs/convert_data.py "$DATA" "$WORK/$stage" "${@:3}"
  [[ -e $WORK/$stage/run/pretrained.json ]] || polyrank pretrain "$recipe" --threads "$THREADS" --resume
  python runs/record.py "pretraining/$stage/metrics" "$WORK/$stage/run/metrics.jsonl"
  python runs/record.py "pretraining/$stage/pretrained" "$WORK/$stage/run/pretrained.json"
}

judge() { # STAGE SET MODEL AGAINST FOLDER
  local work=$WORK/$1/$2/$3 against=()
  [[ $4 ]] && against=(--against "$WORK/$1/$2/$4.scores.jsonl")
  local limit=$LIMIT
  [[ $3 == cross ]] && limit=$CROSS_LIMIT
  polyrank evaluate "$5" "$DATA/$2/test.jsonl.gz" ${limit:+--limit "$limit"} --scores "$work.scores.jsonl" --overwrite \
    "${against[@]}" --threads "$THREADS" --json >"$work.json"
  python runs/record.py "pretraining/$1/$2/$3" "$work.json"
  echo "$1 $2 $3 $(cut -c1-200 "$work.json")"
}

learn() { # STAGE SET MODEL AGAINST RECIPE BACKBONE [OPTION ...]
  local work=$WORK/$1/$2/$3
  local data
  training_data "$2"
  python runs/record.py --has "pretraining/$1/$2/$3" && return
  mkdir -p "$(dirname "$work")"
  [[ -e $work/result.json ]] || polyrank train "runs/recipes/$5.toml" "${data[@]}" --set "output=$work" --set "model.backbone=$6" \
    --set "data.max_train=$BUDGET" --set train.dropout=0.0 --threads "$THREADS" --resume "${@:7}"
  judge "$1" "$2" "$3" "$4" "$work/model"
  python runs/record.py "pretraining/$1/$2/$3.fit" "$work/result.json"
}

for stage in $STAGES; do
  case $stage in
    post)
      for set in ${SETS:-star sgd ubuntu-irc}; do
        for model in ${MODELS:-plain contrastive sum unsorted post}; do
          options=(--set model.reduction=mean) against=plain backbone=embedded
          case $model in
            sum) # weights from 300 dev lists
              [[ $set == star ]] && ! python runs/record.py --has pretraining/post/star/sum || continue
              python runs/ranker.py "$WORK/post/star/sum" "$WORK/post/star/contrastive/model" shipped:convert \
                --valid "$DATA/star/dev.jsonl.gz" --limit 300
              judge post star sum contrastive "$WORK/post/star/sum"
              continue ;;
            plain) against= ;;
            contrastive) options=(--set "train.init_from=$START" --set model.normalize=false) ;;
            unsorted) options+=(--set train.length_window=1) ;; # the recipe has 50
            post)
              pretrain post runs/recipes/post-train.toml star sgd ubuntu-irc
              backbone=$WORK/post/run/model ;;
          esac
          learn post "$set" "$model" "$against" bi "$backbone" "${options[@]}"
        done
      done ;;
    scratch)
      pretrain scratch runs/recipes/pretrain-small.toml star sgd ubuntu-irc self-dialogue
      for set in ${SETS:-star ubuntu-irc}; do
        for model in ${MODELS:-bi bi-mean poly-16 poly-64 cross}; do
          against=bi recipe=${model%-mean} reduced=(--set model.reduction=first)
          case $model in
            bi) against= ;;
            bi-mean) reduced=(--set model.reduction=mean) ;;
            cross) reduced=() ;;
          esac
          learn scratch "$set" "$model" "$against" "$recipe" "$WORK/scratch/run/model" "${reduced[@]}" \
            --set 'text.turn_separator=[NEWLINE]' --set train.length_window=1
        done
      done ;;
  esac
done
