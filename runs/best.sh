#!/usr/bin/env bash
# The best models that two cores can train for each corpus: more pairs, an encoder already trained on conversations, and a sum of two
# encoders.
#   DATA=folder THREADS=2 BUDGET=pairs SETS="star sgd" MODELS="bi convert sum" bash runs/best.sh
# MODELS:
#   bi: a Bi-encoder from shipped:minilm; bi-2, bi-3: with other seeds; bi-wide: in batches of 256; bi-both: also on the pairs of
#     the other speaker
#   convert: shipped:convert, trained on the same pairs for three epochs
#   sum: the sum of bi and convert, with weights from 300 dev lists; sum-shipped: of bi and the untrained shipped:convert;
#     sum-wide: of bi, convert and bi-wide; sum-seeds: of bi, convert and bi-2; sum-first: of FIRST and convert;
#     sum-more: of logq, logq-more and convert-all; sum-late: its 25 best, re-ranked by late, which corrects logq;
#     sum-four: of FROM, logq-more, scratch and counts; sum-both: of bi, bi-2, bi-both and convert;
#     sum-three: of bi-2, bi-3 and "all" of runs/halves.sh; sum-general: of these and the third pass of shipped:minilm (runs/encoder.sh)
#   bi-all, convert-all, sum-all, logq-all, sum-logq-all: the same on every pair of the corpus
#   bi-more, poly-64: trained further from bi, on a quarter as many pairs
#   logq: bi with negatives_weighting = "logq"; counts: how often a reply was said; scratch: ConveRT from
#     random weights, three epochs on every pair, as in runs/weighting_training.sh
#   logq-more: FROM, trained further on MORE pairs drawn from all
#   sum-logq: of logq, scratch and counts, with weights from 1,000 dev lists; sum-logq-more: of logq-more, scratch and counts
#   uniform (-3, -4: other seeds): bi-more with negatives_weighting = "logq". The published figures used an earlier correction,
#     of wrong answers only
#   lists: bi-more with a list of random wrong answers for each context; distilled: with lists that sum has scored
#   mined: a Bi-encoder with one mined wrong answer for each context in addition to those of the batch, on half of the pairs; medquad
#   unmined: the same without mined answers
#   half: mined, on every second pair; half-late: its ten best answers, re-ranked by a late Cross-encoder trained on the other half
#   late: the 25 best of FIRST, re-ranked by a late Cross-encoder trained on LATE pairs drawn from all, with wrong answers drawn by DRAW
#   passes: bi with three passes; dev lists choose the best version
#   shipped: shipped:minilm, without further training
#   library: sentence-transformers, on as many pairs as bi
#   cross: a Cross-encoder from BACKBONE, listwise on given wrong answers; mutual provides these
#   third, third-2: logq from the third pass of shipped:minilm (runs/encoder.sh); sum-third: of both and convert
#   given: a Bi-encoder, listwise on them; given-2, given-3: with other seeds; sum-given: of the three, with equal weights
#   both-160: bi-both with corrected frequencies, which reads 160 tokens of a context; sum-160: of third, third-2, both-160 and convert
# A stopped run resumes when you start it again.
# Writes runs/work/best, and stores best/SET/MODEL with runs/record.py, over all test examples.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
BUDGET=${BUDGET:-30720}
SETS=${SETS:-star sgd ubuntu-irc convai2-valid self-dialogue}
MODELS=${MODELS:-bi convert sum}
# stored figures: runs/work/encoder/run/model, its first pass; where docs/results.md names shipped:minilm, runs/work/encoder/average
START=${START:-shipped:minilm}
MORE=${MORE:-48000}        # pairs of logq-more
FROM=${FROM:-logq}
AGAINST=${AGAINST:-}       # the part that sum-four is compared with; FROM, if it is empty
EPOCHS=${EPOCHS:-3}        # of convert and convert-all
FIRST=${FIRST:-logq}       # the first stage of late, and a part of sum-first
LATE=${LATE:-12800}        # pairs of late
DRAW=${DRAW:-uniform}      # as_said: as often as they were said, as in test lists taken from conversations
NEGATIVES=${NEGATIVES:-31} # of lists
LIMIT=${LIMIT:-}

