#!/usr/bin/env bash
# Compares the values of negatives_weighting on a small ConveRT, trained from scratch on all pairs of a corpus.
#   DATA=folder SETS="star sgd ubuntu-irc self-dialogue" VALUES="as_said logq then-as_said then-logq" SEEDS="1 2 3" \
#     EPOCHS=3 THREADS=1 bash runs/weighting_training.sh
# "then-as_said" and "then-logq" train the model of "as_said" for one more pass, with the defaults of fine-tuning.
# The version with the best R@1 on 500 dev lists is judged once on all test lists; the others against as_said of the same seed.
# A stopped run resumes when you start it again.
# Writes runs/work/weighting, and stores weighting/SET/convert/VALUE/SEED with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
EPOCHS=${EPOCHS:-3}
THREADS=${THREADS:-1}
LIMIT=${LIMIT:-}         # of test lists
MAX_TRAIN=${MAX_TRAIN:-} # pairs

for seed in ${SEEDS:-1}; do
  for set in ${SETS:-star sgd ubuntu-irc self-dialogue}; do
    training_data "$set"
    for value in ${VALUES:-as_said logq then-as_said then-logq}; do
      name=weighting/$set/convert/$value/$seed
      python runs/record.py --has "$name" && continue
      work=$PWD/runs/work/weighting/convert
      run=$work/$set-$value-$seed
      mkdir -p "$work"
      case $value in
        then-*)
          recipe=(runs/recipes/convert-tune.toml --set "train.init_from=$work/$set-as_said-$seed/model" --set train.epochs=1)
          first=then-as_said ;;
        *)
          recipe=(runs/recipes/convert.toml --set text.min_count=10 --set "train.epochs=$EPOCHS")
          first=as_said ;;
      esac
      polyrank train "${recipe[@]}" "${data[@]}" --set "output=$run" --set "train.seeds=[$seed]" \
        ${MAX_TRAIN:+--set "data.max_train=$MAX_TRAIN"} --set "data.valid=$DATA/$set/dev.jsonl.gz" --set data.max_valid=500 \
        --set "train.method.negatives_weighting=${value#then-}" --threads "$THREADS" --resume
      against=()
      [[ $value != "$first" ]] && against=(--against "$work/$set-$first-$seed.scores.jsonl")
      polyrank evaluate "$run/model" "$DATA/$set/test.jsonl.gz" ${LIMIT:+--limit "$LIMIT"} --scores "$run.scores.jsonl" \
        --overwrite "${against[@]}" --threads "$THREADS" --json >"$run.json"
      python runs/record.py "$name" "$run.json"
      python runs/record.py "$name.fit" "$run/result.json"
      echo "$set $value $seed $(cut -c1-200 "$run.json")"
    done
  done
done
