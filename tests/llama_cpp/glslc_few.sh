#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# glslc for a test of ggml-vulkan: shaders of quantized types and operations that no model of the tests has become empty
# ones, so that the build takes a fraction of its time.
name='' empty='' previous='' out='' deps='' source=''
for word in "$@"; do
    case $previous in -o) out=$word ;; -MF) deps=$word ;; esac
    case $word in
    *.comp) source=$word name=$(basename "$word") ;;
    -DDATA_[AD]_Q[12]_0=* | -DDATA_[AD]_Q4_1=* | -DDATA_[AD]_Q5_* | -DDATA_A_Q?_K=* | -DDATA_[AD]_IQ* | \
        -DDATA_A_MXFP4=* | -DDATA_A_NVFP4=* | -DDATA_A_TQ* | -DDATA_A_BF16=*) empty=yes ;;
    esac
    previous=$word
done
case $name in
conv* | im2col* | pool* | wkv* | snake* | col2im* | gla.comp | dsv4* | lightning* | opt_step* | upscale*) empty=yes ;;
flash_attn*.comp) empty= ;; # the types of caches are among the values that a shader is specialized by
esac
case $source in *feature-tests*) empty= ;; esac
[ -n "$empty" ] || exec glslc "$@"
[ -z "$deps" ] || echo "$out: $source" >"$deps"
echo '#version 450
void main() {}' | glslc -fshader-stage=compute - -o "$out"
