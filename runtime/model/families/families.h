/* families: a file for each family of models, which reads a model file into a plan (model/plan.h)
 * and says by name what of it has no code. A family is its file, a prototype here and a line in
 * model_families. Calls plan and gguf. */

/* attention and swiglu in every layer: Llama, Mistral, SmolLM2 and others of their form */
static cairn_status llama_read(plan_reader *r);
/* the same with biases of q, k and v: Qwen 2 and 2.5; with norms of the heads: Qwen 3 */
static cairn_status qwen_read_biased(plan_reader *r);
static cairn_status qwen_read_normed(plan_reader *r);
/* short convolutions between layers of attention: LFM2 */
static cairn_status lfm2_read(plan_reader *r);
