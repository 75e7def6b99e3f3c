---@meta cairn
-- For the Lua language server: what `require "cairn"` gives, so that calls complete and mistakes show
-- while you type. runtime.h and the README say what each op does; its named options come last.
error "annotations for the editor, not a module"

---@class cairn
---@field version string
---@field statuses table<string, integer>
local cairn = {}

---@param config? cairn.Config|string a table, or the path of a file
---@param options? { progress?: boolean, log?: boolean|"apart", loading?: fun(what: string, index: integer, count: integer): boolean? } loading: called while a model loads or evaluates; false ends that
---@return cairn.Runtime
function cairn.open(config, options) end
---@param config cairn.Config|string
---@return cairn.Config full every field filled in; a mistake is an error
function cairn.check(config) end
---@param config cairn.Config|string
---@param path string a GGUF file
---@return { max_seq_len: integer, pages: integer, weights_bytes: integer, kv_bytes: integer, scratch_bytes: integer, total_bytes: integer }
function cairn.estimate(config, path) end
---@param config? table
---@return table report what the file is, what it needs, and all reasons why it does not run here
function cairn.model_check(config, path) end
---@return { tried: string, driver_error?: string, nvrtc_error?: string, devices: table[] }
function cairn.libraries() end
---@return table[] templates the kernel templates
function cairn.templates() end
---@param config cairn.Config|string
---@param arch integer such as 90
---@param options? { source?: string, constants?: table, kind?: string }
function cairn.compile(config, arch, options) end
---@return integer microseconds
function cairn.now_us() end

---What ops there are: each op's arguments with their dtypes, shapes and choices.
---@return { name: string, arguments: table[] }[]
function cairn.ops() end

---@alias cairn.Dtype "f32"|"f16"|"bf16"|"e4m3"|"i32"|"i64"|"u8"
---@alias cairn.Ids integer[]|cairn.Tensor a list, or a tensor from rt:host(list)
---@alias cairn.Message { role: "system"|"user"|"assistant", content: string }

---@class cairn.Tensor
---@field shape integer[]
---@field dtype cairn.Dtype
---@field bytes integer
---@field totable fun(self): table
---@field write fun(self, list: table): cairn.Tensor
---@field view fun(self, shape: integer[], options?: { strides?: integer[], offset?: integer }): cairn.Tensor
---@field save fun(self, path: string): cairn.Tensor
---@field free fun(self)

