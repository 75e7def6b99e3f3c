/* The product of packed weights with a few rows, in one band. */
#include "product_checks.h"