learn() { # SET MODEL RECIPE [OPTION ...]
  local work=$PWD/runs/work/best/$1/$2 data
  [[ -e $work/result.json ]] && return
  training_data "$1"
  polyrank train "runs/recipes/$3.toml" "${data[@]}" --set "output=$work" --threads "$THREADS" --resume "${@:4}"
}

judge() { # SET MODEL SCORER AGAINST
  local work=$PWD/runs/work/best/$1/$2 test=$DATA/$1/test.jsonl.gz against=() pool=()
  [[ $1 == mutual ]] && test=$DATA/mutual/dev.jsonl.gz # its test answers are withheld
  [[ $1 == medquad ]] && test=$DATA/medquad/test.pool.jsonl.gz pool=(--pool "$DATA/medquad/answers.jsonl.gz")
  [[ $4 && -e runs/work/best/$1/$4.scores.jsonl ]] && against=(--against "runs/work/best/$1/$4.scores.jsonl")
  polyrank evaluate "$3" "$test" ${LIMIT:+--limit "$LIMIT"} --scores "$work.scores.jsonl" --overwrite "${against[@]}" "${pool[@]}" \
    --threads "$THREADS" --json >"$work.json"
  python runs/record.py "best/$1/$2" "$work.json"
  [[ -e $work/result.json ]] && python runs/record.py "best/$1/$2.fit" "$work/result.json"
  echo "$1 $2 $(cut -c1-200 "$work.json")"
}

counted() { # counts: the options that count the replies of the set's training dialogues
  local one
  training_data "$set"
  counts=(--counts "$DATA/$set/train.dialogues.jsonl.gz")
  for one in "${data[@]}"; do [[ $one != data.speaker=* ]] || counts+=(--speaker "${one#*=}"); done
}

