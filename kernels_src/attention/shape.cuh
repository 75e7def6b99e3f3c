/* attention/shape.cuh: what all who touch keys and values need to know of a cache. */
#ifndef CAIRN_ATTENTION_SHAPE_CUH
#define CAIRN_ATTENTION_SHAPE_CUH

#include "device/common.cuh"
#include "attention/layout.h"

constexpr int HEAD_DIM = CAIRN_HEAD_DIM, PAGE = CAIRN_PAGE_SIZE; /* values of a head; tokens of a page */

#endif