---@class cairn.Runtime
---@field tensor fun(self, list: table|number, dtype?: cairn.Dtype, shape?: integer[]): cairn.Tensor
---@field host fun(self, list_or_bytes: table|integer): cairn.Tensor
---@field staging fun(self, bytes: integer): cairn.Staging
---@field zeros fun(self, shape: integer[], dtype?: cairn.Dtype): cairn.Tensor
---@field random fun(self, shape: integer[], dtype?: cairn.Dtype, options?: { seed?: integer, low?: number, high?: number }): cairn.Tensor
---@field load fun(self, path: string): cairn.Tensor
---@field load_model fun(self, path: string): cairn.Model
---@field load_model_from fun(self, bytes: string, name: string?): cairn.Model
---@field config fun(self): cairn.Config
---@field reload fun(self, config: cairn.Config|string): boolean true while kernels are compiled for it
---@field info fun(self): table
---@field measure fun(self): table
---@field trace fun(self, events?: integer)
---@field trace_text fun(self): string
---@field trace_stop fun(self)
---@field sync fun(self)
---@field stream fun(self): cairn.Stream
---@field use fun(self, stream?: cairn.Stream)
---@field event fun(self): cairn.Event
---@field capture fun(self, f: fun()): cairn.Graph
---@field page_pool fun(self, pages: integer): cairn.PagePool
---@field page_tables fun(self, options: { requests: integer, max_tokens: integer, page_size?: integer, pool?: cairn.PagePool }): cairn.PageTables
---@field prefix_cache fun(self, options: { pool: cairn.PagePool, page_size?: integer }): cairn.PrefixCache
---@field topk fun(self, scores: cairn.Tensor, options: table): cairn.Tensor, cairn.Tensor?
---@field topk_transform fun(self, scores: cairn.Tensor, options: table): cairn.Tensor, cairn.Tensor?
---@field topk_rows fun(self, ...: any): any
---@field topk_rows_plan fun(self, ...: any): any
---@field topk_route fun(self, ...: any): string
---@field embed fun(self, ids: cairn.Tensor, table: cairn.Tensor, options?: table): cairn.Tensor
---@field rmsnorm fun(self, x: cairn.Tensor, weight: cairn.Tensor, options?: table): cairn.Tensor
---@field rope fun(self, x: cairn.Tensor, positions: cairn.Tensor, options?: table): cairn.Tensor
---@field linear fun(self, x: cairn.Tensor, weight: cairn.Tensor, options?: table): cairn.Tensor
---@field swiglu fun(self, gate: cairn.Tensor, up: cairn.Tensor, options?: table): cairn.Tensor
---@field kv_append fun(self, ...: any): any
---@field kv_collate fun(self, ...: any): any
---@field copy_pages fun(self, cache: cairn.Tensor, pairs: cairn.Tensor, options?: table): cairn.Tensor
---@field attend fun(self, ...: any): any
---@field attend_pages fun(self, ...: any): any
---@field attend_tokens fun(self, ...: any): cairn.Tensor, cairn.Tensor?
---@field merge_states fun(self, ...: any): cairn.Tensor, cairn.Tensor?
---@field score_pages fun(self, ...: any): any
---@field page_bounds fun(self, ...: any): any
---@field select_pages fun(self, ...: any): any
---@field quantize_fp8 fun(self, x: cairn.Tensor, options?: table): cairn.Tensor, cairn.Tensor
---@field index_qk fun(self, ...: any): any
---@field index_store fun(self, keys: cairn.Tensor, key_scales: cairn.Tensor, slots: cairn.Tensor, cache: cairn.Tensor)
---@field index_gather fun(self, ...: any): cairn.Tensor, cairn.Tensor
---@field index_logits fun(self, ...: any): cairn.Tensor
---@field index_logits_paged fun(self, ...: any): cairn.Tensor
---@field index_topk fun(self, ...: any): cairn.Tensor, cairn.Tensor?
---@field index_transform fun(self, positions: cairn.Tensor, options?: table): cairn.Tensor
---@field sample fun(self, logits: cairn.Tensor, options?: table): cairn.Tensor
---@field verify_greedy fun(self, logits: cairn.Tensor, drafts: cairn.Tensor, options?: table): cairn.Tensor, cairn.Tensor
---@field sample_probs fun(self, logits: cairn.Tensor, options?: table): cairn.Tensor
---@field verify_chain fun(self, target: cairn.Tensor, drafts: cairn.Tensor, options?: table): cairn.Tensor, cairn.Tensor, cairn.Tensor
---@field prepare_steps fun(self, ...: any): any
---@field prefix_chunks fun(self, ...: any): any
---@field short_conv fun(self, ...: any): any
---@field short_conv_update fun(self, ...: any): any
---@field short_conv_restore fun(self, ...: any): any
---@field short_conv_metadata fun(self, ...: any): any
---@field close fun(self)

---@class cairn.Model
---@field info fun(self): table
---@field wait fun(self)
---@field tokenize fun(self, text: string, options?: { special?: boolean }): integer[]
---@field detokenize fun(self, ids: cairn.Ids): string
---@field generate_batch fun(self, rows: integer[][], options?: cairn.GenerateOptions|cairn.GenerateOptions[]): { ids: integer[], generated: integer }[], integer
---@field forward fun(self, sequences: cairn.Rows[]): { logits?: cairn.Tensor, hidden?: cairn.Tensor }[]
---@field chat_ids fun(self, messages: cairn.Message[], options?: { first?: boolean, answer?: boolean }): integer[]
---@field chat fun(self, messages: cairn.Message[], options?: { first?: boolean, answer?: boolean }): string
---@field session fun(self): cairn.Session
---@field load_adapter fun(self, path: string): cairn.Adapter
---@field step fun(self, budget_us: integer): integer
---@field profile fun(self, options?: { warmup?: integer, kv_len_reduce?: "mean"|"max"|"p50"|"p90"|"sum" })
---@field profile_text fun(self, form?: "json"|"markdown"): string
---@field profile_stop fun(self)
---@field eval fun(self, ids: cairn.Ids, options?: { top?: integer }): { tokens: integer, mean_nll: number, nll: number[], top?: table[] }
---@field close fun(self)

---rows of one session for model:forward; behind what it holds unless `position` says where
---@class cairn.Rows
---@field session cairn.Session
---@field ids integer[]
---@field position? integer
---@field prompt? boolean they run as a prompt's ids do
---@field rope? integer[]
---@field gate? integer[] 1: the session's adapter adds to the row
---@field mask? integer[][] 1: the row sees that row
---@field logits? integer[]|boolean of which rows, or of all
---@field hidden? integer[]|boolean

