/* families: a file for each family of models, which reads a model file into a plan (model/plan.h)
 * and says by name what of it has no code. A family is its file, a prototype here and a line in
 * model_families. Calls plan and gguf. */

/* attention and swiglu in every layer: Llama, Mistral, SmolLM2 and others of their form */
static cairn_status llama_read(plan_reader *r);
/* the same with biases of q, k and v: Qwen 2 and 2.5; with norms of the heads: Qwen 3 */
static cairn_status qwen_read_biased(plan_reader *r);
static cairn_status qwen_read_normed(plan_reader *r);
/* and with an ffn of experts */
static cairn_status qwen_read_experts(plan_reader *r);
/* norms around mixer and ffn, geglu, windows in most layers: Gemma 3 */
static cairn_status gemma_read(plan_reader *r);
/* fused projections, factors of rope for long contexts: Phi 3 to 4 mini */
static cairn_status phi_read(plan_reader *r);
/* llama's form, every fourth layer without rope: SmolLM3 */
static cairn_status llama_read_smollm3(plan_reader *r);
/* attention by latents over the tokens that an indexer chooses: DeepSeek V3.2; GLM 5 */
static cairn_status deepseek_read(plan_reader *r);
static cairn_status deepseek_read_glm(plan_reader *r);
/* short convolutions between layers of attention: LFM2 */
static cairn_status lfm2_read(plan_reader *r);
