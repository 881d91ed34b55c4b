#!/usr/bin/env bash
# Mutual learning compared with the same networks trained separately, on the same examples, candidates and numbers of updates.
#   DATA=folder BUDGET=contexts NEGATIVES=per-context EPOCHS=1 LIMIT=test-examples SETS="star ubuntu-irc" bash runs/mutual.sh
# Both networks first train separately for WARM epochs (0: none), since an untrained re-ranker at T = 3 only teaches the uniform
# distribution. From there each trains alone, and both together, for EPOCHS more.
# EXTRA="--set train.method.alpha=2" changes the mutual run; set TAG=name for its results.
# TEACHER=folder adds a Bi-encoder distilled from that model.
# A stopped run resumes when you start it again, and skips finished models; use another OUT=folder for other budgets.
# Writes runs/work/mutual/SET, stores mutual/SET/MODEL and mutual/SET/ensemble with runs/record.py, and draws two figures in
# runs/results: validation by epoch and R@1 by the context's length.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
OUT=$(realpath -m "${OUT:-$PWD}")
export RESULTS=$OUT/runs/results
BUDGET=${BUDGET:-960}
NEGATIVES=${NEGATIVES:-4}
TOKENS=${TOKENS:-64} # per context; half as many per candidate
WARM=${WARM:-1}
EPOCHS=${EPOCHS:-1}
LIMIT=${LIMIT:-200} # a Cross-encoder computes each of the 100 pairs of each example
MANY=${MANY:-1000} # test examples of a second evaluation of the Bi-encoders
VALID=${VALID:-50}
SETS=${SETS:-star ubuntu-irc}
CHECKS=${CHECKS:-2} # validations per epoch
TAG=${TAG:-mutual}
EXTRA=${EXTRA:-}
TEACHER=${TEACHER:-}

for set in $SETS; do
  work=$OUT/runs/work/mutual/$set
  mkdir -p "$work"
  training_data "$set"
  common=("${data[@]}" --set "data.valid=$DATA/$set/dev.jsonl.gz" --set "data.max_valid=$VALID"
    --set "data.max_train=$BUDGET" --set "train.negatives.n=$NEGATIVES" --set "text.max_context_tokens=$TOKENS"
    --set "text.max_candidate_tokens=$((TOKENS / 2))" --set train.checkpoint_steps=20 --resume)
  later=("${common[@]}" --set "train.epochs=$EPOCHS" --set "train.evaluate_per_epoch=$CHECKS")
  # separately: the recipe's networks, each alone, with the same lists
  alone=(--set train.method.kind=listwise --set train.negatives.redraw=false --set train.batch_size=8
    --set train.schedule.warmup_steps=20)
  bi=() cross=() both=()
  if ((WARM)); then
    for model in bi cross; do
      polyrank train "runs/recipes/$model.toml" "${common[@]}" "${alone[@]}" --set "train.epochs=$WARM" \
        --set train.evaluate_per_epoch=1 --set "output=$work/warm-$model"
    done
    bi=(--set "train.init_from=$work/warm-bi/model")
    cross=(--set "train.init_from=$work/warm-cross/model")
    both=("${bi[@]}" --set "reranker.train.init_from=$work/warm-cross/model")
  fi
  polyrank train runs/recipes/bi.toml "${later[@]}" "${alone[@]}" "${bi[@]}" --set "output=$work/bi"
  polyrank train runs/recipes/cross.toml "${later[@]}" "${alone[@]}" "${cross[@]}" --set "output=$work/cross"
  # shellcheck disable=SC2086  # EXTRA is several words
  polyrank train runs/recipes/mutual.toml "${later[@]}" "${both[@]}" --set "output=$work/$TAG" $EXTRA

  declare -A folder=([bi]=$work/bi [cross]=$work/cross ["bi-$TAG"]=$work/$TAG/retriever ["cross-$TAG"]=$work/$TAG/reranker)
  for model in bi cross "bi-$TAG" "cross-$TAG"; do
    for part in dev test; do
      scores=$work/$model.$part.scores.jsonl
      [[ -e $scores ]] && continue
      limit=$LIMIT
      [[ $part == dev ]] && limit=$VALID
      against=()
      [[ $part == test && $model == "bi-$TAG" ]] && against=(--against "$work/bi.test.scores.jsonl")
      [[ $part == test && $model == "cross-$TAG" ]] && against=(--against "$work/cross.test.scores.jsonl")
      polyrank evaluate "${folder[$model]}/model" "$DATA/$set/$part.jsonl.gz" --limit "$limit" --scores "$scores" \
        "${against[@]}" --overwrite --json >"$work/$model.$part.json"
      [[ $part == test ]] && python runs/record.py "mutual/$set/$model" "$work/$model.$part.json"
    done
    python runs/record.py "mutual/$set/$model.metrics" "${folder[$model]}/metrics.jsonl"
  done
  for model in bi "bi-$TAG"; do # Bi-encoders encode each candidate once
    against=()
    [[ $model == bi ]] || against=(--against "$work/bi.many.scores.jsonl")
    polyrank evaluate "${folder[$model]}/model" "$DATA/$set/test.jsonl.gz" --limit "$MANY" \
      --scores "$work/$model.many.scores.jsonl" "${against[@]}" --overwrite --json |
      python runs/record.py "mutual/$set/$model-many"
  done
  if [[ -n $TEACHER ]]; then # distillation from a trained model
    polyrank train runs/recipes/bi.toml "${later[@]}" "${alone[@]}" "${bi[@]}" --set train.method.kind=distill \
      --set "train.method.teacher=$TEACHER" --set "output=$work/bi-distilled"
    polyrank evaluate "$work/bi-distilled/model" "$DATA/$set/test.jsonl.gz" --limit "$LIMIT" \
      --scores "$work/bi-distilled.test.scores.jsonl" --against "$work/bi.test.scores.jsonl" --overwrite --json |
      python runs/record.py "mutual/$set/bi-distilled"
  fi
  if [[ -e $DATA/$set/test.pool.jsonl.gz ]]; then # the pool of all replies, with one stage and with two
    for tag in "" "-$TAG"; do
      polyrank index build "${folder[bi$tag]}/model" "$DATA/$set/pool.jsonl.gz" -o "$work/index$tag" --overwrite
      python runs/stages.py "$DATA/$set/test.pool.jsonl.gz" --index "$work/index$tag" --lexical --rerank "${folder[cross$tag]}/model" \
        --combine none --combine z-score -n 10 -n 25 --limit "$MANY" | python runs/record.py "mutual/$set/stages$tag"
    done
  fi
  python runs/ensembles.py "$work" bi cross | python runs/record.py "mutual/$set/ensemble"
  python runs/ensembles.py "$work" "bi-$TAG" "cross-$TAG" | python runs/record.py "mutual/$set/ensemble-$TAG"
  python runs/curves.py "$work"/{bi,cross,"$TAG/retriever","$TAG/reranker"}/metrics.jsonl -o "$RESULTS/mutual-$set-curves-$TAG.svg"
  polyrank compare "$work"/{bi,cross,"bi-$TAG","cross-$TAG"}.test.scores.jsonl --plot "$RESULTS/mutual-$set-turns-$TAG.svg" --overwrite
done
