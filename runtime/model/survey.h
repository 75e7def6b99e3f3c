/* survey: what speaks against a file, told as it is met, where all of it is wanted at once. Without one
 * the first failure ends what reads the file. Calls base. */

typedef struct model_survey {
    void (*tell)(void *teller, cairn_status status, const char *why);
    void *teller;
    int told; /* so often */
} model_survey;

/* In a survey tells of the failure and returns OK: reading goes on where it can. Hands the status through
 * without one (NULL), and where memory is short. */
static cairn_status survey_go_on(base *b, model_survey *survey, cairn_status failed);
