//! MPS, where there is no GPU.

/// Stands in for NVIDIA's control program `nvidia-cuda-mps-control`: beside its pipe it writes its pid and the GPUs
/// that it was given.
pub const MPS_CONTROL: &str = r#"#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" != -f ]; then
    read -r word
    [ "$word" != quit ] || kill "$(cat "$pipe/pid")"
    exit 0
fi
sleep 7200 &
trap 'kill $!; exit 0' TERM
echo "$$" >"$pipe/pid"
echo "$CUDA_VISIBLE_DEVICES" >"$pipe/gpus"
: >"$pipe/control"
wait
"#;
