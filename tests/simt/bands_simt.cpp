/* The same that takes two bands of eight rows at a time. */
#define CAIRN_BANDS 2
#include "product_checks.h"
