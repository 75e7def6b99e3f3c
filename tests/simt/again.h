/* Before the headers of step/ are included once more, in another namespace with other constants. */
#undef CAIRN_ATTENTION_CORE_CUH
#undef CAIRN_KEPT_CUH
#undef CAIRN_ELEMENTS_CUH
#undef CAIRN_SELECT_CORE_CUH
#undef CAIRN_STEP_CUH
#undef CAIRN_ADAPTER_CUH
#undef CAIRN_FAMILIES_CUH
#undef CAIRN_STEP_ATTEND_CUH
#undef CAIRN_STEP_MERGE_CUH
#undef CAIRN_STEP_STAGES_CUH
#undef CAIRN_STEP_PAGES_CUH
#undef CAIRN_PROMPT_CUH
#undef CAIRN_PROMPT_APART_CUH
#undef CAIRN_PROMPT_FEW_CUH
#undef CAIRN_ATTENTION_PROMPT_CUH
#undef STAGE
