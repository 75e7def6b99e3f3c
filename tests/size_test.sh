# The runtime's code and constants without kernels stay under 952 KiB, as the program has them. Without what reads Lua
# they are 75 less, which was what was looked at up to 877 KiB: 400 before five more
# block formats on three vector levels and the table of the ops' arguments, 464 before eight families
# of models, their tokenizers and chat templates, and the loop that serves many sessions, 496 before
# folders of Hugging Face, grammars, the token indexer, attention of every type, and activations of 8
# bits, 664 before adapters, masks as drafts, latent attention, and chains of samples,
# 704 before landmarks, rows of the caller's, profiles and traces, pools for windows, SentencePiece's
# files, and drafts that are verified by their probabilities, 776 before unigram tokenizers, a smaller
# model that drafts, prompts that share a forward on CUDA, and caches of other values, 790 before
# adapters of experts, landmarks of models, and products of one row in K formats that keep what they
# unpack in registers, 836 before steps on the GPU that go on between calls, drafts in the flow kernel, programs
# for a row alone, and latents by wgmma, 840 before blocks for prompts of few rows, pages that the GPU's
# layers read in a profile, and ranges of NVTX, 844 before keys that nothing reads were refused, checks told
# all that speaks against a file, and requests took the pages of idle sessions, 847 before first tokens had
# deadlines, loads could be cancelled, and tokenizers told all that speaks against them, 849 before steps of
# many rows attended by chains of runs, and adapters' configs that mean something else were refused by name, 851
# before their products took two bands of rows, 853 before each call that lacks
# the place for its result said so, 854 before a row alone attended the pages it selects in one launch,
# 855 before logits that are not numbers failed their session, 856 before a step began ahead of its token,
# 858 before a row alone of many runs was attended by relay, 859 before steps of many sessions began ahead,
# 860 before few rows of few runs went by clusters, 861 before steps that draft began ahead of their tokens,
# 863 before eight rows of x met AVX-512's weights at a time, 875 before selection was compiled beside what a start
# waits for, 876 before NVRTC was opened beside the device.
. tests/tap.sh

if [ -n "${CFLAGS:-}" ]; then tap_skip "CFLAGS are set: it is looked at as it is by default"; tap_done; exit; fi
text=$(size build/runtime.o | awk 'NR == 2 { print $1 }')
kernels=$(find kernels_src -type f -exec cat {} + | wc -c)
echo "# text $text bytes, kernel sources $kernels bytes of it"
check "text without kernels is $((text - kernels)) bytes, at most 974848" \
    [ $((text - kernels)) -le 974848 ]
tap_done