for set in $SETS; do
  work=$PWD/runs/work/best/$set
  mkdir -p "$work"
  few=() # a corpus with few pairs gets more epochs
  [[ $set == convai2-valid ]] && few=(--set train.epochs=2)
  for model in $MODELS; do
    python runs/record.py --has "best/$set/$model" && continue
    all= budget=$BUDGET
    [[ $model == *-all ]] && all=-all budget=100000000
    [[ $model == *-more ]] && all=-more
    scorer=$work/$model/model against=bi$all common=(--set train.length_window=1 --set train.dropout=0.0
      --set train.checkpoint_steps=40 --set model.normalize=false)
    mining=(--set train.negatives.n=1 --set 'train.negatives.sources=["mined"]'
      --set 'train.negatives.remine_ranks=[2, 20]')
    lengths=(--set text.max_context_tokens=64 --set text.max_candidate_tokens=128)
    given=(--set 'train.negatives.sources=["given"]' --set train.negatives.n=3 --set text.max_candidate_tokens=32
      --set train.dropout=0.0 --set train.checkpoint_steps=40)
    case $model in
      bi | bi-all)
        against=${all:+bi}
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$START" --set data.max_train="$budget" "${few[@]}" ;;
      logq | logq-all)
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$START" --set data.max_train="$budget" "${few[@]}" \
          --set train.method.negatives_weighting=logq ;;
      third | third-2)
        against= seed=1
        [[ $model == *-* ]] && against=third seed=2
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$PWD/runs/work/encoder/third/model" "${few[@]}" \
          --set train.method.negatives_weighting=logq --set "train.seeds=[$seed]" ;;
      logq-more)
        against=$FROM
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$work/$FROM/model" --set train.lr=1.5e-4 \
          --set "train.max_steps=$((MORE / 64))" --set 'train.seeds=[2]' --set train.method.negatives_weighting=logq ;;
      scratch)
        learn "$set" "$model" convert --set text.min_count=10 --set train.epochs=3 \
          --set "data.valid=$DATA/$set/dev.jsonl.gz" --set data.max_valid=500 ;;
      counts)
        against=
        counted
        python runs/counts.py "$DATA/$set/test.jsonl.gz" "${counts[@]}" ${LIMIT:+--limit "$LIMIT"} --scores "$work/counts.scores.jsonl" \
          | python runs/record.py "best/$set/counts"
        continue ;;
      sum-logq | sum-logq-all | sum-logq-more)
        scorer=$work/$model against=logq$all
        counted
        python runs/ranker.py "$scorer" "$work/logq$all/model" "$work/scratch/model" "${counts[@]}" \
          --valid "$DATA/$set/dev.jsonl.gz" --limit 1000 ;;
      bi-2 | bi-3)
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$START" --set data.max_train="$budget" "${few[@]}" \
          --set "train.seeds=[${model#bi-}]" ;;
      bi-both)
        [[ -e $work/both.jsonl ]] || python runs/both_speakers.py "$DATA/$set/train.jsonl.gz" "$work/both.jsonl"
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$START" --set "data.train=$work/both.jsonl" "${few[@]}" \
          --set 'train.seeds=[3]' ;;
      both-160)
        [[ -e $work/both.jsonl ]] || python runs/both_speakers.py "$DATA/$set/train.jsonl.gz" "$work/both.jsonl"
        against=third
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$START" --set "data.train=$work/both.jsonl" "${few[@]}" \
          --set train.method.negatives_weighting=logq --set text.max_context_tokens=160 ;;
      bi-wide) # four times the batch, and 1.5 times the learning rate
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$START" --set data.max_train="$budget" "${few[@]}" \
          --set train.batch_size=256 --set train.chunk_size=64 --set train.lr=3e-4 --set train.checkpoint_steps=10 ;;
      convert | convert-all)
        learn "$set" "$model" convert-tune --set train.init_from=shipped:convert --set data.max_train="$budget" \
          --set "train.epochs=$EPOCHS" ;;
      sum | sum-all | sum-shipped | sum-wide | sum-seeds | sum-first | sum-more | sum-four | sum-both | sum-third | sum-three | \
        sum-general | sum-160)
        scorer=$work/$model parts=("$work/bi$all/model" "$work/convert$all/model") lists=300
        [[ $model == sum-first ]] && against=$FIRST parts[0]=$work/$FIRST/model lists=1000
        [[ $model == sum-more ]] && against=sum-first parts=("$work"/{logq,logq-more,convert-all}/model) lists=1000
        [[ $model == sum-four ]] && against=${AGAINST:-$FROM} parts=("$work"/{"$FROM",logq-more,scratch}/model) lists=3000
        [[ $model == sum-both ]] && against=sum-seeds parts=("$work"/{bi,bi-2,bi-both,convert}/model) lists=2000
        [[ $model == sum-third ]] && against=third parts=("$work"/{third,third-2,convert}/model) lists=2000
        [[ $model == sum-160 ]] && against=sum-third parts=("$work"/{third,third-2,both-160,convert}/model) lists=2000
        [[ $model == sum-three ]] && against=bi-2 parts=("$work"/{bi-2,bi-3}/model "runs/work/halves/$set/all/model") lists=2000
        [[ $model == sum-general ]] && against=sum-three lists=2000 \
          parts=("$work"/{bi-2,bi-3}/model "runs/work/halves/$set/all/model" runs/work/encoder/third/model)
        [[ $model == sum-seeds ]] && parts+=("$work/bi-2/model") lists=2000
        [[ $model == sum-shipped ]] && parts[1]=shipped:convert
        [[ $model == sum-wide ]] && parts+=("$work/bi-wide/model") lists=2000 # three weights need more lists
        [[ $model == sum-four ]] && counted && parts+=("${counts[@]}")
        python runs/ranker.py "$scorer" "${parts[@]}" --valid "$DATA/$set/dev.jsonl.gz" --limit "$lists" ;;
      sum-late)
        scorer=$work/sum-late against=sum-more
        python runs/ranker.py "$scorer" "$work"/{logq,logq-more,convert-all}/model --valid "$DATA/$set/dev.jsonl.gz" --limit 1000 \
          --rerank "$work/late/model" ;;
      bi-more | poly-64) # equal learning rates for both
        more=("${common[@]}" --set "train.init_from=$work/bi/model" --set data.max_train=$((BUDGET / 4)) --set 'train.seeds=[2]')
        against=bi-more recipe=bi
        [[ $model == poly-64 ]] && recipe=poly-64
        learn "$set" "$model" "$recipe" "${more[@]}" --set train.lr=1e-4 ;;
      uniform | uniform-3 | uniform-4) # seeds 2, 3 and 4
        against=bi-more seed=2
        [[ $model == *-* ]] && seed=${model#uniform-}
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$work/bi/model" --set data.max_train=$((BUDGET / 4)) \
          --set "train.seeds=[$seed]" --set train.lr=1e-4 --set train.method.negatives_weighting=logq ;;
      distilled | lists)
        against=bi-more taught=(--set train.method.kind=listwise)
        [[ $model == distilled ]] && taught=(--set train.method.kind=distill --set "train.method.teacher=$work/sum"
          --set train.method.temperature=2 --set train.method.alpha=4)
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$work/bi/model" --set data.max_train=$((BUDGET / 4)) \
          --set 'train.seeds=[2]' --set train.lr=1e-4 "${taught[@]}" --set train.negatives.n="$NEGATIVES" ;;
      mined | unmined) # one network reads whole answers, so each pair takes three times as long
        against=shipped
        [[ $model == unmined ]] && against=mined mining=()
        learn "$set" "$model" bi "${common[@]}" --set train.init_from=shipped:minilm --set train.lr=1e-4 \
          --set train.max_steps=100 "${mining[@]}" "${lengths[@]}" ;;
      half)
        against=shipped
        zcat "$DATA/$set/train.jsonl.gz" | awk -v first="$work/first.jsonl" -v second="$work/second.jsonl" \
          '{print > (NR % 2 ? first : second)}'
        learn "$set" half bi "${common[@]}" --set "data.train=$work/first.jsonl" --set train.init_from=shipped:minilm \
          --set train.lr=1e-4 "${mining[@]}" "${lengths[@]}" ;;
      late)
        first=$work/$FIRST/model against=$FIRST scorer=$work/late-25
        learn "$set" late late --set "train.init_from=$first" --set "train.method.first_stage=$first" \
          --set "train.max_steps=$((LATE / 16))" --set 'train.seeds=[2]' --set "train.negatives.weighting=$DRAW"
        python runs/ranker.py "$scorer" "$first" --rerank "$work/late/model" ;;
      half-late) # the wrong answers of a list are among the first stage's twelve best of all training answers
        first=$work/half/model against=half scorer=$work/half-late-10
        zcat "$DATA/$set/train.jsonl.gz" | sed 's/.*"response": /{"text": /' >"$work/responses.jsonl"
        [[ -e $work/lists.jsonl ]] || polyrank mine "$work/second.jsonl" --from "$first" --pool "$work/responses.jsonl" -n 8 \
          --ranks 1:12 -o "$work/lists.jsonl"
        learn "$set" half-late late --set "data.train=$work/lists.jsonl" --set "train.init_from=$first" --set train.epochs=1 \
          --set "train.method.first_stage=$first" --set 'train.negatives.sources=["given"]' --set model.reader=context \
          "${lengths[@]}"
        python runs/ranker.py "$scorer" "$first" --rerank "$work/half-late/model" --n-retrieved 10 ;;
      passes)
        learn "$set" "$model" bi "${common[@]}" --set "train.init_from=$START" --set train.epochs=3 \
          --set "data.valid=$DATA/$set/dev.jsonl.gz" ;;
      shipped)
        scorer=shipped:minilm against= ;;
      library)
        against=
        python runs/peers/sentence_transformers_bi.py matched "$set" --data "$DATA" --budget "$BUDGET" --precision bf16 \
          --name best --limit 100000
        continue ;;
      cross) # on each example's given candidates; dropout would need more epochs than two cores can run
        against=
        learn "$set" cross cross --set "model.backbone=${BACKBONE:-embedded}" "${given[@]}" --set train.epochs=3 ;;
      given | given-2 | given-3)
        against= seed=1
        [[ $model == *-* ]] && against=given seed=${model#given-}
        learn "$set" "$model" bi "${given[@]}" --set train.init_from=shipped:minilm --set model.normalize=false \
          --set train.method.kind=listwise --set train.batch_size=16 --set train.lr=1e-4 --set "train.seeds=[$seed]" ;;
      sum-given)
        scorer=$work/sum-given against=given
        python runs/ranker.py "$scorer" "$work"/given{,-2,-3}/model --weights 1,1,1 ;;
      *) echo "unknown model $model; the top of $0 lists them" >&2 && exit 2 ;;
    esac
    judge "$set" "$model" "$scorer" "$against"
  done
done
