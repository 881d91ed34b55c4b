#!/usr/bin/env bash
# Humeau et al., Poly-encoders (ICLR 2020): Table 4, the models on substitutes for the tasks.
#   DATA=folder TASKS="dstc7" MODELS="bi poly-64" SEEDS=[1,2,3] EXTRA="--set train.max_steps=2" SMALL=1 bash runs/papers/iclr.sh
# TASKS: convai2, dstc7, ubuntu-v2, wikipedia. MODELS: bi, poly-M, poly-first-M, poly-last-M, poly-last_h1-M, cross.
# WEIGHTS=folder starts from your pre-trained weights and trains as in section 5.3; WEIGHTS=reddit pre-trains them first, with
# iclr-pretrain.toml on the pairs of Reddit. Without WEIGHTS, training starts from BACKBONE=name or folder; default: BERT.
# To use the papers' own files, put them into runs/work/papers/data; docs/papers.md lists them.
# Writes runs/work/papers (not in git): data, models, and TASK/MODEL.json with R@k, MRR and MAP, mean and deviation over seeds.
. "$(dirname "$0")/common.sh"
TASKS=${TASKS:-convai2 dstc7 ubuntu-v2}
MODELS=${MODELS:-bi poly-16 poly-64 poly-360 cross}
SEEDS=${SEEDS:-$([[ $SMALL ]] && echo '[1]' || echo '[1,2,3]')}
WEIGHTS=${WEIGHTS:-}

if [[ $WEIGHTS == reddit ]]; then
  prepare reddit pairs json reddit
  WEIGHTS=$WORK/iclr/pretrain/model steps=()
  [[ $SMALL ]] && steps=(--set train.steps=2 --set train.batch_tokens=2000 --set train.micro_batch_tokens=2000
    --set train.schedule.warmup_steps=1 --set vocabulary.size=500 --set model.layers=1 --set model.hidden=64 --set model.heads=2
    --set model.ffn=64)
  polyrank pretrain runs/papers/iclr-pretrain.toml --set "output=${WEIGHTS%/model}" --set "data.train=$WORK/data/reddit/train.jsonl" \
    "${steps[@]}" --resume
fi
for task in $TASKS; do
  case $task in
    dstc7) prepare dstc7 dstc7 json dstc7-as-released --as-released --every-turn ;; # v1, 5.1; released only for this task
    ubuntu-v2) prepare ubuntu-v2 ubuntu-v2 csv ubuntu-v2 ;;
    *) prepare "$task" "$task" txt "$task" ;;
  esac
  data=$WORK/data/$task
  [[ $task == dstc7 ]] && data+=-as-released
  for model in $MODELS; do
    recipe=${model%%-*}
    out=$WORK/iclr/$task/$model
    sets=(--set "model.backbone=${WEIGHTS:-$BACKBONE}" --set "train.seeds=$SEEDS" --set "output=$out"
      --set "data.train=$data/train.jsonl" --set "data.valid=$data/valid.jsonl")
    [[ $model == poly-* ]] && sets+=(--set "model.n_codes=${model##*-}")
    [[ $model == poly-*-* ]] && kind=${model#poly-} && sets+=(--set "model.codes=${kind%-*}")
    if [[ $task == convai2 && $model == cross ]]; then
      sets+=(--set train.negatives.n=19 --set 'train.negatives.sources=["given"]')
    elif [[ $task == convai2 ]]; then
      sets+=(--set train.batch_size=512)
    elif [[ $task == wikipedia ]]; then # a sentence and an article; lengths are not stated
      sets+=(--set text.max_context_tokens=72 --set text.max_candidate_tokens=360)
    fi
    if [[ $WEIGHTS ]]; then # 5.3
      sets+=(--set train.optimizer=adamax --set train.weight_decay=0.0 --set train.train_layers=all
        --set "text.turn_separator=[NEWLINE]")
      [[ $model == cross ]] || sets+=(--set model.match_output_std=0.5)
    fi
    # shellcheck disable=SC2086  # EXTRA is several words
    polyrank train "runs/papers/iclr-$recipe.toml" "${sets[@]}" "${SETS[@]}" $EXTRA --resume
    lists=()
    [[ $task == wikipedia ]] && lists=(--candidates $([[ $SMALL ]] && echo 11 || echo 10001) --candidates-from "$data/further.txt" --seed 0)
    polyrank evaluate "$out" "$data/test.jsonl" "${lists[@]}" ${LIMIT:+--limit "$LIMIT"} --metric R@1,R@5,R@10,MRR,MAP --json >"$out.json"
    echo "$task $model $(cat "$out.json")"
  done
done
