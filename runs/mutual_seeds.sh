#!/usr/bin/env bash
# Does mutual learning rank better than training apart? Both networks start from shipped:minilm; the re-ranker is a late
# Cross-encoder. Three seeds, all test lists.
#   DATA=folder THREADS=1 SETS="star sgd ubuntu-irc" SEEDS="1 2 3" bash runs/mutual_seeds.sh
# Both networks first train apart for STEPS batches of 16 lists, so that neither teaches the uniform distribution. From there they
# train apart (alpha = 0, which equals two plain trainings) or together for as many batches, on the same lists.
# A list has the reply and NEGATIVES others, drawn as often as they were said. The contexts are BUDGET pairs of the training part.
# A stopped run resumes when you start it again.
# Writes runs/work/mutual-seeds, and stores mutual-seeds/SET with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-1}
SETS=${SETS:-star sgd ubuntu-irc}
SEEDS=${SEEDS:-1 2 3}
STEPS=${STEPS:-200}
BUDGET=${BUDGET:-6400}
NEGATIVES=${NEGATIVES:-7}
LIMIT=${LIMIT:-} # test lists; all, if it is empty

for set in $SETS; do
  work=$PWD/runs/work/mutual-seeds/$set
  mkdir -p "$work"
  training_data "$set"

  learn() { # NAME RETRIEVER RERANKER [OPTION ...]
    [[ -e $work/$1/retriever/model && -e $work/$1/reranker/model ]] && return
    polyrank train runs/recipes/mutual.toml "${data[@]}" --set "data.max_train=$BUDGET" --set reranker.kind=late \
      --set train.batch_size=16 --set train.lr=1e-4 --set reranker.train.new_lr=1e-3 --set train.dropout=0.0 \
      --set model.normalize=false --set text.max_context_tokens=64 --set text.max_candidate_tokens=32 \
      --set "train.max_steps=$STEPS" --set "train.negatives.n=$NEGATIVES" --set train.negatives.weighting=as_said \
      --set train.negatives.redraw=true --set train.checkpoint_steps=20 --set "train.init_from=$2" \
      --set "reranker.train.init_from=$3" --set "output=$work/$1" --threads "$THREADS" --resume "${@:4}"
  }

  judge() { # NAME MODEL [OPTION ...]
    [[ -e $work/$1.scores.jsonl ]] && return
    POLYRANK_THREADS=$THREADS python runs/papers/evaluate.py "$2" "$DATA/$set/test.jsonl.gz" ${LIMIT:+--limit "$LIMIT"} \
      --scores "$work/$1.scores.jsonl" "${@:3}" >/dev/null
  }

  learn first shipped:minilm shipped:minilm --set train.method.alpha=0
  judge first "$work/first/retriever/model"
  for seed in $SEEDS; do
    for alpha in 0 1; do
      name=$alpha-$seed
      learn "$name" "$work/first/retriever/model" "$work/first/reranker/model" --set "train.method.alpha=$alpha" \
        --set "train.seeds=[$((seed + 1))]"
      judge "$name-retriever" "$work/$name/retriever/model"
      judge "$name-reranker" "$work/first/retriever/model" --rerank "$work/$name/reranker/model" --n-retrieved 25
    done
  done
  # shellcheck disable=SC2086  # several seeds
  python runs/mutual_seeds.py "$work" $SEEDS | python runs/record.py "mutual-seeds/$set"
done
