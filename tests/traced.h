/* What tests/apart.sh compiles counts the calls of a trace (runtime/device/trace.c), for the test that
 * none are made while none is taken. */
#define CAIRN_TRACED 1
static int trace_calls;
#define TRACE_CALLED() (trace_calls++)
