/* survey: see survey.h. */

static cairn_status survey_go_on(base *b, model_survey *survey, cairn_status failed) {
    if (!survey || !failed || failed == CAIRN_OUT_OF_MEMORY) return failed;
    survey->told++;
    survey->tell(survey->teller, failed, b->error);
    return CAIRN_OK;
}
