#!/usr/bin/env bash
# Runs a command with the processor's instructions limited, in polyrank's loops and in torch and its libraries:
#   bash runs/timing/limit.sh plain|avx2|avx-vnni|avx512|avx512-vnni COMMAND ...
set -euo pipefail
case $1 in # the names that torch, MKL, oneDNN and OpenBLAS use
  plain) names=(default SSE4_2 SSE41 Nehalem) ;;
  avx2) names=(avx2 AVX2 AVX2 Haswell) ;;
  avx-vnni) names=(avx2 AVX2 AVX2_VNNI Haswell) ;;
  avx512 | avx512-vnni) names=(avx512 AVX512 AVX512_CORE_VNNI SkylakeX) ;;
  *) echo "unknown instructions $1; give plain, avx2, avx-vnni, avx512 or avx512-vnni" >&2 && exit 2 ;;
esac
export POLYRANK_INSTRUCTIONS=$1 ATEN_CPU_CAPABILITY=${names[0]} MKL_ENABLE_INSTRUCTIONS=${names[1]}
export ONEDNN_MAX_CPU_ISA=${names[2]} OPENBLAS_CORETYPE=${names[3]}
exec "${@:2}"
