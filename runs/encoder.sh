#!/usr/bin/env bash
# A general encoder: one MiniLM for both sides, trained on three corpora, evaluated on these and on others.
# Its weights are a mixture of three: MiniLM's original ones, those of the first two passes, and those of the third, which needs a GPU.
# The shares are chosen on development lists of sets outside its training data.
#   DATA=folder THREADS=2 LIMIT=examples SETS="star sgd ..." bash runs/encoder.sh
# A stopped run resumes when you start it again. Writes runs/work/encoder, puts the model into models/, and stores general/SET/MODEL
# with runs/record.py: for the trained encoder, the untuned one, BM25, the shipped ConveRT, and the sum of the trained encoder and
# ConveRT (weights from dev lists).
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
LIMIT=${LIMIT:-1000}
SETS=${SETS:-star ubuntu-irc self-dialogue sgd convai2-valid medquad mutual}
MODELS=${MODELS:-bm25 untuned encoder convert sum}
SHARE=${SHARE:-0.5 0.25} # of the weights of the second and third pass, by runs/mixtures.py
WORK=runs/work/encoder
RUN=${RUN:-$WORK/run}

[[ -e $WORK/valid.jsonl.gz ]] || python runs/convert_data.py "$DATA" "$WORK" star ubuntu-irc self-dialogue:4400 \
  --valid sgd convai2-valid star ubuntu-irc self-dialogue
COSINE=${COSINE:-$WORK/cosine}
[[ -e $RUN/result.json ]] || polyrank train runs/recipes/encoder.toml --threads "$THREADS" --resume
# second pass: normalized vectors and random batches
[[ -e $COSINE/result.json ]] || polyrank train runs/recipes/encoder.toml --set "output=$PWD/$COSINE" \
  --set "train.init_from=$PWD/$RUN/model" --set model.normalize=true --set train.length_window=1 --set data.max_train=38_400 \
  --set train.lr=1e-4 --set 'train.seeds=[2]' --set train.evaluate_per_epoch=2 --threads "$THREADS" --resume

read -r second third <<<"$SHARE"
AVERAGE=$WORK/average THIRD=$WORK/third
pip show -q polyrank-models 2>/dev/null || pip install -q -e models
python runs/record.py general/training "$RUN/result.json"
python runs/record.py general/cosine "$COSINE/result.json"
python runs/curves.py "$RUN" -o runs/results/general-curves.svg
python runs/record.py --has general/mixtures || python runs/mixtures.py "$COSINE/model" "$DATA" 0 0.3 0.5 0.7 1
if [[ ! -e $AVERAGE ]]; then
  python runs/ship.py "$COSINE/model" minilm --more --half --tokens 128 --share "$second"
  cp -r models/polyrank_models/minilm "$AVERAGE"
  rm "$AVERAGE/README.md"
fi
# third pass, from that average: twice over more pairs, with longer texts and corrected frequencies
[[ -e $WORK/third.jsonl.gz ]] || { python runs/convert_data.py "$DATA" "$WORK/more" star ubuntu-irc self-dialogue:8800 &&
  mv "$WORK/more/train.jsonl.gz" "$WORK/third.jsonl.gz"; }
[[ -e $THIRD/result.json ]] || polyrank train runs/recipes/encoder.toml --set "output=$PWD/$THIRD" --set "data.train=$PWD/$WORK/third.jsonl.gz" \
  --set "train.init_from=$PWD/$AVERAGE" --set model.normalize=true --set train.length_window=1 --set data.max_train=300_000 \
  --set train.epochs=2 --set train.lr=1e-4 --set train.evaluate_per_epoch=3 --set train.method.negatives_weighting=logq \
  --set text.max_context_tokens=128 --set text.max_candidate_tokens=64 --threads "$THREADS" --resume
python runs/record.py --has general/third || python runs/mixtures.py "$THIRD/model" "$DATA" 0 0.25 0.5 1 --earlier "$AVERAGE" --name third
python runs/ship.py "$THIRD/model" minilm --more --half --tokens 128 --share "$third" --earlier "$AVERAGE"
# whether it ranks in int8 as in fp32: on validation lists of the sample and of a corpus that it was not trained on
{ cat src/polyrank/sample/valid.jsonl; zcat "$DATA/convai2-valid/dev.jsonl.gz"; } >"$WORK/int8.jsonl"
polyrank export models/polyrank_models/minilm --to int8 --valid "$WORK/int8.jsonl"

for set in $SETS; do
  mkdir -p "$WORK/$set"
  options=(--limit "$LIMIT")
  test=$DATA/$set/test.jsonl.gz dev=$DATA/$set/dev.jsonl.gz
  case $set in
    mutual) test=$DATA/mutual/dev.jsonl.gz dev= ;; # its test answers are withheld
    medquad)
      dev= test=$DATA/medquad/test.pool.jsonl.gz
      options+=(--pool "$DATA/medquad/answers.jsonl.gz") ;;
  esac
  for model in $MODELS; do
    case $model in
      bm25) scorer=bm25 ;;
      untuned) scorer=untuned:embedded ;;
      encoder) scorer=shipped:minilm ;;
      convert) scorer=shipped:convert ;;
      sum)
        [[ $dev ]] || continue
        scorer=$WORK/$set/sum
        python runs/ranker.py "$scorer" shipped:minilm shipped:convert --valid "$dev" --limit 300 ;;
    esac
    against=()
    [[ $model != untuned && -e $WORK/$set/untuned.jsonl ]] && against=(--against "$WORK/$set/untuned.jsonl")
    [[ $model == sum ]] && against=(--against "$WORK/$set/encoder.jsonl")
    polyrank evaluate "$scorer" "$test" "${options[@]}" --scores "$WORK/$set/$model.jsonl" --overwrite "${against[@]}" \
      --threads "$THREADS" --json >"$WORK/$set/$model.json"
    python runs/record.py "general/$set/$model" "$WORK/$set/$model.json"
    echo "$set $model $(cut -c1-200 "$WORK/$set/$model.json")"
  done
done
