#!/usr/bin/env bash
# The general second stage shipped:rerank: a late Cross-encoder that corrects shipped:minilm (shipped:late), with a comparison of words.
# Trained on the corpora of shipped:minilm; its five numbers are chosen on development lists of seven sets; judged on all seven and the sample.
#   DATA=folder THREADS=2 STEPS=updates DEVICE=auto LIMIT=examples SETS="sgd convai2-valid ..." bash runs/second_stage.sh
# A stopped run resumes when you start it again. Writes runs/work/second, puts both models into models/, and stores second/fit,
# second/numbers and second/SET/one (shipped:minilm) and two (its 25 best, re-ranked) with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
STEPS=${STEPS:-1840}
DEVICE=${DEVICE:-auto}
LIMIT=${LIMIT:-1000}
SETS=${SETS:-sgd convai2-valid medquad mutual star ubuntu-irc self-dialogue sample}
work=$PWD/runs/work/second
mkdir -p "$work"

[[ -e $work/second.jsonl.gz ]] || python runs/second_data.py "$DATA" "$work"
[[ -e $work/both.jsonl ]] || zcat "$work/first.jsonl.gz" "$work/second.jsonl.gz" >"$work/both.jsonl"
[[ -e $work/run/result.json ]] || polyrank train runs/recipes/late.toml --set "output=$work/run" --set "data.train=$work/both.jsonl" \
  --set train.init_from=shipped:minilm --set train.method.first_stage=shipped:minilm --set text.max_candidate_tokens=128 \
  --set train.negatives.n=9 --set train.negatives.weighting=as_said --set train.batch_size=32 --set train.lr=3e-4 \
  --set train.length_window=1 --set "train.max_steps=$STEPS" --device "$DEVICE" --threads "$THREADS" --resume
python runs/record.py --has second/fit || python runs/record.py second/fit "$work/run/result.json"
if ! python runs/record.py --has second/numbers; then
  python runs/ship.py "$work/run/model" late --more --half --base shipped:minilm
  pip install -q --no-deps --force-reinstall ./models
  python runs/second_numbers.py "$DATA" "$work" models/polyrank_models/rerank
  pip install -q --no-deps --force-reinstall ./models
fi

for set in $SETS; do
  test=$DATA/$set/test.jsonl.gz pool=()
  [[ $set == mutual ]] && test=$DATA/mutual/dev.jsonl.gz # its test answers are withheld
  [[ $set == medquad ]] && test=$DATA/medquad/test.pool.jsonl.gz pool=(--pool "$DATA/medquad/answers.jsonl.gz")
  [[ $set == sample ]] && test=src/polyrank/sample/test.jsonl pool=(--pool src/polyrank/sample/replies.jsonl)
  THREADS=$THREADS bash runs/one_and_two.sh "second/$set" "$work" "$test" "${pool[@]}" --limit "$LIMIT"
done