---what generate, text and submit take; what is not given is the config's
---@class cairn.GenerateOptions
---@field max_tokens? integer
---@field stop? string[]
---@field keep_stop? boolean the ids of a stop string stay in the session
---@field special? boolean false: the prompt's special-token text is plain
---@field priority? integer -100 to 100, higher goes first
---@field first_token_ms? integer its first token is wanted by then; of one priority the most urgent prompt goes first
---@field grammar? string the text keeps to it (GBNF)
---@field json_schema? string the text is JSON that fits it
---@field logprobs? integer of each id and of so many of the best
---@field logit_bias? table<integer, number> added to the logits of these ids
---@field grammar_from? integer so many ids come before the grammar's text; 0: the prompt's
---@field temperature? number
---@field top_k? integer
---@field top_p? number
---@field min_p? number
---@field order? "top_k_first"|"top_p_first"
---@field repetition_penalty? number
---@field seed? integer

---@class cairn.Session
---@field generate fun(self, prompt?: string, options?: cairn.GenerateOptions, f?: fun(text: string, id: integer, first: integer, last: integer): boolean?): (fun(): string?, integer, integer, integer)|string
---@field text fun(self, prompt?: string, options?: cairn.GenerateOptions): string
---@field submit fun(self, prompt?: string, options?: cairn.GenerateOptions): cairn.Session
---@field poll fun(self): string, string?, string, integer?
---@field append fun(self, text_or_ids: string|integer[], options?: { special?: boolean }): cairn.Session
---@field chat fun(self, messages: cairn.Message[], options?: { answer?: boolean }): cairn.Session
---@field reset fun(self): cairn.Session
---@field rewind fun(self, count: integer): cairn.Session
---@field selection fun(self, layer: integer, kv_head: integer): integer[]?
---@field adapt fun(self, adapter?: cairn.Adapter): cairn.Session
---@field fork fun(self): cairn.Session
---@field save fun(self, path: string): cairn.Session
---@field load fun(self, path: string): cairn.Session
---@field save_memory fun(self): string
---@field load_memory fun(self, saved: string): cairn.Session
---@field ids fun(self): integer[]
---@field cancel fun(self)
---@field error fun(self): string?, string? the status and the message of what failed last; nil: its last request has not failed
---@field pointer fun(self): lightuserdata the cairn_session * that C calls take
---@field stats fun(self): table
---@field close fun(self)

---@class cairn.Adapter
---@field close fun(self)

---@class cairn.PagePool
---@field take fun(self, count: integer): integer[]
---@field retain fun(self, ids: cairn.Ids)
---@field give fun(self, ids: cairn.Ids)
---@field free_pages fun(self): integer
---@field references fun(self, id: integer): integer
---@field close fun(self)

---@class cairn.PageTables
---@field add fun(self, requests: integer[]): cairn.PageTables
---@field remove fun(self, requests: integer[]): cairn.PageTables
---@field fork fun(self, from: integer, to: integer): cairn.PageTables
---@field adopt fun(self, request: integer, ids: cairn.Ids, tokens: integer): cairn.PageTables
---@field insert fun(self, counts: integer[]): cairn.PageTables
---@field delete fun(self, counts: integer[]): cairn.PageTables
---@field clear fun(self): cairn.PageTables
---@field allocate fun(self, counts: integer[]): cairn.PageTables
---@field release fun(self, counts: integer[]): cairn.PageTables
---@field allocate_for fun(self, requests: integer[]): cairn.PageTables
---@field release_for fun(self, requests: integer[]): cairn.PageTables
---@field copies fun(self): any
---@field update fun(self): cairn.PageTables
---@field pages fun(self, request: integer): integer[]
---@field lengths fun(self): integer[]
---@field tensors fun(self): table
---@field save fun(self, request: integer, options: table): string|integer
---@field save_bytes fun(self, request: integer, options: table): integer
---@field load fun(self, request: integer, saved: string|cairn.Tensor, options: table): cairn.PageTables
---@field close fun(self)

---@class cairn.PrefixCache
---@field match fun(self, ids: cairn.Ids, options?: { space?: integer, lock?: boolean }): integer[], integer, integer?
---@field insert fun(self, ids: cairn.Ids, pages: cairn.Ids, options?: { space?: integer }): integer
---@field unlock fun(self, lock: integer)
---@field evict fun(self, tokens: integer): integer
---@field info fun(self): table
---@field close fun(self)

---@class cairn.Stream
---@field sync fun(self)
---@field free fun(self)

---@class cairn.Event
---@field record fun(self)
---@field wait fun(self)
---@field elapsed fun(self, later: cairn.Event): number
---@field free fun(self)

---@class cairn.Graph
---@field launch fun(self)
---@field free fun(self)

---@class cairn.Staging
---@field free fun(self)

return cairn
